"""Claims ahead of the fetchers: their number, and their rate while the ledger has no due tasks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from crawlcw.api.attempt import Purpose
from crawlcw.api.host_limits import Limit
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl import coordinator, host_leases
from crawlcw.crawl.causes import Causes
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.hosts import Frontier, PageLimit
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.opening import Opening
from crawlcw.crawl.robots import Robots
from crawlcw.engine import ledger_retry
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.workers import this_worker
from crawlcw.errors import FetchError, LedgerUnavailableError, Reason
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.ledger.protocol import Added, Claimed, Counters
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.health import Origin
from crawlcw.model.hosts import HostLease
from crawlcw.model.idle_reason import IdleReason, Rests
from crawlcw.model.task import Lease, Status, Task
from crawlcw.testing import ReplayDownloader
from tests.blame.virtual import BoundedSelector
from tests.support.attempts import way
from tests.support.ledgers import START, PatchedFacet, make_task, make_tasks, success

T = TypeVar("T")


class QuickSelector(BoundedSelector):
    """Selector that skips the wait for timers; it waits for threads only.

    Each turn of its loop takes ten microseconds, whatever the machine does beside it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.busy = 0  #: calls that are under way in threads

    def select(self, timeout: float | None = None) -> list[Any]:
        self.count_turn()
        self.skipped += 0.00001
        if timeout is None or timeout <= 0 or self.busy:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.skipped += timeout
        return ready


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self.selector = QuickSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.skipped


def waited() -> float:
    """Return for how many seconds the `QuickLoop` has waited for nothing but timers."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, QuickLoop)
    return loop.selector.skipped


class CountingLedger(SqliteLedger):
    """Ledger on the loop's clock that logs its reads, and the claimed tasks not yet fetched."""

    @classmethod
    async def opened(cls, path: Path) -> "CountingLedger":
        loop = asyncio.get_running_loop()
        began = loop.time()
        ledger = await cls.open(
            path, "books", clock=lambda: START + timedelta(seconds=loop.time() - began)
        )
        ledger.began = began
        ledger.asked: list[tuple[str, float]] = []
        ledger.claimed: set[bytes] = set()
        ledger.most = 0
        ledger.away = (0.0, 0.0)
        for connection in (ledger.store.writer, ledger.store.reader):
            connection.run = _noticed(connection.run)
        return ledger

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self.real = SqliteLedger(store)
        self.tasks = LoggedFacet(self, PatchedFacet(self.tasks, add=self.add), "page", "page_each")
        self.leases = LoggedFacet(self, PatchedFacet(self.leases, claim=self.claim), "claim")
        self.outcomes = LoggedFacet(self, self.outcomes, "release")
        self.queries = LoggedFacet(self, self.queries, "horizon")
        self.hosts = LoggedFacet(self, self.hosts, "next_ready", "due", "get")
        self.host_leases = LoggedFacet(self, self.host_leases, "lease")

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add tasks and wake their hosts, as a crawl does."""
        added = await self.real.tasks.add(tasks)
        await self.real.hosts.wake({task.host: task.due for task in tasks if task.due})
        return added

    async def claim(self, tasks: Sequence[Task], **options: Any) -> Claimed:
        claimed = await self.real.leases.claim(tasks, **options)
        self.claimed |= {lease.task.id for lease in claimed.leases}
        self.most = max(self.most, len(self.claimed))
        return claimed


class LoggedFacet:
    """Facet that logs the calls of some operations and can be unavailable."""

    def __init__(self, ledger: CountingLedger, facet: Any, *operations: str) -> None:
        self._ledger = ledger
        self._facet = facet
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._facet, name)
        if name not in self._operations:
            return operation

        async def noted(*args: Any, **options: Any) -> Any:
            if hasattr(self._ledger, "asked"):
                now = asyncio.get_running_loop().time()
                self._ledger.asked.append((name, now))
                first, last = self._ledger.away
                if first <= now - self._ledger.began < last:
                    raise LedgerUnavailableError("away")
            return await operation(*args, **options)

        return noted


def _noticed(run: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Tell a `QuickLoop` that a thread is at work."""

    async def noticed(*args: Any) -> T:
        loop = asyncio.get_running_loop()
        busy = loop.selector if isinstance(loop, QuickLoop) else QuickSelector()
        busy.busy += 1
        try:
            return await run(*args)
        finally:
            busy.busy -= 1

    return noticed


