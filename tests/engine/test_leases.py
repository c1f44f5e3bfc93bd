"""Leases of one process: held, renewed and lost, and released for dead workers."""

import asyncio
import dataclasses
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.engine.session import TaskLeases, WorkerSession
from crawlcw.engine.workers import reap_dead_workers, this_worker
from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.hosts import HostLease
from crawlcw.model.task import Lease, Status, Task
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    PatchedLedger,
    claimed,
    claimed_one,
    make_task,
    make_tasks,
    success,
)

SHORT = timedelta(milliseconds=30)


class RenewingLedger(PatchedLedger):
    """Ledger that announces renewals, and can be unavailable before them."""

    patched = ("leases.renew",)
    away = 0
    renewals = 0

    def begin_log(self) -> None:
        self.renewed = asyncio.Event()

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        if self.away:
            self.away -= 1
            raise LedgerUnavailableError("away")
        lost = await self.real.leases.renew(leases, lease=lease)
        self.renewals += 1
        self.renewed.set()
        return lost


LEDGER = RenewingLedger


@pytest.fixture
def held() -> TaskLeases:
    return TaskLeases()


class Hosts:
    """The hosts of a process, whose leases are renewed after those of its tasks."""

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self.renew = renew

    def leases(self) -> list[HostLease]:
        return []

    async def leave(self) -> None: ...


def session_on(
    ledger: RenewingLedger,
    held: TaskLeases,
    *,
    lease: timedelta = SHORT,
    renew_hosts: Callable[[], Awaitable[None]] | None = None,
) -> WorkerSession:
    session = WorkerSession(ledger, lease_length=lambda: lease, give_up=timedelta(minutes=1))
    session.leases = held
    session.hosts = None if renew_hosts is None else Hosts(renew_hosts)
    return session


async def renewed_once(
    ledger: RenewingLedger,
    held: TaskLeases,
    *,
    renew_hosts: Callable[[], Awaitable[None]] | None = None,
    announce: Callable[[Iterable[Task]], Awaitable[None]] | None = None,
) -> set[bytes]:
    """Let a session renew once; return the tasks that it reported as lost."""
    reported: set[bytes] = set()
    session = session_on(ledger, held, renew_hosts=renew_hosts)
    async with anyio.create_task_group() as running:
        running.start_soon(partial(session.keep_alive, on_lost=reported.update, announce=announce))
        # The second renewal shows that the first one has ended.
        for _ in range(2):
            ledger.renewed.clear()
            await ledger.renewed.wait()
        running.cancel_scope.cancel()
    return reported


