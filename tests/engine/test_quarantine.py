"""Tasks of crashed workers run alone, and the ledger records their start."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint

from crawlcw.engine.ledger_retry import LedgerRetry, retrying
from crawlcw.engine.pool import Quarantine
from crawlcw.engine.session import TaskLeases
from crawlcw.errors import Defer, LedgerUnavailableError
from crawlcw.model.task import Lease
from tests.support.ledgers import (
    LEASE,
    FakeClock,
    PatchedLedger,
    claimed,
    make_task,
    make_tasks,
    success,
)

pytestmark = pytest.mark.quick


class CountingLedger(PatchedLedger):
    """Ledger that counts the recorded starts, and can be unavailable before them."""

    patched = ("leases.begin",)
    away = 0
    begins = 0

    async def begin(self, lease: Lease) -> bool:
        if self.away:
            self.away -= 1
            raise LedgerUnavailableError("away")
        self.begins += 1
        return await self.real.leases.begin(lease)


LEDGER = CountingLedger


@pytest.fixture
def held() -> TaskLeases:
    return TaskLeases()


@pytest.fixture
def quarantine(ledger: CountingLedger, held: TaskLeases) -> Quarantine:
    return Quarantine(retrying(ledger, LedgerRetry(timedelta(minutes=1))), held)


@asynccontextmanager
async def waiting(quarantine: Quarantine, lease: Lease) -> AsyncIterator[list[bool]]:
    """Let a task wait for its turn; yield its answers, which are complete after the block."""
    answers: list[bool] = []

    async def enter() -> None:
        answers.append(await quarantine.enter(lease))

    async with anyio.create_task_group() as group:
        group.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        yield answers


async def held_at_two_crashes(ledger: CountingLedger, clock: FakeClock) -> list[Lease]:
    """Lease two tasks that two crashed workers held before."""
    await ledger.tasks.add(make_tasks(2))
    for _ in range(2):
        await claimed(ledger)
        clock.advance(seconds=LEASE.total_seconds())
    return await claimed(ledger)


async def test_a_task_that_no_worker_was_lost_on_costs_nothing(
    ledger: CountingLedger, quarantine: Quarantine
):
    await ledger.tasks.add([make_task()])
    (lease,) = await claimed(ledger)

    assert await quarantine.enter(lease)
    quarantine.leave(lease)

    assert ledger.begins == 0


async def test_of_a_quarantined_task_it_is_written_that_it_begins_and_a_crash_then_counts(
    ledger: CountingLedger, quarantine: Quarantine, clock: FakeClock
):
    one, other = await held_at_two_crashes(ledger, clock)
    ledger.away = 1

    assert await quarantine.enter(one)

    assert ledger.begins == 1
    clock.advance(seconds=LEASE.total_seconds())
    assert [lease.task.id for lease in await claimed(ledger)] == [other.task.id]
    for lease, lost in ((one, 1), (other, 0)):
        record = await ledger.tasks.get(lease.task.id)
        assert record is not None
        assert record.task.lost == lost


async def test_two_quarantined_tasks_are_never_under_way_at_once(
    ledger: CountingLedger, quarantine: Quarantine, clock: FakeClock
):
    one, other = await held_at_two_crashes(ledger, clock)
    assert await quarantine.enter(one)
    async with waiting(quarantine, other) as answers:
        assert answers == []
        quarantine.leave(other)
        await checkpoint()
        assert answers == [], "another task is under way"
        quarantine.leave(one)

    assert answers == [False], "its host's turn is over"
    assert await quarantine.enter(other)
    assert ledger.begins == 2


async def test_who_finds_the_lease_lost_is_cancelled_and_leaves_room_for_the_next(
    ledger: CountingLedger, quarantine: Quarantine, held: TaskLeases, clock: FakeClock
):
    one, other = await held_at_two_crashes(ledger, clock)
    held.add([one, other])
    await ledger.outcomes.commit([success(ledger, one)])

    with anyio.CancelScope() as lost:
        held.cancel_scopes[one.task.id] = lost
        await quarantine.enter(one)
        pytest.fail("it went on without its lease")

    assert lost.cancelled_caught
    assert one.task.id not in held
    assert await quarantine.enter(other)


@pytest.mark.parametrize("together", [False, True])
async def test_a_quarantined_task_begins_when_nothing_else_is_under_way(
    ledger: CountingLedger, quarantine: Quarantine, clock: FakeClock, together: bool
):
    one, _ = await held_at_two_crashes(ledger, clock)
    fresh = await fresh_ones(ledger)
    if together:
        # Tasks that are claimed in a batch have one token.
        fresh = [replace(lease, token="a:1") for lease in fresh]
    assert await quarantine.enter(fresh[0])
    assert await quarantine.enter(fresh[1])
    async with waiting(quarantine, one) as answers:
        quarantine.leave(fresh[0])
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        assert ledger.begins == 0, "a crash of the worker does not count now"
        quarantine.leave(fresh[1])

    assert answers == [True]


async def test_nothing_begins_beside_a_quarantined_task(
    ledger: CountingLedger, quarantine: Quarantine, clock: FakeClock
):
    one, _ = await held_at_two_crashes(ledger, clock)
    fresh, *_ = await fresh_ones(ledger)
    assert await quarantine.enter(one)
    async with waiting(quarantine, fresh) as answers:
        assert answers == []
        quarantine.leave(one)

    assert answers == [False], "its host's turn is over"
    assert await quarantine.enter(fresh)


async def test_a_quarantined_task_is_at_its_end_when_its_outcome_is_recorded(
    ledger: CountingLedger, quarantine: Quarantine, held: TaskLeases, clock: FakeClock
):
    one, _ = await held_at_two_crashes(ledger, clock)
    fresh, *_ = await fresh_ones(ledger)
    held.add([one, fresh])
    ends: list[str] = []

    async def work(lease: Lease, name: str) -> None:
        assert await quarantine.enter(lease)
        if quarantine.quarantined_lease is lease:
            await held.wait_for_end(lease)
        quarantine.leave(lease)
        ends.append(name)

    await work(fresh, "fresh")
    assert ends == ["fresh"], "it does not wait for other tasks"
    async with anyio.create_task_group() as group:
        group.start_soon(work, one, "one")
        await anyio.wait_all_tasks_blocked()
        assert ends == ["fresh"]
        await ledger.outcomes.commit([success(ledger, one)])
        held.end([one])

    assert ends == ["fresh", "one"]


async def fresh_ones(ledger: CountingLedger) -> list[Lease]:
    """Lease two more tasks without lost workers."""
    await ledger.tasks.add([make_task(f"http://example.com/fresh/{n}") for n in range(2)])
    return await claimed(ledger)


async def test_others_wait_for_a_task_that_is_to_run_alone_no_longer_than_its_patience(
    ledger: CountingLedger, held: TaskLeases, clock: FakeClock
):
    quarantine = Quarantine(ledger, held, max_wait_s=0.01)
    one, _ = await held_at_two_crashes(ledger, clock)
    plain = [replace(one, task=replace(one.task, id=bytes([n] * 16))) for n in (1, 2)]
    plain = [replace(each, task=replace(each.task, quarantine_fence=None)) for each in plain]
    assert await quarantine.enter(plain[0])

    with pytest.raises(Defer) as caught:
        await quarantine.enter(one)

    assert caught.value.due == timedelta(seconds=0.12)
    assert await quarantine.enter(plain[1]), "it goes on beside the long one"
    for lease in plain:
        quarantine.leave(lease)
    assert await quarantine.enter(one)