class FailureLog(ReplayDownloader):
    """Downloader that logs the time of each failure."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.failures: list[tuple[str, float]] = []

    async def fetch(self, request: Request, *, url: str) -> Response:
        try:
            return await super().fetch(request, url=url)
        except FetchError:
            self.failures.append((url, asyncio.get_running_loop().time()))
            raise


class Harness:
    """A coordinator on a ledger, and fetchers that work on its tasks."""

    def __init__(
        self,
        ledger: CountingLedger,
        *,
        robots: Any = None,
        limits: dict[str, Limit] | None = None,
        **settings: Any,
    ) -> None:
        self.ledger = ledger
        self.settings = Settings(**settings)
        spider = Spider()
        spider.limits = limits or {}
        self.starts: list[tuple[float, str]] = []
        loop = asyncio.get_running_loop()
        session = WorkerSession(
            ledger, lease_length=lambda: self.settings.lease, give_up=timedelta(minutes=10)
        )
        self.session, self.held, self.stats = session, session.leases, session.stats
        web = FailureLog({"http://example.com/robots.txt": robots} if robots else {})
        self.failures, self.asked = web.failures, web.requested_urls
        ask = way(web, self.settings, purpose=Purpose.PROBE)
        self.frontier = Frontier(
            spider,
            self.settings,
            task_leases=self.held,
            page_limit=PageLimit(max_pages=None, full_hosts=set()),
            clock=loop.time,
            ledger_now=ledger.now,
        )
        proxies = ProxyPool(self.settings)
        self.causes = Causes(
            self.frontier,
            proxies,
            ask,
            ledger=ledger,
            stats=self.stats,
            rests=Rests(),
            stop=lambda _: None,
        )
        opening = Opening(
            self.frontier,
            Robots(way(web, self.settings), self.settings, clock=loop.time, now=ledger.now),
            self.causes,
            max_parallel=2 * self.settings.concurrency,
            watchdog=session.watchdog,
        )
        self.coordinator = Coordinator(
            session,
            self.settings,
            opening=opening,
            state=KeptState(Spider(), session.ledger),
            end=lambda *_: None,
        )

    async def work(self, *, seconds: float = 0.0, number: int = 1) -> None:
        """Finish pages as *number* fetchers do, each page after *seconds*."""
        await asyncio.gather(*(self._fetcher(seconds) for _ in range(number)))

    async def _fetcher(self, seconds: float) -> None:
        while True:
            lease = await self.coordinator.pool.get()
            self.starts.append((asyncio.get_running_loop().time(), lease.task.url))
            await asyncio.sleep(seconds)
            self.ledger.claimed.discard(lease.task.id)
            self.coordinator.free_slot(lease)
            settlement = success(self.ledger, lease)
            self.stats.count_unwritten([settlement])
            self.coordinator.note_done(lease)
            await self.ledger.outcomes.commit([settlement])
            self.stats.record(settlement)
            self.stats.count_unwritten([settlement], written=True)
            self.held.end([lease])
            task = lease.task
            self.causes.answered_well(task.host, task.url, latency=seconds, sent=self.ledger.now())
            self.causes.finished(task, probe_page=None, size=0)
            self.coordinator.note_written(has_more=False, retry_hosts=())

    async def renew(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lease.total_seconds() / 3)
            await self.coordinator.host_leaser.renew()

    async def stopped_after(self, seconds: float, *, work: float = 0.0) -> None:
        """Run the coordinator for *seconds*, and stop it."""
        running = asyncio.create_task(self.until_it_ends(seconds=work))
        await asyncio.sleep(seconds)
        self.coordinator.stop()
        assert await running == "stopped"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Coordinator]:
        """Run the coordinator without fetchers, and stop it at the end."""
        run = asyncio.create_task(self.coordinator.run())
        yield self.coordinator
        self.coordinator.stop()
        assert await run == "stopped"

    async def until_it_ends(self, *, seconds: float = 0.0) -> str:
        workers = asyncio.create_task(self.work(seconds=seconds, number=self.settings.concurrency))
        self.coordinator.note_seeded()
        renewing = asyncio.create_task(self.renew())
        reason = await self.coordinator.run()
        renewing.cancel()
        workers.cancel()
        with pytest.raises(asyncio.CancelledError):
            await workers
        return reason


def run_quickly(
    main: Callable[[CountingLedger], Awaitable[None]], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run *main* on a `QuickLoop`, with the coordinator's clock on it."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for module in (coordinator, ledger_retry, host_leases):
            monkeypatch.setattr(module, "time", _LoopTime(loop))
        ledger = await CountingLedger.opened(path / "ledger.db")
        try:
            # A wait without end fails at once, because the clock jumps.
            async with asyncio.timeout(7200):
                await main(ledger)
        finally:
            await ledger.close()

    with asyncio.Runner(loop_factory=QuickLoop) as runner:
        runner.run(run())


def quickly(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Have a test with a ledger run on a `QuickLoop`, see `run_quickly`."""
    needed = ("tmp_path", "monkeypatch")
    asked = [name for name in signature(test).parameters if name != "ledger"]

    @wraps(test)
    def run(**given: Any) -> None:
        chosen = {name: given[name] for name in asked}
        run_quickly(lambda ledger: test(ledger, **chosen), *(given[name] for name in needed))

    names = dict.fromkeys([*needed, *asked])
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what pytest reads
    return run


