"""Contract of `Ledger` about tracked tasks, run on every store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from crawlcw.errors import LedgerConfigurationError, LedgerError, Reason
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.protocol import Count, Cursor, Ledger, TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Lease, Payload, Status, Task
from crawlcw.model.transitions import KEPT_TRACE, Advanced, Failed, Outcome, Progress, Succeeded
from tests.support.ledgers import (
    BACKENDS,
    LEASE,
    START,
    FakeClock,
    LedgerFactory,
    claimed,
    claimed_one,
    make_task,
    on_backend,
    settled,
)
from tests.support.mongod import with_database

#: Names and values with a special meaning in a store.
HOSTILE = {"$set": {"a.b": [1, {"$x": "$y"}]}, "%blob": {"id": "z"}, "": b"\0", "when": START}


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerFactory]:
    opened = on_backend(request, tmp_path, tracked=True)
    yield opened
    await opened.close()


@pytest.fixture
async def ledger(store: LedgerFactory) -> Any:
    return await store.open()


def make(n: int = 0, *, stage: str = "scan", **fields: Any) -> Task:
    """Return a new tracked task."""
    given = {"id": n.to_bytes(16, "big"), "url": f"order-{n}", "host": stage, "callback": stage}
    return replace(make_task(), **(given | {"carried": Payload(data={"n": n})} | fields))


def progress(**fields: Any) -> Progress:
    return Progress(**({"worker": "w", "started_at": START} | fields))


async def commit(ledger: Ledger, lease: Lease, outcome: Outcome, **more: Any) -> None:
    committed = await ledger.outcomes.commit([settled(ledger, lease, outcome, **more)])
    assert (committed.lost, committed.rejected) == ((), ())


async def task_of(ledger: Ledger, task: Task) -> Task:
    record = await ledger.tasks.get(task.id)
    assert record is not None
    return record.task


# --- the kind of the ledger


@pytest.mark.parametrize("store", ["sqlite", "pymongo"])
async def test_a_use_case_is_not_opened_as_a_spider_nor_the_reverse(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
):
    opening: Any = partial(SqliteLedger.open, tmp_path / "ledger.db")
    looking: Any = partial(SqliteLedger.open_existing, tmp_path / "ledger.db")
    if store != "sqlite":
        uri = request.getfixturevalue("mongodb_uri")
        url = with_database(uri, request.getfixturevalue("database_name"))
        opening = partial(MongoLedger.open, url, driver=store)
        looking = partial(MongoLedger.open_existing, url, driver=store)
    kinds = {"orders": LedgerKind.USE_CASE, "books": LedgerKind.SPIDER}
    for name, kind in kinds.items():
        await (await opening(name, kind=kind)).close()

    for again in (opening, looking):
        for name, kind in kinds.items():
            for asked in (kind, None):
                opened = await again(name, kind=asked)
                assert opened.kind is kind
                await opened.close()
            with pytest.raises(LedgerConfigurationError, match=f"{name}.* another name"):
                await again(name, kind=LedgerKind.of(not kind.tracked))
    new = await opening("new")
    assert new.kind is LedgerKind.SPIDER
    await new.close()


# --- claims


async def test_a_claim_returns_what_the_task_carries(ledger: Ledger):
    carried = Payload(data=HOSTILE, results={"scan": HOSTILE})
    one, other = make(1, carried=carried), make(2)
    await ledger.tasks.add([one, other])

    page = await ledger.tasks.page(limit=10)
    leases = await claimed(ledger)

    assert [task.carried for task in page] == [None, None]
    assert {lease.task.url: lease.task for lease in leases} == {"order-1": one, "order-2": other}


async def test_a_task_that_is_taken_over_is_returned_with_what_was_saved(
    store: LedgerFactory, clock: FakeClock
):
    ledger: Any = await store.open()
    await ledger.tasks.add([make()])
    first = await claimed_one(ledger)
    assert await ledger.leases.save(first, data={"n": 7}, duration=LEASE)
    clock.advance(seconds=61)

    second = await claimed_one(ledger, worker="b")

    assert second.task.carried == Payload(data={"n": 7})


# --- stages


async def test_an_advance_queues_the_next_stage_and_keeps_what_was_done(
    ledger: Ledger, clock: FakeClock
):
    task = make(context={"old": 1}, retry=2, lost=1)
    await ledger.tasks.add([task])
    lease = await claimed_one(ledger)
    clock.advance(seconds=5)
    advanced = Advanced(
        stage="cut",
        context=HOSTILE,
        delay=timedelta(seconds=7),
        progress=progress(data=HOSTILE, results={"scan": HOSTILE}),
    )
    settlement = settled(ledger, lease, advanced)

    for _ in range(2):  # an outcome is sent again after a lost reply
        committed = await ledger.outcomes.commit([settlement])
        assert committed.lost == ()

    record = await ledger.tasks.get(task.id)
    assert record is not None
    after = record.task
    assert (after.callback, after.host, after.context) == ("cut", "cut", HOSTILE)
    assert (after.status, after.lock, after.reason) == (Status.TODO, None, None)
    assert after.due == clock.time + timedelta(seconds=7)
    assert (after.retry, after.lost, after.fence, after.settled) == (0, 0, 1, 1)
    assert after.carried == Payload(data=HOSTILE, results={"scan": HOSTILE})
    (trace,) = record.trace
    assert (trace.fence, trace.stage, trace.worker, trace.event) == (1, "scan", "w", "advance")
    assert (trace.started_at, trace.ended_at) == (START, clock.time)
    assert await ledger.tasks.page(limit=1, hosts=["cut"]) == []
    clock.advance(seconds=7)
    assert [each.url for each in await ledger.tasks.page(limit=1, hosts=["cut"])] == ["order-0"]


async def test_the_results_of_other_stages_are_kept_and_a_context_that_is_none_is_gone(
    ledger: Ledger,
):
    task = make(context={"old": 1}, carried=Payload(data={"n": 1}, results={"scan": 1}))
    await ledger.tasks.add([task])

    await commit(
        ledger,
        await claimed_one(ledger),
        Advanced(stage="upload", progress=progress(results={"cut": {"a": 2}})),
    )
    lease = await claimed_one(ledger)
    await commit(ledger, lease, Succeeded(progress=progress(results={"cut": 3, "upload": None})))

    assert lease.task.context is None
    assert lease.task.carried == Payload(data={"n": 1}, results={"scan": 1, "cut": {"a": 2}})
    after = await task_of(ledger, task)
    assert after.status is Status.FINISHED
    assert after.carried == Payload(data={"n": 1}, results={"scan": 1, "cut": 3, "upload": None})


async def test_a_late_advance_of_a_lease_that_was_taken_over_writes_nothing(
    ledger: Ledger, clock: FakeClock
):
    task = make()
    await ledger.tasks.add([task])
    stale = await claimed_one(ledger)
    clock.advance(seconds=61)
    newer = await claimed_one(ledger, worker="b")
    before = await ledger.tasks.get(task.id)
    late = Advanced(stage="cut", progress=progress(data={"n": 9}, results={"scan": 9}))

    committed = await ledger.outcomes.commit([settled(ledger, stale, late)])

    assert committed.lost == (stale,)
    assert await ledger.tasks.get(task.id) == before
    await commit(ledger, newer, Succeeded(progress=progress()))


async def test_failures_leave_the_data_and_the_trace_stays_bounded(
    ledger: Ledger, clock: FakeClock
):
    task = make()
    await ledger.tasks.add([task])
    policy = RetryPolicy(max_retry=99, kept_errors=3)
    failed = Failed(reason=Reason.TASK_ERROR, message="no", progress=progress())
    for _ in range(KEPT_TRACE + 2):
        clock.advance(seconds=3_600)
        await commit(ledger, await claimed_one(ledger), failed, policy=policy)

    record = await ledger.tasks.get(task.id)

    assert record is not None
    assert record.task.carried == task.carried
    assert [each.fence for each in record.trace] == list(range(3, KEPT_TRACE + 3))
    assert {each.event for each in record.trace} == {"fail"}
    assert [error.attempt for error in record.errors] == [20, 21, 22]


# --- data saved during an attempt


async def test_a_save_is_kept_and_lengthens_the_lease(ledger: Ledger, clock: FakeClock):
    task = make(carried=Payload(data={"n": 0}, results={"scan": 1}))
    await ledger.tasks.add([task])
    lease = await claimed_one(ledger)
    clock.advance(seconds=30)

    assert await ledger.leases.save(lease, data=HOSTILE, duration=LEASE)
    assert await ledger.leases.save(lease, data=HOSTILE, duration=timedelta(seconds=1))

    after = await task_of(ledger, task)
    assert after.carried == Payload(data=HOSTILE, results={"scan": 1})
    assert (after.due, after.update_time) == (clock.time + LEASE, START)
    assert (after.status, after.fence) == (Status.PROCESSING, lease.fence)


async def test_a_save_of_a_lease_that_was_lost_writes_nothing(ledger: Ledger, clock: FakeClock):
    task = make()
    await ledger.tasks.add([task])
    stale = await claimed_one(ledger)
    clock.advance(seconds=61)
    lease = await claimed_one(ledger)
    before = await ledger.tasks.get(task.id)

    assert not await ledger.leases.save(stale, data={"n": 9}, duration=LEASE)
    assert await ledger.tasks.get(task.id) == before
    await commit(ledger, lease, Succeeded(progress=progress()))
    assert not await ledger.leases.save(lease, data={"n": 9}, duration=LEASE)
    assert (await task_of(ledger, task)).carried == task.carried


# --- leases of a worker


async def test_a_worker_holds_its_own_leases_the_longest_held_first(
    ledger: Ledger, clock: FakeClock
):
    tasks = [make(n) for n in range(6)]
    await ledger.tasks.add(tasks)
    lease = timedelta(seconds=10)
    for n, worker in ((3, "w1"), (0, "w1"), (1, "w10"), (2, "w.1"), (4, "w1")):
        clock.advance(seconds=3)
        await ledger.leases.claim([tasks[n]], worker=worker, lease=lease, max_lost=3)

    held = await ledger.leases.leases_of("w1")

    # The first lease has run out, and no worker has taken the task over.
    assert [each.task.url for each in held] == ["order-3", "order-0", "order-4"]
    assert [each.expires for each in held] == [START + timedelta(seconds=s) for s in (13, 16, 25)]
    assert [each.task.url for each in await ledger.leases.leases_of("w")] == []
    assert {each.fence for each in held} == {1}


async def test_what_is_held_can_be_worked_on_and_released(ledger: Ledger, clock: FakeClock):
    new, failed, done = make(1), make(2, status=Status.FAILED, retry=1), make(3)
    await ledger.tasks.add([new, replace(failed, reason=Reason.TASK_ERROR), done])
    clock.advance(seconds=4)
    await claimed(ledger, worker="w")
    clock.advance(seconds=4)

    held = {each.task.url: each for each in await ledger.leases.leases_of("w")}

    assert await ledger.leases.save(held["order-3"], data={"n": 4}, duration=LEASE)
    await commit(ledger, held["order-3"], Succeeded(progress=progress()))
    assert held["order-2"].task.carried == failed.carried
    assert await ledger.outcomes.release([held["order-1"], held["order-2"]]) == 2
    after = [await task_of(ledger, task) for task in (new, failed, done)]
    assert [each.status for each in after] == [Status.TODO, Status.FAILED, Status.FINISHED]
    assert [each.due for each in after] == [START + timedelta(seconds=4)] * 2 + [None]
    assert [each.retry for each in after] == [0, 1, 0]
    assert [each.lock for each in after] == [None] * 3


# --- the use case's settings


async def test_settings_are_written_down_one_by_one(store: LedgerFactory):
    ledger: Any = await store.open()
    assert await ledger.notes.policy() == {}

    await ledger.notes.set_policy({"max_retry": 3, "a.b": 1, "$c": {"d.e": 2}})
    await ledger.notes.set_policy({'"q\\\n': {'"': None}, "%22": 0})
    await ledger.notes.set_policy({"max_retry": 5, "": None})
    await ledger.notes.set_policy({})

    expected = {"max_retry": 5, "a.b": 1, "$c": {"d.e": 2}, "": None}
    expected |= {'"q\\\n': {'"': None}, "%22": 0}
    assert await ledger.notes.policy() == expected
    again: Any = await store.open()
    assert await again.notes.policy() == expected


# --- blobs


async def test_a_large_value_is_kept_beside_its_task(ledger: Ledger):
    task = make()
    await ledger.tasks.add([task])
    lease = await claimed_one(ledger)
    large = {"$body": b"x" * (20 << 20), "when": START, "": [{"a.b": "\u20ac"}]}
    context = await ledger.blobs.put(task.id, large)
    result = await ledger.blobs.put(task.id, ["small"])

    await commit(
        ledger,
        lease,
        Advanced(stage="cut", context=context, progress=progress(results={"scan": result})),
    )

    (found,) = await ledger.tasks.page(limit=9)
    assert found.context == context
    assert context.size > 20 << 20
    lease = await claimed_one(ledger)
    assert lease.task.carried is not None
    assert lease.task.carried.results == {"scan": result}
    assert await ledger.blobs.read(context) == large
    assert await ledger.blobs.read(result) == ["small"]
    await ledger.blobs.drop([context])
    await ledger.blobs.drop([context])
    with pytest.raises(LedgerError):
        await ledger.blobs.read(context)
    assert await ledger.blobs.read(result) == ["small"]


# --- queries


@pytest.fixture
async def crowd(ledger: Ledger) -> list[Task]:
    """Tasks of all statuses, many at the same time, in the order of `find`."""
    chance = Random(7)
    statuses = (Status.TODO, Status.FAILED, Status.FINISHED, Status.IGNORED)
    tasks = []
    for n in range(120):
        status = chance.choice(statuses)
        tasks.append(
            make(
                n,
                stage=chance.choice(("scan", "cut")),
                status=status,
                due=None if status in (Status.FINISHED, Status.IGNORED) else START,
                update_time=START + timedelta(seconds=chance.randrange(8)),
            )
        )
    await ledger.tasks.add(tasks)
    return sorted(tasks, key=lambda task: (task.update_time, task.id), reverse=True)


async def found(ledger: Ledger, chosen: TaskFilter, *, limit: int) -> list[bytes]:
    """Return the ids of the chosen tasks, read page by page."""
    ids: list[bytes] = []
    after: Cursor | None = None
    while page := await ledger.queries.find(chosen, limit=limit, cursor=after):
        assert len(page) <= limit
        ids += [record.task.id for record in page]
        after = Cursor(update_time=page[-1].task.update_time, id=page[-1].task.id)
    return ids


@pytest.mark.parametrize(
    ("chosen", "holds"),
    [
        (TaskFilter(), lambda task: True),
        (TaskFilter(statuses=[Status.FAILED]), lambda task: task.status is Status.FAILED),
        (
            TaskFilter(statuses=(Status.TODO, Status.FINISHED), host="cut"),
            lambda task: task.status in (Status.TODO, Status.FINISHED) and task.host == "cut",
        ),
        (
            TaskFilter(
                changed_since=START + timedelta(seconds=2),
                changed_before=START + timedelta(seconds=5),
            ),
            lambda task: 2 <= (task.update_time - START).total_seconds() < 5,
        ),
        (
            TaskFilter(
                ids=[n.to_bytes(16, "big") for n in range(0, 200, 3)], statuses=[Status.TODO]
            ),
            lambda task: int.from_bytes(task.id) % 3 == 0 and task.status is Status.TODO,
        ),
        (TaskFilter(statuses=()), lambda task: False),
    ],
    ids=["all", "failed", "of-a-stage", "of-a-time", "of-ids", "none"],
)
async def test_pages_follow_each_other_in_one_order_over_all_statuses(
    ledger: Ledger, crowd: list[Task], chosen: TaskFilter, holds: Callable[[Task], bool]
):
    expected = [task.id for task in crowd if holds(task)]

    assert await found(ledger, chosen, limit=7) == expected
    assert await found(ledger, chosen, limit=1_000) == expected
    assert await ledger.queries.find(chosen, limit=0) == []


async def test_what_is_found_is_whole_but_for_its_items(ledger: Ledger):
    one, other = make(1), make(2)
    await ledger.tasks.add([one, other])
    leases = {lease.task.url: lease for lease in await claimed(ledger)}
    failed = Failed(reason=Reason.TASK_ERROR, message="no", progress=progress())
    await commit(ledger, leases["order-1"], failed)
    done = Succeeded(items=({"n": 1},), progress=progress(data=HOSTILE, results={"scan": 1}))
    await commit(ledger, leases["order-2"], done)

    first = await ledger.queries.find(TaskFilter(reason=Reason.TASK_ERROR), limit=9)
    both = await ledger.queries.find(TaskFilter(), limit=9)

    assert first == [await ledger.tasks.get(one.id)]
    assert first[0].errors[0].message == "no"
    assert first[0].trace[0].event == "fail"
    whole = await ledger.tasks.get(other.id)
    assert whole is not None
    assert whole.items == ({"n": 1},)
    assert both == [replace(whole, items=()), *first]


# --- changes of many


#: One task of each status, the second of them held by a live lease.
TODO, HELD, FAILED, FINISHED, IGNORED = range(5)


@pytest.fixture
async def various(ledger: Ledger, clock: FakeClock) -> list[Task]:
    tasks = [make(n, carried=Payload(data={"n": n}, results={"scan": n})) for n in range(5)]
    await ledger.tasks.add(tasks)
    page = await ledger.tasks.page(limit=9)
    claiming = [task for task in page if task.id != tasks[TODO].id]
    leases = await ledger.leases.claim(claiming, worker="w", lease=LEASE, max_lost=3)
    of = {lease.task.id: lease for lease in leases.leases}
    failed = Failed(reason=Reason.TASK_ERROR, progress=progress())
    await commit(ledger, of[tasks[FAILED].id], failed)
    await commit(ledger, of[tasks[FINISHED].id], Succeeded(progress=progress()))
    await commit(ledger, of[tasks[IGNORED].id], replace(failed, last=True))
    clock.advance(seconds=1)
    return [await task_of(ledger, task) for task in tasks]


async def changed(ledger: Ledger, before: list[Task]) -> dict[int, Task]:
    """Return the changed tasks in their new state, by number."""
    now = [await task_of(ledger, task) for task in before]
    return {n: after for n, after in enumerate(now) if after != before[n]}


async def test_what_is_withdrawn_is_ignored_where_nobody_works_on_it(
    ledger: Ledger, various: list[Task], clock: FakeClock
):
    assert await ledger.admin.withdraw(TaskFilter(host="other"), reason=Reason.WITHDRAWN) == 0
    assert await ledger.admin.withdraw(TaskFilter(), reason=Reason.WITHDRAWN) == 2

    after = await changed(ledger, various)
    assert list(after) == [TODO, FAILED]
    for task in after.values():
        assert (task.status, task.reason) == (Status.IGNORED, Reason.WITHDRAWN)
        assert (task.due, task.update_time) == (None, clock.time)
    assert await ledger.admin.withdraw(TaskFilter(), reason=Reason.WITHDRAWN) == 0
    assert await ledger.admin.retry_failed(TaskFilter(reason=Reason.WITHDRAWN)) == 0


async def test_what_is_reopened_is_due_now_and_as_if_never_tried(
    ledger: Ledger, various: list[Task], clock: FakeClock
):
    chosen = TaskFilter(changed_before=clock.time)

    assert await ledger.admin.reopen(chosen) == 4
    assert await ledger.admin.reopen(chosen) == 0

    after = await changed(ledger, various)
    assert sorted(after) == [TODO, FAILED, FINISHED, IGNORED]
    for n, task in after.items():
        assert (task.status, task.due, task.update_time) == (Status.TODO, clock.time, clock.time)
        assert (task.retry, task.lost, task.reason) == (0, 0, None)
        assert (task.callback, task.host, task.carried) == ("scan", "scan", various[n].carried)
    assert len(await claimed(ledger)) == 4


async def test_finished_tasks_are_reopened_in_another_stage_and_anew(
    ledger: Ledger, various: list[Task]
):
    finished = TaskFilter(statuses=[Status.FINISHED])

    assert await ledger.admin.reopen(finished, stage="second", deletes_results=True) == 1

    after = await changed(ledger, various)
    assert list(after) == [FINISHED]
    assert (after[FINISHED].callback, after[FINISHED].host) == ("second", "second")
    assert after[FINISHED].carried == Payload(data={"n": FINISHED})
    page = await ledger.tasks.page(limit=9, hosts=["second"])
    assert [task.url for task in page] == ["order-3"]


async def test_a_task_that_was_read_before_it_was_reopened_is_not_claimed(ledger: Ledger):
    await ledger.tasks.add([make()])
    page = await ledger.tasks.page(limit=1)
    assert await ledger.admin.reopen(TaskFilter(), stage="second") == 1

    claimed = await ledger.leases.claim(page, worker="w", lease=LEASE, max_lost=3)

    assert (claimed.leases, claimed.missed) == ((), 1)
    assert (await claimed_one(ledger)).task.callback == "second"


async def test_tasks_that_wait_get_another_priority(ledger: Ledger, various: list[Task]):
    priorities = {task.id: n + 1 for n, task in enumerate(various)} | {b"x" * 16: 9}

    assert await ledger.admin.prioritise(priorities) == 2
    assert await ledger.admin.prioritise(priorities) == 0

    after = await changed(ledger, various)
    assert {n: task.priority for n, task in after.items()} == {TODO: 1, FAILED: 3}
    assert {n: replace(task, priority=0) for n, task in after.items()} == {
        n: various[n] for n in (TODO, FAILED)
    }


async def test_what_is_purged_is_gone_with_all_that_belongs_to_it(
    ledger: Ledger, various: list[Task]
):
    blobs = {n: await ledger.blobs.put(various[n].id, n) for n in (HELD, FINISHED)}
    (lease,) = await ledger.leases.leases_of("w")

    assert await ledger.admin.purge(TaskFilter(statuses=[Status.FINISHED, Status.IGNORED])) == 2

    assert [await ledger.tasks.get(various[n].id) for n in (FINISHED, IGNORED)] == [None, None]
    assert await changed(ledger, various[:FINISHED]) == {}
    with pytest.raises(LedgerError):
        await ledger.blobs.read(blobs[FINISHED])
    assert await ledger.blobs.read(blobs[HELD]) == HELD
    assert await ledger.admin.purge(TaskFilter()) == 3
    with pytest.raises(LedgerError):
        await ledger.blobs.read(blobs[HELD])
    assert (await ledger.queries.counts()).total == 0
    late = await ledger.outcomes.commit([settled(ledger, lease, Succeeded(progress=progress()))])
    assert late.lost == (lease,)


# --- notices of changes


async def test_a_first_notice_comes_at_once(ledger: Ledger):
    async with aclosing(ledger.changes.watch()) as notices:
        await asyncio.wait_for(anext(notices), 20)


# --- filters


@pytest.mark.parametrize("scan_limit", [50_000, 1])
async def test_keys_are_found_by_their_beginning_and_have_no_host(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, scan_limit: int
):
    monkeypatch.setattr("crawlcw.ledger.queries.SCAN_LIMIT", scan_limit)
    keys = ["order-1", "order-2", "https://a.example/1", "http", "h"]
    await ledger.tasks.add([make(n, url=key) for n, key in enumerate(keys)])

    for prefix in ("order", "https://a", "https://a.example/", "http", "h", "none"):
        chosen = TaskFilter(url_prefix=prefix)
        expected = {key for key in keys if key.startswith(prefix)}
        found = await ledger.queries.find(chosen, limit=10)
        assert {record.task.url for record in found} == expected
        assert await ledger.queries.count(chosen) == Count(number=len(expected))
