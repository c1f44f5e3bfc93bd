"""S1: the holder of a task, the length of its lease, and the data in it."""

import asyncio
import random
import time
from datetime import timedelta

import pytest

from crawlcw.errors import Reason, TaskLockedError
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import Advanced, Failed, Outcome, Progress, Succeeded, settle
from crawlcw.tracking import Tracker
from tests.capabilities.use_cases import UseCases, due_keys, fail, finish, task_of
from tests.support.ledgers import START, FakeClock

PROGRESS = Progress(worker="w", started_at=START, data={"paid": True})


async def claimed(tracker: Tracker, *keys: str) -> list[Lease]:
    return list((await tracker.session.claim([await task_of(tracker, key) for key in keys])).leases)


@pytest.mark.seed("1.10")
async def test_a_batch_is_occupied_and_returned_and_batches_never_overlap(use_cases: UseCases):
    claimers = [await use_cases.open() for _ in range(8)]
    keys = [f"order-{n}" for n in range(120)]
    await claimers[0].add_many(keys)

    async def hold(tracker: Tracker) -> list[str]:
        held: list[str] = []
        while page := await tracker.ledger.tasks.page(limit=5):
            batch = await tracker.session.claim(page)
            held += [lease.task.url for lease in batch.leases]
        return held

    batches = await asyncio.gather(*(hold(claimer) for claimer in claimers))
    got = [key for batch in batches for key in batch]
    assert sorted(got) == sorted(keys)


@pytest.mark.seed("1.11")
@pytest.mark.parametrize(
    ("outcome", "status", "stage"),
    [
        (Succeeded(progress=PROGRESS), Status.FINISHED, "todo"),
        (Failed(reason=Reason.TASK_ERROR), Status.FAILED, "todo"),
        (Advanced(stage="ship", progress=PROGRESS), Status.TODO, "ship"),
    ],
    ids=["finish", "fail", "advance"],
)
async def test_a_report_that_is_sent_twice_counts_once(
    use_cases: UseCases, tracker: Tracker, outcome: Outcome, status: Status, stage: str
):
    await tracker.add("order-1")
    (lease,) = await claimed(tracker, "order-1")
    retries = tracker.policy.retries
    report = settle(lease, outcome, now=tracker.ledger.now(), policy=retries, chance=0)
    answers = [await tracker.ledger.outcomes.commit([report])]
    once = use_cases.documents(tracker.name)
    answers.append(await tracker.ledger.outcomes.commit([report]))
    tracker.session.leases.end([lease])

    assert [(answer.lost, answer.rejected) for answer in answers] == [((), ())] * 2
    assert use_cases.documents(tracker.name) == once
    task = await tracker.get("order-1")
    assert (task.status, task.stage, task.retry) == (status, stage, status is Status.FAILED)


@pytest.mark.seed("1.12")
async def test_who_holds_a_task_keeps_nobody_waiting(tracker: Tracker, other: Tracker):
    await tracker.add_many(["order-1", "order-3", "order-5"])
    async with tracker.start("order-3"), asyncio.timeout(5):
        # Inserts beside the task, work on its neighbours, and reads of the task itself.
        await other.add_many(["order-2", "order-4", "order-3"])
        await finish(other, "order-1", "order-2", "order-4", "order-5")
        assert (await other.get("order-3")).status is Status.PROCESSING
        assert await other.reset("order-3") == 0
        with pytest.raises(TaskLockedError):
            await finish(other, "order-3")
    assert (await tracker.counts())[Status.FINISHED] == 5


@pytest.mark.seed("1.13")
async def test_of_sixteen_who_race_for_the_same_tasks_no_two_get_the_same(use_cases: UseCases):
    racers = [await use_cases.open() for _ in range(16)]
    await racers[0].add_many([f"order-{n}" for n in range(300)])
    page = await racers[0].ledger.tasks.page(limit=300)
    # In rounds; otherwise the first claimer could get everything before the others start.
    round_ = asyncio.Barrier(len(racers))

    async def race(tracker: Tracker, seed: int) -> list[bytes]:
        mine: list[bytes] = []
        tasks = random.Random(seed).sample(page, len(page))
        for start in range(0, len(tasks), 100):
            await round_.wait()
            batch = await tracker.session.claim(tasks[start : start + 100])
            mine += [lease.task.id for lease in batch.leases]
        return mine

    won = await asyncio.gather(*(race(racer, n) for n, racer in enumerate(racers)))
    got = [task_id for each in won for task_id in each]
    assert len(got) == len(set(got)) == 300
    assert sum(bool(each) for each in won) > 1


@pytest.mark.seed("1.14")
async def test_a_lock_and_its_end_are_in_the_task_itself(
    use_cases: UseCases, tracker: Tracker, clock: FakeClock
):
    await tracker.add("order-1")
    async with tracker.start("order-1") as execution:
        first = await task_of(tracker, "order-1")
        clock.advance(seconds=10)
        await tracker.ledger.leases.renew([execution.lease], lease=tracker.policy.lease)
        renewed = await task_of(tracker, "order-1")

    assert (first.lock, first.due) == (execution.lease.token, START + timedelta(seconds=60))
    assert (renewed.lock, renewed.due) == (first.lock, START + timedelta(seconds=70))
    assert first.lock_time == renewed.lock_time == START


@pytest.mark.seed("1.15")
async def test_a_task_of_five_leases_is_renewed_and_runs_once(use_cases: UseCases):
    name = use_cases.named("orders")
    async with (
        Tracker.open(use_cases.url, name, lease=0.5) as tracker,
        Tracker.open(use_cases.url, name) as other,
    ):
        await tracker.add("order-1")
        async with tracker.start("order-1"):
            ends = time.monotonic() + 2.5
            tries = 0
            while time.monotonic() < ends:
                with pytest.raises(TaskLockedError):
                    await finish(other, "order-1")
                tries += 1
                await asyncio.sleep(0.02)
        task = await other.get("order-1")

    assert tries > 5
    assert (task.status, task.lost, len(task.trace)) == (Status.FINISHED, 0, 1)


@pytest.mark.seed("1.19")
async def test_a_task_is_locked_within_a_process_as_between_processes(
    tracker: Tracker, other: Tracker
):
    await tracker.add("order-1")
    async with tracker.start("order-1"):
        for anybody in (tracker, other):
            with pytest.raises(TaskLockedError):
                await finish(anybody, "order-1")


@pytest.mark.seed("1.20")
async def test_nobody_is_given_what_they_did_not_ask_for(tracker: Tracker, other: Tracker):
    await other.session.claim([])  # it has joined, without tasks
    await tracker.add_many([f"order-{n}" for n in range(10)])
    await fail(tracker, "order-0")

    assert await other.ledger.leases.leases_of(other.session.worker) == []
    assert len(other.session.leases) == 0
    assert len(await due_keys(other)) == 10


@pytest.mark.seed("1.21")
async def test_a_process_at_work_follows_the_settings_that_somebody_changes(
    tracker: Tracker, other: Tracker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.tracking.session._POLICY_INTERVAL_S", 0.01)
    await other.session.claim([])  # it is at work
    await tracker.configure(max_retry=1, lease=5)
    async with asyncio.timeout(10):
        while other.policy.max_retry != 1:
            await asyncio.sleep(0.005)
    await tracker.add_many(["order-1", "order-2"])
    await fail(other, "order-1")
    async with other.start("order-2"):
        held: Task = await task_of(tracker, "order-2")

    assert (await tracker.get("order-1")).status is Status.IGNORED
    assert held.due == START + timedelta(seconds=5)
