"""Heartbeats of a worker: their times, their contents, and the count of other workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import anyio
import pytest

from crawlcw.engine import session as session_module
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.workers import this_worker
from crawlcw.errors import LedgerError, LedgerUnavailableError
from crawlcw.ledger.protocol import Counters, Worker
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.rates import Vitals
from crawlcw.model.transitions import Event
from tests.support.ledgers import START, FakeClock, PatchedFacet, PatchedLedger, claimed, make_tasks

pytestmark = pytest.mark.quick

HOUR = timedelta(hours=1)
SHORT = timedelta(milliseconds=30)


class BeatenLedger(PatchedLedger):
    """Ledger that logs heartbeats, can be unavailable, and can block them."""

    patched = ("workers.all", "workers.beat")
    away = False

    def begin_log(self) -> None:
        #: The hunger flag of each heartbeat, in order.
        self.asked: asyncio.Queue[bool] = asyncio.Queue()
        self.written: asyncio.Queue[bool] = asyncio.Queue()
        self.go = asyncio.Event()
        self.go.set()

    async def all(self) -> list[Worker]:
        if self.away:
            self.away = False
            raise LedgerUnavailableError("away")
        return await self.real.workers.all()

    async def beat(
        self, name: str, counters: Counters, *, idle: bool = False, vitals: Vitals | None = None
    ) -> None:
        self.asked.put_nowait(idle)
        await self.go.wait()
        if self.away:
            raise LedgerUnavailableError("away")
        await self.real.workers.beat(name, counters, idle=idle, vitals=vitals)
        self.written.put_nowait(idle)


LEDGER = BeatenLedger


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval of an hour, so that each heartbeat in a test has another cause."""
    monkeypatch.setattr(session_module, "_HEARTBEAT_INTERVAL_S", 3600.0)


async def joined(
    ledger: SqliteLedger, name: str = "me", *, lease: timedelta = HOUR
) -> WorkerSession:
    """Return the session of a new worker."""
    session = WorkerSession(ledger, lease_length=lambda: lease, give_up=HOUR)
    session.worker = name
    await ledger.workers.join(replace(this_worker(now=START), name=name))
    return session


@asynccontextmanager
async def running(session: WorkerSession) -> AsyncIterator[None]:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as background:
            background.start_soon(session._keep_beating)
            yield
            background.cancel_scope.cancel()


async def the_worker(ledger: SqliteLedger) -> Worker:
    (worker,) = await ledger.workers.all()
    return worker


# --- heartbeats


async def test_it_writes_down_what_was_counted(ledger: BeatenLedger, clock: FakeClock):
    me = await joined(ledger)
    me.stats.pages, me.stats.items, me.stats.fetched, me.stats.bytes = 3, 7, 5, 900
    for link in ("a", "b"):
        me.stats.dropped.note("depth", link)
    clock.advance(seconds=4)

    await me.beat()

    worker = await the_worker(ledger)
    assert worker.heartbeat == clock.time
    assert worker.counters == Counters(
        pages=3,
        items=7,
        fetched=5,
        bytes=900,
        links_dropped={"depth": 2},
        link_examples={"depth": ["a", "b"]},
    )
    assert not worker.idle


@pytest.mark.usefixtures("silent")
async def test_it_beats_three_times_in_a_lease(ledger: BeatenLedger):
    me = await joined(ledger, lease=SHORT)

    async with running(me):
        for pages in range(3):
            me.stats.pages = pages
            await ledger.written.get()
        # The next heartbeat has the last number, whether or not one was under way.
        await ledger.written.get()

    assert (await the_worker(ledger)).counters.pages == 2


async def test_an_unavailable_ledger_does_not_end_it(ledger: BeatenLedger):
    me = await joined(ledger, lease=SHORT)
    ledger.away = True

    async with running(me):
        for _ in range(3):
            await ledger.asked.get()
        assert ledger.written.empty()
        ledger.away = False
        await ledger.written.get()


# --- hunger


@pytest.mark.usefixtures("silent")
async def test_hunger_is_told_at_once_when_it_comes_and_when_it_goes(ledger: BeatenLedger):
    me = await joined(ledger)

    async with running(me):
        me.set_idle(True)
        assert await ledger.written.get()
        assert (await the_worker(ledger)).idle

        me.set_idle(False)
        assert not await ledger.written.get()
        assert not (await the_worker(ledger)).idle