class _LoopTime:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.monotonic = loop.time


def test_an_endless_loop_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(_: CountingLedger) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="endless loop: no end after"):
        run_quickly(endless, tmp_path, monkeypatch)


@quickly
async def test_all_that_is_due_is_handed_out_once(ledger: CountingLedger) -> None:
    await ledger.tasks.add(make_tasks(300))
    harness = Harness(ledger, concurrency=20)

    assert await harness.until_it_ends(seconds=0.1) == "drained"

    assert sorted(url for _, url in harness.starts) == sorted(task.url for task in make_tasks(300))


@quickly
async def test_it_stops_at_once_while_a_host_is_being_opened(
    ledger: CountingLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.tasks.add([make_task()])
    harness = Harness(ledger)
    monkeypatch.setattr(harness.causes, "uplink_known", lambda: asyncio.sleep(1000))

    await harness.stopped_after(10)

    assert waited() < 11


@pytest.mark.thorough
@pytest.mark.representative("[7-8")
@pytest.mark.parametrize("per_host", [0, 1, 8])
@pytest.mark.parametrize("concurrency", [1, 7, 20])
@quickly
async def test_no_more_is_claimed_than_is_worked_on_and_twice_that_ahead(
    ledger: CountingLedger, per_host: int, concurrency: int
) -> None:
    """HOSTILE 8.3."""

    await ledger.tasks.add(make_tasks(100))
    await ledger.tasks.add([make_task(f"http://other.example/{n}") for n in range(100)])
    harness = Harness(ledger, concurrency=concurrency, per_host_concurrency=per_host)

    await harness.until_it_ends(seconds=0.1)

    assert len(harness.starts) == 200
    assert ledger.most <= concurrency + 2 * concurrency


def _of_hosts(number: int, *, each: int) -> list[Task]:
    return [make_task(f"http://h{n}.example/{m}") for n in range(number) for m in range(each)]


@quickly
async def test_where_there_is_no_room_for_all_hosts_a_priority_counts_like_waiting(
    ledger: CountingLedger,
) -> None:
    await ledger.tasks.add(make_tasks(5))
    await ledger.tasks.add(
        [replace(task, priority=10) for task in _of_hosts(6, each=100)],
    )
    harness = Harness(ledger, concurrency=1, obey_robots=False)

    await harness.stopped_after(55, work=0.1)

    low = [time for time, url in harness.starts if url.startswith("http://example.com/")]
    since = [low[0] - harness.starts[0][0], *(b - a for a, b in pairwise(low))]
    assert len(harness.starts) > 300
    # It waits ten seconds for the claim, and ten for its turn.
    assert 10 <= since[0] <= 25
    assert all(each >= 5 for each in since)
    assert len(low) >= 2, since


@quickly
async def test_a_task_that_is_due_later_is_waited_for(ledger: CountingLedger) -> None:
    await ledger.tasks.add([make_task(due=START + timedelta(seconds=100))])
    harness, before = Harness(ledger), list[float]()
    asyncio.get_running_loop().call_at(ledger.began + 100, lambda: before.append(waited()))

    assert await harness.until_it_ends() == "drained"

    ((time, _),) = harness.starts
    assert 99.99 <= time - ledger.began <= 102
    assert waited() - before[0] < 0.3


@pytest.mark.parametrize(("idle", "within"), [(0.5, 4), (700, 8.1)], ids=["soon", "late"])
@quickly
async def test_what_another_process_adds_to_an_idle_ledger_is_begun(
    ledger: CountingLedger, idle: float, within: float
) -> None:
    await ledger.tasks.add([make_task(due=START + timedelta(days=1))])
    harness = Harness(ledger, obey_robots=False)
    async with harness.running() as coordinator:
        await asyncio.sleep(idle)

        added = waited()
        await ledger.tasks.add([make_task("http://new.example/")])
        await coordinator.pool.get()

        assert waited() - added < within


@quickly
async def test_while_there_is_nothing_to_do_the_ledger_is_seldom_asked(
    ledger: CountingLedger,
) -> None:
    # The task is due tomorrow: the crawl would wait for it.
    await ledger.tasks.add([make_task(due=START + timedelta(days=1))])
    began = asyncio.get_running_loop().time()

    await Harness(ledger).stopped_after(660)

    asked = [time - began for _, time in ledger.asked]
    assert sum(time < 60 for time in asked) <= 40, "it looks more often in the first minute"
    assert sum(time >= 600 for time in asked) <= 20


@quickly
async def test_it_does_not_end_before_the_seeds_are_in(ledger: CountingLedger) -> None:
    harness = Harness(ledger)
    running = asyncio.create_task(harness.coordinator.run())

    await asyncio.sleep(30)
    assert not running.done()
    harness.coordinator.note_seeded()

    assert await running == "drained"


@quickly
async def test_tasks_that_come_in_while_those_of_their_host_are_read_are_begun(
    ledger: CountingLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.tasks.add([make_task("http://example.com/first")])
    harness = Harness(ledger, per_host_concurrency=0, obey_robots=False)
    read, late = ledger.tasks.page_each, make_task("http://example.com/late")

    async def read_before(wanted: dict[str, int]) -> list[Task]:
        found: list[Task] = await read(wanted)
        if not harness.held and found:
            await ledger.tasks.add([late])
            await harness.coordinator.announce([late])
        return found

    monkeypatch.setattr(ledger.tasks, "page_each", read_before, raising=False)

    assert await harness.until_it_ends(seconds=60) == "drained"

    (first, _), (second, url) = harness.starts
    assert url == late.url
    assert second - first < 5


@quickly
async def test_a_page_to_be_tried_again_is_begun_beside_one_under_way(
    ledger: CountingLedger,
) -> None:
    await ledger.tasks.add(make_tasks(2))
    harness = Harness(ledger, concurrency=2, per_host_concurrency=0, obey_robots=False)
    coordinator = harness.coordinator
    async with harness.running():
        await coordinator.pool.get()
        failed = await coordinator.pool.get()
        await asyncio.sleep(1)

        before = waited()
        coordinator.note_done(failed)
        await ledger.outcomes.release([failed])
        harness.held.end([failed])
        coordinator.note_written(has_more=True, retry_hosts=[failed.task.host])

        async with asyncio.timeout(30):
            again = await coordinator.pool.get()
        assert again.task.id == failed.task.id
        assert waited() - before < 0.3


@quickly
async def test_it_does_not_end_while_another_process_has_a_task(ledger: CountingLedger) -> None:
    await ledger.tasks.add([make_task()])
    (lease,) = (
        await ledger.leases.claim(
            await ledger.tasks.page(limit=1), worker="b", lease=timedelta(seconds=50), max_lost=3
        )
    ).leases
    harness = Harness(ledger)
    running = asyncio.create_task(harness.until_it_ends())

    await asyncio.sleep(30)
    assert not running.done()
    await ledger.outcomes.commit([success(ledger, lease)])
    ended = waited()

    assert await running == "drained"
    assert harness.starts == []
    assert waited() - ended < 1.1


@pytest.fixture
def outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, float]]:
    """Run a crawl beside another worker with ten tasks, through an outage of the ledger.

    Returns the start time of each page, by its name.
    """

    def outage(
        *,
        away: tuple[float, float],
        begins: float = 0.0,
        back: float | None = None,
        taken_over: bool,
    ) -> dict[str, float]:
        """The other worker's leases end at 60 s; with *back*, it renews them at that time."""
        begun: dict[str, float] = {}

        async def main(ledger: CountingLedger) -> None:
            await ledger.tasks.add(make_tasks(10))
            claim = {"worker": "b", "lease": timedelta(seconds=60), "max_lost": 3}
            leases = (await ledger.leases.claim(await ledger.tasks.page(limit=10), **claim)).leases
            await ledger.tasks.add([make_task("http://example.com/other", due=_at(away[1]))])
            await asyncio.sleep(begins)
            ledger.away = away
            harness = Harness(ledger)
            running = asyncio.create_task(harness.until_it_ends())
            if back is not None:
                await asyncio.sleep(back)
                await ledger.leases.renew(leases, lease=timedelta(seconds=60))
                await asyncio.sleep(20)
                await ledger.outcomes.commit([success(ledger, lease) for lease in leases])

            assert await running == "drained"

            begun.update((url[19:], time - ledger.began) for time, url in harness.starts)
            records = [await ledger.tasks.get(lease.task.id) for lease in leases]
            assert {record.task.fence > 1 for record in records if record} == {taken_over}
            asked = Counter(name for name, time in ledger.asked if time - ledger.began > away[1])
            assert asked["page"] + asked["page_each"] <= 60, "at most a few times a second"
            assert asked["claim"] <= 11

        run_quickly(main, tmp_path, monkeypatch)
        return begun

    return outage


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize("away", [(30, 100), (25, 65)])
def test_leases_that_run_out_during_an_outage_are_left_to_their_holder(
    outage: Callable[..., dict[str, float]], away: tuple[float, float]
):
    begun = outage(away=away, back=away[1] + 9, taken_over=False)

    assert begun.keys() == {"other"}
    assert 10 <= begun["other"] - away[1] < 19, "no claim before the holder is back"


