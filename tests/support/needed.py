"""Programs, modules and files of single tests, which a new machine may lack.

Without one, the test is skipped, with a reason that names the package. With
`CRAWLCW_TEST_REQUIRE_ALL=1`, for a machine that has all of them, it fails instead.
"""

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import NoReturn

VARIABLE = "CRAWLCW_TEST_REQUIRE_ALL"
#: Debian's packages of programs with another name than their package.
_PACKAGES = {"promtool": "prometheus", "systemd-analyze": "systemd"}
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def program(name: str) -> str:
    """Return the path of a program."""
    package = _PACKAGES.get(name, name)
    return shutil.which(name) or lack(f"{name} is missing: apt-get install {package}")


def module(name: str, *, extra: str) -> ModuleType:
    """Return a module that the extra *extra* of crawlcw installs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        lack(f"{name} is missing: pip install -e '.[{extra}]'")


def chromium() -> str:
    """Return the path of the system's browser, if Playwright is installed."""
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
    # Imported here: processes of crawls import this module too, and pytest takes 0.1 s.
    import pytest

    if os.environ.get(VARIABLE) == "1":
        pytest.fail(f"{message} ({VARIABLE} is set)", pytrace=False)
    pytest.skip(message, allow_module_level=True)
