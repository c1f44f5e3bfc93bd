"""S0: one task from the claim to its end, with all of its writes."""

import asyncio

import pytest

from crawlcw.errors import LeaseLostError, TaskIgnoredError, TaskLockedError
from crawlcw.model.task import Status, key_id
from crawlcw.tracking import Tracker
from tests.capabilities.journal import Journal
from tests.capabilities.use_cases import UseCases, due_keys, fail, finish, task_of
from tests.support.ledgers import FakeClock

KEYS = [f"order-{n}" for n in range(10)]


@pytest.mark.seed("0.8", "0.13")
async def test_at_every_moment_a_task_is_locked_exactly_while_it_is_processing(
    tracker: Tracker, other: Tracker, journal: Journal
):
    await tracker.add_many(KEYS)

    async def work(worker: Tracker, keys: list[str]) -> None:
        await fail(worker, *keys)
        await finish(worker, *keys)

    await asyncio.gather(*(work(tracker, [key]) for key in KEYS[::2]), work(other, KEYS[1::2]))

    writes = journal.writes()
    assert len(writes) == 5 * len(KEYS)
    assert {w.lock is not None for w in writes if w.status is Status.PROCESSING} == {True}
    assert {w.lock for w in writes if w.status is not Status.PROCESSING} == {None}


@pytest.mark.seed("0.12")
async def test_only_one_of_two_simultaneous_starts_gets_a_task(tracker: Tracker, other: Tracker):
    await tracker.add_many(KEYS)
    worked = asyncio.Event()

    async def start(worker: Tracker, key: str) -> str:
        try:
            async with worker.start(key):
                await worked.wait()
                return key
        except TaskLockedError:
            return "locked"

    starting = [asyncio.create_task(start(each, key)) for key in KEYS for each in (tracker, other)]
    # For each key, one caller is refused at once, while the other one works.
    while sum(task.done() for task in starting) < len(KEYS):
        await asyncio.wait([task for task in starting if not task.done()], timeout=0.01)
    worked.set()
    assert sorted(await asyncio.gather(*starting)) == sorted(["locked"] * len(KEYS) + KEYS)


@pytest.mark.seed("0.15")
async def test_success_is_one_write_that_finishes_unlocks_and_keeps_the_data(
    tracker: Tracker, journal: Journal
):
    await tracker.add("order-1")
    async with tracker.start("order-1") as execution:
        execution.data["receipt"] = 7

    added, claimed, finished = journal.writes()
    assert (added.status, claimed.status) == (Status.TODO, Status.PROCESSING)
    assert (finished.status, finished.lock) == (Status.FINISHED, None)
    assert (await tracker.get("order-1")).data == {"receipt": 7}


@pytest.mark.seed("0.16")
@pytest.mark.parametrize("max_retry", [1, 3])
async def test_a_failure_counts_and_only_the_last_one_gives_up(use_cases: UseCases, max_retry: int):
    tracker = await use_cases.open(max_retry=max_retry)
    await tracker.add("order-1")
    seen = []
    for _ in range(max_retry):
        await fail(tracker, "order-1")
        task = await tracker.get("order-1")
        seen.append((task.retry, task.status))

    failed = [(n, Status.FAILED) for n in range(1, max_retry)]
    assert seen == [*failed, (max_retry, Status.IGNORED)]


@pytest.mark.seed("0.10")
async def test_what_always_fails_is_tried_so_often_and_then_left_with_all_its_errors(
    tracker: Tracker,
):
    await tracker.add("order-1")
    attempts = 0
    while "order-1" in await due_keys(tracker):
        attempts += 1
        await fail(tracker, "order-1")

    task = await tracker.get("order-1")
    assert attempts == tracker.policy.max_retry == 3
    assert (task.status, task.due) == (Status.IGNORED, None)
    assert [error.attempt for error in task.errors] == [1, 2, 3]
    assert {error.message for error in task.errors} == {"DeclinedError: the card was declined"}
    with pytest.raises(TaskIgnoredError):
        async with tracker.start("order-1"):
            pytest.fail("it was given up")


@pytest.mark.seed("0.17")
async def test_a_task_of_asyncio_that_is_cancelled_in_the_block_leaves_no_lock(
    tracker: Tracker, other: Tracker
):
    await tracker.add("order-1")
    begun = asyncio.Event()

    async def work() -> None:
        async with tracker.start("order-1"):
            begun.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert (await task_of(tracker, "order-1")).lock is None
    await finish(other, "order-1")


@pytest.mark.seed("0.28")
async def test_of_two_who_did_the_work_only_the_one_who_holds_the_task_records_it(
    tracker: Tracker, other: Tracker, clock: FakeClock
):
    await tracker.add("order-1")
    with pytest.raises(LeaseLostError):
        async with tracker.start("order-1") as frozen:
            frozen.data["by"] = "the first"
            # The process is frozen for longer than its lease, and another one takes over.
            clock.advance(seconds=61)
            await finish(other, "order-1", by="the second")

    record = await tracker.ledger.tasks.get(key_id("order-1"))
    assert record is not None
    assert (record.task.status, record.task.carried.data) == (
        Status.FINISHED,
        {"by": "the second"},
    )
    assert [(trace.event, trace.fence) for trace in record.trace] == [("finish", 2)]
    assert record.task.settled == record.task.fence == 2
