"""Workers that freeze, block, crash on a page, or take long, and the reaction of the others.

Kills and stops at random moments are in `test_random_signals`.
"""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crawlcw.model.task import Status
from tests.faults.conftest import LEAVES
from tests.faults.hard_pages import DeadlySpider
from tests.faults.scenario import (
    Crew,
    assert_as_without_faults,
    fetched_again,
    without,
    workers_of,
)
from tests.support import docs
from tests.support.crawl_process import Process, Row, Store, wait_until
from tests.support.docs import Site

pytestmark = pytest.mark.thorough

#: Pages without which the crawl still finds every other page.
DEADLY = ("/sql-select.html", "/sql-selectinto.html", "/app-psql.html")


def marked_by(marks: Path) -> list[int]:
    """Return the process of each line in the file of marks."""
    return [int(line) for line in marks.read_text().split()] if marks.exists() else []


def test_a_process_that_was_frozen_past_its_leases_records_nothing_twice(
    store: Store, expected_items: bytes, tmp_path: Path
):
    with (
        docs.served(docs.folder("postgresql"), latency=60) as site,
        Crew(store, site, tmp_path / "crew.log", concurrency=20, lease="2s") as crew,
    ):
        frozen, other = crew.spare(), crew.spare()
        crew.join(frozen, other)
        wait_until(lambda: site.hits().total() >= 100)

        held = crew.freeze_at_work(frozen)
        other.drained()
        finished_meanwhile = store.rows()
        still_frozen = frozen.is_running()
        frozen.send(signal.SIGCONT)
        report = frozen.drained()

        assert still_frozen
        assert_as_without_faults(store, expected_items)
        assert fetched_again(site) <= len(held)
    assert store.rows() == finished_meanwhile
    assert {row.fence > 1 for row in finished_meanwhile if row.path in held} == {True}
    assert {row.lost for row in finished_meanwhile} == {0}
    assert report["leases_lost"] > 0
    assert "Traceback" not in crew.log


@contextmanager
def crew_at_a_slow_site(store: Store, folder: Path, **settings: Any) -> Iterator[tuple[Crew, Site]]:
    with (
        docs.served(docs.folder("postgresql"), latency=20) as site,
        Crew(store, site, folder / "crew.log", concurrency=20, **settings) as crew,
    ):
        yield crew, site


@pytest.mark.parametrize("leases", [2, 5])
def test_a_process_that_stood_still_in_a_callback_goes_on_and_has_lost_nothing(
    leases: int, store: Store, expected_items: bytes, tmp_path: Path
):
    marks = tmp_path / "marks"
    blocking = {"pages": "/tutorial-sql.html", "seconds": 2 * leases, "marks": marks}
    with crew_at_a_slow_site(
        store, tmp_path, spider="blocking", arguments=blocking, lease="2s"
    ) as (crew, site):
        crew.join(crew.spare(), crew.spare())
        wait_until(lambda: marked_by(marks))
        (pid,) = marked_by(marks)
        blocked, other = sorted(crew.workers, key=lambda worker: worker.pid != pid)
        held = store.held_by(blocked.pid)
        others_report = other.drained()
        report = blocked.drained()

        assert_as_without_faults(store, expected_items)
        again = fetched_again(site)
        fetched = len(site.hits())
    rows = store.rows()
    assert again <= len(held)
    assert {row.lost for row in rows} == {0}
    # Each page counts for the process that recorded it.
    assert report["pages"] + others_report["pages"] == finished(rows)
    assert "Traceback" not in crew.log
    # Its watchdog has renewed its leases while its event loop was blocked.
    assert report["leases_lost"] == 0
    print(
        f"{len(held)} tasks of {fetched} were held, {again} fetched again; "
        f"the process went on to record {report['pages']} pages in all"
    )


def finished(rows: list[Row]) -> int:
    return sum(row.status == Status.FINISHED for row in rows)


@pytest.mark.parametrize(("pages", "processes"), [(DEADLY[:1], 1), (DEADLY, 2)])
def test_a_page_that_kills_its_process_is_ignored_and_all_others_are_recorded(
    pages: tuple[str, ...], processes: int, store: Store, expected_items: bytes, tmp_path: Path
):
    marks = tmp_path / "marks"
    with crew_at_a_slow_site(
        store,
        tmp_path,
        spider="deadly",
        arguments={"pages": ",".join(pages), "marks": marks},
        # Leases do not run out, and workers check for dead neighbours only at their start.
        lease="10m",
        max_lost=3,
    ) as (crew, site):
        for _ in range(processes):
            crew.start()
        # The second death quarantines the page.
        deaths = crawl_with_restarts(crew, most=5 * len(pages))

        assert_as_without_faults(store, without(expected_items, pages))
        again = fetched_again(site)
    rows = store.rows()
    ignored = {row.path: (row.reason, row.lost) for row in rows if row.status == Status.IGNORED}
    refused = docs.walked("postgresql").refused
    assert {path: ignored[path] for path in ignored.keys() - refused} == dict.fromkeys(
        pages, ("crashed-worker", 3)
    )
    assert {row.path for row in rows if row.lost} == set(pages), "no other page lost an attempt"
    assert again <= crew.held_at_faults
    assert len(marked_by(marks)) == deaths
    print(
        f"{deaths} deaths of {len(pages)} pages: {crew.held_at_faults} tasks were held at them, "
        f"{again} fetched again"
    )


