"""What the tests with faults share: a world for each driver, and short waits."""

import os
from collections.abc import Iterator

import pytest

from tests import docs
from tests.faults import scenario
from tests.faults.world import World, quick


@pytest.fixture(scope="module")
def short_waits() -> Iterator[None]:
    """Of the modules that ask for it, and of no other."""
    with quick():
        yield


@pytest.fixture(scope="module", params=["motor", "pymongo"])
def world(request: pytest.FixtureRequest, mongodb_uri: str, short_waits: None) -> Iterator[World]:
    """A world behind each driver in turn, in a database of this module's own."""
    module = request.module.__name__.rpartition(".")[2]
    name = f"crawlcw_test_{os.getpid()}_{module}_{request.param}"
    with World(mongodb_uri, name, request.param).opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def one_world(mongodb_uri: str, short_waits: None) -> Iterator[World]:
    """A world for what does not depend on the driver."""
    name = f"crawlcw_test_{os.getpid()}_one_world"
    with World(mongodb_uri, name, "motor").opened() as opened:
        yield opened


@pytest.fixture(scope="session")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The items of PostgreSQL's manual as a crawl to which nothing happens records them."""
    with docs.served(docs.folder("postgresql")) as site:
        return scenario.crawled_without_faults(site, tmp_path_factory.mktemp("faultless"))
