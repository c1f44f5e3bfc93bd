"""HostLeaser: the moments at which hosts are leased, saved, handed on and given back."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from crawlcw.api.settings import Settings
from crawlcw.crawl import host_leases
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.crawl.hosts import FrontierHost, Phase
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.workers import this_worker
from crawlcw.errors import Reason
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Counters
from crawlcw.model.health import Origin
from crawlcw.model.hosts import HostLease
from crawlcw.model.task import Status, Task
from tests.support.frontiers import LEASE, USABLE, Process
from tests.support.ledgers import FakeClock, PatchedFacet, make_task


def named(number: int) -> list[str]:
    """Return names of hosts in the order of their leases."""
    return [f"h{n:02}.example" for n in range(number)]


class World:
    """A process that may hold four hosts, its ledger, and the time of both."""

    def __init__(self, ledger: SqliteLedger, clock: FakeClock) -> None:
        # Before the session is made, which keeps the facets.
        ledger.hosts = self.hosts = PatchedFacet(ledger.hosts)
        ledger.host_leases = self.host_leases = PatchedFacet(ledger.host_leases)
        self.ledger = ledger
        self.clock = clock
        self.process = Process(concurrency=1)
        self.frontier = self.process.frontier
        self.session = WorkerSession(ledger, lease_length=lambda: LEASE, give_up=LEASE)
        self.session.leases = self.process.held
        self.leaser = HostLeaser(self.session, self.frontier, Settings(concurrency=1, lease=LEASE))

    @property
    def now(self) -> float:
        return self.process.now

    def wait(self, seconds: float) -> None:
        self.process.now += seconds
        self.clock.advance(seconds=seconds)

    async def wake(self, *names: str) -> None:
        await self.ledger.hosts.wake(dict.fromkeys(names, self.ledger.now()))

    async def look(self, *, idle: bool = False) -> bool:
        """Look as a coordinator does, and wait for its background tasks."""
        async with anyio.create_task_group() as background:
            return await self.leaser.poll(background, idle=idle)

    async def holding(self, number: int) -> list[FrontierHost]:
        """Lease and open hosts, and look at them once."""
        await self.wake(*named(number))
        while len(self.frontier.leased) < number:
            await self.look(idle=True)
            self.wait(0.1)
        for host in self.frontier.leased.values():
            host.open()
        return list(self.frontier.leased.values())

    def leaving(self) -> list[str]:
        hosts = self.frontier.leased.values()
        return sorted(host.name for host in hosts if host.phase is Phase.LEAVING)

    async def neighbour(self, name: str, *, idle: bool) -> None:
        await self.ledger.workers.join(replace(this_worker(now=self.ledger.now()), name=name))
        await self.ledger.workers.beat(name, Counters(), idle=idle)

    def count(self, facet: PatchedFacet, operation: str) -> list[str]:
        """Return the list that the calls of an operation are written to."""
        calls: list[str] = []
        real = getattr(facet, operation)

        async def counted(*given: Any, **options: Any) -> Any:
            calls.append(operation)
            return await real(*given, **options)

        setattr(facet, operation, counted)
        return calls


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    clock = FakeClock()
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books", clock=clock)
    world = World(ledger, clock)
    monkeypatch.setattr(host_leases, "time", SimpleNamespace(monotonic=lambda: world.now))
    yield world
    await ledger.close()


# --- leasing


async def test_few_hosts_are_followed_by_more_at_once_and_many_a_second_later(world: World):
    await world.holding(1)
    await world.wake("later.example")
    assert await world.look()
    assert len(world.frontier.leased) == 2

    await world.wake("third.example")
    assert not await world.look(), "not twice within a moment"
    world.wait(0.1)
    assert await world.look()
    await world.wake("last.example")
    world.wait(0.1)
    assert not await world.look()
    world.wait(1)
    assert await world.look()


async def test_no_more_hosts_are_held_than_fetchers_can_ask(world: World):
    await world.holding(4)
    await world.wake("a.example", "b.example", "c.example", "d.example", "e.example")
    world.wait(5)
    assert not await world.look(idle=True)

    world.leaser.resize(2)
    assert await world.look(idle=True)
    assert len(world.frontier.leased) == 8
    world.leaser.resize(1)
    world.wait(5)
    assert not await world.look(idle=True)
    assert len(world.frontier.leased) == 8


async def test_a_clock_that_goes_back_makes_no_lease_longer(world: World):
    lease = world.host_leases.lease

    async def set_back(**options: Any) -> list[HostLease]:
        leases = await lease(**options)
        world.clock.advance(seconds=-50)
        return leases

    world.host_leases.lease = set_back
    (host,) = await world.holding(1)

    assert host.queue.deadline == pytest.approx(world.now - 0.1 + USABLE)


# --- the next look


# --- giving back


async def test_hosts_without_work_go_back_together_after_a_moment(world: World):
    (host,) = await world.holding(1)
    host.poll(is_stale=False)
    await world.look()
    assert world.frontier.leased
    assert world.leaser.next_poll(idle=False) == world.now + 0.3
    assert world.leaser.next_poll(idle=True) == world.now + 0.1

    world.wait(0.4)
    await world.look()
    assert not world.frontier.leased
    assert world.leaser.next_poll(idle=False) > world.now


# --- saving


# --- giving up


def task(url: str, **options: Any) -> Task:
    return make_task(url, **options)


async def test_what_waits_for_a_full_host_is_ignored_and_the_host_goes_back(
    world: World, caplog: pytest.LogCaptureFixture
):
    """Also tasks with an errback: the limit is the user's, and no failure."""
    (host,) = await world.holding(1)
    waiting = task(f"http://{host.name}/", errback="on_page_error")
    await world.ledger.tasks.add([waiting])
    host.state.given_up = Reason.HOST_FULL
    host.enter(Phase.LEAVING)

    await world.look()

    record = await world.ledger.tasks.get(waiting.id)
    assert record is not None
    assert record.task.status is Status.IGNORED
    assert not world.frontier.hosts
    assert world.session.stats.over_full == 1
    assert world.session.stats.given_up == 0
    (said,) = [each for each in caplog.records if each.event == "host_given_up"]
    assert said.host == host.name