def crawl_with_restarts(crew: Crew, *, most: int) -> int:
    """Replace each process that a page has killed; return their number."""
    deaths = 0
    while crew.workers:
        wait_until(lambda: any(not worker.is_running() for worker in crew.workers))
        gone = [worker for worker in crew.workers if not worker.is_running()]
        # Collect the ends before the first successor takes over their tasks.
        ends = [crew.ended(worker) for worker in gone]
        for code, report in ends:
            if code == 0:
                assert report["finish_reason"] == "drained"
                continue
            assert code == DeadlySpider.exit_code, crew.log
            deaths += 1
            assert deaths <= most
            crew.start()
    return deaths


@pytest.mark.representative("sqlite")
def test_a_newly_started_process_takes_over_at_once_what_a_dead_one_held(
    store: Store, star: Path, expected_items_star: bytes, tmp_path: Path
):
    with (
        docs.served(star, stall_after=2) as site,
        Crew(store, site, tmp_path / "crew.log", lease="180s") as crew,
    ):
        successor = crew.spare()
        killed = killed_at_work(crew, crew.start())
        crew.join(successor)
        took = killed.until_it_ran_again()
        crew.drained()

        assert_as_without_faults(store, expected_items_star)
        assert fetched_again(site) <= crew.held_at_faults
    print(f"{len(killed.held)} tasks ran again after {took:.2f} s, with leases of 180 s")
    # Its start and first look take far less than a lease, or than another worker's next look.
    assert took < 45


def test_a_neighbour_takes_over_what_a_dead_process_held_at_its_next_look(
    store: Store, star: Path, expected_items_star: bytes, tmp_path: Path
):
    lease = 36.0
    with (
        docs.served(star, stall_after=2) as site,
        Crew(store, site, tmp_path / "crew.log", lease=f"{lease:g}s") as crew,
    ):
        killed = killed_beside_another(crew, crew.start())
        took = killed.until_it_ran_again()
        crew.drained()

        assert_as_without_faults(store, expected_items_star)
        assert fetched_again(site) <= crew.held_at_faults
    print(f"{len(killed.held)} tasks ran again after {took:.2f} s, with leases of {lease:g} s")
    # It looks for dead workers every third of a lease, and while idle, at the ledger at least
    # once a second. Without that, leases end after two thirds of their time or later.
    assert took < lease / 3 + 10


# A new host with a limit gets one request at a time.
@pytest.mark.parametrize(
    ("per_host", "begun"), [(0, LEAVES), (8, 1)], ids=["shared host", "owned host"]
)
def test_what_a_process_on_another_machine_held_runs_again_within_one_and_a_half_leases(
    per_host: int, begun: int, store: Store, star: Path, expected_items_star: bytes, tmp_path: Path
):
    lease = 12.0
    with (
        docs.served(star, stall_after=2) as site,
        Crew(
            store,
            site,
            tmp_path / "crew.log",
            lease=f"{lease:g}s",
            per_host_concurrency=per_host,
        ) as crew,
    ):
        killed = killed_beside_another(crew, crew.start(machine="elsewhere.example"), begun=begun)
        took = killed.until_it_ran_again()
        crew.drained()

        assert_as_without_faults(store, expected_items_star)
        assert fetched_again(site) <= crew.held_at_faults
    print(f"{len(killed.held)} tasks ran again after {took:.2f} s, with leases of {lease:g} s")
    # Leases are renewed every third, so at least two thirds were left; the death of a worker
    # on another machine cannot be detected earlier.
    assert lease * 2 / 3 - 0.5 < took <= 1.5 * lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A process that was killed while its requests waited for answers."""

    site: Site
    held: frozenset[str]  #: the paths of its tasks
    hits: Counter[str]  #: requests until then
    at: float

    def until_it_ran_again(self) -> float:
        """Wait until each of its tasks is requested again; return the seconds since the kill."""
        wait_until(lambda: self.held <= (self.site.hits() - self.hits).keys())
        return time.monotonic() - self.at


def killed_at_work(crew: Crew, victim: Process, *, begun: int = LEAVES) -> Killed:
    """Kill a process with *begun* requests under way, and let the site answer from then on."""
    wait_until(lambda: crew.site.hits().total() > begun)
    held = frozenset(row.path for row in crew.store.held_by(victim.pid))
    assert len(held) >= begun
    crew.kill(victim)
    at = time.monotonic()
    hits = crew.site.hits()
    crew.site.heal()
    return Killed(site=crew.site, held=held, hits=hits, at=at)


def killed_beside_another(crew: Crew, victim: Process, *, begun: int = LEAVES) -> Killed:
    """The same after a second process has joined, which has no tasks."""
    wait_until(lambda: crew.site.hits().total() > begun)
    crew.start()
    wait_until(lambda: len(workers_of(crew.store.url)) == 2)
    return killed_at_work(crew, victim, begun=begun)