def test_leases_that_ran_out_before_an_outage_are_taken_over_at_its_end(
    outage: Callable[..., dict[str, float]],
):
    begun = outage(away=(70, 80), begins=70, taken_over=True)

    assert all(80 <= time < 86 for time in begun.values()), begun


@quickly
async def test_what_is_not_begun_with_is_given_back_when_it_stops(ledger: CountingLedger) -> None:
    await ledger.tasks.add(make_tasks(100))
    harness = Harness(ledger, concurrency=10, per_host_concurrency=3)
    running = asyncio.create_task(harness.coordinator.run())
    await asyncio.sleep(1)

    harness.coordinator.stop()

    assert await running == "stopped"
    assert {lease.task.id for lease in harness.held.all()} == ledger.claimed
    assert await harness.coordinator.release_undispatched() == len(ledger.claimed)
    assert await harness.coordinator.release_undispatched() == 0
    assert harness.coordinator.pool.dispatched == 0
    assert (await ledger.queries.counts())[Status.TODO] == 100


@quickly
async def test_a_page_that_is_put_back_during_a_pause_is_begun_after_it(
    ledger: CountingLedger,
) -> None:
    await ledger.tasks.add(make_tasks(5))
    harness = Harness(ledger, concurrency=4, per_host_concurrency=0, obey_robots=False)
    coordinator, pool = harness.coordinator, harness.coordinator.pool
    running = asyncio.create_task(coordinator.run())
    under_way, requeue = await pool.get(), await pool.get()
    slots = harness.frontier.hosts[under_way.task.host].queue

    coordinator.pause(ledger.now())
    coordinator.requeue(requeue, to_ledger=False)
    coordinator.note_done(requeue)
    assert pool.queued_count == 2, "dispatched before the pause"
    await asyncio.sleep(5)
    assert (pool.queued_count, len(harness.held), slots.active) == (0, 1, 1)
    coordinator.requeue(under_way, to_ledger=True)
    await asyncio.sleep(5)
    assert harness.frontier.pending.to_release == [], "each goes back once"
    coordinator.pause(None)
    coordinator.note_done(under_way)
    working = asyncio.create_task(harness.work())
    await asyncio.sleep(5)

    assert len(harness.starts) == 5
    coordinator.stop()
    await running
    working.cancel()


