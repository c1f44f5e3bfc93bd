"""A database that is killed, frozen, voted out and cut off under a crawl by several processes.

Each scenario has the results of a crawl without faults, and no page counts a failure
or a crash: an outage of the database is no fault of a page or a worker. The last test
shows the purpose of the write concern.
"""

import asyncio
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import WriteConcern

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo import store as mongo_store
from crawlcw.model.task import Status
from tests.faults.replica_set import SETTINGS, ReplicaSet, replica_set
from tests.faults.scenario import Crew, assert_as_without_faults, fetched_again
from tests.support import docs
from tests.support.crawl_process import LEDGER_UNAVAILABLE, Store, wait_until
from tests.support.docs import DocsSpider, Site
from tests.support.ledgers import make_tasks, success
from tests.support.mongod_server import Server
from tests.support.programs import Program, environment

pytestmark = pytest.mark.thorough

#: Fetchers of each worker; with the latency of the site, about 100 pages a second.
CONCURRENCY = 10
LATENCY = 100
#: Limit of a process's tasks: under way, claimed ahead, waiting to be written, and three
#: groups of those being written.
HELD = (1 + 2 + 2 + 3 * 2) * CONCURRENCY


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with replica_set(tmp_path_factory.mktemp("members")) as members:
        yield members


@pytest.fixture
def store(members: ReplicaSet, request: pytest.FixtureRequest) -> Store:
    """A new database on the whole replica set."""
    members.mend()
    name = "".join(each for each in request.node.name if each.isalnum())
    return Store(members.uri(name[-50:]))


@pytest.fixture
def site() -> Iterator[Site]:
    with docs.served(docs.folder("postgresql"), latency=LATENCY) as site:
        yield site


@contextmanager
def crew(store: Store, site: Site, log: Path, *, number: int, **settings: Any) -> Iterator[Crew]:
    chosen = {"concurrency": CONCURRENCY, "ledger_give_up": "60s"} | settings
    with Crew(store, site, log / "crawl.log", **chosen) as crew:
        for _ in range(number):
            crew.start()
        # All workers must be at work before the fault.
        wait_until(lambda: site.hits().total() >= 50)
        wait_until(lambda: all(store.held_by(worker.pid) for worker in crew.workers))
        yield crew


