"""S3: a task is tracked by a block around the work on it."""

import asyncio
import random
import sys
import time
from datetime import timedelta

import pytest

from crawlcw.errors import (
    LeaseLostError,
    TaskFinishedError,
    TaskLockedError,
    TaskMissedError,
    TaskNotDueError,
)
from crawlcw.model.task import Status
from crawlcw.model.transitions import TABLE
from crawlcw.tracking import Tracker
from tests.capabilities.journal import Journal
from tests.capabilities.use_cases import DeclinedError, UseCases, fail, finish, task_of
from tests.support.ledgers import FakeClock
from tests.support.programs import run_to_end

#: The transitions that one write may make.
EDGES = {(before, after) for (before, _), afters in TABLE.items() for after in afters}


async def work(tracker: Tracker, key: str, how: str) -> None:
    try:
        async with tracker.start(key) as execution:
            match how:
                case "fail":
                    raise DeclinedError
                case "advance":
                    await execution.advance("ship")
                case "ignore":
                    await execution.ignore("not today")
                case "release":
                    await execution.release()
    except (TaskMissedError, DeclinedError):
        pass


@pytest.mark.seed("3.1")
async def test_whatever_is_done_a_task_goes_only_the_ways_there_are(
    tracker: Tracker, clock: FakeClock, journal: Journal
):
    chance = random.Random(3)
    keys = [f"order-{n}" for n in range(3)]
    await tracker.add_many(keys)
    for _ in range(60):
        key = chance.choice(keys)
        what = chance.choice(
            ["finish", "fail", "advance", "ignore", "release", "retry", "reset", "withdraw", "lose"]
        )
        clock.advance(seconds=1)
        match what:
            case "retry":
                await tracker.retry(key)
            case "reset":
                await tracker.reset(key)
            case "withdraw":
                await tracker.ignore(key)
            case "lose":
                claimed = await tracker.session.claim([await task_of(tracker, key)])
                tracker.session.leases.end(claimed.leases)
                clock.advance(seconds=61)
            case _:
                await work(tracker, key, what)

    last: dict[bytes, Status | None] = {}
    seen = set()
    for write in journal.writes():
        seen.add((last.get(write.id), write.status))
        last[write.id] = write.status
    assert seen <= EDGES
    assert len(seen) >= 10


