"""Every field of a task filter, on every store: the same tasks are listed, counted and changed."""

from dataclasses import replace
from datetime import timedelta

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model.task import Status
from crawlcw.model.transitions import RETRY, WITHDRAW
from tests.support.ledgers import LEASE, START, FakeClock, claimed, failure, make_task, success

SHOP = "http://a.example/shop/"
URLS = (f"{SHOP}1", f"{SHOP}2", "http://a.example/shoe", "http://b.example/shop/1")


async def filled(ledger: Ledger, clock: FakeClock) -> None:
    """Add four pages: the first is finished, the second given up 10 s later, two wait."""
    await ledger.tasks.add([make_task(url, callback="page") for url in URLS[:2]])
    first, second = sorted(await claimed(ledger), key=lambda lease: lease.task.url)
    await ledger.outcomes.commit([success(ledger, first)])
    clock.advance(seconds=10)
    await ledger.outcomes.commit([failure(ledger, second, Reason.TLS)])
    await ledger.tasks.add([make_task(url) for url in URLS[2:]])


async def chosen_urls(ledger: Ledger, chosen: TaskFilter) -> set[str]:
    """Return the URLs of the chosen tasks; check that `count` gives their number."""
    found = {record.task.url for record in await ledger.queries.find(chosen, limit=10)}
    assert await ledger.queries.count(chosen) == Count(number=len(found))
    return found


async def test_tasks_are_found_and_counted_by_all_that_is_given(ledger: Ledger, clock: FakeClock):
    await filled(ledger, clock)

    for chosen, urls in (
        (TaskFilter(), set(URLS)),
        (TaskFilter(url_prefix=SHOP), set(URLS[:2])),
        (TaskFilter(url_prefix="http://a.example/sho"), set(URLS[:3])),
        (TaskFilter(url_prefix="http://a.example/%"), set()),
        (TaskFilter(url_prefix=".*"), set()),
        (TaskFilter(url=URLS[0]), {URLS[0]}),
        (TaskFilter(url=SHOP), set()),
        (TaskFilter(url_prefix="$url"), set()),
        (TaskFilter(callback="page"), set(URLS[:2])),
        (TaskFilter(callback="$callback"), set()),
        (TaskFilter(callback="page", host="b.example"), set()),
        (TaskFilter(url_prefix=SHOP, statuses=[Status.FINISHED]), {URLS[0]}),
        (TaskFilter(reason=Reason.TLS), {URLS[1]}),
        (TaskFilter(changed_since=START + timedelta(seconds=1), callback="page"), {URLS[1]}),
        (TaskFilter(changed_before=START + timedelta(seconds=1), callback="page"), {URLS[0]}),
        (TaskFilter(ids=[make_task(url).id for url in URLS[1:]], url_prefix=SHOP), {URLS[1]}),
        (TaskFilter(statuses=()), set()),
    ):
        assert await chosen_urls(ledger, chosen) == urls, chosen


async def test_a_bulk_change_is_made_of_the_chosen_tasks_and_of_no_others(
    ledger: Ledger, clock: FakeClock
):
    await filled(ledger, clock)
    at_a = TaskFilter(url_prefix="http://a.example/")

    assert await ledger.queries.count(at_a.with_statuses(WITHDRAW.from_statuses)) == Count(number=1)
    assert await ledger.admin.withdraw(at_a, reason=Reason.WITHDRAWN) == 1
    assert await chosen_urls(ledger, TaskFilter(reason=Reason.WITHDRAWN)) == {URLS[2]}

    clock.advance(seconds=1)
    by_callback = TaskFilter(callback="page", changed_before=ledger.now())
    assert await ledger.admin.reopen(by_callback) == 2
    assert await chosen_urls(ledger, TaskFilter(statuses=[Status.TODO])) == {
        URLS[0],
        URLS[1],
        URLS[3],
    }

    assert await ledger.admin.purge(TaskFilter(url_prefix=SHOP)) == 2
    assert await chosen_urls(ledger, TaskFilter()) == set(URLS[2:])


async def test_failures_are_brought_back_by_prefix_and_callback(ledger: Ledger, clock: FakeClock):
    await filled(ledger, clock)
    assert Status.FAILED in RETRY.from_statuses

    for chosen, number in (
        (TaskFilter(url_prefix="http://b.example/"), 0),
        (TaskFilter(callback="parse"), 0),
        # Nothing retries an unwanted page.
        (TaskFilter(reason=Reason.REFUSED_ROBOTS), 0),
        (TaskFilter(reasons=[Reason.REFUSED_ROBOTS]), 0),
        (TaskFilter(url_prefix=SHOP, callback="page"), 1),
    ):
        assert await ledger.admin.count_failed(chosen) == Count(number=number)
        assert await ledger.admin.retry_failed(chosen) == number
    assert await chosen_urls(ledger, TaskFilter(statuses=[Status.TODO])) == set(URLS[1:])


