"""The leases of one process: held, renewed, lost, and those of the dead taken back."""

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from crawlcw.errors import LedgerUnavailableError
from crawlcw.leases import HeldLeases, Renewer, bury_the_dead
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.patience import Patience
from crawlcw.task import Lease, Status
from crawlcw.workers import this_worker
from tests.ledgers import LEASE, FakeClock, claimed, claimed_one, make_task, make_tasks, success

SHORT = timedelta(milliseconds=30)


class RenewingLedger(SqliteLedger):
    """Tells when it has renewed, and may be away first."""

    away = 0

    def watch(self) -> None:
        self.renewed = asyncio.Event()

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        if self.away:
            self.away -= 1
            raise LedgerUnavailableError("away")
        lost = await super().renew(leases, lease=lease)
        self.renewed.set()
        return lost


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def ledger(tmp_path: Path, clock: FakeClock) -> AsyncIterator[RenewingLedger]:
    ledger = await RenewingLedger.open(tmp_path / "ledger.db", "books", clock=clock)
    ledger.watch()
    yield ledger
    await ledger.close()


@pytest.fixture
def held() -> HeldLeases:
    return HeldLeases()


async def renewed_once(ledger: RenewingLedger, held: HeldLeases) -> set[bytes]:
    """Let the renewer do its work once; return what it reported as lost."""
    reported: set[bytes] = set()
    renewer = Renewer(
        ledger,
        held,
        lease=SHORT,
        patience=Patience(timedelta(minutes=1)),
        on_lost=reported.update,
    )
    async with anyio.create_task_group() as running:
        running.start_soon(renewer.run)
        # The second time shows that the first has come to its end.
        for _ in range(2):
            ledger.renewed.clear()
            await ledger.renewed.wait()
        running.cancel_scope.cancel()
    return reported


async def test_what_is_held_is_renewed(ledger: RenewingLedger, held: HeldLeases, clock: FakeClock):
    await ledger.add(make_tasks(3))
    held.add(await claimed(ledger))
    clock.advance(seconds=59)

    assert await renewed_once(ledger, held) == set()

    assert await ledger.horizon() == clock.time + SHORT
    assert len(held) == 3


async def test_what_is_lost_is_forgotten_and_what_runs_under_it_is_cancelled(
    ledger: RenewingLedger, held: HeldLeases, clock: FakeClock
):
    await ledger.add(make_tasks(2))
    mine, kept = await claimed(ledger)
    held.add([mine, kept])
    clock.advance(seconds=61)
    await ledger.renew([kept], lease=LEASE)
    await claimed(ledger, worker="b")
    lost, working = anyio.CancelScope(), anyio.CancelScope()
    held.working(mine, lost)
    held.working(kept, working)

    reported = await renewed_once(ledger, held)

    assert reported == {mine.task.id}
    assert held.all() == [kept]
    assert (lost.cancel_called, working.cancel_called) == (True, False)


async def test_a_lease_whose_outcome_is_being_written_is_not_lost(
    ledger: RenewingLedger, held: HeldLeases
):
    await ledger.add([make_task()])
    lease = await claimed_one(ledger)
    held.add([lease])
    held.settling([lease])
    await ledger.commit([success(ledger, lease)])

    assert await renewed_once(ledger, held) == set()

    assert lease.task.id in held, "until the committer has its answer"
    held.end([lease])
    assert lease.task.id not in held
    assert not held.is_settling(lease.task.id)


async def test_a_lease_that_ended_while_it_was_renewed_is_not_lost(
    ledger: RenewingLedger, held: HeldLeases
):
    await ledger.add([make_task()])
    lease = await claimed_one(ledger)
    held.add([lease])
    await ledger.commit([success(ledger, lease)])
    original = ledger.renew

    async def ended_meanwhile(leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        held.end(leases)
        return await original(leases, lease=lease)

    ledger.renew = ended_meanwhile  # type: ignore[method-assign]  # between the question and its answer

    assert await renewed_once(ledger, held) == set()


async def test_the_renewer_waits_for_a_ledger_that_is_away(
    ledger: RenewingLedger, held: HeldLeases, clock: FakeClock
):
    await ledger.add([make_task()])
    held.add(await claimed(ledger))
    ledger.away = 1
    clock.advance(seconds=30)

    await renewed_once(ledger, held)

    assert await ledger.horizon() == clock.time + SHORT


async def test_a_scope_is_cancelled_only_while_something_runs_in_it():
    held, scope = HeldLeases(), anyio.CancelScope()
    task = make_task()
    lease = Lease(task=task, token="a:1", fence=1, expires=task.create_time)
    held.add([lease])
    held.working(lease, scope)
    held.idle(lease)

    held.lose([task.id])

    assert not scope.cancel_called
    assert len(held) == 0


async def _join_and_claim(ledger: SqliteLedger, *, pid: int, birth: str, machine: str) -> str:
    worker = dataclasses.replace(
        this_worker(now=ledger.now()), pid=pid, birth=birth, machine=machine
    )
    await ledger.join(worker)
    await claimed(ledger, worker=worker.name)
    return worker.name


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


async def test_the_leases_of_the_dead_of_this_machine_are_taken_back_at_once(
    ledger: RenewingLedger, dead_pid: int
):
    await ledger.add(make_tasks(3))
    machine = this_worker(now=ledger.now()).machine
    await _join_and_claim(ledger, pid=dead_pid, birth="1", machine=machine)
    assert await ledger.page(limit=10) == []

    assert await bury_the_dead(ledger) == 3

    assert await ledger.workers() == []
    assert len(await claimed(ledger)) == 3
    assert await bury_the_dead(ledger) == 0


async def test_the_living_and_those_elsewhere_keep_theirs(ledger: RenewingLedger, dead_pid: int):
    me = this_worker(now=ledger.now())
    await ledger.add([make_task("http://a.example/1")])
    await _join_and_claim(ledger, pid=me.pid, birth=me.birth, machine=me.machine)
    await ledger.add([make_task("http://a.example/2")])
    await _join_and_claim(ledger, pid=dead_pid, birth="1", machine="another machine")

    assert await bury_the_dead(ledger) == 0

    assert len(await ledger.workers()) == 2
    assert (await ledger.counts())[Status.PROCESSING] == 2


async def test_the_renewer_takes_back_what_dead_neighbours_held(
    ledger: RenewingLedger, held: HeldLeases, dead_pid: int
):
    await ledger.add([make_task()])
    machine = this_worker(now=ledger.now()).machine
    await _join_and_claim(ledger, pid=dead_pid, birth="1", machine=machine)

    await renewed_once(ledger, held)

    assert await ledger.workers() == []
    assert len(await ledger.page(limit=10)) == 1
