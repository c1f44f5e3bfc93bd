"""Lending: slots of a host that its owner lends, and what stops a borrower."""

import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from crawlcw.api.settings import Settings
from crawlcw.crawl import host_leases
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.crawl.hosts import Phase
from crawlcw.crawl.lending import Lending
from crawlcw.crawl.robots import Robots
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Counters
from crawlcw.model.task import Lease
from tests.support import one_host_site
from tests.support.crawl_process import Process as CrawlProcess
from tests.support.crawl_process import Store, begin_together, wait_until
from tests.support.frontiers import HOST, LEASE, Process
from tests.support.ledgers import FakeClock, PatchedFacet, make_task
from tests.support.one_host_site import Served, most_at_once

#: Longer than a loan.
LOAN = 9.0
LIMIT = 8


@dataclass(eq=False)
class Side:
    """One process of a crawl: its frontier, and its loans."""

    process: Process
    session: WorkerSession
    lending: Lending
    under_way: list[Lease]

    @property
    def active(self) -> int:
        return len(self.under_way)

    @property
    def allowed(self) -> int:
        """How many requests the process may have under way at once; 0: it may not ask."""
        host = self.process.frontier.hosts.get(HOST)
        return host.queue.slots if host is not None and host.phase is Phase.SERVING else 0

    def ask(self, number: int = 100) -> int:
        """Begin with requests as far as that is allowed; return how many are under way."""
        host = self.process.frontier.hosts.get(HOST)
        if host is not None and host.phase is Phase.SERVING:
            self.process.claim(max(0, number - len(host.queue.waiting)))
        self.under_way += self.process.take_all()
        return self.active

    def finish(self, number: int = 100) -> None:
        """Let requests be answered well, and their pages be committed."""
        for lease in self.under_way[:number]:
            self.process.work(lease)
        del self.under_way[:number]

    def throttled(self, retry_after: float | None = None) -> None:
        """Let a request be answered with 429."""
        lease = self.under_way.pop(0)
        task, now = lease.task, self.process.ledger_now()
        error = FetchError(Reason.HTTP_STATUS, status=429, retry_after=retry_after)
        with pytest.raises(Defer):
            self.process.causes._throttled(task.id, task.host, task.url, error, sent=now)
        self.process.fetched(lease)
        self.process.commit(lease)