@pytest.mark.parametrize("ends", ["open", "later"])
async def test_every_status_of_a_choice_is_counted_as_it_is_found(
    ledger: Ledger, clock: FakeClock, ends: str
):
    await filled(ledger, clock)
    await claimed(ledger, limit=1)
    for chosen in (
        TaskFilter(callback="page"),
        TaskFilter(callback="parse"),
        TaskFilter(host="a.example"),
        TaskFilter(host="a.example", callback="page"),
        TaskFilter(host="a.example", reason=Reason.TLS),
        TaskFilter(reason=Reason.TLS),
        TaskFilter(reason=Reason.TLS, reasons=[Reason.CONNECT]),
        TaskFilter(url_prefix=SHOP, callback="page"),
        TaskFilter(reason=Reason.TLS, changed_since=START + timedelta(seconds=1)),
        TaskFilter(
            callback="page", changed_since=START, changed_before=START + timedelta(seconds=5)
        ),
    ):
        if ends == "later" and chosen.changed_before is None:
            # With a time limit, as bulk changes have one.
            chosen = replace(chosen, changed_before=ledger.now() + timedelta(milliseconds=1))
        for some in [*((each,) for each in Status), WITHDRAW.from_statuses, tuple(Status)]:
            which = chosen.with_statuses(some)
            found = await ledger.queries.find(which, limit=10)

            assert await ledger.queries.count(which) == Count(number=len(found)), which
            assert {record.task.status for record in found} <= set(some), which
        failures = await ledger.admin.count_failed(chosen)
        assert failures == await ledger.queries.count(chosen.with_statuses(RETRY.from_statuses)), (
            chosen
        )


async def test_a_prefix_of_several_hosts_is_found_on_all_of_them(ledger: Ledger):
    await ledger.tasks.add([make_task(f"https://shop{n}.example/x") for n in range(3)])

    assert len(await chosen_urls(ledger, TaskFilter(url_prefix="https://shop"))) == 3
    assert len(await chosen_urls(ledger, TaskFilter(url_prefix="https://shop1.example/"))) == 1


async def test_a_task_whose_lease_ran_out_is_free_and_its_late_holder_is_refused(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add([make_task(url) for url in URLS])
    late = await claimed(ledger, limit=3)
    ids = [lease.task.id for lease in late]
    now = clock.time

    for chosen in (TaskFilter(ids=ids), TaskFilter(url_prefix="http://a.example/")):
        held = replace(chosen.with_statuses((Status.PROCESSING,)), due_by=now)
        assert await ledger.queries.count(held) == Count(number=0)
        assert await ledger.admin.purge(held) == 0
    assert await ledger.admin.withdraw(TaskFilter(ids=ids), reason=Reason.WITHDRAWN) == 0
    assert await ledger.admin.reopen(TaskFilter(ids=ids)) == 0

    clock.advance(seconds=LEASE.total_seconds())
    free = TaskFilter(statuses=[Status.PROCESSING], due_by=clock.time)
    assert await ledger.queries.count(free) == Count(number=3)
    assert (await ledger.queries.count(replace(free, host=late[0].task.host))).number >= 1
    assert len(await ledger.queries.find(free, limit=9)) == 3
    one, other, third = (TaskFilter(ids=[each]) for each in ids)
    assert await ledger.admin.withdraw(one, reason=Reason.WITHDRAWN) == 1
    assert await ledger.admin.reopen(other, deletes_results=True) == 1
    assert await ledger.admin.purge(replace(third, due_by=clock.time)) == 1

    assert len((await ledger.outcomes.commit([success(ledger, each) for each in late])).lost) == 3
    assert await ledger.leases.renew(late, lease=LEASE) == set(ids)
    found = [await ledger.tasks.get(each) for each in ids]
    tasks = [None if record is None else record.task for record in found]
    assert tasks[2] is None
    for task, lease, status in zip(tasks[:2], late, (Status.IGNORED, Status.TODO), strict=False):
        assert task is not None
        assert (task.status, task.lock, task.lock_time) == (status, None, None)
        assert (task.fence, task.quarantine_fence) == (lease.fence + 1, 0), (
            "the lease holder was lost"
        )
    assert [lease.task.id for lease in await claimed(ledger, limit=9)].count(ids[1]) == 1
