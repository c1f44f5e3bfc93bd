"""S4: attempts are counted in the ledger, which every worker reads before it acts."""

import asyncio
from datetime import timedelta

import pytest

from crawlcw.errors import Reason, TaskIgnoredError
from crawlcw.model.task import Status
from crawlcw.tracking import Tracker
from tests.capabilities.journal import Journal
from tests.capabilities.use_cases import (
    DeclinedError,
    UseCases,
    due_keys,
    fail,
    finish,
    task_of,
)
from tests.capabilities.worker_process import line, process
from tests.faults.proxy import At, End, Fault, Loss, proxied
from tests.support.ledgers import FakeClock


@pytest.mark.seed("4.3")
async def test_by_default_there_are_three_attempts(tracker: Tracker):
    await tracker.add("order-1")
    await fail(tracker, "order-1", times=2)
    twice = await tracker.get("order-1")
    await fail(tracker, "order-1")
    thrice = await tracker.get("order-1")

    assert (twice.status, thrice.status) == (Status.FAILED, Status.IGNORED)
    assert (twice.retry, thrice.retry) == (2, 3)


@pytest.mark.thorough
@pytest.mark.seed("4.4")
async def test_workers_that_are_restarted_again_and_again_give_a_task_no_attempt_more(
    use_cases: UseCases,
):
    tracker = await use_cases.open(max_retry=5)
    await tracker.add("order-1")
    said = []
    # Like restarts by a cron job; each process is killed after a few attempts.
    for attempts in (2, 1, 1, 3):
        with process("fail", use_cases.url, tracker.name, attempts) as worker:
            assert await asyncio.to_thread(line, worker) == "ready"
            while (word := await asyncio.to_thread(line, worker)) != "no more":
                said.append(word)

    task = await tracker.get("order-1")
    assert said == [f"attempt {n}" for n in range(1, 6)]
    assert (task.status, task.retry, len(task.errors)) == (Status.IGNORED, 5, 5)
    assert await due_keys(tracker) == []


@pytest.mark.seed("4.5")
async def test_what_failed_waits_behind_everything_that_was_there_before(
    tracker: Tracker, clock: FakeClock
):
    for n in range(4):
        clock.advance(seconds=1)
        await tracker.add(f"order-{n}")
    clock.advance(seconds=1)
    await fail(tracker, "order-0")
    clock.advance(seconds=1)
    await tracker.add("order-4")

    assert await due_keys(tracker) == ["order-1", "order-2", "order-3", "order-0", "order-4"]


@pytest.mark.seed("4.6")
async def test_what_was_given_up_is_kept_for_review_and_never_comes_by_itself(
    tracker: Tracker, other: Tracker, clock: FakeClock
):
    await tracker.add("order-1")
    await fail(tracker, "order-1", times=3)
    polls = []
    for _ in range(50):
        clock.time += timedelta(days=30)
        polls.append(await due_keys(other))
    await tracker.add("order-1")
    dead = await tracker.find(status=Status.IGNORED)

    assert polls == [[]] * 50
    assert await tracker.ledger.queries.next_due() is None
    assert [(task.key, task.reason) for task in dead.tasks] == [("order-1", Reason.TASK_ERROR)]
    with pytest.raises(TaskIgnoredError):
        await finish(other, "order-1")


@pytest.mark.seed("4.7")
async def test_everybody_reads_what_anybody_has_written(tracker: Tracker, other: Tracker):
    await tracker.add("order-1", {"amount": 3})
    with pytest.raises(DeclinedError):
        async with tracker.start("order-1") as execution:
            seen_by_other = await other.get("order-1")
            execution.data["half"] = True
            await execution.checkpoint()
            raise DeclinedError("no card")

    seen = await other.get("order-1")
    assert seen_by_other.holder == tracker.session.worker
    assert seen == await tracker.get("order-1")
    assert (seen.retry, seen.data) == (1, {"amount": 3, "half": True})
    assert seen.errors[0].message == "DeclinedError: no card"
    assert [trace.worker for trace in seen.trace] == [tracker.session.worker]


@pytest.mark.thorough
@pytest.mark.representative("withdrawn")
@pytest.mark.seed("4.8")
@pytest.mark.parametrize("meanwhile", ["finished", "failed", "held", "withdrawn"])
async def test_a_claim_from_an_old_page_misses_what_others_have_changed(
    tracker: Tracker, other: Tracker, meanwhile: str
):
    await tracker.add("order-1")
    page = await tracker.ledger.tasks.page(limit=1)
    match meanwhile:
        case "finished":
            await finish(other, "order-1")
        case "failed":
            await fail(other, "order-1")
        case "held":
            await other.session.claim(page)
        case "withdrawn":
            await other.ignore("order-1")
    before = await task_of(other, "order-1")
    claimed = await tracker.session.claim(page)

    assert (claimed.leases, claimed.missed) == ((), 1)
    assert await task_of(other, "order-1") == before


@pytest.mark.seed("4.10")
async def test_every_step_of_a_task_is_one_write(tracker: Tracker, journal: Journal):
    await tracker.add("order-1")
    await fail(tracker, "order-1")
    async with tracker.start("order-1") as execution:
        await execution.advance("ship")
    async with tracker.start("order-1") as execution:
        await execution.release()
    await finish(tracker, "order-1")

    assert [int(write.status) for write in journal.writes()] == [0, 30, 20, 30, 0, 30, 0, 30, 50]


@pytest.mark.thorough
@pytest.mark.representative("claim-reply")
@pytest.mark.seed("4.11")
@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.REPLY])
@pytest.mark.parametrize(
    ("command", "skip"), [("update", 0), ("find", 1), ("update", 1)], ids=["claim", "look", "end"]
)
async def test_a_reply_that_is_lost_is_asked_for_until_it_is_known_what_was_done(
    on_mongodb: UseCases, command: str, skip: int, loss: Loss
):
    other = await on_mongodb.open()
    await other.add("order-1", {"paid": 0})
    with proxied(on_mongodb.url) as (network, url):
        tracker = await on_mongodb.open(url=f"{url}&timeoutMS=1000")
        # Make the first claim now, so that the fault hits an operation of the task.
        await tracker.session.claim([])
        plan = At(Fault(loss=loss, end=End.RESET), name=command, target=other.name, skip=skip)
        network.plan(plan)
        async with tracker.start("order-1") as execution:
            execution.data["paid"] += 1
        struck = plan.struck.is_set()
        network.plan(None)
        await tracker.close()

    task = await other.get("order-1")
    assert struck
    assert (task.status, task.data, task.retry) == (Status.FINISHED, {"paid": 1}, 0)
    assert [trace.event for trace in task.trace] == ["finish"]