async def test_what_is_held_is_renewed(
    ledger: RenewingLedger, held: TaskLeases, clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    await ledger.tasks.add(make_tasks(3))
    held.add(await claimed(ledger))
    clock.advance(seconds=59)

    assert await renewed_once(ledger, held) == set()

    assert await ledger.queries.next_due() == clock.time + SHORT
    assert len(held) == 3
    assert caplog.messages == [], "no lease is lost"


async def test_what_is_lost_is_forgotten_and_what_runs_under_it_is_cancelled(
    ledger: RenewingLedger, held: TaskLeases, clock: FakeClock
):
    await ledger.tasks.add(make_tasks(2))
    mine, kept = await claimed(ledger)
    held.add([mine, kept])
    clock.advance(seconds=61)
    await ledger.leases.renew([kept], lease=LEASE)
    await claimed(ledger, worker="b")
    lost, working = anyio.CancelScope(), anyio.CancelScope()
    held.cancel_scopes[mine.task.id] = lost
    held.cancel_scopes[kept.task.id] = working

    reported = await renewed_once(ledger, held)

    assert reported == {mine.task.id}
    assert held.all() == [kept]
    assert (lost.cancel_called, working.cancel_called) == (True, False)


async def test_a_lease_whose_outcome_is_being_written_is_not_lost(
    ledger: RenewingLedger, held: TaskLeases
):
    await ledger.tasks.add([make_task()])
    lease = await claimed_one(ledger)
    held.add([lease])
    held.mark_settling([lease])
    await ledger.outcomes.commit([success(ledger, lease)])

    assert await renewed_once(ledger, held) == set()

    assert lease.task.id in held, "until the committer has its answer"
    held.end([lease])
    assert lease.task.id not in held
    held.add([lease])
    assert await renewed_once(ledger, held) == {lease.task.id}, "nothing is written under this one"


async def test_a_lease_that_was_claimed_anew_while_it_was_renewed_is_not_lost(
    ledger: RenewingLedger, held: TaskLeases
):
    await ledger.tasks.add([make_task()])
    held.add(await claimed(ledger))
    original = ledger.leases.renew

    async def claimed_anew(leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        await ledger.outcomes.release(leases)
        held.end(leases)
        lost = await original(leases, lease=lease)
        held.add(await claimed(ledger))
        ledger.leases.renew = original  # type: ignore[method-assign]  # the same the second time
        return lost

    ledger.leases.renew = claimed_anew  # type: ignore[method-assign]  # between the question and its answer

    assert await renewed_once(ledger, held) == set()
    assert len(held) == 1


async def test_hosts_are_renewed_after_tasks_and_waited_for_as_well(
    ledger: RenewingLedger, held: TaskLeases
):
    calls: list[int] = []

    async def renew_hosts() -> None:
        calls.append(ledger.renewals)
        if len(calls) == 1:
            raise LedgerUnavailableError("away")

    await renewed_once(ledger, held, renew_hosts=renew_hosts)

    assert calls[:2] == [1, 1]


async def test_a_changed_lease_is_renewed_at_once_and_then_three_times_in_its_length(
    ledger: RenewingLedger,
):
    lease, times = timedelta(hours=1), list[float]()
    session = WorkerSession(ledger, lease_length=lambda: lease, give_up=SHORT)
    async with anyio.create_task_group() as running:
        running.start_soon(partial(session.keep_alive, on_lost=lambda _: None))
        await anyio.wait_all_tasks_blocked()
        lease = SHORT
        session.lease_changed()
        with anyio.fail_after(60):
            while len(times) < 10:
                ledger.renewed.clear()
                await ledger.renewed.wait()
                times.append(anyio.current_time())
        running.cancel_scope.cancel()

    assert times[-1] - times[0] > 8 * SHORT.total_seconds() / 3
    assert session.watchdog.renew_every == pytest.approx(SHORT.total_seconds() / 3)


@pytest.mark.parametrize("is_told", [True, False])
async def test_orphans_are_released_by_the_renewer(
    ledger: RenewingLedger, held: TaskLeases, is_told: bool
):
    await ledger.tasks.add(make_tasks(2))
    orphan, kept = await claimed(ledger)
    held.add([orphan, kept])
    held.orphans.append(orphan)
    told: list[bytes] = []

    async def announce(tasks: Iterable[Task]) -> None:
        assert held.all() == [kept], "a listener finds the held leases without the lost one"
        told.extend(task.id for task in tasks)

    assert await renewed_once(ledger, held, announce=announce if is_told else None) == set()

    assert held.all() == [kept]
    assert told == [orphan.task.id] * is_told
    assert [task.id for task in await ledger.tasks.page(limit=10)] == [orphan.task.id]
    assert held.orphans == []


# --- counts by host


def lease_of(url: str, *, fence: int = 1) -> Lease:
    return Lease(task=make_task(url), token=f"a:{fence}", fence=fence, expires=START)


async def test_the_late_end_of_a_lost_lease_is_not_that_of_the_next_one():
    """Its result was still to be written when this process claimed the task anew."""
    held = TaskLeases()
    lost, again = (lease_of("http://a.example/1", fence=fence) for fence in (1, 2))
    held.add([lost])
    held.lose([lost.task.id])
    held.add([again])

    held.mark_settling([lost])
    with anyio.fail_after(5):
        await held.wait_for_end(lost)
    held.end([lost])

    assert (held.all(), held.count_by_host) == ([again], {"a.example": 1})


LEASES = [lease_of(f"http://{host}.example/{n}") for host in "ab" for n in range(3)]
some_leases = st.lists(st.sampled_from(LEASES), max_size=4)


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "end", "lose"]), some_leases), max_size=40))
def test_the_leases_of_each_host_are_counted_whatever_comes(steps: list[tuple[str, list[Lease]]]):
    held = TaskLeases()
    expected: set[bytes] = set()
    for what, leases in steps:
        ids = {lease.task.id for lease in leases}
        if what == "add":
            held.add(leases)
            expected |= ids
        elif what == "end":
            held.end(leases)
            expected -= ids
        else:
            held.lose([lease.task.id for lease in leases])
            expected -= ids

        counts = Counter(lease.task.host for lease in LEASES if lease.task.id in expected)
        assert len(held) == len(expected)
        assert dict(held.count_by_host) == dict(counts), "no more hosts than are held"


# --- dead workers


async def _join_and_claim(ledger: SqliteLedger, *, pid: int, birth: str, machine: str) -> str:
    worker = dataclasses.replace(
        this_worker(now=ledger.now()), pid=pid, birth=birth, machine=machine
    )
    await ledger.workers.join(worker)
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
    await ledger.tasks.add(make_tasks(3))
    machine = this_worker(now=ledger.now()).machine
    await _join_and_claim(ledger, pid=dead_pid, birth="1", machine=machine)
    assert await ledger.tasks.page(limit=10) == []

    assert await reap_dead_workers(ledger) == 3

    assert await ledger.workers.all() == []
    assert len(await claimed(ledger)) == 3
    assert await reap_dead_workers(ledger) == 0


async def test_the_living_and_those_elsewhere_keep_theirs(ledger: RenewingLedger, dead_pid: int):
    me = this_worker(now=ledger.now())
    await ledger.tasks.add([make_task("http://a.example/1")])
    await _join_and_claim(ledger, pid=me.pid, birth=me.birth, machine=me.machine)
    await ledger.tasks.add([make_task("http://a.example/2")])
    await _join_and_claim(ledger, pid=dead_pid, birth="1", machine="another machine")

    assert await reap_dead_workers(ledger) == 0

    assert len(await ledger.workers.all()) == 2
    assert (await ledger.queries.counts())[Status.PROCESSING] == 2


async def test_who_has_been_silent_for_a_day_is_counted_out_wherever_it_ran(
    ledger: RenewingLedger, clock: FakeClock, dead_pid: int
):
    await ledger.tasks.add([make_task()])
    await _join_and_claim(ledger, pid=dead_pid, birth="1", machine="another machine")
    clock.advance(seconds=24 * 3600)
    assert await reap_dead_workers(ledger) == 0
    clock.advance(seconds=1)

    await reap_dead_workers(ledger)

    assert await ledger.workers.all() == []
    assert len(await claimed(ledger)) == 1


async def test_the_renewer_takes_back_what_dead_neighbours_held(
    ledger: RenewingLedger, held: TaskLeases, dead_pid: int
):
    await ledger.tasks.add([make_task()])
    machine = this_worker(now=ledger.now()).machine
    await _join_and_claim(ledger, pid=dead_pid, birth="1", machine=machine)

    await renewed_once(ledger, held)

    assert await ledger.workers.all() == []
    assert len(await ledger.tasks.page(limit=10)) == 1
