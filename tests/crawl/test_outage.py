"""Outages of MongoDB in the middle of a crawl: frozen, killed and restarted, or gone for good."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crawlcw.model.task import Status
from tests.support import docs
from tests.support.crawl_process import LEDGER_UNAVAILABLE, Process, Store, wait_until
from tests.support.docs import Site
from tests.support.mongod_server import Server, serving

pytestmark = pytest.mark.thorough

#: Long enough for operations to time out and be sent again, see `Server.uri`.
OUTAGE = 4.0
CONCURRENCY = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "mongod") as server:
        yield server


@pytest.fixture
def site() -> Iterator[Site]:
    with docs.served(docs.folder("postgresql"), latency=20) as site:
        yield site


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "crawl.log"


@contextmanager
def crawled(
    server: Server, site: Site, log: Path, *, ledger_give_up: str, pages: int
) -> Iterator[Process]:
    """Crawl, and enter the block when *pages* pages have been asked for."""
    with Process(
        Store(server.uri),
        [site.start],
        log,
        on_cue=False,
        concurrency=CONCURRENCY,
        ledger_give_up=ledger_give_up,
    ) as crawling:
        wait_until(lambda: site.hits().total() >= pages)
        yield crawling


def assert_nothing_was_lost_or_failed(server: Server) -> None:
    expected = docs.walked("postgresql")
    rows = Store(server.uri).rows()
    assert {row.path for row in rows if row.status == Status.FINISHED} == expected.found
    assert {row.path for row in rows if row.status == Status.IGNORED} == expected.refused
    assert {row.path: row.items for row in rows if row.items} == dict.fromkeys(expected.pages, 1)
    assert {(row.retry, row.lost, row.lock) for row in rows} == {(0, 0, None)}


def wait_out(seconds: float) -> None:
    """Let an outage last: its length is part of the test."""
    time.sleep(seconds)


@pytest.mark.parametrize("pages", [50, 500])
def test_a_crawl_waits_for_a_frozen_server_and_loses_nothing(
    pages: int, server: Server, site: Site, log: Path
):
    with crawled(server, site, log, ledger_give_up="60s", pages=pages) as crawling:
        server.freeze()
        wait_out(OUTAGE)
        server.thaw()
        report = crawling.drained(within=60)

    assert "the ledger does not answer; trying again" in crawling.log
    assert "the ledger answers again" in crawling.log
    assert_nothing_was_lost_or_failed(server)
    assert report["leases_lost"] == 0
    expected = docs.walked("postgresql")
    assert site.hits() == Counter(expected.found | expected.refused)


@pytest.mark.parametrize("end", [Server.kill, Server.freeze])
def test_a_crawl_whose_server_stays_away_ends_with_an_error_that_says_so(
    end, server: Server, site: Site, log: Path
):
    with crawled(server, site, log, ledger_give_up="2s", pages=200) as crawling:
        end(server)
        code, report = crawling.end(within=20)

    assert (code, report) == (LEDGER_UNAVAILABLE, {})
    assert "LedgerUnavailableError: the ledger has not answered for 2.0 s" in crawling.log
    assert "Traceback" not in crawling.log
