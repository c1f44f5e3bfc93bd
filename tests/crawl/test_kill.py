"""Processes that are killed, stopped and frozen in the middle of a crawl.

Each crawl is a process of its own on a real site. The store's own client reads
the result. All tests run on MongoDB and on SQLite.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crawlcw.model.task import Status
from tests.support import docs
from tests.support.crawl_process import (
    STOPPED_AT_ONCE,
    Process,
    Row,
    Store,
    begin_together,
    wait_until,
)
from tests.support.docs import Site

pytestmark = pytest.mark.thorough

#: Enough for a crawl that waits for no other process; other workers look after 200 s.
WELL_BELOW_A_LEASE = 150.0

Start = Callable[..., Process]


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url)


@pytest.fixture
def start(processes: ExitStack, store: Store, tmp_path: Path) -> Start:
    """Start a crawl of a site into the store."""

    def start(site: Site, *, on_cue: bool = False, **settings: Any) -> Process:
        log = tmp_path / "crawls.log"
        # A crawl that waits for a lease to end, or for the next look at other workers a
        # third of a lease later, exceeds the limit: no crawl here takes that long.
        chosen = {"concurrency": 40, "lease": "10m"} | settings
        return processes.enter_context(Process(store, [site.start], log, on_cue=on_cue, **chosen))

    return start


def asked(site: Site, *, for_pages: int) -> Callable[[], bool]:
    return lambda: site.hits().total() >= for_pages


def assert_complete(store: Store) -> None:
    """Check that the store has each page of the site with one item, and no lease."""
    expected = docs.walked("postgresql")
    rows = store.rows()
    assert Counter(row.path for row in rows if row.status == Status.FINISHED) == Counter(
        expected.found
    )
    assert {row.path for row in rows if row.status == Status.IGNORED} == expected.refused
    assert {row.path: row.items for row in rows if row.items} == dict.fromkeys(expected.pages, 1)
    assert_nothing_held(rows)
    # The death of a process costs its pages no attempt.
    assert {row.retry for row in rows if row.status == Status.FINISHED} == {0}


def assert_nothing_held(rows: list[Row]) -> None:
    assert [row for row in rows if row.status == Status.PROCESSING or row.lock is not None] == []


def assert_locks_are_where_work_is(rows: list[Row]) -> None:
    assert all((row.status == Status.PROCESSING) == (row.lock is not None) for row in rows)


def pages_asked_for_again(site: Site) -> set[str]:
    return {path for path, times in site.hits().items() if times > 1}


@pytest.mark.parametrize("pages", [10, 200, 600])
def test_a_crawl_that_is_killed_goes_on_at_once_with_the_same_command(
    pages: int, serve: Callable[..., Site], start: Start, store: Store
):
    site = serve(latency=20)
    killed = start(site)
    wait_until(asked(site, for_pages=pages))
    killed.kill()
    left = store.rows()
    held = {row.path for row in left if row.lock is not None}
    before = site.hits()

    began = time.monotonic()
    again = start(site)
    wait_until(lambda: any((site.hits() - before)[path] for path in held))
    waited = time.monotonic() - began
    again.drained(within=WELL_BELOW_A_LEASE)

    assert_locks_are_where_work_is(left)
    assert_complete(store)
    # Only pages that the dead process had under way are requested again.
    repeated = pages_asked_for_again(site)
    assert repeated <= held
    print(f"its tasks ran again after {waited:.2f} s; {len(repeated)} of them were fetched twice")
    assert {row.lost for row in store.rows()} == {0}, "one kill does not count against a page"


def test_a_crawl_that_is_killed_again_and_again_completes(
    serve: Callable[..., Site], start: Start, store: Store
):
    site = serve(latency=20)

    for pages in (30, 150, 300, 500, 700, 900):
        killed = start(site)
        wait_until(asked(site, for_pages=pages))
        killed.kill()
        assert_locks_are_where_work_is(store.rows())
    start(site).drained(within=WELL_BELOW_A_LEASE)

    assert_complete(store)


@pytest.mark.parametrize("number", [2, 4])
def test_processes_on_one_ledger_share_the_work_and_record_each_page_once(
    number: int, serve: Callable[..., Site], start: Start, store: Store
):
    expected = docs.walked("postgresql")
    site = serve(latency=100)

    crawls = [start(site, on_cue=True, concurrency=20) for _ in range(number)]
    begin_together(crawls)
    reports = [crawl.drained() for crawl in crawls]

    assert_complete(store)
    assert sum(report["pages"] for report in reports) == len(expected.found)
    assert all(report["pages"] > 0.2 * len(expected.found) / number for report in reports)
    assert site.hits() == Counter(expected.found | expected.refused)
    assert [report["leases_lost"] for report in reports] == [0] * number


def test_when_one_of_two_processes_is_killed_the_other_completes_the_crawl(
    serve: Callable[..., Site], start: Start, store: Store
):
    # Slow enough to see both at work, also on a busy machine.
    site = serve(latency=100)
    # A process looks for dead neighbours every third of a lease.
    crawls = [start(site, on_cue=True, concurrency=10, lease="60s") for _ in range(2)]
    begin_together(crawls)
    wait_until(asked(site, for_pages=100))
    wait_until(lambda: all(store.held_by(crawl.pid) for crawl in crawls))
    # Tasks of the killed process are due last: few others may be left before them.
    wait_until(asked(site, for_pages=900))
    killed, other = crawls

    killed.kill()
    began = time.monotonic()
    held = {row.path for row in store.held_by(killed.pid)}
    wait_until(lambda: not store.held_by(killed.pid))
    taken_over = time.monotonic() - began
    report = other.drained()

    assert held
    assert_complete(store)
    # Without a look at dead workers, leases end after two thirds of their time or later.
    assert taken_over < 40.0
    assert pages_asked_for_again(site) <= held
    assert report["leases_lost"] == 0
    print(f"its tasks ran again after {taken_over:.2f} s")


def test_sigterm_lets_what_is_under_way_finish_and_gives_back_the_rest(
    serve: Callable[..., Site], start: Start, store: Store
):
    expected = docs.walked("postgresql")
    site = serve(latency=200)
    stopped = start(site, grace="20s")
    wait_until(asked(site, for_pages=200))

    stopped.send(signal.SIGTERM)
    code, report = stopped.end(within=10)
    rows = store.rows()
    hits = site.hits()

    assert (code, report["finish_reason"], report["processing"]) == (0, "stopped", 0)
    assert_nothing_held(rows)
    assert {(row.retry, row.lost) for row in rows} == {(0, 0)}
    assert any(row.status == Status.TODO for row in rows)
    assert {row.path for row in rows if row.status == Status.FINISHED} == hits.keys()

    site.heal()
    start(site).drained(within=WELL_BELOW_A_LEASE)

    assert_complete(store)
    # Pages that were finished within the grace period were not requested again.
    assert site.hits() == Counter(expected.found | expected.refused)


def assert_the_next_crawl_completes(store: Store, site: Site, start: Start) -> None:
    """Assert that everything was given back without a trace, and crawl the rest."""
    assert_nothing_held(store.rows())
    assert {(row.retry, row.lost) for row in store.rows()} == {(0, 0)}

    site.heal()
    start(site).drained(within=WELL_BELOW_A_LEASE)

    assert_complete(store)


def test_sigterm_waits_no_longer_than_the_grace_for_a_server_that_hangs(
    serve: Callable[..., Site], start: Start, store: Store
):
    site = serve(stall_after=200)
    stopped = start(site, grace="2s")
    wait_until(asked(site, for_pages=220))

    began = time.monotonic()
    stopped.send(signal.SIGTERM)
    code, report = stopped.end(within=8)
    took = time.monotonic() - began

    assert (code, report["finish_reason"]) == (0, "stopped")
    assert took >= 2
    assert report["released"] > 0
    assert_the_next_crawl_completes(store, site, start)


def test_sigint_twice_ends_at_once_and_loses_nothing(
    serve: Callable[..., Site], start: Start, store: Store
):
    site = serve(stall_after=200)
    stopped = start(site, grace="60s")
    wait_until(asked(site, for_pages=220))

    stopped.send(signal.SIGINT)
    wait_until(lambda: "a second signal stops at once" in stopped.log)
    assert stopped.is_running()
    stopped.send(signal.SIGINT)
    code, report = stopped.end(within=5)

    assert code == STOPPED_AT_ONCE
    assert report["finish_reason"] == "stopped-at-once"
    assert report["released"] > 0
    assert_the_next_crawl_completes(store, site, start)
