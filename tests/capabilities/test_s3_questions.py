"""S3: questions by status and time, and steps that follow each other."""

from datetime import timedelta

import pytest

from crawlcw.errors import Reason
from crawlcw.model.task import Status
from crawlcw.tracking import Tracker, UseCase
from tests.capabilities.use_cases import UseCases, fail, finish
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
        "changed_since": clock.time - 29 * DAY,
        "changed_before": clock.time,
    }
    found, cursor, pages = [], None, 0
    while True:
        page = await tracker.find(**asked, limit=7, cursor=cursor)
        found += [task.key for task in page.tasks]
        pages += 1
        cursor = page.next_cursor
        if cursor is None:
            break

    # Failed and ignored tasks in one order, the last first; today is left out.
    assert found == [f"bad-{day}" for day in range(38, 9, -1)]
    assert pages == 5
    given_up = await tracker.find(status=Status.IGNORED, reason=Reason.TASK_ERROR, limit=3)
    assert [task.key for task in given_up.tasks] == ["bad-39", "bad-37", "bad-35"]


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
