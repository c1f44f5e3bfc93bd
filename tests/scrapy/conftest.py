"""Skip the tests of this folder if Scrapy is not installed."""

from tests.support import needed


def pytest_collect_file() -> None:
    # In a hook, because pytest lets no conftest.py skip while it is imported.
    needed.module("scrapy", extra="scrapy")
