"""Session of a worker on a ledger: it joins, sends heartbeats, renews its leases, and leaves."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from crawlcw.engine.session import WorkerSession
from crawlcw.engine.workers import this_worker
from crawlcw.errors import LedgerConfigurationError, LedgerError, LedgerUnavailableError
from crawlcw.ledger.copying import UNFINISHED
from crawlcw.ledger.protocol import Ledger, Worker
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Lease, Status
from tests.support.ledgers import LEASE, FakeClock, PatchedFacet, claimed, make_task, make_tasks

pytestmark = pytest.mark.quick

SHORT = timedelta(milliseconds=30)


LEDGER = SqliteLedger


def session_on(ledger: SqliteLedger, *, lease: timedelta = LEASE) -> WorkerSession:
    return WorkerSession(ledger, lease_length=lambda: lease, give_up=timedelta(seconds=0.05))


async def names(ledger: SqliteLedger) -> list[str]:
    return [worker.name for worker in await ledger.workers.all()]


async def test_who_joins_takes_back_what_a_dead_process_held(
    ledger: SqliteLedger, clock: FakeClock
):
    dead: Worker = replace(this_worker(now=clock()), name="dead", birth="0")
    await ledger.workers.join(dead)
    await ledger.tasks.add([make_task()])
    await claimed(ledger, worker="dead")
    session = session_on(ledger)

    await session.join()

    assert await names(ledger) == [session.worker]
    assert len(await ledger.tasks.page(limit=9)) == 1


async def test_no_worker_joins_a_ledger_that_is_half_of_a_copy(ledger: SqliteLedger):
    await ledger.notes.set_state({UNFINISHED: True})

    with pytest.raises(LedgerConfigurationError, match="run the same copy command again"):
        await session_on(ledger).join()

    assert await names(ledger) == []


async def test_it_is_heard_of_and_its_leases_go_on(ledger: SqliteLedger, clock: FakeClock):
    session = session_on(ledger, lease=SHORT)
    await ledger.tasks.add(make_tasks(2))
    await session.join()
    kept, lost = await claimed(ledger, worker=session.worker)
    session.leases.add([kept, lost])
    # Another worker holds this task now.
    session.leases.add([replace(lost, fence=lost.fence - 1, token="elsewhere:1")])
    told: asyncio.Queue[set[bytes]] = asyncio.Queue()
    session.stats.pages = 7

    keeping = asyncio.create_task(session.keep_alive(on_lost=told.put_nowait))
    assert await told.get() == {lost.task.id}
    while (await ledger.workers.all())[0].counters.pages != 7:
        clock.advance(seconds=0.001)
        await asyncio.sleep(0)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping

    assert session.leases.is_current(kept)
    assert not session.leases.is_current(lost)


async def test_leases_count_from_when_their_renewal_was_asked_for(ledger: SqliteLedger):
    """A process may be frozen until the answer."""
    session = session_on(ledger, lease=SHORT)
    began, sent = session.renewed_at, list[float]()
    renew = ledger.leases.renew
    counted: asyncio.Queue[float] = asyncio.Queue()

    async def noted(leases: list[Lease], *, lease: timedelta) -> set[bytes]:
        sent.append(time.monotonic())
        return await renew(leases, lease=lease)

    class Hosts:
        async def renew(self) -> None:
            counted.put_nowait(session.renewed_at)

    ledger.leases = PatchedFacet(ledger.leases, renew=noted)
    session.hosts = Hosts()  # type: ignore[assignment]  # all that a renewal asks for
    keeping = asyncio.create_task(session.keep_alive(on_lost=lambda _: None))
    from_then = await counted.get()
    keeping.cancel()

    assert began < from_then <= sent[0]


async def test_who_leaves_gives_back_tasks_hosts_and_what_it_has_counted(
    ledger: SqliteLedger, clock: FakeClock
):
    session = session_on(ledger)
    await ledger.tasks.add(make_tasks(3))
    await session.join()
    session.leases.add(await claimed(ledger, worker=session.worker))
    session.stats.pages = 5
    session.set_idle(True)
    clock.advance(seconds=9)
    there: list[list[str]] = []

    class Hosts:
        async def leave(self) -> None:
            there.append(await names(ledger))

    assert await session.release_all() == 3
    session.hosts = Hosts()  # type: ignore[assignment]  # all that the end of a session asks for
    await session.leave()

    assert there == [[session.worker]], "it owns its hosts as long as it is listed"
    assert await names(ledger) == []
    assert (await ledger.workers.counters()).pages == 5
    (span,) = await ledger.rates.between(
        session.started_at, session.started_at + timedelta(hours=1)
    )
    assert (span.seconds, span.vitals.finished) == (9, 5), "of its last minute as well"
    assert len(await ledger.tasks.page(limit=9)) == 3


async def test_a_process_whose_loop_is_blocked_gives_back_from_another_thread(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    session, opened = session_on(ledger), noted_others(ledger, monkeypatch)
    await ledger.tasks.add(make_tasks(3))
    await session.join()
    session.leases.add(await claimed(ledger, worker=session.worker))

    async def abandon() -> int:
        other = await ledger.reconnected()
        return await session.abandon(other)

    assert await asyncio.to_thread(anyio.run, abandon) == 3
    assert await names(ledger) == []
    assert (await ledger.queries.counts()).by_status == {Status.TODO: 3}, "no crash counts"
    await opened[0].close()


async def test_a_worker_without_hosts_renews_and_beats_over_a_connection_that_it_closes(
    ledger: SqliteLedger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    """While its event loop is blocked; work on tracked tasks has no hosts."""
    session, opened = session_on(ledger), noted_others(ledger, monkeypatch)
    await ledger.tasks.add([make_task()])
    await session.join()
    await claimed(ledger, worker=session.worker)
    session.set_idle(True)
    clock.advance(seconds=9)

    await session._renew_during_stall()

    assert await ledger.queries.next_due() == clock() + LEASE
    (worker,) = await ledger.workers.all()
    assert (worker.heartbeat, worker.idle) == (clock(), False)
    with pytest.raises((LedgerError, RuntimeError)):
        await opened[0].workers.all()


def noted_others(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """Return a list that each other connection to the ledger will be in."""
    opened, another = list[Ledger](), ledger.reconnected

    async def noted() -> Ledger:
        opened.append(await another())
        return opened[-1]

    monkeypatch.setattr(ledger, "reconnected", noted)
    return opened


async def test_what_is_held_stays_where_the_ledger_is_away_at_the_end(ledger: SqliteLedger):
    session = session_on(ledger)
    await session.join()

    async def away(leases: list[Lease]) -> int:
        raise LedgerUnavailableError("away")

    ledger.outcomes = PatchedFacet(ledger.outcomes, release=away)
    session = session_on(ledger)

    with pytest.raises(LedgerUnavailableError, match="away"):
        await session.release_all()
