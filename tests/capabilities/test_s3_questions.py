"""S3: questions by status and time, and steps that follow each other."""

import asyncio
from datetime import timedelta

import pymongo
import pytest

from crawlcw.errors import Reason, TaskFinishedError, TaskNotFoundError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Status
from crawlcw.tracking import Tracker, UseCase
from tests.capabilities.use_cases import UseCases, fail, finish
from tests.ledger.test_ledger_plans import examined, explained, stages
from tests.support.command_log import CommandLog
from tests.support.ledgers import FakeClock

DAY = timedelta(days=1)


async def forty_days(tracker: Tracker, clock: FakeClock) -> None:
    """Let one order fail and one finish on each of forty days."""
    for day in range(40):
        clock.time += DAY
        await tracker.add_many([f"bad-{day}", f"good-{day}"])
        await fail(tracker, f"bad-{day}", times=1 + 2 * (day % 2))
        await finish(tracker, f"good-{day}")


@pytest.mark.seed("3.5")
async def test_what_failed_in_the_last_thirty_days_comes_in_one_order_page_by_page(
    tracker: Tracker, clock: FakeClock
):
    await forty_days(tracker, clock)
    asked = {
        "status": (Status.FAILED, Status.IGNORED),
        "since": clock.time - 29 * DAY,
        "until": clock.time,
    }
    found, after, pages = [], None, 0
    while True:
        page = await tracker.find(**asked, limit=7, after=after)
        found += [task.key for task in page.tasks]
        pages += 1
        after = page.after
        if after is None:
            break

    # Failed and ignored tasks in one order, the last first; today is left out.
    assert found == [f"bad-{day}" for day in range(38, 9, -1)]
    assert pages == 5
    given_up = await tracker.find(status=Status.IGNORED, reason=Reason.TASK_ERROR, limit=3)
    assert [task.key for task in given_up.tasks] == ["bad-39", "bad-37", "bad-35"]


@pytest.mark.thorough
@pytest.mark.seed("3.5")
async def test_a_query_by_status_and_time_reads_its_index_and_its_results_on_mongodb(
    on_mongodb: UseCases,
):
    tracker = await on_mongodb.open()
    await forty_days(tracker, on_mongodb.clock)
    command_log = CommandLog()
    async with pymongo.AsyncMongoClient(
        on_mongodb.url, tz_aware=True, event_listeners=[command_log]
    ) as client:
        ledger = MongoLedger(
            MongoStore(client.get_default_database(), tracker.name, kind=LedgerKind.USE_CASE)
        )
        since = on_mongodb.clock.time - 29 * DAY
        chosen = TaskFilter(statuses=[Status.FAILED], since=since)
        found = await ledger.queries.find(chosen, limit=10)

    assert [record.task.url for record in found] == [f"bad-{day}" for day in range(38, 18, -2)]
    # The index finds the tasks, and each is then read by its id: between two ids the server
    # reads one more key.
    places, tasks = (c for c in command_log.commands if {"aggregate", "find"} & c.keys())
    assert tasks["hint"] == "_id_"
    with pymongo.MongoClient(on_mongodb.url, tz_aware=True) as client:
        for command, keys in (places, 10), (tasks, 20):
            explanation = explained(client.get_default_database(), command)
            assert not set(stages(explanation)) & {"COLLSCAN", "SORT"}
            assert examined(explanation, "Keys") <= keys
            assert examined(explanation, "Docs") <= 10


@pytest.mark.seed("3.7")
async def test_the_second_step_never_begins_before_the_first_has_ended(use_cases: UseCases):
    order = UseCase(use_cases.named("videos"), chain=("download", "encode"))
    tracker, other = await use_cases.open(order), await use_cases.open(order)
    await tracker.add("video-1")
    stages = []
    for worker in (tracker, other):
        async with worker.start("video-1") as execution:
            stages.append((execution.stage, dict(execution.results)))
            between = await other.ledger.tasks.page(limit=10)
            execution.result = f"{execution.stage} done"

    assert stages == [("download", {}), ("encode", {"download": "download done"})]
    assert between == []
    done = await tracker.get("video-1")
    assert (done.status, set(done.results)) == (Status.FINISHED, {"download", "encode"})


@pytest.mark.seed("3.7")
async def test_a_second_pass_is_made_over_what_is_finished_and_over_nothing_else(
    tracker: Tracker,
):
    await tracker.add_many(["one", "two"])
    await finish(tracker, "one")
    with pytest.raises(TaskFinishedError):
        await finish(tracker, "one")
    async with tracker.start("one", enter_from=Status.FINISHED, stage="again") as execution:
        stage = execution.stage
    entered = await tracker.enter("once-more", all=True)

    assert stage == "again"
    assert entered == 1
    assert {task.key: task.stage async for task in tracker.walk()} == {
        "one": "once-more",
        "two": "todo",
    }


@pytest.mark.seed("3.7")
async def test_a_step_is_not_entered_twice_by_two_who_come_at_once(
    tracker: Tracker, other: Tracker
):
    with pytest.raises(TaskNotFoundError):
        await finish(tracker, "one")
    await tracker.add("one")
    await finish(tracker, "one")

    assert sorted(
        await asyncio.gather(tracker.enter("again", all=True), other.enter("again", all=True))
    ) == [0, 1]
