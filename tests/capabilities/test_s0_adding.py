"""S0: tasks are added at any time, in batches, without changing existing ones."""

import pytest

from crawlcw.model.task import Status
from crawlcw.tracking import Tracker
from tests.capabilities.use_cases import UseCases, fail, finish


async def brought_to(tracker: Tracker, status: Status) -> None:
    match status:
        case Status.FAILED:
            await fail(tracker, "order-1")
        case Status.FINISHED:
            await finish(tracker, "order-1", paid=True)
        case Status.IGNORED:
            await fail(tracker, "order-1", times=3)
        case Status.PROCESSING:
            await tracker.session.claim(await tracker.ledger.tasks.page(limit=1))


@pytest.mark.seed("0.20")
@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.name.lower())
async def test_adding_a_task_again_changes_nothing_whatever_became_of_it(
    use_cases: UseCases, tracker: Tracker, status: Status
):
    await tracker.add("order-1", {"amount": 3})
    await brought_to(tracker, status)
    before = use_cases.documents(tracker.name)
    use_cases.clock.advance(seconds=1)

    assert not await tracker.add("order-1", {"amount": 4}, priority=9, stage="other")

    assert before[0]["status"] == status
    assert use_cases.documents(tracker.name) == before
