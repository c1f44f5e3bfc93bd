"""Contract of `Ledger`, run on every store."""

import asyncio
import gc
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from crawlcw.errors import FAILURE_REASONS, POLICY_REASONS, Reason
from crawlcw.ledger.protocol import Count, ItemRow, Ledger, TaskFilter, Worker
from crawlcw.model import transitions
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Lease, ResponseInfo, Status, Task
from crawlcw.model.transitions import Failed, Succeeded
from crawlcw.model.values import cleaned_item
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    LedgerFactory,
    changed_task,
    claimed,
    claimed_one,
    failure,
    make_task,
    make_tasks,
    settled,
    success,
    visit,
)

ONCE = RetryPolicy(max_retry=1)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ids(tasks):
    return [task.id for task in tasks]


async def status_of(ledger: Ledger, task: Task) -> Status:
    record = await ledger.tasks.get(task.id)
    assert record is not None
    return record.task.status


async def given_up(ledger: Ledger, task: Task, reason: Reason) -> None:
    """Add a task, and end it as ignored for *reason*."""
    await ledger.tasks.add([task])
    lease = await claimed_one(ledger)
    await ledger.outcomes.commit([failure(ledger, lease, reason, policy=ONCE)])


# --- add


async def test_an_added_task_comes_back_as_it_was(ledger: Ledger):
    task = make_task(
        method="POST",
        headers=(("Accept", "text/html"), ("Accept", "*/*")),
        body=b"\x00\xff",
        callback="parse_book",
        errback="on_book_error",
        context={"page": 2, "$set": {"a.b": None}, "": [b"\x01", START]},
        depth=3,
        parent=b"p" * 16,
        priority=-2,
    )

    added = await ledger.tasks.add([task])

    assert (added.new, added.existing, added.rejected) == (1, 0, ())
    record = await ledger.tasks.get(task.id)
    assert record is not None
    assert record.task == task
    assert (record.errors, record.response, record.items) == ((), None, ())
    assert await ledger.tasks.page(limit=10) == [task]


async def test_a_task_added_twice_is_new_once(ledger: Ledger):
    one, two = make_tasks(2)
    await ledger.tasks.add([one])

    added = await ledger.tasks.add([one, two, two])

    assert (added.new, added.existing) == (1, 2)
    assert (await ledger.queries.counts()).total == 2


async def in_status(ledger: Ledger, status: Status) -> Task:
    task = make_task()
    await ledger.tasks.add([task])
    if status is not Status.TODO:
        lease = await claimed_one(ledger)
        outcomes = {
            Status.FAILED: Failed(reason=Reason.CONNECT, message="refused"),
            Status.FINISHED: Succeeded(items=({"n": 1},)),
            Status.IGNORED: Failed(reason=Reason.REFUSED_ROBOTS),
        }
        if status in outcomes:
            await ledger.outcomes.commit([settled(ledger, lease, outcomes[status])])
    assert await status_of(ledger, task) is status
    return task


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.name.lower())
async def test_adding_a_known_task_changes_no_field_of_it(
    ledger: Ledger, clock: FakeClock, status: Status
):
    task = await in_status(ledger, status)
    before = await ledger.tasks.get(task.id)
    clock.advance(seconds=5)
    again = replace(
        task, due=clock.time, update_time=clock.time, priority=9, context={"a": 1}, depth=7
    )

    added = await ledger.tasks.add([again])

    assert (added.new, added.existing) == (0, 1)
    assert await ledger.tasks.get(task.id) == before


# --- page


async def test_a_page_is_sorted_by_priority_then_by_how_long_it_is_due(ledger: Ledger):
    order = [(5, 3), (5, 1), (0, 9), (0, 4), (0, 2), (-1, 7)]
    tasks = [
        make_task(f"http://h{n % 2}.com/{n}", priority=p, due=START - timedelta(seconds=ago))
        for n, (p, ago) in enumerate(order)
    ]
    await ledger.tasks.add(tasks[::-1])

    assert ids(await ledger.tasks.page(limit=10)) == ids(tasks)
    assert ids(await ledger.tasks.page(limit=3)) == ids(tasks[:3])
    assert ids(await ledger.tasks.page(limit=10, hosts=["h0.com", "h1.com"])) == ids(tasks)
    assert ids(await ledger.tasks.page(limit=2, hosts=["h0.com", "h1.com"])) == ids(tasks[:2])


async def test_a_page_has_only_the_hosts_asked_for(ledger: Ledger):
    tasks = [make_task(f"http://{host}.com/") for host in "abc"]
    await ledger.tasks.add(tasks)

    assert {
        t.host for t in await ledger.tasks.page(limit=10, hosts=["a.com", "c.com", "x.com"])
    } == {
        "a.com",
        "c.com",
    }
    assert await ledger.tasks.page(limit=10, hosts=[]) == []


async def test_a_page_of_each_host_has_so_many_of_the_first_as_are_wanted(ledger: Ledger):
    tasks = [
        make_task(f"http://h{n % 3}.com/{n}", priority=n % 4, due=START - timedelta(seconds=n))
        for n in range(36)
    ]
    await ledger.tasks.add([*tasks, make_task("http://h3.com/")])
    wanted = {"h0.com": 1, "h1.com": 5, "h3.com": 9, "x.com": 2, "$h.com": 1, "h2.com": 0}

    found = await ledger.tasks.page_each(wanted)

    for host, most in wanted.items():
        first = await ledger.tasks.page(limit=most, hosts=[host])
        assert ids(t for t in found if t.host == host) == ids(first)
    assert Counter(t.host for t in found) == {"h0.com": 1, "h1.com": 5, "h3.com": 1}
    assert await ledger.tasks.page_each({}) == []


async def test_a_page_of_each_host_has_nothing_that_is_not_due_yet(
    ledger: Ledger, clock: FakeClock
):
    later = make_task(due=START + timedelta(seconds=10))
    await ledger.tasks.add([later, make_task("http://other.com/")])

    assert await ledger.tasks.page_each({later.host: 9}) == []
    clock.advance(seconds=10)
    assert await ledger.tasks.page_each({later.host: 9}) == [later]


async def test_a_page_has_nothing_that_is_not_due_yet(ledger: Ledger, clock: FakeClock):
    later = make_task(due=START + timedelta(seconds=10))
    await ledger.tasks.add([later])

    assert await ledger.tasks.page(limit=10) == []
    assert await ledger.tasks.page(limit=10, hosts=[later.host]) == []
    clock.advance(seconds=10)
    assert ids(await ledger.tasks.page(limit=10)) == [later.id]


# --- claim


