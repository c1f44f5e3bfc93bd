"""Beginning with tasks that a crashed worker held: alone, and written down."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.patience import Patience
from crawlcw.engine.poison import PoisonGuard
from crawlcw.engine.retrying_ledger import retrying
from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.task import Lease
from tests.support.ledgers import LEASE, FakeClock, Instead, claimed, make_task, make_tasks, success

pytestmark = pytest.mark.quick


class CountingLedger(SqliteLedger):
    """Counts what is written down, and may be away first."""

    away = 0
    begins = 0

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self.real = SqliteLedger(store)
        self.leases = Instead(self.leases, begin=self.begin)

    async def begin(self, lease: Lease) -> bool:
        if self.away:
            self.away -= 1
            raise LedgerUnavailableError("away")
        self.begins += 1
        return await self.real.leases.begin(lease)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def ledger(tmp_path: Path, clock: FakeClock) -> AsyncIterator[CountingLedger]:
    ledger = await CountingLedger.open(tmp_path / "ledger.db", "books", clock=clock)
    yield ledger
    await ledger.close()


@pytest.fixture
def held() -> HeldLeases:
    return HeldLeases()


@pytest.fixture
def poison_guard(ledger: CountingLedger, held: HeldLeases) -> PoisonGuard:
    return PoisonGuard(retrying(ledger, Patience(timedelta(minutes=1))), held)


async def held_at_a_crash(ledger: CountingLedger, clock: FakeClock) -> list[Lease]:
    """Lease two tasks that a crashed worker held."""
    await ledger.tasks.add(make_tasks(2))
    await claimed(ledger)
    clock.advance(seconds=LEASE.total_seconds())
    return await claimed(ledger)


async def test_a_task_that_no_worker_was_lost_on_costs_nothing(
    ledger: CountingLedger, poison_guard: PoisonGuard
):
    await ledger.tasks.add([make_task()])
    (lease,) = await claimed(ledger)

    assert await poison_guard.enter(lease)
    poison_guard.leave(lease)

    assert ledger.begins == 0


async def test_of_a_suspect_it_is_written_down_that_the_work_begins_and_a_crash_then_counts(
    ledger: CountingLedger, poison_guard: PoisonGuard, clock: FakeClock
):
    one, other = await held_at_a_crash(ledger, clock)
    ledger.away = 1

    assert await poison_guard.enter(one)

    assert ledger.begins == 1
    clock.advance(seconds=LEASE.total_seconds())
    assert [lease.task.id for lease in await claimed(ledger)] == [other.task.id]
    for lease, lost in ((one, 1), (other, 0)):
        record = await ledger.tasks.get(lease.task.id)
        assert record is not None
        assert record.task.lost == lost


async def test_two_suspects_are_never_under_way_at_once(
    ledger: CountingLedger, poison_guard: PoisonGuard, clock: FakeClock
):
    one, other = await held_at_a_crash(ledger, clock)
    answers: list[bool] = []

    async def enter_other() -> None:
        answers.append(await poison_guard.enter(other))

    assert await poison_guard.enter(one)
    async with anyio.create_task_group() as group:
        group.start_soon(enter_other)
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        poison_guard.leave(other)
        await checkpoint()
        assert answers == [], "it is not the one that is under way"
        poison_guard.leave(one)

    assert answers == [False], "its host's turn is over"
    assert await poison_guard.enter(other)
    assert ledger.begins == 2


async def test_who_finds_the_lease_lost_is_cancelled_and_leaves_room_for_the_next(
    ledger: CountingLedger, poison_guard: PoisonGuard, held: HeldLeases, clock: FakeClock
):
    one, other = await held_at_a_crash(ledger, clock)
    held.add([one, other])
    await ledger.outcomes.commit([success(ledger, one)])

    with anyio.CancelScope() as lost:
        held.working(one, lost)
        await poison_guard.enter(one)
        pytest.fail("it went on without its lease")

    assert lost.cancelled_caught
    assert one.task.id not in held
    assert await poison_guard.enter(other)


@pytest.mark.parametrize("together", [False, True])
async def test_a_suspect_begins_when_nothing_else_is_under_way(
    ledger: CountingLedger, poison_guard: PoisonGuard, clock: FakeClock, together: bool
):
    one, _ = await held_at_a_crash(ledger, clock)
    fresh = await fresh_ones(ledger)
    if together:
        # Tasks that are claimed in a batch have one token.
        fresh = [replace(lease, token="a:1") for lease in fresh]
    answers: list[bool] = []

    async def enter_one() -> None:
        answers.append(await poison_guard.enter(one))

    assert await poison_guard.enter(fresh[0])
    assert await poison_guard.enter(fresh[1])
    async with anyio.create_task_group() as group:
        group.start_soon(enter_one)
        await anyio.wait_all_tasks_blocked()
        poison_guard.leave(fresh[0])
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        assert ledger.begins == 0, "whatever crashes the worker now does not count"
        poison_guard.leave(fresh[1])

    assert answers == [True]


async def test_nothing_begins_beside_a_suspect(
    ledger: CountingLedger, poison_guard: PoisonGuard, clock: FakeClock
):
    one, _ = await held_at_a_crash(ledger, clock)
    fresh, *_ = await fresh_ones(ledger)
    answers: list[bool] = []

    async def enter_fresh() -> None:
        answers.append(await poison_guard.enter(fresh))

    assert await poison_guard.enter(one)
    async with anyio.create_task_group() as group:
        group.start_soon(enter_fresh)
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        poison_guard.leave(one)

    assert answers == [False], "its host's turn is over"
    assert await poison_guard.enter(fresh)


async def test_who_is_cancelled_before_it_could_begin_alone_keeps_nobody_waiting(
    ledger: CountingLedger, poison_guard: PoisonGuard, clock: FakeClock
):
    one, _ = await held_at_a_crash(ledger, clock)
    fresh = await fresh_ones(ledger)
    assert await poison_guard.enter(fresh[0])

    with anyio.move_on_after(0):
        await poison_guard.enter(one)
        pytest.fail("it began beside another")

    assert await poison_guard.enter(fresh[1])


async def test_a_suspect_is_at_its_end_when_its_outcome_is_recorded(
    ledger: CountingLedger, poison_guard: PoisonGuard, held: HeldLeases, clock: FakeClock
):
    one, _ = await held_at_a_crash(ledger, clock)
    fresh, *_ = await fresh_ones(ledger)
    held.add([one, fresh])
    ends: list[str] = []

    async def work(lease: Lease, name: str) -> None:
        assert await poison_guard.enter(lease)
        await poison_guard.recorded(lease)
        poison_guard.leave(lease)
        ends.append(name)

    await work(fresh, "fresh")
    assert ends == ["fresh"], "of others it is not waited for"
    async with anyio.create_task_group() as group:
        group.start_soon(work, one, "one")
        await anyio.wait_all_tasks_blocked()
        assert ends == ["fresh"]
        await ledger.outcomes.commit([success(ledger, one)])
        held.end([one])

    assert ends == ["fresh", "one"]


async def fresh_ones(ledger: CountingLedger) -> list[Lease]:
    """Lease two more tasks, that no worker was lost on."""
    await ledger.tasks.add([make_task(f"http://example.com/fresh/{n}") for n in range(2)])
    return await claimed(ledger)