@pytest.mark.parametrize(
    ("max_lost", "given_up", "told"),
    [(1, 1, "(1 of 1)"), (2, 0, "(1 of 2)")],
)
@quickly
async def test_a_page_that_has_crashed_its_worker_is_counted_and_told_of(
    ledger: CountingLedger,
    caplog: pytest.LogCaptureFixture,
    max_lost: int,
    given_up: int,
    told: str,
) -> None:
    crashing, other = make_tasks(2)
    lease = await _of_a_dead_worker(ledger, crashing)
    await ledger.tasks.add([other])
    harness = Harness(ledger, max_lost=max_lost)

    assert await harness.until_it_ends() == "drained"

    assert harness.stats.given_up == given_up
    assert harness.stats.failures == {Reason.CRASHED_WORKER: 1}
    (record,) = [
        each for each in caplog.records if "crashed while it ran this task alone" in each.message
    ]
    what = f"worker {lease.token} crashed while it ran this task alone"
    assert record.message == f"{crashing.url}: {what} {told}"
    assert record.event == ("given_up" if given_up else "quarantined")


async def _of_a_dead_worker(ledger: CountingLedger, task: Task) -> Lease:
    """Add a task with a lease that has run out, whose worker had begun with the task alone."""
    await ledger.tasks.add([task])
    dead = {"worker": "dead", "lease": timedelta(0), "max_lost": 1}
    (lease,) = (await ledger.leases.claim(await ledger.tasks.page(limit=1), **dead)).leases
    await ledger.leases.begin(lease)
    return lease


