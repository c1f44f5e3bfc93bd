"""Fixtures of the tests with faults: a world for each driver, and short waits."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import scenario
from tests.faults.world import MongoWorld, World, quick
from tests.support import docs
from tests.support.crawl_process import Store
from tests.support.mongod import with_database
from tests.support.mongod_server import Server, serving

#: Pages that the star links to: one process holds all of them.
LEAVES = 40


@pytest.fixture(scope="module")
def short_waits() -> Iterator[None]:
    """Short waits, for the modules that use this fixture."""
    with quick():
        yield


@pytest.fixture(scope="module", params=["pymongo", "postgres"])
def world(request: pytest.FixtureRequest, short_waits: None) -> Iterator[World]:
    """A world behind each driver in turn, in a database of this module's own."""
    with on_driver(request, request.param).opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def one_world(request: pytest.FixtureRequest, short_waits: None) -> Iterator[World]:
    """A world for tests that need MongoDB."""
    with on_driver(request, "pymongo").opened() as opened:
        yield opened


@pytest.fixture
def store(ledger_url: str) -> Store:
    """A new ledger for crawls in processes of their own, on each store."""
    return Store(ledger_url)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A MongoDB of the test's own, to be killed and frozen."""
    with serving(tmp_path / "mongod") as server:
        yield server


@pytest.fixture(scope="module")
def postgres_world(request: pytest.FixtureRequest, short_waits: None) -> Iterator[World]:
    """A world on PostgreSQL."""
    with on_driver(request, "postgres").opened() as opened:
        yield opened


@pytest.fixture(params=["one_world", "postgres_world"], ids=["mongodb", "postgres"])
def either_world(request: pytest.FixtureRequest) -> World:
    """A world on each server in turn, for tests that do not depend on the driver."""
    opened: World = request.getfixturevalue(request.param)
    return opened


def on_driver(request: pytest.FixtureRequest, driver: str) -> World:
    module = request.module.__name__.rpartition(".")[2]
    name = f"crawlcw_test_{os.getpid()}_{module}_{request.fixturename}_{driver}"
    if driver == "postgres":
        make = request.getfixturevalue("postgres_databases")
        # Only tests of this store need its driver.
        from tests.faults.postgres_world import PostgresWorld

        return PostgresWorld(make(name), driver)
    return MongoWorld(with_database(request.getfixturevalue("mongodb_uri"), name), driver)


@pytest.fixture(scope="session")
def soaking(request: pytest.FixtureRequest) -> bool:
    """Whether to run the long variant of a test."""
    return bool(request.config.getoption("--soak"))


@pytest.fixture(scope="session")
def expected_items(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The items of PostgreSQL's manual, as a crawl without faults records them."""
    with docs.served(docs.folder("postgresql")) as site:
        return scenario.crawled_without_faults(site, tmp_path_factory.mktemp("expected_items"))


@pytest.fixture(scope="session")
def expected_items_twice(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The same for two copies of the manual: a crawl of 2,339 pages."""
    with docs.served(docs.folder("postgresql"), copies=2) as site:
        return scenario.crawled_without_faults(
            site, tmp_path_factory.mktemp("expected_items_twice")
        )


@pytest.fixture(scope="session")
def star(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site of one page that links to all others, which have no links."""
    return docs.star(tmp_path_factory.mktemp("star"), leaves=LEAVES)


@pytest.fixture(scope="session")
def expected_items_star(star: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The items of the star, as a crawl without faults records them."""
    with docs.served(star) as site:
        return scenario.crawled_without_faults(site, tmp_path_factory.mktemp("expected_items_star"))