@pytest.mark.seed("3.2")
async def test_a_failed_task_is_tried_again_after_its_backoff_and_not_before(
    use_cases: UseCases, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.tracking.endings.random.random", lambda: 0.5)
    tracker = await use_cases.open(backoff_base=10)
    await tracker.add("order-1")
    waits = []
    for _ in range(2):
        failed_at = use_cases.clock.time
        await fail(tracker, "order-1")
        with pytest.raises(TaskNotDueError) as missed:
            await finish(tracker, "order-1")
        waits.append(missed.value.due - failed_at)
        use_cases.clock.time = missed.value.due
    await finish(tracker, "order-1")

    assert waits == [timedelta(seconds=5), timedelta(seconds=10)]
    assert (await tracker.get("order-1")).retry == 2


@pytest.mark.seed("3.3")
async def test_of_many_machines_that_start_the_same_task_one_works_on_it(use_cases: UseCases):
    machines = [await use_cases.open() for _ in range(6)]
    keys = [f"order-{n}" for n in range(5)]
    await asyncio.gather(*(machine.add_many(keys) for machine in machines))
    ran = []

    async def run(machine: Tracker, key: str) -> None:
        try:
            async with machine.start(key):
                ran.append(key)
        except (TaskLockedError, TaskFinishedError):
            pass

    await asyncio.gather(*(run(machine, key) for machine in machines for key in keys))
    assert sorted(ran) == keys


@pytest.mark.seed("3.4")
async def test_errors_and_traces_are_kept_and_never_grow_beyond_their_bounds(use_cases: UseCases):
    tracker = await use_cases.open(max_retry=1000)
    await tracker.add("order-1")
    sizes = []
    for _ in range(2):
        await fail(tracker, "order-1", times=40)
        (document,) = use_cases.documents(tracker.name)
        sizes.append(len(str(document)))
    task = await tracker.get("order-1")

    assert [error.attempt for error in task.errors] == list(range(71, 81))
    assert 'raise DeclinedError("the card was declined")' in (task.errors[-1].traceback or "")
    assert [(trace.fence, trace.event) for trace in task.trace] == [
        (fence, "fail") for fence in range(61, 81)
    ]
    assert abs(sizes[1] - sizes[0]) < 200


@pytest.mark.seed("3.6")
async def test_the_same_key_in_two_use_cases_is_two_tasks(use_cases: UseCases):
    orders, refunds = await use_cases.open("orders"), await use_cases.open("refunds")
    await orders.add("1", {"kind": "order"})
    await refunds.add("1", {"kind": "refund"})
    await finish(orders, "1")
    async with refunds.start("1"):
        await orders.purge(all=True, force=True)
        kind = (await refunds.get("1")).data

    assert kind == {"kind": "refund"}
    assert (await refunds.get("1")).status is Status.FINISHED
    assert (await orders.counts()).total == 0


@pytest.mark.seed("3.8")
async def test_a_block_that_fails_changes_nothing_but_errors_and_attempts(tracker: Tracker):
    await tracker.add("order-1", {"amount": 3})
    with pytest.raises(DeclinedError):
        async with tracker.start("order-1") as execution:
            execution.data["amount"] = 4
            execution.result = "paid"
            raise DeclinedError("no")
    failed = await tracker.get("order-1")
    async with tracker.start("order-1") as execution:
        execution.data["receipt"] = 7
        execution.result = "paid"
    done = await tracker.get("order-1")

    assert (failed.data, failed.results, failed.retry) == ({"amount": 3}, {}, 1)
    assert (done.data, done.results) == ({"amount": 3, "receipt": 7}, {"todo": "paid"})


@pytest.mark.seed("3.9")
async def test_who_has_lost_the_task_saves_nothing(
    tracker: Tracker, other: Tracker, clock: FakeClock
):
    await tracker.add("order-1")
    with pytest.raises(LeaseLostError):
        async with tracker.start("order-1") as zombie:
            clock.advance(seconds=61)
            async with other.start("order-1") as alive:
                alive.data["by"] = "the second"
                await alive.checkpoint()
                zombie.data["by"] = "the first"
                await zombie.checkpoint()

    assert (await tracker.get("order-1")).data == {"by": "the second"}


@pytest.mark.seed("3.10")
async def test_a_task_is_locked_before_the_work_and_unlocked_after_it_or_when_the_power_fails(
    tracker: Tracker, other: Tracker, clock: FakeClock
):
    await tracker.add_many(["order-1", "order-2"])
    async with tracker.start("order-1"):
        during = await task_of(other, "order-1")
    after = await task_of(other, "order-1")
    # As after a power cut: no renewal, and no release.
    await tracker.session.claim([await task_of(tracker, "order-2")])
    clock.advance(seconds=60)
    await finish(other, "order-2")

    assert (during.status, during.lock is None) == (Status.PROCESSING, False)
    assert (after.status, after.lock) == (Status.FINISHED, None)
    assert (await other.get("order-2")).trace[-1].fence == 2


@pytest.mark.seed("3.11")
async def test_hundreds_of_executions_at_once_take_a_moment(tracker: Tracker):
    keys = [f"order-{n}" for n in range(300)]
    await tracker.add_many(keys)
    began = time.monotonic()
    await asyncio.gather(*(finish(tracker, key) for key in keys))
    took = time.monotonic() - began

    assert (await tracker.counts())[Status.FINISHED] == 300
    # About a second on a busy machine; benchmarks measure it.
    assert took < 10, f"{took:.1f} s"


QUICKSTART = """
import asyncio
from crawlcw.tracking import Tracker

async def main():
    async with Tracker.open("sqlite:///orders.db", "orders", max_retry=3) as tracker:
        await tracker.add("order-1", {"amount": 3})
        async with tracker.start("order-1") as execution:
            execution.data["receipt"] = f"paid {execution.data['amount']}"
        print((await tracker.get("order-1")).data["receipt"])

asyncio.run(main())
"""


@pytest.mark.seed("3.12")
def test_a_first_script_has_less_than_twenty_lines(tmp_path):
    run = run_to_end([sys.executable, "-c", QUICKSTART], folder=tmp_path)

    assert (run.stdout, run.stderr) == ("paid 3\n", "")
    assert len(QUICKSTART.strip().splitlines()) <= 20