class Pulse:
    """The times of requests to the site, sampled ten times a second."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._beats: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._feel, name="pulse")

    def __enter__(self) -> "Pulse":
        self._beats = [time.monotonic()]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _feel(self) -> None:
        before = 0
        while not self._ended.wait(0.1):
            total = self._site.hits().total()
            if total != before:
                self._beats.append(time.monotonic())
            before = total

    @property
    def longest_pause(self) -> float:
        """Return the longest time without requests, in seconds."""
        beats = self._beats
        return max(later - earlier for earlier, later in pairwise(beats))


def asked_for_more(site: Site, pages: int) -> None:
    """Wait until the crawl has requested *pages* more pages."""
    before = site.hits().total()
    wait_until(lambda: site.hits().total() >= before + pages)


def wait_out(seconds: float) -> None:
    """Let an outage last: its duration is part of the test."""
    time.sleep(seconds)


def assert_nothing_happened(store: Store, expected_items: bytes) -> None:
    """Assert the results of a crawl without faults, and no failed attempt or crashed worker."""
    # The check needs no short timeout.
    store = replace(store, url=store.url.replace("timeoutMS=1000", "timeoutMS=20000"))
    assert_as_without_faults(store, expected_items)
    rows = store.rows()
    assert {(row.retry, row.lost, row.lock) for row in rows} == {(0, 0, None)}
    # Only pages that the site does not have fail.
    refused = {row.path for row in rows if row.status != Status.FINISHED}
    assert refused == docs.walked("postgresql").refused


# --- one server


def test_a_server_that_is_killed_again_and_again_loses_nothing(
    server: Server, site: Site, tmp_path: Path, expected_items: bytes
):
    chance = random.Random(1)
    store = Store(server.uri)
    kills = 5
    with crew(store, site, tmp_path, number=2) as crawl:
        for _ in range(kills):
            asked_for_more(site, chance.randint(20, 150))
            server.kill()
            wait_out(chance.uniform(0.0, 1.0))
            server.start()
        reports = crawl.drained()

    repeated = fetched_again(site)
    print(f"{kills} kills: {repeated} pages fetched again")
    assert_nothing_happened(store, expected_items)
    # Claims are not journaled: if the server loses one, its page is fetched again.
    assert repeated <= kills * len(reports) * HELD


@pytest.mark.parametrize("end", ["kill", "freeze"])
def test_an_outage_of_three_leases_costs_nobody_a_lease(
    end: str, server: Server, site: Site, tmp_path: Path, expected_items: bytes
):
    """One of the workers notices late that the server is back."""
    store = Store(server.uri)
    with crew(store, site, tmp_path, number=3, lease="2s") as crawl:
        getattr(server, end)()
        wait_out(6.5)
        crawl.workers[0].send(signal.SIGSTOP)
        server.thaw() if end == "freeze" else server.start()
        began = time.monotonic()
        asked_for_more(site, 1)
        stood_still = time.monotonic() - began
        # The other workers may wait up to 5 s before they try again.
        wait_out(3.0)
        assert store.held_by(crawl.workers[0].pid)
        crawl.workers[0].send(signal.SIGCONT)
        reports = crawl.drained()

    print(f"{end}: asked for pages again {stood_still:.1f} s after the server was back")
    assert crawl.log.count("the ledger answers again") >= 3
    assert_nothing_happened(store, expected_items)
    # A frozen server loses nothing; a killed one may lose claims that were not journaled.
    assert fetched_again(site) <= (len(reports) * HELD if end == "kill" else 0)


def test_a_server_that_is_frozen_for_twenty_seconds_costs_nothing_but_time(
    server: Server, site: Site, tmp_path: Path, expected_items: bytes
):
    """With the default time limits; the freeze is longer than the limit of an operation."""
    store = Store(server.patient_uri)
    with crew(store, site, tmp_path, number=2) as crawl:
        server.freeze()
        wait_out(20.0)
        server.thaw()
        began = time.monotonic()
        asked_for_more(site, 1)
        print(f"asked for pages again {time.monotonic() - began:.1f} s after the server was back")
        reports = crawl.drained()

    assert "the ledger does not answer; trying again" in crawl.log
    assert_nothing_happened(store, expected_items)
    assert fetched_again(site) == 0
    assert [report["leases_lost"] for report in reports] == [0, 0]


def test_a_supervisor_and_its_workers_give_up_a_server_that_stays_away(
    server: Server, site: Site, tmp_path: Path
):
    spider = "from tests.support.docs import DocsSpider\n\n\nclass Docs(DocsSpider):\n"
    (tmp_path / "docs.py").write_text(f'{spider}    start_urls = ["{site.start}"]\n')
    store = Store(server.uri, DocsSpider.name)
    command = [sys.executable, "-m", "crawlcw", "run", "docs.py", "--processes", "2"]
    command += ["--ledger", server.uri, "-s", "ledger_give_up=2s", "-s", "concurrency=10"]
    log = tmp_path / "crawl.log"
    with Program(command, log, folder=tmp_path, environment=environment()) as crawl:
        wait_until(lambda: site.hits().total() >= 50)
        wait_until(lambda: len({str(row.lock).split(":")[0] for row in store.held_by()}) == 2)
        server.kill()
        output, _ = crawl.process.communicate(timeout=20)

    assert crawl.process.returncode == LEDGER_UNAVAILABLE
    told = [line for line in crawl.log.splitlines() if line.startswith("crawlcw: ")]
    assert len(told) == 2, "one message from each worker"
    assert all("the ledger has not answered for 2.0 s" in line for line in told), told
    assert "Traceback" not in output + crawl.log


# --- three servers


@contextmanager
def crawled(
    store: Store, site: Site, log: Path, expected_items: bytes, what: str, *, number: int = 3
) -> Iterator[Crew]:
    """Crawl with the faults of the block, and assert the results of a crawl without faults."""
    with crew(store, site, log, number=number) as crawl, Pulse(site) as pulse:
        asked_for_more(site, 50)
        yield crawl
        crawl.drained()
    repeated = fetched_again(site)
    print(f"{what}: stood still for {pulse.longest_pause:.1f} s, {repeated} pages fetched again")
    assert_nothing_happened(store, expected_items)
    # Only claims of the last moments were not replicated.
    assert repeated <= number * HELD


def replaced(members: ReplicaSet, fault: Callable[[int], object]) -> int:
    """Let *fault* happen to the primary; return it when the others have elected another one."""
    primary = members.primary()
    fault(primary)
    members.await_other_primary(primary)
    return primary


def test_a_primary_that_steps_down_is_replaced(
    members: ReplicaSet, store: Store, site: Site, tmp_path: Path, expected_items: bytes
):
    with crawled(store, site, tmp_path, expected_items, "step-down"):
        replaced(members, members.step_down)


def test_a_primary_that_is_frozen_is_replaced_and_comes_back_as_a_stale_one(
    members: ReplicaSet, store: Store, site: Site, tmp_path: Path, expected_items: bytes
):
    with crawled(store, site, tmp_path, expected_items, "SIGSTOP"):
        primary = replaced(members, lambda member: members.servers[member].freeze())
        asked_for_more(site, 50)
        members.servers[primary].thaw()


@pytest.mark.parametrize("clients", [False, True])
def test_a_primary_that_is_cut_off_from_the_others_is_replaced(
    clients: bool,
    members: ReplicaSet,
    store: Store,
    site: Site,
    tmp_path: Path,
    expected_items: bytes,
):
    """If clients still reach it, it accepts their claims until it steps down."""
    what = "cut off from members" + clients * " and clients"
    with crawled(store, site, tmp_path, expected_items, what):
        replaced(members, lambda member: members.isolate(member, clients=clients, members=True))
        asked_for_more(site, 50)
        members.network.mend()


def test_a_primary_that_no_client_reaches_is_waited_for(
    members: ReplicaSet, store: Store, site: Site, tmp_path: Path, expected_items: bytes
):
    """The members see no fault, so they elect no other primary."""
    with crawled(store, site, tmp_path, expected_items, "cut off from clients for 4 s"):
        primary = members.primary()
        members.isolate(primary, clients=True, members=False)
        wait_out(4.0)
        assert members.primary() == primary
        members.network.mend()


# --- purpose of the write concern


@pytest.mark.parametrize(
    "concern", [mongo_store._DURABLE, WriteConcern(w=1)], ids=["as it is", "w=1"]
)
def test_only_what_a_majority_has_is_acknowledged(
    concern: WriteConcern, members: ReplicaSet, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The primary is cut off while outcomes are recorded, and then it is killed."""
    monkeypatch.setattr(mongo_store, "_DURABLE", concern)
    # The result must not depend on the time until the primary steps down.
    members.let_elections_wait(milliseconds=60_000)
    primary = members.primary()
    store = Store(store.url, "books")
    try:
        acknowledged, refused = asyncio.run(recorded(members, primary, database_of(store)))
        members.kill(primary)
        members.network.mend()
        members.elect_other(primary)
        after = finished(store)
        members.mend()
        once_it_is_back = finished(store)
    finally:
        members.mend()
        members.let_elections_wait(milliseconds=SETTINGS["electionTimeoutMillis"])

    lost = acknowledged - after
    print(f"{concern.document}: {len(acknowledged)} acknowledged, {len(lost)} of them lost")
    assert once_it_is_back == after
    assert len(acknowledged) >= BEFORE
    if concern == WriteConcern(w=1):
        assert len(lost) == MEANWHILE
        assert refused == 0
    else:
        assert lost == set()
        assert refused == MEANWHILE


