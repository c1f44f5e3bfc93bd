"""Revisits of pages: fields of the last visit that stay, and fields that are replaced."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import ItemRow, Ledger, TaskFilter
from crawlcw.model.task import Record, RequestOptions, ResponseInfo, Status, Task
from crawlcw.model.transitions import Failed, Outcome, Succeeded, Unchanged
from tests.support.ledgers import (
    START,
    FakeClock,
    claimed,
    claimed_one,
    make_task,
    make_tasks,
    settled,
    visit,
)

LARGE = "x" * (1 << 20)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def ended(ledger: Ledger, outcome: Outcome) -> None:
    """End all due tasks with this outcome."""
    leases = await claimed(ledger)
    assert leases
    committed = await ledger.outcomes.commit([settled(ledger, each, outcome) for each in leases])
    assert (committed.lost, committed.rejected) == ((), ())


def page(*items: dict[str, object], revisit: float | None = 10, versions: int = 0) -> Succeeded:
    again = None if revisit is None else at(revisit)
    return Succeeded(items=items, visit=visit(), revisit=again, kept_versions=versions)


async def record(ledger: Ledger, task: Task) -> Record:
    found = await ledger.tasks.get(task.id)
    assert found is not None
    return found


async def rows(stream: AsyncIterator[ItemRow]) -> list[tuple[object, datetime]]:
    return [(row.item["n"], row.fetched_at) async for row in stream]


async def test_what_is_known_of_a_visit_is_kept_with_the_task(ledger: Ledger):
    seen = visit(etag='W/"1"', last_modified="now", digest="d1", interval=1.5, changed=at(-5))
    task = make_task(options=RequestOptions(revisit="adaptive"))
    await ledger.tasks.add([task])
    await ended(ledger, Succeeded(visit=seen, revisit=at(10)))

    found = (await record(ledger, task)).task

    assert (found.visit, found.revisit, found.due) == (seen, at(10), None)
    assert found.options.revisit == "adaptive"


async def test_a_page_is_due_for_its_next_visit_when_its_time_has_come(
    ledger: Ledger, clock: FakeClock
):
    task = make_task()
    await ledger.tasks.add([task])
    await ended(ledger, page({"n": 1}))
    assert await ledger.queries.next_due() is None

    clock.time = at(9.999)
    early = await ledger.admin.revisit_due()
    clock.time = at(10)
    now = await ledger.admin.revisit_due()

    assert (early, now) == (0, 1)
    found = (await record(ledger, task)).task
    assert (found.status, found.due, found.visit) == (Status.TODO, at(10), visit())
    assert await ledger.tasks.page(limit=10) == [found]
    # A second call, later or at the same time, changes nothing.
    assert await ledger.admin.revisit_due() == 0


async def test_the_hosts_of_pages_that_are_due_again_are_ready(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    await ledger.hosts.wake({"example.com": START})
    (lease,) = await ledger.host_leases.lease(worker="a", limit=9, lease=timedelta(seconds=60))
    await ended(ledger, page())
    await ledger.host_leases.release([(lease, lease.host)])
    clock.time = at(10)
    asleep = await ledger.hosts.next_ready()

    await ledger.admin.revisit_due()

    assert (asleep, await ledger.hosts.next_ready()) == (None, at(10))


async def test_the_items_stay_until_the_next_visit_has_ended(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    await ended(ledger, page({"n": 1}))
    clock.time = at(10)
    await ledger.admin.revisit_due()
    waiting = await rows(ledger.queries.items())
    lease = await claimed_one(ledger)
    under_way = await rows(ledger.queries.items())
    counted = await ledger.queries.item_count()

    await ledger.outcomes.commit([settled(ledger, lease, page({"n": 2}, {"n": 3}))])

    assert waiting == under_way == [(1, START)]
    assert counted == 1
    assert await rows(ledger.queries.items()) == [(2, at(10)), (3, at(10))]


@pytest.mark.parametrize("text", ["small", LARGE], ids=["inside", "set-aside"])
async def test_an_unchanged_page_keeps_its_items_and_their_date(
    ledger: Ledger, clock: FakeClock, text: str
):
    task = make_task()
    response = ResponseInfo(status=200, final_url="http://example.com/there")
    await ledger.tasks.add([task])
    first = Succeeded(
        items=({"n": 1, "text": text},), response=response, visit=visit(), revisit=at(10)
    )
    await ended(ledger, first)
    clock.time = at(10)
    await ledger.admin.revisit_due()

    await ended(ledger, Unchanged(visit=visit(time=at(10)), revisit=at(20)))

    found = await record(ledger, task)
    assert (found.task.status, found.task.due, found.task.revisit) == (
        Status.FINISHED,
        None,
        at(20),
    )
    assert found.task.visit == visit(time=at(10))
    assert (found.response, found.items) == (response, ({"n": 1, "text": text},))
    (row,) = [row async for row in ledger.queries.items()]
    assert (row.url, row.fetched_at) == ("http://example.com/there", START)


@pytest.mark.parametrize("text", ["small", LARGE], ids=["inside", "set-aside"])
async def test_a_visit_that_fails_keeps_the_items_whatever_its_answer_was(
    ledger: Ledger, clock: FakeClock, text: str
):
    task = make_task()
    await ledger.tasks.add([task])
    await ended(ledger, page({"n": 1, "text": text}))
    clock.time = at(10)
    await ledger.admin.revisit_due()
    gone = ResponseInfo(status=404, final_url="http://example.com/gone")

    await ended(
        ledger, Failed(reason=Reason.HTTP_STATUS, status=404, response=gone, revisit=at(20))
    )

    found = await record(ledger, task)
    assert (found.task.status, found.task.revisit) == (Status.IGNORED, at(20))
    assert found.task.visit == visit()
    assert found.items == ({"n": 1, "text": text},)
    (row,) = [row async for row in ledger.queries.items()]
    assert (row.url, row.fetched_at) == ("http://example.com/", START)
    clock.time = at(20)
    assert await ledger.admin.revisit_due() == 1


async def test_a_page_that_is_not_to_be_visited_again_has_no_date(ledger: Ledger, clock: FakeClock):
    task = make_task()
    await ledger.tasks.add([task])
    await ended(ledger, page())
    clock.time = at(10)
    await ledger.admin.revisit_due()

    await ended(ledger, page(revisit=None))

    assert (await record(ledger, task)).task.revisit is None
    clock.time = at(10**6)
    assert await ledger.admin.revisit_due() == 0


async def test_a_page_of_a_host_that_was_given_up_is_asked_for_again_by_the_next_run(
    ledger: Ledger, clock: FakeClock
):
    task = make_task()
    await ledger.tasks.add([task])
    await ended(ledger, page({"n": 1}))
    clock.time = at(10)
    await ledger.admin.revisit_due()
    assert await ledger.hosts.give_up("example.com", reason=Reason.HOST_UNREACHABLE) == 1

    assert await ledger.admin.revisit_due() == 1
    found = await record(ledger, task)
    assert (found.task.status, found.task.reason) == (Status.TODO, None)
    assert found.items == ({"n": 1},)


async def test_a_recrawl_takes_the_finished_pages_that_are_chosen(ledger: Ledger, clock: FakeClock):
    old, new, unwanted = make_tasks(3)
    await ledger.tasks.add([unwanted])
    await ended(ledger, Failed(reason=Reason.REFUSED_ROBOTS))
    await ledger.tasks.add([old])
    await ended(ledger, page({"n": 1}, revisit=None))
    clock.time = at(100)
    await ledger.tasks.add([new])
    await ended(ledger, page({"n": 2}, revisit=None))
    chosen = TaskFilter(statuses=(Status.FINISHED,), changed_before=at(50))

    assert await ledger.admin.revisit(chosen) == 1

    statuses = [(await record(ledger, task)).task.status for task in (old, new, unwanted)]
    assert statuses == [Status.TODO, Status.FINISHED, Status.IGNORED]
    assert (await record(ledger, old)).task.visit == visit()
    assert await ledger.queries.item_count() == 2
    # Records that were read before are stale.
    assert (await record(ledger, old)).task.fence == 2


async def test_a_reset_forgets_the_last_visit_and_a_retry_does_not(
    ledger: Ledger, clock: FakeClock
):
    fresh, kept = make_tasks(2)
    await ledger.tasks.add([fresh, kept])
    await ended(ledger, page({"n": 1}))
    clock.time = at(10)
    await ledger.admin.revisit_due()
    await ended(ledger, Failed(reason=Reason.TLS))

    await ledger.admin.reopen(TaskFilter(ids=[fresh.id]), deletes_results=True)
    await ledger.admin.retry_failed(TaskFilter(ids=[kept.id]))

    after = [(await record(ledger, task)).task for task in (fresh, kept)]
    assert [(task.status, task.visit) for task in after] == [
        (Status.TODO, None),
        (Status.TODO, visit()),
    ]


async def test_the_items_of_the_last_visits_are_kept_where_that_is_wanted(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add(make_tasks(2))
    for n in range(4):
        clock.time = at(10 * n)
        await ledger.admin.revisit_due()
        outcome = page({"n": n}, {"n": n, "text": LARGE}, revisit=10 * n + 10, versions=3)
        await ended(ledger, outcome)
    clock.time = at(40)
    await ledger.admin.revisit_due()
    await ended(ledger, Unchanged(visit=visit()))

    of_each = [(n, at(10 * n)) for n in (1, 2, 3) for _ in range(2)]
    assert await rows(ledger.queries.versions()) == of_each * 2
    assert await rows(ledger.queries.items()) == [(3, at(30))] * 4
    assert await ledger.queries.item_count() == 4


async def test_what_was_set_aside_of_a_replaced_visit_is_deleted(
    ledger: Ledger, clock: FakeClock, request: pytest.FixtureRequest
):
    await ledger.tasks.add([make_task()])
    for n in range(3):
        clock.time = at(10 * n)
        await ledger.admin.revisit_due()
        await ended(ledger, page({"n": n, "text": LARGE}, revisit=10 * n + 10))

    assert await rows(ledger.queries.items()) == [(2, at(20))]
    store = ledger.store  # type: ignore[attr-defined]  # of every ledger that there is
    if hasattr(store, "items"):
        kept = await store.items.find({}, {"_id": 1}).to_list(None)
        assert [each["_id"]["fence"] for each in kept] == [5]
