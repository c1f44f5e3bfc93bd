"""Tracked tasks on SQLite: the kind of the file, the rows, and the query plans."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from crawlcw.errors import LedgerConfigurationError, LedgerError, Reason
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.ledger.sql import rows
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import BlobRef, Lease, Payload, Record, Status, Task, key_id
from crawlcw.model.transitions import KEPT_TRACE, Advanced, Failed, Succeeded
from tests.support.ledgers import LEASE, START, FakeClock, claimed, claimed_one, make_task, settled
from tests.support.tracked import order, progress


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def orders(path: Path, clock: FakeClock) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(path, "orders", clock=clock, kind=LedgerKind.USE_CASE)
    yield ledger
    await ledger.close()


async def advance(ledger: SqliteLedger, lease: Lease, stage: str, **fields: Any) -> None:
    outcome = Advanced(stage=stage, progress=progress(**fields))
    await ledger.outcomes.commit([settled(ledger, lease, outcome)])


# --- the kind


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            LedgerKind.SPIDER,
            "holds a spider named x, not a use case: give the use case another name, or",
        ),
        (
            LedgerKind.USE_CASE,
            "holds a use case named x, not a spider: give the spider another name, or",
        ),
    ],
)
async def test_a_ledger_of_one_kind_is_not_opened_as_the_other(
    path: Path, kind: LedgerKind, sentence: str
):
    await (await SqliteLedger.open(path, "x", kind=kind)).close()

    with pytest.raises(LedgerConfigurationError, match=sentence):
        await SqliteLedger.open(path, "x", kind=LedgerKind.of(not kind.tracked))
    for opening in (SqliteLedger.open, SqliteLedger.look):
        ledger = await opening(path, "x")
        assert ledger.kind is kind
        await ledger.close()


async def test_a_look_at_a_name_that_is_not_used_does_not_decide_what_it_is(path: Path):
    looked = await SqliteLedger.open(path, "x")
    opened = await SqliteLedger.open(path, "x", kind=LedgerKind.USE_CASE)

    assert (looked.kind, opened.kind) == (LedgerKind.SPIDER, LedgerKind.USE_CASE)
    await looked.close()
    await opened.close()


async def test_a_policy_is_kept_beside_the_settings_that_are_not_named(
    path: Path, orders: SqliteLedger
):
    assert await orders.notes.policy() == {}

    await orders.notes.set_policy({"max_retry": 3, "$lease": 60.0})
    await orders.notes.set_policy({"max_retry": 5})

    again = await SqliteLedger.open(path, "orders")
    assert await again.notes.policy() == {"max_retry": 5, "$lease": 60.0}
    await again.close()


# --- data of a task


async def test_a_claim_returns_what_the_task_carries(orders: SqliteLedger):
    await orders.tasks.add([order(carried=Payload(data={"$a.b": 1}))])
    (page,) = await orders.tasks.page(limit=1)
    lease = await claimed_one(orders)

    assert page.carried is None
    assert lease.task.carried == Payload(data={"$a.b": 1})
    big = BlobRef(id="x", size=9)
    await advance(orders, lease, "send", data={"n": 2}, results={"pay": big})
    lease = await claimed_one(orders)
    assert (lease.task.host, lease.task.callback, lease.task.fence) == ("send", "send", 1)
    assert lease.task.carried == Payload(data={"n": 2}, results={"pay": big})
    await advance(orders, lease, "done", results={"se'n\"d": [1]})
    carried = (await claimed_one(orders)).task.carried
    assert carried == Payload(data={"n": 2}, results={"pay": big, "se'n\"d": [1]})


async def test_of_a_spider_nothing_is_carried(path: Path):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    await ledger.tasks.add([make_task()])

    assert (await claimed_one(ledger)).task.carried is None
    await ledger.close()


async def test_the_trace_keeps_the_last_claims(orders: SqliteLedger):
    await orders.tasks.add([order()])
    for n in range(KEPT_TRACE + 1):
        await advance(orders, await claimed_one(orders), f"s{n}")

    record = await orders.tasks.get(key_id("one"))

    assert record is not None
    assert [entry.fence for entry in record.trace] == list(range(2, KEPT_TRACE + 2))
    assert (record.trace[0].stage, record.trace[0].event) == ("s0", "advance")


async def test_results_too_large_together_are_rejected_alone(
    orders: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows, "_LARGEST_VALUE", 1000)
    await orders.tasks.add([order(), order("two")])
    for lease in await claimed(orders):
        await advance(orders, lease, "send", results={"pay": "x" * 600})
    one, two = await claimed(orders)
    large = Succeeded(progress=progress(results={"send": "x" * 600}))
    small = Succeeded(progress=progress(results={"send": "x"}))

    answer = await orders.outcomes.commit(
        [settled(orders, one, large), settled(orders, two, small)]
    )

    assert [lease for lease, _ in answer.rejected] == [one]
    assert await orders.queries.reasons() == {"store-rejected": 1}
    assert (await orders.queries.counts())[Status.FINISHED] == 1


async def test_a_claim_misses_what_was_moved_to_another_stage(orders: SqliteLedger):
    await orders.tasks.add([order()])
    (page,) = await orders.tasks.page(limit=1)
    await orders.admin.reopen(TaskFilter(), stage="elsewhere")

    answer = await orders.leases.claim([page], worker="a", lease=LEASE, max_lost=3)

    assert (answer.leases, answer.missed) == ((), 1)


async def test_data_is_saved_while_the_lease_holds(orders: SqliteLedger, clock: FakeClock):
    await orders.tasks.add([order()])
    lease = await claimed_one(orders)
    clock.advance(seconds=50)

    assert await orders.leases.save(lease, data={"n": 2}, duration=LEASE)
    assert await orders.queries.horizon() == clock.time + LEASE
    record = await orders.tasks.get(key_id("one"))
    assert record is not None
    assert record.task.update_time == START
    assert record.task.carried == Payload(data={"n": 2})
    await orders.outcomes.release([lease])
    assert not await orders.leases.save(lease, data={"n": 3}, duration=LEASE)


async def test_held_tasks_are_as_release_leaves_them(orders: SqliteLedger, clock: FakeClock):
    await orders.tasks.add([order("failed"), order("fresh")])
    first, _ = await claimed(orders, worker="@ann")
    failure = Failed(reason=Reason.TASK_ERROR, progress=progress())
    await orders.outcomes.commit([settled(orders, first, failure)])
    clock.advance(seconds=30)
    await claimed(orders, worker="@ann")
    await orders.tasks.add([order("another's")])
    await claimed(orders, worker="@anna")

    fresh, failed = await orders.leases.held("@ann")

    assert [fresh.task.url, failed.task.url] == ["fresh", "failed"]
    assert [fresh.task.status, failed.task.status] == [Status.TODO, Status.FAILED]
    assert [fresh.task.due, failed.task.due] == [START, clock.time]
    assert [fresh.task.fence, failed.task.fence] == [fresh.fence - 1, failed.fence - 1] == [0, 1]
    assert fresh.task.carried == Payload(data={"n": 1})
    assert await orders.outcomes.release([fresh, failed]) == 2
    assert (await orders.queries.counts()).by_status == {
        Status.TODO: 1,
        Status.FAILED: 1,
        Status.PROCESSING: 1,
    }
    assert await orders.leases.held("@ann") == []


async def test_values_that_are_set_aside_are_read_until_they_are_dropped(orders: SqliteLedger):
    value = {"$a": [b"\x00", START]}
    blob = await orders.blobs.put(key_id("one"), value)

    assert await orders.blobs.read(blob) == value
    await orders.blobs.drop([blob])
    with pytest.raises(LedgerError, match=f"has no value {blob.id} any more"):
        await orders.blobs.read(blob)


async def test_a_value_that_no_row_holds_is_refused(
    orders: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows, "_LARGEST_VALUE", 1000)

    with pytest.raises(LedgerError, match="cannot hold it: a value of 1003 bytes"):
        await orders.blobs.put(key_id("one"), "x" * 1001)


async def test_changes_tell_of_what_others_write(
    orders: SqliteLedger, path: Path, monkeypatch: pytest.MonkeyPatch
):
    looks = 0

    async def look_again(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            await orders.tasks.add([order("mine")])
        if looks == 4:
            await other.tasks.add([order("another's")])

    monkeypatch.setattr(anyio, "sleep", look_again)
    other = await SqliteLedger.open(path, "orders", kind=LedgerKind.USE_CASE)
    told: list[int] = []
    async for _ in orders.changes.watch():
        told.append(looks)
        if len(told) == 2:
            break
    await other.close()

    assert told == [0, 4]


# --- filters


async def added(ledger: SqliteLedger, number: int, **overrides: Any) -> list[Task]:
    """Add tasks with update times a second apart, the first task the latest."""
    tasks = [
        order(f"{n}", update_time=START - timedelta(seconds=n), **overrides) for n in range(number)
    ]
    await ledger.tasks.add(tasks)
    return tasks


def keys(records: list[Record]) -> list[str]:
    return [record.task.url for record in records]


async def test_what_is_found_has_one_order_over_all_statuses(
    orders: SqliteLedger, clock: FakeClock
):
    tasks = await added(orders, 6)
    tied = sorted((order(f"tied {n}") for n in range(3)), key=lambda task: task.id, reverse=True)
    await orders.tasks.add(tied)
    clock.time = START - timedelta(seconds=3)
    await orders.admin.withdraw(TaskFilter(ids=[tasks[3].id]), reason=Reason.WITHDRAWN)
    in_order = [
        task.url
        for task in sorted([*tasks, *tied], key=lambda t: (t.update_time, t.id), reverse=True)
    ]

    found, after = [], None
    while some := await orders.queries.find(TaskFilter(), limit=2, after=after):
        found += keys(some)
        after = Cursor(update_time=some[-1].task.update_time, id=some[-1].task.id)

    assert found == in_order
    assert keys(
        await orders.queries.find(TaskFilter(ids=[task.id for task in tasks]), limit=2)
    ) == [
        "0",
        "1",
    ]
    before = TaskFilter(until=START, since=START - timedelta(seconds=3))
    assert keys(await orders.queries.find(before, limit=9)) == ["1", "2", "3"]
    ignored = TaskFilter(statuses=[Status.IGNORED], reason=Reason.WITHDRAWN)
    assert keys(await orders.queries.find(ignored, limit=9)) == ["3"]
    assert keys(await orders.queries.find(TaskFilter(reason=Reason.UNWANTED), limit=9)) == []


async def test_what_is_found_has_its_errors_and_trace_and_no_items(orders: SqliteLedger):
    await orders.tasks.add([order()])
    failure = Failed(reason=Reason.TASK_ERROR, message="no", last=True, progress=progress())
    await orders.outcomes.commit([settled(orders, await claimed_one(orders), failure)])

    (record,) = await orders.queries.find(TaskFilter(), limit=1)

    assert record == await orders.tasks.get(key_id("one"))
    assert [error.message for error in record.errors] == ["no"]
    assert [entry.event for entry in record.trace] == ["give up"]
    assert record.task.carried == Payload(data={"n": 1})


async def test_held_tasks_are_walked_through_by_their_index_without_a_sort(orders: SqliteLedger):
    values = {"first": "a:", "end": "a;"}

    def explained(db: sqlite3.Connection) -> list[str]:
        statement = f"EXPLAIN QUERY PLAN {orders.store.sql.held}"
        return [row["detail"] for row in db.execute(statement, values)]

    (plan,) = await orders.store.reader.run(explained)

    assert plan == "SEARCH orders USING INDEX orders.status_update_time (status=?)"


async def test_many_are_changed_in_short_transactions(
    orders: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.ledger.admin.BATCH", 2)
    tasks = await added(orders, 5)
    statements: list[str] = []
    await orders.store.writer.run(lambda db: db.set_trace_callback(statements.append))

    assert await orders.admin.withdraw(TaskFilter(), reason=Reason.WITHDRAWN) == 5
    assert statements.count("COMMIT") == 3
    assert await orders.admin.reopen(TaskFilter(), stage="again") == 5
    assert {task.callback for task in await orders.tasks.page(limit=9)} == {"again"}
    assert await orders.admin.prioritise({task.id: 7 for task in tasks}) == 5
    assert await orders.admin.prioritise({task.id: 7 for task in tasks}) == 0
    assert statements.count("COMMIT") == 12
    assert await orders.admin.purge(TaskFilter()) == 5
    assert (await orders.queries.counts()).total == 0


async def test_a_task_that_is_named_twice_counts_once(orders: SqliteLedger):
    await orders.tasks.add([order()])

    assert await orders.admin.reopen(TaskFilter(ids=[key_id("one")] * 2)) == 1


async def test_a_task_that_changes_its_status_meanwhile_is_not_overlooked(
    path: Path, orders: SqliteLedger
):
    await orders.tasks.add([order()])
    await orders.admin.withdraw(TaskFilter(), reason=Reason.WITHDRAWN)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    asked: list[str] = []

    def change(statement: str) -> None:
        if statement.startswith("SELECT"):
            asked.append(statement)
            if len(asked) == 2:
                other.execute("UPDATE orders SET status = 0")

    await orders.store.reader.run(lambda db: db.set_trace_callback(change))
    found = await orders.queries.find(TaskFilter(statuses=[Status.TODO, Status.IGNORED]), limit=9)

    # One query for each status, and one for the task that was found.
    assert (len(asked), keys(found)) == (3, ["one"])
    (moved,) = other.execute("SELECT status FROM orders")
    assert moved == (Status.TODO,)
    other.close()


async def test_a_page_is_reopened_at_its_own_host_which_is_woken(path: Path):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    await ledger.tasks.add([make_task()])
    await ledger.hosts.wake({"example.com": START + LEASE})
    await ledger.outcomes.commit([settled(ledger, await claimed_one(ledger), Succeeded())])

    assert await ledger.admin.reopen(TaskFilter(), stage="elsewhere") == 1
    assert await ledger.tasks.page(limit=1, hosts=["example.com"]) == [
        replace(make_task(), fence=2, settled=1)
    ]
    assert await ledger.hosts.next_ready() == START
    await ledger.close()


async def test_what_is_held_is_neither_withdrawn_nor_reopened(orders: SqliteLedger):
    await orders.tasks.add([order()])
    lease = await claimed_one(orders)
    both = [TaskFilter(), TaskFilter(ids=[lease.task.id])]

    assert [await orders.admin.withdraw(each, reason=Reason.WITHDRAWN) for each in both] == [0, 0]
    assert [await orders.admin.reopen(each) for each in both] == [0, 0]
    assert await orders.admin.prioritise({lease.task.id: 9}) == 0
    assert await orders.outcomes.release([lease]) == 1


async def test_reopened_anew_a_task_forgets_its_results(orders: SqliteLedger, clock: FakeClock):
    await orders.tasks.add([order()])
    done = Succeeded(progress=progress(results={"pay": 1}))
    await orders.outcomes.commit([settled(orders, await claimed_one(orders), done)])
    clock.advance(seconds=1)
    until = TaskFilter(until=clock.time)

    assert await orders.admin.reopen(until, anew=True) == 1
    assert await orders.admin.reopen(until, anew=True) == 0
    (lease,) = await claimed(orders)
    assert lease.task.carried == Payload(data={"n": 1})
    assert (lease.task.reason, lease.task.retry, lease.fence) == (None, 0, 3)


async def test_with_a_task_its_items_and_what_was_set_aside_are_purged(orders: SqliteLedger):
    await orders.tasks.add([order(), order("two")])
    kept = await orders.blobs.put(key_id("two"), 2)
    blob = await orders.blobs.put(key_id("one"), 1)
    done = Succeeded(items=({"n": 1},), progress=progress())
    leases = await claimed(orders)
    await orders.outcomes.commit([settled(orders, lease, done) for lease in leases])

    assert await orders.admin.purge(TaskFilter(ids=[key_id("one")])) == 1

    assert await orders.tasks.get(key_id("one")) is None
    assert await orders.queries.item_count() == 1
    assert await orders.blobs.read(kept) == 2
    with pytest.raises(LedgerError, match="any more"):
        await orders.blobs.read(blob)


async def test_of_failures_only_those_that_are_named_are_brought_back(orders: SqliteLedger):
    await orders.tasks.add([order("one"), order("two"), order("three")])
    failure = Failed(reason=Reason.TASK_ERROR, last=True, progress=progress())
    await orders.outcomes.commit(
        [settled(orders, lease, failure) for lease in await claimed(orders)]
    )
    some = TaskFilter(ids=[key_id("one"), key_id("two"), key_id("none")])

    assert (await orders.admin.count_failed(some)).number == 2
    assert await orders.admin.retry_failed(some) == 2
    assert (await orders.queries.counts()).by_status == {Status.TODO: 2, Status.IGNORED: 1}
