"""Whole crawls by processes with clocks that are wrong, run too fast or too slowly, or jump.

libfaketime replaces a process's time of day. There are two ways to treat the
monotonic clock:

- `wrong`: the time of day is wrong and the monotonic clock is right, as on most
  machines with a wrong clock. Python's `time.sleep` fails under it, and Motor's
  threads use that, so these processes use PyMongo's asyncio client.
- `drifting`: both run too fast or too slowly. libfaketime makes both show the same
  time, but waits for locks and semaphores fail with a monotonic time of decades. So
  these processes take the machine's uptime for the time since 1970.
"""

import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.scenario import Crew, assert_as_without_faults, fetched_again
from tests.support import docs, needed
from tests.support.crawl_process import Store, wait_until
from tests.support.docs import Site
from tests.support.mongod import with_database

pytestmark = pytest.mark.thorough

LEASE = 3.0
#: Latency in ms: longer than the third of a lease after which it is renewed.
LONG = 1200


@pytest.fixture(scope="module")
def libfaketime() -> Path:
    # `$LIB` instead of `*` would be understood by the loader only.
    return needed.file("/usr/lib/*/faketime/libfaketime.so.1", package="faketime")


class Clocks:
    """Environments for processes with clocks of their own."""

    def __init__(self, library: Path) -> None:
        self._library = library

    def wrong(self, by: str) -> dict[str, str]:
        """Return a time of day that is wrong by *by* ("+1h"), with a right monotonic clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME": by,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def drifting(self, rate: float) -> dict[str, str]:
        """Return clocks that run at *rate* times the real speed and begin in 1970."""
        uptime = datetime.fromtimestamp(time.monotonic(), UTC)
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME": f"@{uptime:%Y-%m-%d %H:%M:%S} x{rate}",
            "TZ": "UTC",
        }

    def jumping(self, by: Path) -> dict[str, str]:
        """Return a time of day with its error in a file, which is read every second."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(by),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@pytest.fixture
def clocks(libfaketime: Path) -> Clocks:
    return Clocks(libfaketime)


@pytest.fixture
def mongodb_store(mongodb_uri: str, database_name: str) -> Store:
    return Store(with_database(mongodb_uri, database_name))


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def site() -> Iterator[Site]:
    with docs.served(docs.folder("postgresql"), latency=LONG) as site:
        yield site


def crew(store: Store, site: Site, folder: Path, *, lease: float = LEASE) -> Crew:
    return Crew(store, site, folder / "crawls.log", lease=f"{lease}s", concurrency=70)


def asked(site: Site, *, for_pages: int) -> None:
    wait_until(lambda: site.hits().total() >= for_pages)


def assert_nothing_was_taken_over(store: Store, site: Site) -> None:
    assert {row.lost for row in store.rows()} == {0}
    assert fetched_again(site) == 0


# --- on MongoDB: all processes use the server's time


@pytest.mark.parametrize("case", ["wrong", "drifting"])
def test_processes_whose_clocks_disagree_take_nothing_from_each_other(
    case: str,
    clocks: Clocks,
    mongodb_store: Store,
    site: Site,
    expected_items: bytes,
    tmp_path: Path,
):
    made = {
        "wrong": [clocks.wrong("+1h"), clocks.wrong("-1h")],
        "drifting": [clocks.drifting(1.1), clocks.drifting(0.9)],
    }
    with crew(mongodb_store, site, tmp_path) as workers:
        workers.join(*(workers.spare(environment=environment) for environment in [*made[case], {}]))
        reports = workers.drained()

    assert [report["leases_lost"] for report in reports] == [0, 0, 0]
    assert all(report["pages"] > 100 for report in reports)
    assert_nothing_was_taken_over(mongodb_store, site)
    assert_as_without_faults(mongodb_store, expected_items)
    assert "Traceback" not in workers.log


def test_when_processes_with_wrong_clocks_die_their_tasks_run_again_in_time(
    clocks: Clocks, mongodb_store: Store, site: Site, expected_items: bytes, tmp_path: Path
):
    with crew(mongodb_store, site, tmp_path) as workers:
        # On another machine: on the same one, dead workers are detected without their leases.
        wrong = {
            by: workers.start(
                environment=clocks.wrong(by),
                machine=f"far{by}",
                mongo_driver="pymongo",
                concurrency=20,
            )
            for by in ("+1h", "-1h")
        }
        right = workers.start()
        asked(site, for_pages=500)
        wait_until(lambda: all(mongodb_store.held_by(worker.pid) for worker in wrong.values()))
        killed_at = {}
        for by, worker in wrong.items():
            assert workers.kill(worker)
            killed_at[by] = time.monotonic()
        held = {by: len(mongodb_store.held_by(worker.pid)) for by, worker in wrong.items()}
        # Released tasks are due last, and each runs alone. With a quick site, they wait for
        # their leases only.
        site.heal()
        taken_over = {}
        for by, worker in wrong.items():
            wait_until(
                lambda by=by, worker=worker: len(mongodb_store.held_by(worker.pid)) < held[by]
            )
            taken_over[by] = time.monotonic() - killed_at[by]
        report = right.drained()

    print(f"{workers.held_at_faults} tasks were claimed again after {taken_over} s")
    # If the wrong clocks mattered, it would be zero or an hour. Another test shows that the
    # wait ends with the leases: here, the pages under way end before.
    assert max(taken_over.values()) <= 5 * LEASE
    assert min(taken_over.values()) >= LEASE / 3
    assert report["leases_lost"] == 0
    assert fetched_again(site) <= workers.held_at_faults
    assert_as_without_faults(mongodb_store, expected_items)


# --- on SQLite: all processes use the machine's time


def test_a_machine_whose_clock_jumps_in_the_middle_of_a_crawl_loses_nothing(
    clocks: Clocks, sqlite_store: Store, site: Site, expected_items: bytes, tmp_path: Path
):
    clock = tmp_path / "clock"
    clock.write_text("+0")
    # Short beside an hour, but long enough that no lease ends while a process waits for the file.
    with crew(sqlite_store, site, tmp_path, lease=10 * LEASE) as workers:
        workers.start(environment=clocks.jumping(clock))
        # Two processes that create a file together may have to sleep, which fails here.
        asked(site, for_pages=1)
        workers.start(environment=clocks.jumping(clock))
        for pages, by in ((150, "+1h"), (500, "-1h"), (800, "+0")):
            asked(site, for_pages=pages)
            clock.write_text(by)
        site.heal()
        reports = workers.drained()

    assert [report["leases_lost"] for report in reports] == [0, 0]
    assert_nothing_was_taken_over(sqlite_store, site)
    assert_as_without_faults(sqlite_store, expected_items)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_after_a_jump_back_the_next_process_goes_on_at_once(
    end: str, clocks: Clocks, sqlite_store: Store, site: Site, expected_items: bytes, tmp_path: Path
):
    with crew(sqlite_store, site, tmp_path) as workers:
        before = workers.start(environment=clocks.wrong("+1h"))
        asked(site, for_pages=100)
        if end == "killed":
            workers.kill(before)
        else:
            before.send(signal.SIGTERM)
            before.end()
            workers.workers.remove(before)
        site.heal()
        # Its clock will reach the time of the first process only in an hour.
        workers.start()
        workers.drained()

    assert fetched_again(site) <= workers.held_at_faults
    assert_as_without_faults(sqlite_store, expected_items)
