"""Fixtures of the capability tests: use cases on each store, and trackers on them."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from crawlcw.tracking import Tracker
from tests.capabilities.commands import Commands
from tests.capabilities.journal import Journal
from tests.capabilities.use_cases import UseCases
from tests.support.ledgers import FakeClock, drop_database
from tests.support.mongod import with_database


@pytest.fixture(scope="session")
def seeds_url(mongodb_uri: str) -> Iterator[str]:
    """One database for all of these tests: one for each would take longer than most tests."""
    name = f"crawlcw_test_{os.getpid()}_seeds"
    yield with_database(mongodb_uri, name)
    drop_database(mongodb_uri, name)


@pytest.fixture(params=["sqlite", pytest.param("mongodb", marks=pytest.mark.thorough)])
async def use_cases(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[UseCases]:
    """Use cases of one test, on each store that processes can share in turn."""
    if request.param == "sqlite":
        opened = UseCases(f"sqlite:///{tmp_path}/ledger.db")
    else:
        opened = UseCases(request.getfixturevalue("seeds_url"))
    yield opened
    await opened.close()


@pytest.fixture
async def on_mongodb(seeds_url: str) -> AsyncIterator[UseCases]:
    """Use cases for features of MongoDB."""
    opened = UseCases(seeds_url)
    yield opened
    await opened.close()


@pytest.fixture
def clock(use_cases: UseCases) -> FakeClock:
    """The clock of all trackers."""
    return use_cases.clock


@pytest.fixture
async def tracker(use_cases: UseCases) -> Tracker:
    """Orders, on each store."""
    return await use_cases.open()


@pytest.fixture
async def other(use_cases: UseCases, tracker: Tracker) -> Tracker:
    """The same orders, in another process."""
    return await use_cases.open()


@pytest.fixture
def journal(use_cases: UseCases, tracker: Tracker) -> Iterator[Journal]:
    """Every write to the orders."""
    kept = Journal(use_cases, tracker.name)
    yield kept
    kept.close()


@pytest.fixture
def commands(use_cases: UseCases, tmp_path: Path) -> Commands:
    """`crawlcw work` and `crawlcw add`, on each store."""
    return Commands(use_cases, tmp_path)