# --- neighbours


async def idle(ledger: SqliteLedger, name: str) -> WorkerSession:
    """Return a worker that has just asked for hosts."""
    worker = await joined(ledger, name)
    worker.set_idle(True)
    await worker.beat()
    return worker


async def test_hungry_are_those_others_that_say_so(ledger: BeatenLedger):
    me = await idle(ledger, "me")
    await joined(ledger, "busy")
    other = await idle(ledger, "idle")
    await idle(ledger, "idle-too")

    assert await me.neighbours() == (4, 2)

    other.set_idle(False)
    await other.beat()
    assert await me.neighbours() == (4, 1)


async def test_who_has_been_silent_for_three_beats_is_not_counted(
    ledger: BeatenLedger, clock: FakeClock
):
    me = await joined(ledger)
    await idle(ledger, "silent")
    await idle(ledger, "late")
    clock.advance(seconds=14.999)
    await me.beat()
    assert await me.neighbours() == (3, 2)

    clock.advance(seconds=0.001)

    assert await me.neighbours() == (1, 0)


# --- vitals


async def test_a_beat_shows_what_the_worker_has_counted_and_how_it_is(
    ledger: BeatenLedger, monkeypatch: pytest.MonkeyPatch
):
    now = 100.0
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now))
    me = await joined(ledger)
    stats = me.stats
    await ledger.tasks.add(make_tasks(7))
    me.leases.add(await claimed(ledger, worker="me"))
    monkeypatch.setattr(me.watchdog, "lag", lambda: 0.25)
    stats.pages, stats.items, stats.bytes, stats.given_up, stats.unwanted = 30, 60, 999, 2, 1
    stats.outcomes[Event.FAIL] = 4

    now = 110.0
    await me.beat()

    (worker,) = await ledger.workers.all()
    assert worker.vitals is not None
    assert replace(worker.vitals, memory=0) == Vitals(
        finished=30, failed=4, ignored=3, items=60, bytes=999, rate=3.0, processing=7, lag=0.25
    )
    assert worker.vitals.memory > 1 << 20


async def test_the_rate_is_that_of_the_last_minute(
    ledger: BeatenLedger, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0
    me = await joined(ledger)
    me._rate_samples[0] = (now, 0)
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now))
    rates = []
    for now, me.stats.pages in [(0.0, 0), (30.0, 300), (60.0, 900), (120.0, 900), (180.0, 960)]:  # noqa: B007
        rates.append(me.vitals().rate)

    assert rates == [0, 10, 15, 0, 1]


async def test_a_worker_leaves_a_point_a_minute_and_one_when_it_leaves(
    ledger: BeatenLedger, clock: FakeClock
):
    me = await joined(ledger)
    for me.stats.pages in range(1, 31):
        clock.advance(seconds=5)
        await me.beat()
        await me.record_point()
    clock.advance(seconds=5)
    await me.record_point(last=True)

    found = await ledger.rates.between(START, START + HOUR)

    assert [((span.end - START).total_seconds(), span.vitals.finished) for span in found] == [
        (60, 12),
        (120, 12),
        (155, 6),
    ]


async def test_a_point_shows_the_longest_lag_of_its_minute(
    ledger: BeatenLedger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    lags = iter([0.5, 0.0, 0.125])
    me = await joined(ledger)
    monkeypatch.setattr(me.watchdog, "lag", lambda: next(lags))
    for _ in range(2):
        await me.beat()
    clock.advance(seconds=60)
    await me.record_point()
    await me.beat()
    clock.advance(seconds=60)
    await me.record_point()

    found = await ledger.rates.between(START, START + HOUR)

    assert [span.vitals.lag for span in found] == [0.5, 0.125]


async def test_a_point_that_cannot_be_written_costs_nothing_and_the_next_one_makes_up_for_it(
    ledger: BeatenLedger, clock: FakeClock
):
    me = await joined(ledger)
    rates = ledger.rates

    async def refused(_point: object) -> None:
        raise LedgerError("no place for it")

    ledger.rates = PatchedFacet(rates, record=refused)
    me.stats.pages = 5
    clock.advance(seconds=60)
    await me.beat()
    await me.record_point()
    ledger.rates = rates
    clock.advance(seconds=5)
    await me.record_point()

    found = await rates.between(START, START + HOUR)

    assert [(span.seconds, span.vitals.finished) for span in found] == [(65, 5)]
