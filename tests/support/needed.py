"""Programs, modules and files for single tests that a newcomer's machine may lack.

A test that lacks one is skipped, with a reason that says how to get it. It fails instead
on a machine that has all of them, as `CRAWLCW_TEST_REQUIRE_ALL=1` says: there a skipped
test proves nothing.
"""

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import NoReturn

VARIABLE = "CRAWLCW_TEST_REQUIRE_ALL"
#: Debian's packages of the programs whose names are not their packages' own.
_PACKAGES = {"promtool": "prometheus", "systemd-analyze": "systemd"}
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def program(name: str) -> str:
    """Return the path of a program."""
    package = _PACKAGES.get(name, name)
    return shutil.which(name) or lack(f"{name} is missing: apt-get install {package}")


def module(name: str, *, extra: str) -> ModuleType:
    """Return a module that the extra *extra* of crawlcw brings."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        lack(f"{name} is missing: pip install -e '.[{extra}]'")


def chromium() -> str:
    """Return the path of the system's browser, where there is Playwright to speak to it."""
    module("playwright", extra="browser")
    found = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    return found or lack("Chromium is missing: apt-get install chromium")


def file(pattern: str, *, package: str) -> Path:
    """Return the first file that matches the absolute *pattern*; *package* is Debian's."""
    root = Path("/")
    found = next(root.glob(pattern.removeprefix("/")), None)
    return found or lack(f"{pattern} is missing: apt-get install {package}")


def lack(message: str) -> NoReturn:
    """Skip the test, or the file that is being imported, with *message* as the reason."""
    # Crawls import some of the modules that import this one, and pytest takes 0.1 s of each.
    import pytest

    if os.environ.get(VARIABLE) == "1":
        pytest.fail(f"{message} ({VARIABLE} is set)", pytrace=False)
    pytest.skip(message, allow_module_level=True)
