"""Tracked tasks on SQLite: the kind of the file, the rows, and the query plans."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from crawlcw.errors import LedgerError, Reason
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sql import rows
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Lease, Record, Status, Task, key_id
from crawlcw.model.transitions import Advanced, Succeeded
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


async def test_a_look_at_a_name_that_is_not_used_does_not_decide_what_it_is(path: Path):
    looked = await SqliteLedger.open(path, "x")
    opened = await SqliteLedger.open(path, "x", kind=LedgerKind.USE_CASE)

    assert (looked.kind, opened.kind) == (LedgerKind.SPIDER, LedgerKind.USE_CASE)
    await looked.close()
    await opened.close()


# --- data of a task


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


async def test_a_value_that_no_row_holds_is_refused(
    orders: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows, "_LARGEST_VALUE", 1000)

    with pytest.raises(LedgerError, match="cannot store it: a value of 1003 bytes"):
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


async def test_held_tasks_are_walked_through_by_their_index_without_a_sort(orders: SqliteLedger):
    statements: list[str] = []
    await orders.store.reader.run(lambda db: db.set_trace_callback(statements.append))
    assert await orders.leases.leases_of("a") == []

    def explained(db: sqlite3.Connection) -> list[str]:
        db.set_trace_callback(None)
        (statement,) = [each for each in statements if each.startswith("SELECT")]
        return [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]

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
