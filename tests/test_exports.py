"""Exported names of every package exist."""

import importlib
import pkgutil

import pytest

import crawlcw

PACKAGES = [
    "crawlcw",
    *(each.name for each in pkgutil.walk_packages(crawlcw.__path__, "crawlcw.") if each.ispkg),
    "crawlcw.errors",
    "crawlcw.testing",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_that_is_exported_exists(package):
    module = importlib.import_module(package)

    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]

    assert missing == []