class Crawl:
    """Processes of one crawl, and its time."""

    def __init__(self, ledger: SqliteLedger, clock: FakeClock, **limits: Any) -> None:
        self.ledger, self.clock, self.limits = ledger, clock, limits
        self.elapsed = 0.0
        self.sides: list[Side] = []

    async def joined(self, *, idle: bool = False) -> Side:
        """Let a process join the crawl."""
        number = len(self.sides)
        process = Process(booted=1e4 * (number + 1), elapsed=self.elapsed, **self.limits)
        session = WorkerSession(self.ledger, lease_length=lambda: LEASE, give_up=LEASE)
        session.worker = f"{'abcdefgh'[number]}"
        session._this_worker = replace(session._this_worker, name=session.worker)
        session.leases = process.held
        robots = Robots(
            None,  # type: ignore[arg-type]  # asks for none
            Settings(obey_robots=False),
            clock=lambda: process.now,
            now=process.ledger_now,
        )
        lending = Lending(session, process.causes, robots, has_free_fetchers=lambda: True)
        side = Side(process, session, lending, [])
        self.sides.append(side)
        await session.join()
        await self.is_idle(side, idle)
        return side

    async def is_idle(self, side: Side, idle: bool) -> None:
        side.session.set_idle(idle)
        await self.ledger.workers.beat(side.session.worker, Counters(), idle=idle)

    async def owner(self, **state: Any) -> Side:
        """Let a process join that owns the host, and has more to do than it can."""
        side = await self.joined()
        await self.ledger.tasks.add([make_task(f"http://{HOST}/1")])
        await self.ledger.hosts.wake({HOST: self.ledger.now()})
        await self.lease(side, **state)
        return side

    async def lease(self, side: Side, **state: Any) -> None:
        (lease,) = await self.ledger.host_leases.lease(
            worker=side.session.worker, limit=1, lease=LEASE
        )
        known = {"finished": 100} | state
        lease = replace(lease, host=replace(lease.host, **known))
        host = side.process.frontier.add_leased(lease, sent_at=side.process.now)
        host.slow_start.steps = 100
        host.open()
        host.pace()

    def wait(self, seconds: float) -> None:
        self.elapsed += seconds
        self.clock.advance(seconds=seconds)
        for side in self.sides:
            side.process.now += seconds

    async def poll(self, *sides: Side, busy: bool = True) -> None:
        """Poll as the processes do in a second."""
        self.wait(1)
        for _ in range(2):
            for side in sides or self.sides:
                # The event loop was late by half of the time.
                side.session.stats.loop_lag.observe(0.5 if busy else 0.0)
                await side.lending.poll()

    async def shared(self, **state: Any) -> tuple[Side, Side]:
        """Let two processes share the host."""
        owner, borrower = await self.owner(**state), await self.joined(idle=True)
        owner.ask()
        owner.finish(LIMIT // 2)
        await self.poll()
        assert (owner.allowed, borrower.allowed) == (LIMIT // 2, LIMIT // 2)
        borrower.process.claim(20)
        return owner, borrower


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def ledger(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books", clock=clock)
    yield ledger
    await ledger.close()


@pytest.fixture
def crawl(ledger: SqliteLedger, clock: FakeClock) -> Crawl:
    return Crawl(ledger, clock, concurrency=LIMIT)


# --- shares


@pytest.mark.parametrize(
    ("limits", "workers", "slots"),
    [
        ({"concurrency": 8}, 2, [4, 4]),
        ({"concurrency": 8}, 4, [2, 2, 2, 2]),
        ({"concurrency": 3}, 2, [2, 1]),
        ({"concurrency": 2}, 4, [1, 1, 0, 0]),
        ({"concurrency": 1}, 2, [1, 0]),
        ({"concurrency": 8, "delay": 1.0}, 2, [8, 0]),
        ({"concurrency": 8, "max_pages": 500}, 2, [8, 0]),
        ({"concurrency": 8, "max_pages": 500, "unlimited": [HOST]}, 2, [4, 4]),
    ],
)
async def test_idle_workers_get_their_share_of_the_slots(
    ledger: SqliteLedger,
    clock: FakeClock,
    limits: dict[str, Any],
    workers: int,
    slots: list[int],
):
    crawl = Crawl(ledger, clock, **limits)
    owner = await crawl.owner()
    for _ in range(workers - 1):
        await crawl.joined(idle=True)
    owner.process.claim(20)

    await crawl.poll()

    assert [side.allowed for side in crawl.sides] == slots


@pytest.mark.parametrize(
    ("tasks", "busy", "state"),
    [
        (4, True, {}),
        (20, False, {}),
        (20, True, {"finished": 10}),
        (20, True, {"failures": 1}),
        (20, True, {"delay": 1.0}),
    ],
    ids=["few tasks", "no need", "new", "failing", "slow"],
)
async def test_a_host_is_its_owners_alone_unless_a_second_process_gains(
    crawl: Crawl, tasks: int, busy: bool, state: dict[str, Any]
):
    owner, other = await crawl.owner(**state), await crawl.joined(idle=True)
    owner.process.claim(tasks)

    await crawl.poll(busy=busy)

    assert other.allowed == 0


async def test_a_host_without_a_limit_is_lent_to_all(ledger: SqliteLedger, clock: FakeClock):
    crawl = Crawl(ledger, clock, concurrency=0)
    owner, other = await crawl.owner(), await crawl.joined(idle=True)
    owner.process.claim(20)

    await crawl.poll(busy=False)

    assert other.ask(50) == 50


async def test_a_slot_is_not_lent_before_its_request_has_ended(crawl: Crawl):
    owner, borrower = await crawl.owner(), await crawl.joined(idle=True)
    assert owner.ask() == LIMIT

    await crawl.poll()
    assert borrower.allowed == 0
    owner.finish(LIMIT // 2)
    assert owner.ask() == LIMIT // 2
    await crawl.poll()

    assert borrower.ask() == LIMIT // 2


async def test_of_two_owners_the_first_one_lends_to_a_worker(crawl: Crawl, ledger: SqliteLedger):
    _, borrower = await crawl.shared()
    (listed,) = (each for each in await ledger.workers.all() if each.name == "b")
    assert listed.loan is not None

    assert not await ledger.workers.lend(
        replace(listed, loan=None), replace(listed.loan, host="other.example")
    )
    assert borrower.process.frontier.borrowed_host is not None


# --- the end of a loan


def fail(side: Side) -> None:
    side.process.failed()


ENDS: dict[str, Callable[[Side], None]] = {
    "429": lambda side: side.throttled(),
    "failure": fail,
    "slow answer": lambda side: side.process.answered(latency=30.0),
    "pages that fail": lambda side: [side.process.causes.page_failed(HOST) for _ in range(10)],
    "delay of a robots.txt": lambda side: side.process.open(crawl_delay=2.0),
}


@pytest.mark.parametrize("by_owner", [True, False], ids=["owner", "borrower"])
@pytest.mark.parametrize("end", ENDS)
async def test_trouble_at_one_process_stops_all(crawl: Crawl, end: str, by_owner: bool):
    owner, borrower = await crawl.shared()
    third = await crawl.joined(idle=True)
    owner.process.claim(20)
    owner.finish(2)
    await crawl.poll()
    assert third.allowed == 2
    for side in crawl.sides:
        side.finish()
        side.ask()

    ENDS[end](owner if by_owner else borrower)
    # Those who saw nothing learn it from the ledger.
    await crawl.poll()

    for side in (borrower, third):
        under_way = side.active
        assert side.ask() == under_way
    host = owner.process.frontier.leased[HOST]
    assert not host.is_healthy
    if end == "failure":
        assert host.state.failures == 1
    elif end == "429":
        assert owner.process.resting() > 0 or host.phase is Phase.OPENING
    else:
        assert host.queue.delay > 0


async def test_who_lends_or_borrows_polls_ten_times_a_second(crawl: Crawl):
    """Else a refusal at one process does not stop all within a second."""
    owner, borrower = await crawl.owner(), await crawl.joined(idle=True)
    owner.process.claim(20)
    crawl.wait(1)

    assert await owner.lending.poll() == 1.0
    owner.session.stats.loop_lag.observe(1.0)
    crawl.wait(1)

    assert await owner.lending.poll() == 0.1, "it has lent"
    assert await borrower.lending.poll() == 0.1, "it has borrowed"


async def test_what_a_borrower_reports_counts_once(crawl: Crawl):
    owner, borrower = await crawl.shared()
    borrower.ask()
    borrower.process.failed()
    for _ in range(3):
        await crawl.poll()

    assert owner.process.frontier.leased[HOST].state.failures == 1


async def test_pages_of_a_borrower_count_for_the_host(crawl: Crawl):
    owner, borrower = await crawl.shared()
    finished = owner.process.frontier.leased[HOST].state.finished
    borrower.ask()
    borrower.finish(3)
    crawl.wait(1)
    for _ in range(3):
        await crawl.poll()

    assert owner.process.frontier.leased[HOST].state.finished == finished + 3


@pytest.mark.parametrize("setting", [{"concurrency": 2}, {"concurrency": 8, "delay": 1.0}])
async def test_new_limits_of_the_user_end_a_loan(crawl: Crawl, setting: dict[str, Any]):
    _, borrower = await crawl.shared()

    for side in crawl.sides:
        side.process.follow(**setting)
    await crawl.poll()

    assert borrower.allowed == 0


@pytest.mark.parametrize("side", [0, 1], ids=["owner", "borrower"])
async def test_a_crawl_that_ends_lends_and_borrows_nothing(crawl: Crawl, side: int):
    await crawl.shared()

    crawl.sides[side].process.frontier.lends = False
    await crawl.poll()
    await crawl.poll()

    assert crawl.sides[1].allowed == 0
    assert crawl.sides[0].allowed == LIMIT


async def test_a_slot_counts_as_lent_until_its_request_has_ended(crawl: Crawl):
    owner, borrower = await crawl.shared()
    borrower.ask()
    borrower.process.frontier.lends = False
    await crawl.poll()
    borrower.finish(LIMIT // 2 - 1)

    for _ in range(20):
        await crawl.poll()
    owner.finish()
    assert owner.ask() == LIMIT // 2
    borrower.finish()
    await crawl.poll()

    assert owner.ask() == LIMIT


@pytest.mark.parametrize("why", ["it has ended", "the worker has a host"])
async def test_a_loan_that_its_borrower_never_used_expires(crawl: Crawl, why: str):
    owner, worker = await crawl.owner(), await crawl.joined(idle=True)
    owner.process.claim(20)
    await crawl.poll(owner)
    assert owner.allowed == LIMIT // 2

    owner.process.frontier.lends = False
    await crawl.poll(owner)
    for _ in range(round(LOAN)):
        await crawl.is_idle(worker, why == "it has ended")
        await crawl.poll()

    assert (owner.allowed, worker.allowed) == (LIMIT, 0)


async def test_a_loan_without_tasks_is_returned(crawl: Crawl):
    owner, borrower = await crawl.shared()
    for side in crawl.sides:
        side.finish()
        side.process.frontier.queues.withdraw()
        side.process.commit(*side.process.held.all())

    for _ in range(3):
        await crawl.poll(busy=False)

    assert (owner.allowed, borrower.allowed) == (LIMIT, 0)
    assert borrower.process.frontier.idle_hosts() != []


# --- who is killed, or stands still


async def test_slots_of_a_borrower_that_is_killed_count_until_its_loan_expires(crawl: Crawl):
    owner, borrower = await crawl.shared()
    borrower.ask()

    crawl.wait(LOAN - 2)
    await crawl.poll(owner)
    assert owner.allowed == LIMIT // 2
    await crawl.ledger.workers.leave("b")
    await crawl.poll(owner)
    await crawl.poll(owner)

    assert owner.allowed == LIMIT


async def test_a_borrower_that_does_not_hear_of_its_owner_asks_nothing_more(crawl: Crawl):
    _, borrower = await crawl.shared()

    crawl.wait(LOAN - 1)
    assert borrower.ask() == 0, "it may have been frozen"
    await crawl.poll(borrower)
    crawl.wait(2)
    await crawl.poll(borrower)
    assert borrower.allowed == 0


@pytest.mark.parametrize("heir", ["borrower", "other"])
async def test_the_next_owner_of_a_host_counts_the_slots_that_a_killed_one_has_lent(
    crawl: Crawl, heir: str, monkeypatch: pytest.MonkeyPatch
):
    owner, borrower = await crawl.shared()
    third = await crawl.joined()
    assert borrower.ask() == LIMIT // 2
    crawl.sides.remove(owner)
    await crawl.ledger.workers.leave("a")
    settings = Settings(concurrency=8, lease=LEASE)
    new = borrower if heir == "borrower" else third
    monkeypatch.setattr(host_leases, "time", SimpleNamespace(monotonic=lambda: new.process.now))
    leaser = HostLeaser(new.session, new.process.frontier, settings)
    async with anyio.create_task_group() as background:
        await leaser.poll(background, idle=True)

    host = new.process.frontier.leased[HOST]
    host.state.finished, host.slow_start.steps = 100, 100
    host.open()
    host.pace()
    new.ask()

    assert borrower.active + (third.active) == LIMIT
    if heir == "other":
        assert third.active == LIMIT // 2
        borrower.finish(1)
        await crawl.poll()
        assert borrower.ask() == LIMIT // 2, "it goes on by its loan"


@pytest.mark.parametrize("more", [True, False])
async def test_a_host_that_is_released_while_slots_are_lent_waits_for_them(
    crawl: Crawl, more: bool
):
    owner, _ = await crawl.shared()
    host = owner.process.frontier.leased[HOST]
    host.poll(is_stale=more)  # its borrower may add tasks
    expires = max(loan.expires for loan in host.loans.values())

    assert owner.process.forget().not_before == expires


async def test_a_host_may_be_lost_while_its_loans_are_renewed(
    crawl: Crawl, monkeypatch: pytest.MonkeyPatch
):
    owner, _ = await crawl.shared()
    await crawl.joined(idle=True)
    owner.process.claim(20)
    owner.finish()
    await crawl.poll()
    host = owner.process.frontier.leased[HOST]
    assert len(host.loans) == 2

    async def lend(*_: object) -> bool:
        owner.process.lose()
        return False

    owner.process.frontier.lends = False
    monkeypatch.setattr(owner.lending, "_workers", PatchedFacet(crawl.ledger.workers, lend=lend))
    await crawl.poll(owner)

    assert (host.loans, host.phase) == ({}, Phase.LEAVING)


@pytest.mark.thorough
@pytest.mark.representative("59")
@pytest.mark.parametrize("seed", range(60))
async def test_a_limit_holds_over_all_processes_whatever_happens(crawl: Crawl, seed: int):
    """Random steps of an owner and three others, of which some are killed or stand still."""
    chance = random.Random(seed)
    await crawl.owner()
    for _ in range(3):
        await crawl.joined(idle=True)
    frozen: set[Side] = set()
    borrowed = 0
    for _ in range(150):
        side = chance.choice(crawl.sides)
        at_work = [each for each in crawl.sides if each not in frozen]
        match chance.choice(["poll", "poll", "ask", "ask", "finish", "odd"]):
            case "poll":
                for each in at_work:
                    frontier = each.process.frontier
                    for host in [host for host in frontier.idle_hosts() if host.lease is None]:
                        frontier.forget(host)
                    await crawl.is_idle(each, not frontier.hosts)
                chance.shuffle(at_work)
                await crawl.poll(*at_work)
                for each in at_work:
                    each.process.claim(10 if each.allowed else 0)
            case "ask" if side in at_work:
                side.ask(20)
            case "finish":
                for each in crawl.sides:
                    each.finish(chance.randrange(LIMIT))
            case "odd" if side in frozen:
                frozen.discard(side)
            case "odd":
                match chance.choice(["freeze", "stop"] if chance.random() < 0.98 else ["429"]):
                    # A frozen process may have requests under way longer than its loan is.
                    case "freeze" if side is not crawl.sides[0] and not side.active:
                        frozen.add(side)
                    case "429" if side.active and side.allowed:
                        side.throttled(1.0)
                    case "stop":
                        side.process.frontier.lends = chance.random() < 0.8
        for host in [*crawl.sides[0].process.frontier.leased.values()]:
            if host.phase is Phase.OPENING:  # its good page was answered
                crawl.sides[0].process.answered(page=False)
                host.enter(Phase.SERVING)
            await crawl.ledger.host_leases.renew([host.lease], lease=LEASE)
            host.extend_lease(sent_at=crawl.sides[0].process.now)
        borrowed += sum(other.active for other in crawl.sides[1:])
        assert sum(each.active for each in crawl.sides) <= LIMIT
    assert borrowed > 0


# --- whole crawls


Start = Callable[..., list[CrawlProcess]]
#: The milliseconds of CPU of a callback, and the pages.
CPU, PAGES = 10, 600


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url, "one_host")


@pytest.fixture
def start(processes: ExitStack, store: Store, tmp_path: Path) -> Start:
    def start(
        site: Served, number: int = 2, *, on_cue: bool = False, **settings: Any
    ) -> list[CrawlProcess]:
        # Tasks of a killed process are taken back after a third of a lease.
        chosen = {"lease": "15s"} | settings
        return [
            processes.enter_context(
                CrawlProcess(
                    store,
                    [site.url],
                    tmp_path / f"{n}.log",
                    on_cue=on_cue,
                    arguments={"cpu": CPU},
                    **chosen,
                )
            )
            for n in range(number)
        ]

    return start


def borrows(store: Store, site: Served) -> bool:
    """Return whether two workers have tasks of the host."""
    return len({row.lock.rpartition(":")[0] for row in store.rows() if row.lock}) > 1


def assert_complete(store: Store, site: Served, *, limit: int) -> None:
    rows = store.rows()
    assert {row.path for row in rows if row.items == 1} == {"/"} | {
        f"/{n}" for n in range(1, PAGES)
    }
    assert all(row.lock is None for row in rows)
    assert most_at_once(site.log()) <= limit


@pytest.mark.thorough
@pytest.mark.representative("8", "sqlite")
@pytest.mark.parametrize("limit", [2, 8, 100])
def test_two_processes_share_a_host_within_its_limit(
    processes: ExitStack, start: Start, store: Store, limit: int
):
    site = processes.enter_context(one_host_site.served(PAGES, latency=0.01))
    crawls = start(site, on_cue=True, per_host_concurrency=limit)
    begin_together(crawls)
    reports = [each.drained() for each in crawls]

    assert all(report["pages"] for report in reports)
    assert_complete(store, site, limit=limit)


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["owner", "borrower"])
def test_a_process_that_is_killed_while_slots_are_lent_lets_no_limit_be_passed(
    processes: ExitStack, start: Start, store: Store, victim: str
):
    site = processes.enter_context(one_host_site.served(PAGES, latency=0.01))
    crawls = start(site)
    wait_until(lambda: borrows(store, site))
    (token,) = store.owners().values()
    owner = next(each for each in crawls if f"-{each.process.pid}-" in token)
    killed = owner if victim == "owner" else next(each for each in crawls if each is not owner)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait()

    for each in crawls:
        if each is not killed:
            each.drained()
    assert_complete(store, site, limit=LIMIT)


@pytest.mark.thorough
def test_a_429_at_one_process_stops_all_within_a_second(
    processes: ExitStack, start: Start, store: Store
):
    site = processes.enter_context(
        one_host_site.served(PAGES, latency=0.01, refused_from=PAGES * 2 // 3, retry_after=4)
    )
    for each in start(site):
        each.drained()

    log = site.log()
    refused = min(each.ended for each in log if each.status == 429)
    late = [each for each in log if refused + 1 < each.began < refused + 3.5]
    # A known good page may be asked for.
    assert len(late) <= 2
    assert_complete(store, site, limit=LIMIT)