async def test_a_claim_leases_a_task_to_one_worker(ledger: Ledger):
    task = make_task()
    await ledger.tasks.add([task])

    lease = await claimed_one(ledger, worker="w")

    assert lease.task == task
    assert lease.token.startswith("w:")
    assert (lease.fence, lease.expires) == (1, START + LEASE)
    record = await ledger.tasks.get(task.id)
    assert record is not None
    assert record.task == replace(
        task,
        status=Status.PROCESSING,
        due=START + LEASE,
        lock=lease.token,
        lock_time=START,
        fence=1,
    )


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
async def test_many_claimers_never_get_the_same_task(store: LedgerFactory):
    clients = [await store.open() for _ in range(4)]
    tasks = make_tasks(200)
    await clients[0].tasks.add(tasks)

    async def claim_all(number: int) -> list[bytes]:
        client, mine = clients[number % 4], []
        while page := await client.tasks.page(limit=25):
            answer = await client.leases.claim(page, worker=f"w{number}", lease=LEASE, max_lost=3)
            assert len(answer.leases) + answer.missed == len(page)
            mine += [lease.task.id for lease in answer.leases]
        return mine

    shares = await asyncio.gather(*(claim_all(n) for n in range(16)))

    taken = [task for share in shares for task in share]
    assert len(taken) == 200
    assert set(taken) == set(ids(tasks))


async def test_what_is_not_due_is_not_claimed(ledger: Ledger, clock: FakeClock):
    """`page` does not return it, but a redirect may lead to it."""
    later = make_task(due=START + timedelta(seconds=10))
    await ledger.tasks.add([later])

    answer = await ledger.leases.claim([later], worker="a", lease=LEASE, max_lost=3)

    assert (answer.leases, answer.missed) == ((), 1)
    assert await status_of(ledger, later) is Status.TODO
    clock.advance(seconds=10)
    assert len(await claimed(ledger)) == 1


async def test_a_page_from_before_a_release_repeats_no_fence(ledger: Ledger):
    await ledger.tasks.add([make_task()])
    page = await ledger.tasks.page(limit=1)
    await ledger.outcomes.release([await claimed_one(ledger)])

    answer = await ledger.leases.claim(page, worker="b", lease=LEASE, max_lost=3)

    # Either a miss, or a claim of the task in its current state.
    assert [lease.fence for lease in answer.leases] in ([], [2])
    assert len(answer.leases) + answer.missed == 1


async def test_a_page_from_before_a_late_failure_does_not_take_it_back(
    ledger: Ledger, clock: FakeClock
):
    """The holder reports after its lease ran out, and its fence is still the last."""
    await ledger.tasks.add([make_task()])
    lease = await claimed_one(ledger)
    clock.advance(seconds=61)
    page = await ledger.tasks.page(limit=1)
    await ledger.outcomes.commit([failure(ledger, lease)])
    clock.advance(seconds=3_600)

    answer = await ledger.leases.claim(page, worker="b", lease=LEASE, max_lost=3)

    assert (answer.leases, answer.missed) == ((), 1)
    assert (await claimed_one(ledger)).task.retry == 1