#: Outcomes that are recorded before the primary is cut off, and while it is.
BEFORE, MEANWHILE = 5, 2


async def recorded(members: ReplicaSet, primary: int, name: str) -> tuple[set[str], int]:
    """Return the paths with an acknowledged outcome, and the number of those without."""
    ledger = await MongoLedger.open(members.uri_of(primary, name), "books")
    try:
        await ledger.tasks.add(make_tasks(BEFORE + MEANWHILE))
        page = await ledger.tasks.page(limit=100)
        claim = {"worker": "w", "lease": timedelta(minutes=10), "max_lost": 3}
        leases = (await ledger.leases.claim(page, **claim)).leases
        assert len(leases) == BEFORE + MEANWHILE
        acknowledged, refused = set(), 0
        for number, lease in enumerate(leases):
            if number == BEFORE:
                members.await_whole()
                members.isolate(primary, clients=False, members=True)
            try:
                committed = await ledger.outcomes.commit([success(ledger, lease, {"n": number})])
            except LedgerUnavailableError:
                refused += 1
            else:
                assert committed.lost == ()
                acknowledged.add(docs.path_of(lease.task.url))
        return acknowledged, refused
    finally:
        await ledger.close()


def database_of(store: Store) -> str:
    return urlsplit(store.url).path.removeprefix("/")


def finished(store: Store) -> set[str]:
    return {row.path for row in store.rows() if row.status == Status.FINISHED}