@pytest.mark.parametrize("to_ledger", [True, False], ids=["alone", "beside others"])
@quickly
async def test_a_page_that_ran_alone_and_is_put_back_goes_to_the_ledger(
    ledger: CountingLedger, to_ledger: bool
) -> None:
    """While it waited here a crash by another page would count against it."""
    await ledger.tasks.add([make_task()])
    harness = Harness(ledger)
    harness.coordinator.note_seeded()
    running = asyncio.create_task(harness.coordinator.run())
    lease = await harness.coordinator.pool.get()
    await asyncio.sleep(1)

    before = waited()
    harness.coordinator.requeue(lease, to_ledger=to_ledger)
    harness.coordinator.note_done(lease)
    again = await harness.coordinator.pool.get()
    assert waited() - before < 0.3
    harness.coordinator.stop()
    await running

    assert (again.task.id, again.fence) == (lease.task.id, lease.fence + to_ledger)


@quickly
async def test_hosts_whose_wake_up_was_lost_are_found(ledger: CountingLedger) -> None:
    """A process was killed between adding tasks and waking their hosts."""

    for host in range(60):
        tasks = [make_task(f"http://h{host:02}.example/{n}") for n in range(2)]
        await ledger.real.tasks.add(tasks)
    for name in ("b", "c"):
        await ledger.workers.join(replace(this_worker(now=ledger.now()), name=name))
    harness = Harness(ledger)
    began = asyncio.get_running_loop().time()

    assert await harness.until_it_ends() == "drained"

    assert len(harness.starts) == 120
    # 25 hosts a look, and at most 8 s between looks.
    assert asyncio.get_running_loop().time() - began < 60


@quickly
async def test_a_host_is_woken_for_its_earliest_task_and_sooner_for_a_priority(
    ledger: CountingLedger,
) -> None:
    now, hour = START, timedelta(hours=1)
    tasks = [
        make_task("http://later.example/", due=now + hour),
        replace(make_task("http://low.example/", due=now), priority=-5),
        replace(make_task("http://old.example/", due=now - hour), priority=1),
        replace(make_task("http://high.example/1", due=now), priority=5),
        make_task("http://high.example/2", due=now + hour),
        make_task("http://both.example/1", due=now + hour),
        replace(make_task("http://both.example/2", due=now), priority=2),
        make_task("http://none.example/", due=None),
    ]
    await ledger.real.tasks.add(tasks)

    await Harness(ledger).coordinator.announce(tasks)

    ready = []
    lease = {"worker": "b", "limit": 1, "lease": hour}
    while leases := await ledger.host_leases.lease(**lease):
        ready += [each.host.name for each in leases]
    assert ready == ["high.example", "both.example", "old.example", "low.example"]
    assert await ledger.hosts.next_ready() == now + hour