@pytest.mark.parametrize("waiting", [1, 0])
async def test_a_host_with_one_origin_given_up_stays_for_the_other(
    waiting: int, world: World, caplog: pytest.LogCaptureFixture
):
    (host,) = await world.holding(1)
    await world.ledger.tasks.add([task(f"http://{host.name}/") for _ in range(waiting)])
    host.state.origins["http"] = Origin(given_up=Reason.HOST_UNREACHABLE)
    host.poll(is_stale=False)
    world.frontier.pending.ignore(host)
    world.process.occupy(host)
    await world.look()
    assert host.is_busy, "its robots.txt is asked for just now"
    world.process.occupy(host, busy=False)
    world.frontier.poll_wanted.clear()

    await world.look()

    assert world.frontier.leased == {host.name: host}
    assert host.is_stale
    assert world.frontier.poll_wanted.is_set()
    assert (world.session.stats.given_up, world.session.stats.over_full) == (waiting, 0)
    said = [each.host for each in caplog.records if each.event == "host_given_up"]
    assert said == [f"http://{host.name}"] * waiting


# --- making way


@pytest.mark.parametrize(
    ("pages", "seconds", "ready", "left"),
    [
        (20, 0, True, 1),
        (0, 30, True, 1),
        (19, 20, True, 0),
        (20, 30, None, 0),  # no host waits
        (20, 30, False, 0),  # one rests
    ],
)
async def test_where_a_host_waits_one_that_had_its_slice_is_left_to_others(
    pages: int, seconds: float, ready: bool | None, left: int, world: World
):
    for host in await world.holding(4):
        host.slice_responses = pages
    world.wait(max(seconds, 1))
    if ready is not None:
        due = world.ledger.now()
        if not ready:
            world.clock.advance(seconds=-5)
        await world.ledger.hosts.wake({"waiting.example": due})

    await world.look()

    assert len(world.leaving()) == left


async def test_a_hungry_worker_is_left_the_hosts_with_the_least_work_and_has_time_to_take_them(
    world: World,
):
    first, second = await world.holding(2)
    await world.neighbour("b", idle=True)
    await world.neighbour("c", idle=False)
    for number, host in ((2, first), (1, second)):
        world.process.claim(number, host=host.name)
    world.wait(1)

    await world.look(idle=True)

    assert world.leaving() == [second.name]
    assert world.leaser.next_poll(idle=True) == world.now + 2


async def test_a_host_is_not_left_to_others_for_as_long_as_a_page_of_it_takes(world: World):
    (host, other) = await world.holding(2)
    for number, each in ((1, host), (2, other)):
        world.process.claim(number, host=each.name)
        world.process.take()
    left = []
    for seconds in (1, 29.5, 1, 30, 2):
        world.wait(seconds)
        for name in ("b", "c"):
            await world.neighbour(name, idle=name == "b")
        await world.look()
        left.append(world.leaving())

    assert [host.name in each for each in left] == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("given_up", "busy", "after", "leaves"),
    [
        (None, False, 14, True),  # it rests for 20 to 22 s
        (None, False, 18, False),  # before the end its next pages are claimed
        (Reason.HOST_FULL, False, 18, True),
        (None, True, 18, True),
    ],
)
async def test_a_host_that_has_rested_is_served_beside_a_page_that_takes_long(
    given_up: Reason | None, busy: bool, after: float, leaves: bool, world: World
):
    (host,) = await world.holding(1)
    world.process.claim(host=host.name)
    world.process.take()
    world.process.failed(host.name, retry_after=20)
    assert world.leaving() == [host.name]
    host.state.given_up, host.is_busy = given_up, busy
    world.wait(after)

    await world.look()

    assert (world.leaving() == [host.name]) == leaves


async def test_hosts_that_have_just_come_stay_and_more_are_looked_for(world: World):
    await world.holding(2)
    await world.neighbour("b", idle=True)
    await world.neighbour("c", idle=False)

    world.leaser._next_share_at = 0.0
    await world.look(idle=True)

    assert world.leaving() == []
    assert world.leaser.next_poll(idle=True) == world.now + 0.1


# --- lost wake-ups


async def ready(world: World) -> set[str]:
    return {host.name async for host in world.ledger.hosts.all() if host.ready_at is not None}