async def test_a_lease_renewed_since_the_page_is_not_taken_over(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    lease = await claimed_one(ledger)
    clock.advance(seconds=60)
    page = await ledger.tasks.page(limit=1)
    await ledger.leases.renew([lease], lease=LEASE)

    answer = await ledger.leases.claim(page, worker="b", lease=LEASE, max_lost=3)

    assert (answer.leases, answer.missed) == ((), 1)
    assert (await ledger.outcomes.commit([success(ledger, lease)])).lost == ()


async def test_a_lease_holds_to_its_end_and_not_longer(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    first = await claimed_one(ledger)

    clock.advance(seconds=59.999)
    assert await ledger.tasks.page(limit=1) == []
    clock.advance(seconds=0.001)
    second = await claimed_one(ledger, worker="b")

    assert second.task.status is Status.PROCESSING
    assert second.fence == first.fence + 1
    record = await ledger.tasks.get(first.task.id)
    assert record is not None
    assert (record.task.lost, record.task.quarantine_fence, record.task.retry) == (0, 0, 0)


async def begun_and_lost(ledger: Ledger, clock: FakeClock, *, times: int) -> Lease:
    """Let a worker crash on the only task, *times* times; return the last lease."""
    for number in range(times):
        if number:
            assert await claimed(ledger) == [], "it rests"
            clock.advance(seconds=60)
        lease = await claimed_one(ledger)
        assert await ledger.leases.begin(lease)
        clock.advance(seconds=60)
    return lease


async def test_a_task_that_workers_crash_on_alone_comes_back_later_and_later(
    ledger: Ledger, clock: FakeClock
):
    task = make_task()
    await ledger.tasks.add([task])
    await begun_and_lost(ledger, clock, times=1)
    waits = []

    for lost in (1, 2):
        page = await ledger.tasks.page(limit=1)
        answer = await ledger.leases.claim(page, worker="b", lease=LEASE, max_lost=3)
        record = await ledger.tasks.get(task.id)
        assert record is not None
        assert record.task.due is not None
        assert (answer.leases, answer.missed, answer.deferred) == ((), 0, 1)
        assert (record.task.status, record.task.lost) == (Status.TODO, lost)
        assert (record.task.lock, record.task.lock_time) == (None, None)
        assert [error.kind for error in record.errors] == [Reason.CRASHED_WORKER] * lost
        waits.append(record.task.due - clock.time)
        clock.time = record.task.due
        assert await ledger.leases.begin(await claimed_one(ledger))
        clock.advance(seconds=60)

    assert waits == [timedelta(seconds=1), timedelta(seconds=2)]


async def test_a_task_that_too_many_workers_crash_on_alone_is_ignored(
    ledger: Ledger, clock: FakeClock
):
    task = make_task()
    await ledger.tasks.add([task])
    lease = await begun_and_lost(ledger, clock, times=3)

    page = await ledger.tasks.page(limit=1)
    answer = await ledger.leases.claim(page, worker="b", lease=LEASE, max_lost=3)

    assert (answer.leases, answer.missed, answer.abandoned) == ((), 0, 1)
    record = await ledger.tasks.get(task.id)
    assert record is not None
    assert record.task.status is Status.IGNORED
    assert (record.task.reason, record.task.lost) == (Reason.CRASHED_WORKER, 3)
    assert (record.task.due, record.task.lock, record.task.lock_time) == (None, None, None)
    assert [error.kind for error in record.errors] == [Reason.CRASHED_WORKER] * 3
    assert record.task.quarantine_fence == lease.fence, "it stays in quarantine after a retry"
    assert (await ledger.outcomes.commit([success(ledger, lease)])).lost == (lease,)


async def test_a_task_that_nobody_has_begun_with_alone_loses_no_lease(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add([make_task()])
    for _ in range(5):
        lease = await claimed_one(ledger)
        clock.advance(seconds=60)

    assert (lease.task.lost, lease.task.quarantine_fence, lease.fence) == (0, 0, 5)
    assert not await ledger.leases.begin(replace(lease, fence=4))
    assert not await ledger.leases.begin(replace(lease, token="another:1"))
    assert await ledger.leases.begin(lease)
    assert await ledger.leases.begin(lease), "a repeated call succeeds"
    assert await claimed(ledger, worker="b") == []
    assert not await ledger.leases.begin(lease), "it is in nobody's hands"
    record = await ledger.tasks.get(lease.task.id)
    assert record is not None
    assert (record.task.lost, record.task.quarantine_fence) == (1, 5)
    clock.advance(seconds=60)
    again = await claimed_one(ledger, worker="b")
    assert (await ledger.outcomes.commit([success(ledger, again)])).lost == ()
    assert not await ledger.leases.begin(again)


async def test_a_task_that_crashed_its_workers_may_crash_as_many_again(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add([make_task()])
    await begun_and_lost(ledger, clock, times=3)
    assert await claimed(ledger) == []
    assert await ledger.queries.reasons() == {"crashed-worker": 1}

    assert await ledger.admin.retry_failed(TaskFilter(reason=Reason.CRASHED_WORKER)) == 1

    lease = await claimed_one(ledger)
    assert lease.task.lost == 0
    assert transitions.is_quarantined(lease.task)


# --- renew


async def test_a_renewed_lease_goes_on(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add(make_tasks(3))
    leases = await claimed(ledger)

    clock.advance(seconds=40)
    assert await ledger.leases.renew(leases, lease=LEASE) == set()
    clock.advance(seconds=59)

    assert await ledger.tasks.page(limit=10) == []
    assert await ledger.queries.next_due() == clock.time + timedelta(seconds=1)
    assert (await ledger.outcomes.commit([success(ledger, lease) for lease in leases])).lost == ()


async def test_renew_names_the_leases_that_are_lost(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add(make_tasks(4))
    leases = await claimed(ledger)
    await ledger.outcomes.commit([success(ledger, leases[0])])
    clock.advance(seconds=60)
    page = [task for task in await ledger.tasks.page(limit=10) if task.id == leases[1].task.id]
    await ledger.leases.claim(page, worker="b", lease=LEASE, max_lost=3)
    await ledger.outcomes.release([leases[2]])

    lost = await ledger.leases.renew(leases, lease=LEASE)

    assert lost == {lease.task.id for lease in leases[:3]}
    assert await ledger.leases.renew([], lease=LEASE) == set()


# --- commit


async def test_a_success_is_recorded_with_its_items(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    lease = await claimed_one(ledger)
    clock.advance(seconds=1)
    response = ResponseInfo(
        status=200,
        final_url="http://example.com/final",
        content_type="text/html",
        bytes=12,
        elapsed=0.25,
        etag='"x"',
    )
    items = (cleaned_item({"title": "A"}), cleaned_item({"title": "B"}))

    answer = await ledger.outcomes.commit(
        [settled(ledger, lease, Succeeded(response=response, items=items))]
    )

    assert (answer.lost, answer.rejected) == ((), ())
    record = await ledger.tasks.get(lease.task.id)
    assert record is not None
    assert record.task == replace(
        lease.task,
        status=Status.FINISHED,
        due=None,
        update_time=clock.time,
        fence=1,
        settled=1,
    )
    assert (record.response, record.items, record.errors) == (response, items, ())


async def test_a_failure_is_tried_again_when_its_backoff_is_over(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    lease = await claimed_one(ledger)

    settlement = failure(ledger, lease, Reason.TIMEOUT_READ, message="no\x1banswer")
    await ledger.outcomes.commit([settlement])

    record = await ledger.tasks.get(lease.task.id)
    assert record is not None
    assert record.task.status is Status.FAILED
    assert (record.task.reason, record.task.retry) == (Reason.TIMEOUT_READ, 1)
    assert record.task.due == START + timedelta(seconds=2.5)
    assert record.errors == (settlement.change.error,)
    assert await ledger.tasks.page(limit=1) == []
    clock.advance(seconds=2.5)
    assert ids(await ledger.tasks.page(limit=1)) == [lease.task.id]


async def test_a_stale_commit_writes_nothing_and_is_named(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add(make_tasks(2))
    stale, other = await claimed(ledger, worker="a")
    clock.advance(seconds=30)
    await ledger.leases.renew([other], lease=LEASE)
    clock.advance(seconds=30)
    newer = await claimed_one(ledger, worker="b")
    before = await ledger.tasks.get(stale.task.id)

    answer = await ledger.outcomes.commit(
        [success(ledger, stale, {"n": "stale"}), success(ledger, other, {"n": "other"})]
    )

    assert answer.lost == (stale,)
    assert await ledger.tasks.get(stale.task.id) == before
    assert await status_of(ledger, other.task) is Status.FINISHED
    assert (await ledger.outcomes.commit([success(ledger, newer, {"n": "newer"})])).lost == ()
    record = await ledger.tasks.get(stale.task.id)
    assert record is not None
    assert record.items == ({"n": "newer"},)


async def test_a_commit_of_a_stale_lease_is_lost_after_the_newer_one_too(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add([make_task()])
    stale = await claimed_one(ledger, worker="a")
    clock.advance(seconds=60)
    newer = await claimed_one(ledger, worker="b")
    await ledger.outcomes.commit([success(ledger, newer, {"n": 2})])
    before = await ledger.tasks.get(stale.task.id)

    assert (await ledger.outcomes.commit([success(ledger, stale, {"n": 1})])).lost == (stale,)
    assert await ledger.tasks.get(stale.task.id) == before


async def test_nobody_sees_a_finished_task_without_its_items(store: LedgerFactory):
    writer, reader = await store.open(), await store.open()
    await writer.tasks.add(make_tasks(30))
    leases = await claimed(writer)
    committing = True
    seen = []

    async def watch() -> None:
        while committing:
            for lease in leases:
                record = await reader.tasks.get(lease.task.id)
                assert record is not None
                finished = record.task.status is Status.FINISHED
                seen.append((finished, len(record.items)))
                await asyncio.sleep(0)

    async def commit_all() -> None:
        nonlocal committing
        for lease in leases:
            await writer.outcomes.commit([success(writer, lease, {"n": 1}, {"n": 2})])
        committing = False

    await asyncio.gather(watch(), commit_all())

    assert set(seen) <= {(False, 0), (True, 2)}
    assert (True, 2) in seen


async def test_links_are_added_before_the_page_they_are_on_is_committed(ledger: Ledger):
    page, *links = make_tasks(3)
    await ledger.tasks.add([page])
    lease = await claimed_one(ledger)

    # After a crash between the two, the page is repeated, and its links are known.
    assert (await ledger.tasks.add(links)).new == 2
    assert (await ledger.tasks.add(links)).existing == 2
    assert (await ledger.outcomes.commit([success(ledger, lease)])).lost == ()
    assert (await ledger.queries.counts()).by_status == {Status.TODO: 2, Status.FINISHED: 1}


async def test_a_revisit_replaces_the_items_and_a_failed_one_keeps_them(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add([make_task()])
    for n, outcome in enumerate(
        (
            Succeeded(items=({"n": 1}, {"n": 2}), visit=visit(), revisit=at(10)),
            Succeeded(
                items=({"n": 3},),
                response=ResponseInfo(status=200, final_url="http://example.com/"),
                visit=visit(etag='"2"'),
                revisit=at(20),
            ),
            Failed(reason=Reason.TLS),
        )
    ):
        clock.time = at(10 * n)
        assert await ledger.admin.revisit_due() == (n > 0)
        lease = await claimed_one(ledger)
        await ledger.outcomes.commit([settled(ledger, lease, outcome)])

    record = await ledger.tasks.get(lease.task.id)
    assert record is not None
    assert record.items == ({"n": 3},)
    assert record.response == ResponseInfo(status=200, final_url="http://example.com/")
    assert record.task.visit == visit(etag='"2"')
    # A claim raises the fence, and so does a change that makes the page due again.
    assert record.task.fence == record.task.settled == 5


async def test_the_last_ten_errors_are_kept(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    patient = RetryPolicy(max_retry=100)
    for n in range(12):
        clock.advance(seconds=4000)
        lease = await claimed_one(ledger)
        await ledger.outcomes.commit(
            [failure(ledger, lease, message=f"attempt {n}", policy=patient)]
        )

    record = await ledger.tasks.get(lease.task.id)

    assert record is not None
    assert record.task.retry == 12
    assert [error.message for error in record.errors] == [f"attempt {n}" for n in range(2, 12)]
    assert [error.attempt for error in record.errors] == list(range(3, 13))


# --- release


async def test_a_released_task_keeps_its_place_and_its_attempts(ledger: Ledger, clock: FakeClock):
    first, second = make_task("http://example.com/1"), make_task("http://example.com/2")
    await ledger.tasks.add([replace(first, due=START - timedelta(seconds=9)), second])
    clock.advance(seconds=5)
    leases = await claimed(ledger)

    assert await ledger.outcomes.release(leases) == 2

    assert ids(await ledger.tasks.page(limit=10)) == [first.id, second.id]
    record = await ledger.tasks.get(first.id)
    assert record is not None
    assert record.task == replace(
        first, due=START - timedelta(seconds=9), update_time=clock.time, fence=1
    )


async def test_a_released_failure_is_a_failure_again(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add([make_task()])
    await ledger.outcomes.commit([failure(ledger, await claimed_one(ledger), Reason.DISCONNECTED)])
    clock.advance(seconds=100)
    lease = await claimed_one(ledger)

    await ledger.outcomes.release([lease])

    record = await ledger.tasks.get(lease.task.id)
    assert record is not None
    assert (record.task.status, record.task.retry) == (Status.FAILED, 1)
    assert (record.task.reason, record.task.due) == (Reason.DISCONNECTED, lease.task.due)
    assert len(record.errors) == 1


# --- retry_failed


async def test_retry_failed_brings_back_failures_and_nothing_else(ledger: Ledger, clock: FakeClock):
    tasks = {reason: make_task(f"http://example.com/{reason}") for reason in Reason}
    for reason, task in tasks.items():
        await given_up(ledger, task, reason)
    finished, failed, todo, leased = make_tasks(4)
    await ledger.tasks.add([finished])
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger), {"n": 1})])
    await ledger.tasks.add([failed])
    await ledger.outcomes.commit([failure(ledger, await claimed_one(ledger))])
    await ledger.tasks.add([leased])
    lease = await claimed_one(ledger)
    await ledger.tasks.add([todo])
    everything = [*tasks.values(), finished, failed, todo, leased]
    before = {task.id: await ledger.tasks.get(task.id) for task in everything}
    clock.advance(seconds=1)

    number = await ledger.admin.count_failed(TaskFilter())

    assert await ledger.admin.retry_failed(TaskFilter()) == number.number
    assert number.number == len(FAILURE_REASONS) + 1
    after = {task.id: await ledger.tasks.get(task.id) for task in everything}
    changed = {task_id for task_id in after if after[task_id] != before[task_id]}
    expected = {tasks[reason].id for reason in FAILURE_REASONS} | {failed.id}
    assert changed == expected
    for task_id in changed:
        was, is_now = before[task_id], after[task_id]
        assert is_now == replace(
            was,
            task=replace(
                was.task,
                status=Status.TODO,
                retry=0,
                lost=0,
                due=clock.time,
                update_time=clock.time,
                reason=None,
            ),
        )
    assert await ledger.leases.renew([lease], lease=LEASE) == set()


@pytest.mark.thorough
@pytest.mark.representative("refused-scope")
@pytest.mark.parametrize("reason", sorted(POLICY_REASONS))
async def test_the_unwanted_are_not_failures_even_when_asked_for(ledger: Ledger, reason: Reason):
    await given_up(ledger, make_task(), reason)

    assert await ledger.admin.retry_failed(TaskFilter(reason=reason)) == 0
    assert await ledger.queries.next_due() is None


async def test_a_retried_task_has_all_its_attempts_again(ledger: Ledger, clock: FakeClock):
    task = make_task()
    await given_up(ledger, task, Reason.CONNECT)
    await ledger.admin.retry_failed(TaskFilter())

    lease = await claimed_one(ledger)
    await ledger.outcomes.commit([failure(ledger, lease)])

    record = await ledger.tasks.get(task.id)
    assert record is not None
    assert (record.task.status, record.task.retry, record.task.fence) == (Status.FAILED, 1, 2)
    assert len(record.errors) == 2


# --- reopen


async def test_a_page_is_reopened_at_its_own_host_and_callback_whatever_the_stage(
    ledger: Ledger, clock: FakeClock
):
    page = make_task(callback="parse_book")
    await ledger.tasks.add([page])
    await ledger.hosts.wake({page.host: START})
    (host,) = await ledger.host_leases.lease(worker="w", limit=1, lease=LEASE)
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])
    await ledger.host_leases.release([(host, host.host)])
    assert await ledger.hosts.next_ready() is None
    clock.advance(seconds=1)

    assert await ledger.admin.reopen(TaskFilter(), stage="elsewhere", deletes_results=True) == 1

    record = await ledger.tasks.get(page.id)
    assert record is not None
    reopened = record.task
    assert (reopened.host, reopened.callback, reopened.status) == (
        page.host,
        "parse_book",
        Status.TODO,
    )
    assert await ledger.tasks.page(limit=9, hosts=[page.host]) == [reopened]
    assert await ledger.tasks.page(limit=9, hosts=["elsewhere"]) == []
    # The host is woken; otherwise no worker would lease it and request the page.
    assert await ledger.hosts.next_ready() == clock.time


# --- horizon and numbers


async def test_of_tasks_that_are_due_by_then_any_is_the_horizon(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add(
        [
            make_task("http://example.com/1", priority=5, due=START + timedelta(seconds=30)),
            make_task("http://example.com/2", priority=0, due=START + timedelta(seconds=20)),
        ]
    )

    async def horizon(seconds: float) -> datetime | None:
        return await ledger.queries.next_due(due_by=START + timedelta(seconds=seconds))

    first, second = START + timedelta(seconds=20), START + timedelta(seconds=30)
    assert await horizon(19) == first
    assert await horizon(20) == first
    assert await horizon(30) in {first, second}


async def test_counts_and_reasons(ledger: Ledger):
    assert (await ledger.queries.counts()).total == 0
    assert await ledger.queries.reasons() == {}
    for n, reason in enumerate((Reason.TLS, Reason.TLS, Reason.REFUSED_ROBOTS)):
        await given_up(ledger, make_task(f"http://example.com/ignored{n}"), reason)
    tasks = make_tasks(6)
    await ledger.tasks.add(tasks[:3])
    one, two, _ = await claimed(ledger)
    await ledger.outcomes.commit([failure(ledger, one), success(ledger, two)])
    await ledger.tasks.add(tasks[3:])

    counts = await ledger.queries.counts()

    assert {status: counts[status] for status in Status} == {
        Status.TODO: 3,
        Status.FAILED: 1,
        Status.PROCESSING: 1,
        Status.FINISHED: 1,
        Status.IGNORED: 3,
    }
    assert counts.total == 9
    reasons = await ledger.queries.reasons()
    assert next(iter(reasons)) == "tls"
    assert reasons == {"tls": 2, "connect": 1, "refused-robots": 1}


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_what_is_counted_some_at_a_time_adds_up(
    ledger: Ledger, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    for constant in (
        "mongo.task_table._MAX_TASKS_PER_READ",
        "mongo.groups._KEYS_PER_COMMAND",
        "mongo.task_table.COUNT_BATCH_SIZE",
    ):
        monkeypatch.setattr(f"crawlcw.ledger.{constant}", at_once)
    # Many tasks of one time, and some of others.
    await ledger.tasks.add([make_task(f"http://h{n % 3}.com/{n}") for n in range(17)])
    leases = await claimed(ledger, limit=11)
    await ledger.outcomes.commit(
        [success(ledger, lease, {"n": 1}, {"n": 2}) for lease in leases[:4]]
    )
    await ledger.outcomes.commit([failure(ledger, lease) for lease in leases[4:6]])
    for lease, reason in zip(leases[6:9], (Reason.TLS, Reason.TLS, Reason.PROTOCOL), strict=True):
        await ledger.outcomes.commit([failure(ledger, lease, reason, policy=ONCE)])

    counts = await ledger.queries.counts()

    assert counts.by_status == {
        Status.TODO: 6,
        Status.FAILED: 2,
        Status.PROCESSING: 2,
        Status.FINISHED: 4,
        Status.IGNORED: 3,
    }
    assert await ledger.queries.item_count() == 8
    assert await ledger.queries.item_count_within(scan_limit=100) == Count(number=8, is_exact=True)
    assert await ledger.queries.reasons() == {"connect": 2, "tls": 2, "protocol": 1}
    by_host = await ledger.hosts.counts()
    assert sum(of_host.total for of_host in by_host.values()) == 17
    for status in Status:
        assert sum(of_host[status] for of_host in by_host.values()) == counts[status]


async def test_items_are_counted_among_so_many_tasks(ledger: Ledger):
    await ledger.tasks.add(make_tasks(9))
    leases = await claimed(ledger, limit=6)
    await ledger.outcomes.commit([success(ledger, lease, {"n": 1}, {"n": 2}) for lease in leases])

    found = await ledger.queries.item_count_within(scan_limit=4)

    # SQLite has an index of the items, and counts all of them.
    assert found in (Count(number=8, is_exact=False), Count(number=12, is_exact=True))
    assert await ledger.queries.item_count_within(scan_limit=50) == Count(number=12, is_exact=True)


async def test_a_ledger_says_whether_it_has_tasks_of_some_statuses(ledger: Ledger):
    assert not await ledger.queries.has(tuple(Status))
    await ledger.tasks.add(make_tasks(1))
    assert await ledger.queries.has([Status.FINISHED, Status.TODO])
    assert not await ledger.queries.has([Status.FINISHED])

    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])

    assert await ledger.queries.has([Status.FINISHED])
    assert not await ledger.queries.has([Status.FAILED, Status.IGNORED])
    assert not await ledger.queries.has([])


# --- items


async def test_items_come_in_the_order_of_ids_and_then_as_they_were_yielded(
    ledger: Ledger, clock: FakeClock
):
    tasks = make_tasks(40)
    await ledger.tasks.add(tasks)
    leases = await claimed(ledger)
    clock.advance(seconds=3)
    await ledger.outcomes.commit(
        [
            success(ledger, lease, *({"url": lease.task.url, "n": n} for n in range(number % 3)))
            for number, lease in enumerate(leases)
        ]
    )

    rows = [row async for row in ledger.queries.items()]

    by_id = sorted(enumerate(leases), key=lambda pair: pair[1].task.id)
    assert [row.item for row in rows] == [
        {"url": lease.task.url, "n": n} for number, lease in by_id for n in range(number % 3)
    ]
    assert {row.fetched_at for row in rows} == {clock.time}
    assert await ledger.queries.item_count() == len(rows) == 39


async def test_items_of_chosen_tasks_come_the_last_changed_first(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add(make_tasks(120))
    leases = await claimed(ledger)
    for number, lease in enumerate(leases):
        clock.advance(seconds=1)
        await ledger.outcomes.commit([success(ledger, lease, {"n": number}, {"n": number})])
    half = clock.time - timedelta(seconds=59)

    all_of_them = [row.item["n"] async for row in ledger.queries.items(TaskFilter())]
    later = TaskFilter(statuses=[Status.FINISHED], changed_since=half)
    rows = [row async for row in ledger.queries.items(later)]
    waiting = TaskFilter(statuses=[Status.TODO, Status.FAILED])

    assert all_of_them == [n for n in range(119, -1, -1) for _ in range(2)]
    assert [row.item["n"] for row in rows] == [n for n in range(119, 59, -1) for _ in range(2)]
    assert min(row.fetched_at for row in rows) == half
    assert [row async for row in ledger.queries.items(waiting)] == []


@pytest.mark.parametrize("is_chosen", [False, True])
async def test_large_items_are_in_memory_a_batch_at_a_time(
    ledger: Ledger, clock: FakeClock, is_chosen: bool
):
    pages, size = 10, 1_200_000
    await ledger.tasks.add(make_tasks(pages))
    for number, lease in enumerate(await claimed(ledger)):
        clock.advance(seconds=1)
        # Small items, and one that MongoDB stores outside the document for its size.
        texts = ["x" * (size // 12)] * 11 + ["x" * size]
        items = [{"n": number, "text": text} for text in texts]
        await ledger.outcomes.commit([success(ledger, lease, *items)])
    found, most = list[int](), 0

    async for row in ledger.queries.items(TaskFilter() if is_chosen else None):
        found.append(row.item["n"])
        if len(found) % 12 == 1:
            alive = (each for each in gc.get_objects() if type(each) is ItemRow)
            most = max(most, sum(len(each.item.get("text", "")) for each in alive))

    expected = [n for n in reversed(range(pages)) for _ in range(12)]
    assert found == expected if is_chosen else sorted(found, reverse=True) == expected
    # A batch of MongoDB has at most 16 MiB plus the rest of a page; all items have 24 MB.
    assert most <= (16 << 20) + 2 * size


async def test_an_item_says_where_its_page_really_was(ledger: Ledger):
    await ledger.tasks.add([make_task("http://example.com/asked")])
    lease = await claimed_one(ledger)
    await ledger.outcomes.commit([success(ledger, lease, {}, url="http://example.com/redirected")])

    (row,) = [row async for row in ledger.queries.items()]

    assert (row.item, row.url) == ({}, "http://example.com/redirected")


async def test_many_items_of_one_page_come_complete(ledger: Ledger):
    await ledger.tasks.add(make_tasks(3))
    leases = await claimed(ledger)
    await ledger.outcomes.commit(
        [success(ledger, lease, *({"n": n} for n in range(700))) for lease in leases]
    )

    assert [row.item["n"] async for row in ledger.queries.items()] == list(range(700)) * 3


# --- hostile values

NESTED_60: dict = {}
NESTED_200: dict = {}
for _depth in range(200):
    NESTED_200 = {"d": NESTED_200}
    if _depth < 60:
        NESTED_60 = {"d": NESTED_60}

HOSTILE = {
    "a lone surrogate": {"v": "a\ud800b", "\udfff": 1},
    "a NUL": {"v": "a\0b", "k\0k": "\0"},
    "operators": {"$set": {"status": 50}, "$where": "1", "a.b.c": {"$ref": "x", "$id": 1}},
    "escapes": {"%24": 1, "%": 2, "%2E": 3, "%25": 4, "$bytes": "QQ==", "$date": 1, "$": 5},
    "tags alone": {"v": {"$bytes": "QQ=="}, "w": {"$date": 1}},
    "an empty key": {"": {"": ""}},
    "ids": {"_id": 1, "id": 2, "n": 3},
    "a huge integer": {"v": 2**70, "w": -(2**63) - 1, "x": 2**63 - 1, "y": -(2**63)},
    "digits without end": {"v": 10**5000},
    "no number": {"v": float("nan"), "w": float("inf"), "x": -0.0, "y": 1e308},
    "60 deep": NESTED_60,
    "200 deep": NESTED_200,
    "bytes": {"v": b"\x00\xff", "w": b"", "x": bytearray(b"a")},
    "dates": {
        "v": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "w": datetime(1, 1, 1, tzinfo=UTC),
        "x": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "y": datetime(1969, 12, 31, 23, 59, 59, 1000, tzinfo=UTC),
    },
    "times without a zone": {
        "v": datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001  # tested on purpose
        "w": [datetime.min, {"x": datetime.max}],  # noqa: DTZ901  # as above
        "%naive": "2026-01-02T03:04:05",
        "y": {"%naive": "2026-01-02T03:04:05"},
    },
    "dates without a time, and decimals": {
        "v": date(2026, 1, 2),
        "w": [date.min, {"x": date.max}],
        "y": Decimal("1.10"),
        "z": [Decimal("-1E+999"), {"%decimal": "1", "%date": Decimal("0E-9")}],
        "%date": "2026-01-02",
    },
    "2 MiB": {"v": "x" * (2 << 20)},
    "other scripts": {"ключ": "значение", "😀": "😀" * 100},
}


async def test_a_hostile_item_comes_back_as_it_was_cleaned(ledger: Ledger):
    await ledger.tasks.add(make_tasks(2 * len(HOSTILE)))
    leases = await claimed(ledger)

    for (name, item), bad, good in zip(HOSTILE.items(), leases[::2], leases[1::2], strict=True):
        answer = await ledger.outcomes.commit(
            [success(ledger, bad, item), success(ledger, good, {"beside": name})]
        )

        assert (answer.lost, answer.rejected) == ((), ()), name
        record = await ledger.tasks.get(bad.task.id)
        assert record is not None, name
        assert record.items == (cleaned_item(item),), name
    items = [row.item async for row in ledger.queries.items()]
    for name, item in HOSTILE.items():
        assert {"beside": name} in items
        assert cleaned_item(item) in items, name


async def test_a_huge_item_harms_no_other(ledger: Ledger):
    await ledger.tasks.add(make_tasks(3))
    first, huge, last = await claimed(ledger)

    answer = await ledger.outcomes.commit(
        [
            success(ledger, first, {"n": 1}),
            success(ledger, huge, {"v": "x" * (20 << 20)}),
            success(ledger, last, {"n": 3}),
        ]
    )

    assert answer.lost == ()
    assert await status_of(ledger, first.task) is Status.FINISHED
    assert await status_of(ledger, last.task) is Status.FINISHED
    record = await ledger.tasks.get(huge.task.id)
    assert record is not None
    if answer.rejected:
        assert [lease for lease, _ in answer.rejected] == [huge]
        assert record.task.status is Status.IGNORED
        assert record.task.reason is Reason.STORE_REJECTED
        assert [error.kind for error in record.errors] == [Reason.STORE_REJECTED]
        assert record.items == ()
    else:
        assert record.task.status is Status.FINISHED
        assert len(record.items[0]["v"]) == 20 << 20


async def test_an_outcome_that_cannot_be_held_is_rejected_alone(ledger: Ledger):
    """Values are cleaned before; if one slips through, it must not fail its batch."""
    await ledger.tasks.add(make_tasks(3))
    first, bad, last = await claimed(ledger)
    unclean = settled(ledger, bad, Succeeded(items=({"v": "\ud800"}, {"w": object()})))
    batch = [success(ledger, first, {"n": 1}), unclean, success(ledger, last, {"n": 3})]

    answer = await ledger.outcomes.commit(batch)

    assert answer.lost == ()
    assert [lease for lease, _ in answer.rejected] == [bad]
    record = await ledger.tasks.get(bad.task.id)
    assert record is not None
    assert (record.task.status, record.task.reason) == (Status.IGNORED, Reason.STORE_REJECTED)
    assert record.task.lock is None
    assert record.items == ()
    assert sorted([row.item["n"] async for row in ledger.queries.items()]) == [1, 3]
    again = await ledger.outcomes.commit(batch)
    assert again.lost == ()
    assert await ledger.tasks.get(bad.task.id) == record


async def test_a_task_that_cannot_be_held_is_rejected_alone(ledger: Ledger):
    good, surrogate, number, thing = make_tasks(4)
    surrogate = replace(surrogate, url="http://example.com/\ud800")
    number = replace(number, context={"v": 2**70}, priority=2**70)
    thing = replace(thing, context={"v": object()})

    added = await ledger.tasks.add([surrogate, good, number, thing])

    assert (added.new, added.existing) == (1, 0)
    assert [task.id for task, _ in added.rejected] == ids([surrogate, number, thing])
    assert all(why for _, why in added.rejected)
    assert ids(await ledger.tasks.page(limit=10)) == [good.id]


async def test_a_response_that_cannot_be_held_is_rejected_alone(ledger: Ledger):
    await ledger.tasks.add(make_tasks(2))
    bad, good = await claimed(ledger)
    response = ResponseInfo(status=200, final_url="http://example.com/", etag="\udcff")
    settlement = settled(ledger, bad, Succeeded(response=response, items=({"n": 1},)))

    answer = await ledger.outcomes.commit([settlement, success(ledger, good, {"n": 2})])

    assert [lease for lease, _ in answer.rejected] == [bad]
    assert [row.item async for row in ledger.queries.items()] == [{"n": 2}]


# --- workers


def worker(name: str) -> Worker:
    return Worker(name=name, machine="m1", pid=42, birth="12345", started=START, heartbeat=START)


async def test_the_tasks_of_a_dead_worker_are_claimable_at_once(store: LedgerFactory):
    dead, alive = await store.open(), await store.open()
    await dead.workers.join(worker("a"))
    await dead.tasks.add(make_tasks(6))
    page = await dead.tasks.page(limit=6)
    lost = (await dead.leases.claim(page[:3], worker="a", lease=LEASE, max_lost=3)).leases
    # Names that a careless pattern would match as the dead worker's.
    await dead.leases.claim(page[3:4], worker="ab", lease=LEASE, max_lost=3)
    await dead.leases.claim(page[4:5], worker="a:b", lease=LEASE, max_lost=3)
    await dead.leases.claim(page[5:], worker="x.a", lease=LEASE, max_lost=3)

    assert await alive.workers.leave("a.") == 0
    assert await alive.workers.leave("a") >= 3

    again = await claimed(alive, worker="c")
    assert {lease.task.id for lease in lost} <= {lease.task.id for lease in again}
    assert len(again) <= 4
    assert all(lease.task.status is Status.PROCESSING for lease in again)
    record = await alive.tasks.get(lost[0].task.id)
    assert record is not None
    assert (record.task.lost, record.task.quarantine_fence, record.task.retry) == (0, 0, 0)
    assert set((await dead.outcomes.commit([success(dead, lease) for lease in lost])).lost) == set(
        lost
    )


# --- whole runs


async def test_now_is_in_utc_and_whole_milliseconds(ledger: Ledger):
    assert ledger.now() == START


def test_no_reason_is_left_out():
    assert set(Reason) == FAILURE_REASONS | POLICY_REASONS
    assert transitions.RETRIED_REASONS == FAILURE_REASONS


# --- links beyond the depth limit


def refused(url: str, **more: Any) -> Task:
    return transitions.too_deep(make_task(url, **more))


async def test_a_link_that_lies_too_deep_is_kept_and_nothing_of_it_is_due(ledger: Ledger):
    task = refused("http://a.com/", depth=6, hops=2)

    added = await ledger.tasks.add([task])

    assert (added.new, added.existing) == (1, 0)
    record = await ledger.tasks.get(task.id)
    assert record is not None
    assert record.task == task
    assert (task.status, task.reason, task.due) == (Status.IGNORED, Reason.REFUSED_DEPTH, None)
    assert await ledger.tasks.page(limit=10) == []
    assert await ledger.queries.next_due() is None
    assert await ledger.queries.reasons() == {"refused-depth": 1}
    assert await ledger.admin.retry_failed(TaskFilter(reason=Reason.REFUSED_DEPTH)) == 0


@pytest.mark.parametrize(("max_depth", "admitted"), [(5, 0), (6, 1), (7, 2), (None, 3)])
async def test_links_are_admitted_down_to_a_depth(
    ledger: Ledger, clock: FakeClock, max_depth: int | None, admitted: int
):
    links = [refused(f"http://{n}.com/", depth=n, parent=b"p" * 16) for n in (6, 7, 30)]
    unwanted, waiting = make_task("http://b.com/1", depth=1), make_task("http://b.com/2", depth=1)
    await given_up(ledger, unwanted, Reason.REFUSED_SCOPE)
    await ledger.tasks.add([*links, waiting])
    before = {task.id: await ledger.tasks.get(task.id) for task in (*links, unwanted, waiting)}
    clock.advance(seconds=5)

    assert await ledger.admin.admit_to_depth(max_depth) == admitted

    after = {task_id: await ledger.tasks.get(task_id) for task_id in before}
    for task_id, record in before.items():
        if task_id in ids(links[:admitted]):
            task = replace(
                record.task,
                status=Status.TODO,
                due=clock.time,
                update_time=clock.time,
                reason=None,
            )
            record = replace(record, task=task)
        assert after[task_id] == record
    ready = {
        lease.host.name
        for lease in await ledger.host_leases.lease(worker="a", limit=9, lease=LEASE)
    }
    assert ready == {task.host for task in links[:admitted]}
    assert await ledger.admin.admit_to_depth(max_depth) == 0


async def test_a_link_that_is_found_nearer_is_admitted_with_its_new_depth(
    ledger: Ledger, clock: FakeClock
):
    nearer, same, deeper, seed = (
        refused(f"http://a.com/{n}", depth=6, parent=b"p" * 16) for n in range(4)
    )
    known, unwanted = make_task("http://b.com/1", depth=6), make_task("http://b.com/2", depth=6)
    await given_up(ledger, unwanted, Reason.REFUSED_SCOPE)
    await ledger.tasks.add([nearer, same, deeper, seed, known])
    untouched = [same, deeper, known, unwanted]
    before = [await ledger.tasks.get(task.id) for task in untouched]
    clock.advance(seconds=5)
    now: Any = {"status": Status.TODO, "reason": None, "due": clock.time, "update_time": clock.time}
    found = [
        replace(nearer, depth=3, parent=b"q" * 16, **now),
        replace(same, depth=6, **now),
        replace(deeper, depth=7, **now),
        replace(seed, depth=0, parent=None, **now),
        replace(known, depth=1),
        replace(unwanted, depth=1),
        make_task("http://b.com/unknown"),
    ]

    assert await ledger.tasks.admit_nearer(found) == 2

    for task in (found[0], found[3]):
        record = await ledger.tasks.get(task.id)
        assert record is not None
        assert record.task == task
    assert [await ledger.tasks.get(task.id) for task in untouched] == before
    assert await ledger.tasks.get(found[-1].id) is None
    assert await ledger.tasks.admit_nearer(found) == 0
    assert await ledger.tasks.admit_nearer([]) == 0


async def test_a_page_that_changed_after_it_was_finished_or_failed_is_done_again(
    ledger: Ledger, clock: FakeClock
):
    finished, failed, unwanted, late, todo = (
        make_task(f"http://{name}.com/") for name in ("finished", "failed", "unwanted", "late", "x")
    )
    await ledger.tasks.add([finished])
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger), {"n": 1})])
    await given_up(ledger, failed, Reason.TLS)
    await given_up(ledger, unwanted, Reason.REFUSED_ROBOTS)
    clock.advance(seconds=10)
    await ledger.tasks.add([late])
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger), {"n": 2})])
    await ledger.tasks.add([todo])
    before = {task.id: await ledger.tasks.get(task.id) for task in (unwanted, late, todo)}
    changed = [
        changed_task(task.url, changed=START + timedelta(seconds=5))
        for task in (finished, failed, unwanted, late, todo)
    ]
    changed.append(changed_task("http://unknown.com/", changed=START))

    assert await ledger.tasks.reopen_changed(changed) == 2

    for task in (finished, failed):
        record = await ledger.tasks.get(task.id)
        assert record is not None
        assert (record.task.status, record.task.due) == (Status.TODO, clock.time)
        assert (record.task.retry, record.task.reason, record.task.fence) == (0, None, 2)
    assert (await ledger.tasks.get(finished.id)).items == ({"n": 1},)
    assert {task: await ledger.tasks.get(task) for task in before} == before
    assert await ledger.tasks.get(changed[-1].id) is None
    assert await ledger.tasks.reopen_changed(changed) == 0
    assert await ledger.tasks.reopen_changed([]) == 0


async def test_a_page_that_has_not_changed_since_it_was_finished_is_left_alone(ledger: Ledger):
    task = await in_status(ledger, Status.FINISHED)
    before = await ledger.tasks.get(task.id)

    assert await ledger.tasks.reopen_changed([changed_task(task.url, changed=START)]) == 0

    assert await ledger.tasks.get(task.id) == before


async def test_a_task_that_was_tried_and_refused_for_depth_is_admitted_as_if_never_tried(
    ledger: Ledger, clock: FakeClock
):
    task = make_task(depth=5)
    await given_up(ledger, task, Reason.REFUSED_DEPTH)

    assert await ledger.admin.admit_to_depth(6) == 1

    lease = await claimed_one(ledger)
    assert (lease.task.retry, lease.task.lost, lease.fence) == (0, 0, 2)


# --- notes of crawls


async def test_the_state_is_what_was_written_down_last_of_each_name(store: LedgerFactory):
    one, two = await store.open(), await store.open()
    assert await one.notes.state() == {}

    await one.notes.set_state(
        {"depth": {"limit": None}, "seeds": {"hosts": ["a.com:80"], "$x.y": 1}}
    )
    await two.notes.set_state({"depth": {"limit": 3}})

    expected = {"depth": {"limit": 3}, "seeds": {"hosts": ["a.com:80"], "$x.y": 1}}
    assert await one.notes.state() == expected
    assert await two.notes.state() == expected
    await two.notes.set_state({})
    await two.notes.set_state({"seeds": None, "never": None})
    assert await one.notes.state() == {"depth": {"limit": 3}}


async def test_with_tasks_that_are_purged_goes_that_all_seeds_are_there(ledger: Ledger):
    await ledger.tasks.add(make_tasks(2))
    await ledger.notes.set_state({"depth": {"limit": 3}, "seeds": {"hosts": []}})

    assert await ledger.admin.purge(TaskFilter(ids=[make_tasks(1)[0].id])) == 1

    assert await ledger.notes.state() == {"depth": {"limit": 3}}


async def test_what_is_dropped_is_gone_and_can_begin_anew(store: LedgerFactory):
    ledger = await store.open()
    await ledger.tasks.add(make_tasks(3))
    await ledger.hosts.wake({"example.com": store.clock.time})
    lease = (await claimed(ledger))[0]
    await ledger.outcomes.commit([success(ledger, lease, {"n": 1})])
    await ledger.notes.set_state({"seeds": {"hosts": []}})

    await ledger.admin.drop()
    await ledger.admin.drop()

    again = await store.open()
    assert (await again.queries.counts()).total == 0
    assert [row async for row in again.queries.items()] == []
    assert [host async for host in again.hosts.all()] == []
    assert await again.notes.state() == {}
    assert (await again.tasks.add(make_tasks(3))).new == 3
    assert len(await claimed(again)) == 3


async def test_the_state_stays_when_the_ledger_is_opened_again(store: LedgerFactory):
    ledger = await store.open()
    await ledger.notes.set_state({"depth": {"limit": 3}})

    assert await (await store.open()).notes.state() == {"depth": {"limit": 3}}