@quickly
async def test_why_a_crawl_stands_still(ledger: CountingLedger) -> None:
    await ledger.tasks.add([make_task(due=START + timedelta(seconds=100))])
    harness = Harness(ledger)
    coordinator = harness.coordinator
    await harness.session.join()

    assert coordinator.idle_reason() is None, "it has just begun"
    await asyncio.sleep(2)
    assert coordinator.idle_reason() == IdleReason(), "the ledger has not been asked yet"
    running = asyncio.create_task(harness.until_it_ends(seconds=50))
    await asyncio.sleep(10)
    assert coordinator.idle_reason() == IdleReason(ends_at=START + timedelta(seconds=100))
    harness.causes.rests.note(
        "b.example", rest_end=ledger.now() + timedelta(seconds=5), cause="503"
    )
    idle_reason = coordinator.idle_reason()
    assert idle_reason is not None
    assert (idle_reason.hosts, idle_reason.cause) == (1, "503")
    harness.causes.rests.proxies_away = lambda: (1.0, "refused")
    idle_reason = coordinator.idle_reason()
    assert idle_reason is not None
    assert idle_reason.proxies == "refused"
    harness.causes.rests.proxies_away = lambda: None

    await asyncio.sleep(95)
    assert coordinator.idle_reason() is None, "a page is under way"
    harness.causes.rests.network_down_since = START
    assert coordinator.idle_reason() == IdleReason(down_since=START)
    harness.causes.rests.network_down_since = None
    await running
    assert coordinator.idle_reason() is None, "a page has just ended"


@pytest.mark.thorough
@quickly
async def test_hosts_that_cannot_be_held_all_at_once_take_turns(ledger: CountingLedger) -> None:
    for host in range(40):
        tasks = [make_task(f"http://h{host}.example/{n}") for n in range(100)]
        await ledger.tasks.add(tasks)
    harness = Harness(ledger, concurrency=2, delay="100ms")

    await harness.stopped_after(20, work=0.01)

    served = {url.split("/")[2] for _, url in harness.starts}
    assert len(served) == 40, "8 hosts are held at once, each for 20 pages"


@quickly
async def test_what_waits_for_an_origin_that_was_given_up_is_ignored_though_its_owner_was_killed(
    ledger: CountingLedger,
) -> None:
    """It is not waited for until it is due."""
    later = make_task("http://example.com/later", due=START + timedelta(hours=1))
    await ledger.tasks.add([later, make_task("https://example.com/now")])
    (lease,) = await ledger.host_leases.lease(worker="b", limit=1, lease=timedelta(seconds=10))
    lost = {"http": Origin(given_up=Reason.HOST_UNREACHABLE)}
    await ledger.host_leases.save([(lease, replace(lease.host, origins=lost))])
    harness = Harness(ledger)

    assert await harness.until_it_ends() == "drained"

    assert [url for _, url in harness.starts] == ["https://example.com/now"]
    assert asyncio.get_running_loop().time() - ledger.began < 60


@pytest.mark.thorough
@quickly
async def test_a_worker_without_hosts_is_left_its_share(ledger: CountingLedger) -> None:
    """Each added page wakes the worker that holds the hosts, which has idle fetchers."""

    for host in range(40):
        await ledger.tasks.add([make_task(f"http://h{host}.example/{n}") for n in range(200)])
    harness = Harness(ledger, concurrency=100, delay="100ms")
    for name in ("a", "b"):
        worker = replace(this_worker(now=ledger.now()), name=name)
        await ledger.workers.join(worker)
    running = asyncio.create_task(harness.stopped_after(10, work=0.01))
    await asyncio.sleep(2)
    assert len(harness.frontier.leased) == 40

    await ledger.workers.beat("b", Counters(), idle=True)
    taken: list[HostLease] = []
    for tenth in range(40):
        await asyncio.sleep(0.1)
        harness.coordinator.wake()
        if tenth % 12:
            continue  # a worker that found nothing pauses before its next look
        taken += await ledger.host_leases.lease(worker="b", limit=99, lease=timedelta(minutes=1))
        await ledger.workers.beat("b", Counters(), idle=not taken)

    assert len(taken) == 20
    await running
    assert len(harness.frontier.leased) == 20
