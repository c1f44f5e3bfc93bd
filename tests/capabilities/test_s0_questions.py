"""S0: queries of a ledger, their indexes, and the same answers of every store."""

import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest

from crawlcw.errors import LeaseLostError, Reason
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo.store import BY_PRIORITY
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Status, Task
from crawlcw.tracking import Tracker
from tests.capabilities.use_cases import UseCases, due_keys, fail, finish
from tests.support.ledgers import START, make_task
from tests.support.programs import run_to_end

#: Tasks of each kind, in the proportions of a long-running use case with a million.
FINISHED, LOCKED, DELAYED, READY = 3000, 400, 400, 200
LATER = START + timedelta(hours=1)


def crowd() -> list[Task]:
    kinds = [
        (Status.FINISHED, None, FINISHED),
        (Status.PROCESSING, LATER, LOCKED),
        (Status.FAILED, LATER, DELAYED),
        (Status.TODO, START, READY),
    ]
    return [
        replace(
            make_task(),
            id=bytes([status]) + n.to_bytes(15, "big"),
            url=f"{status.name}-{n}",
            host="todo",
            callback="todo",
            status=status,
            due=due and due - timedelta(milliseconds=n),
            update_time=START - timedelta(milliseconds=n),
        )
        for status, due, number in kinds
        for n in range(number)
    ]


def oldest_first(number: int) -> list[str]:
    return [f"TODO-{n}" for n in range(READY)][::-1][:number]


def explained(db: sqlite3.Connection, statement: str) -> list[sqlite3.Row]:
    return db.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()


@pytest.mark.seed("0.19")
async def test_a_page_reads_its_index_in_order_on_sqlite(tmp_path: Path):
    ledger = await SqliteLedger.open(
        tmp_path / "l.db", "crowd", clock=lambda: START, kind=LedgerKind.USE_CASE
    )
    await ledger.tasks.add(crowd())
    statements: list[str] = []
    await ledger.store.reader.run(lambda db: db.set_trace_callback(statements.append))
    page = await ledger.tasks.page(limit=100)
    await ledger.store.reader.run(lambda db: db.set_trace_callback(None))
    plans = [
        row["detail"]
        for each in statements
        if "LIMIT" in each
        # SQLite's trace prints infinity in a form that SQLite cannot parse.
        for row in await ledger.store.reader.run(explained, each.replace("Inf", "9e999"))
    ]
    await ledger.close()

    assert [task.url for task in page] == oldest_first(100)
    assert plans
    assert all("USING INDEX" in plan or "USING COVERING INDEX" in plan for plan in plans), plans
    assert not any("TEMP B-TREE" in plan for plan in plans), plans


def doctor(url: str, name: str) -> "subprocess.CompletedProcess[str]":
    return run_to_end([sys.executable, "-m", "crawlcw", "doctor", name, "--ledger", url])


@pytest.mark.seed("0.23")
async def test_an_index_that_was_dropped_is_told_by_the_doctor_and_made_again_at_the_next_start(
    use_cases: UseCases, tracker: Tracker
):
    await tracker.add("order-1")
    if use_cases.is_mongodb:
        with pymongo.MongoClient(use_cases.url) as client:
            client.get_default_database()[tracker.name].drop_index(BY_PRIORITY)
        lacking = BY_PRIORITY
    else:
        use_cases.execute(f'DROP INDEX "{tracker.name}.due"')
        lacking = f"{tracker.name}.due"

    told = doctor(use_cases.url, tracker.name)
    await use_cases.open()
    mended = doctor(use_cases.url, tracker.name)

    assert told.returncode == 1, told.stdout + told.stderr
    assert lacking in told.stdout
    assert (mended.returncode, lacking in mended.stdout) == (0, False), mended.stdout


@pytest.mark.seed("0.25")
async def test_what_was_given_up_in_the_last_hour_is_looked_at_and_brought_back(
    use_cases: UseCases, tracker: Tracker
):
    keys = [f"order-{n}" for n in range(6)]
    await tracker.add_many(keys)
    await fail(tracker, "order-0", times=3)
    use_cases.clock.advance(seconds=3600)
    await fail(tracker, "order-1", "order-2", times=3)
    await finish(tracker, "order-3")
    await tracker.ignore("order-4")
    since = use_cases.clock.time - timedelta(minutes=59)

    dead = await tracker.find(status=Status.IGNORED, reason=Reason.TASK_ERROR, changed_since=since)
    assert {task.key for task in dead.tasks} == {"order-1", "order-2"}
    assert await tracker.retry(changed_since=since) == 2
    assert set(await due_keys(tracker)) == {"order-1", "order-2", "order-5"}
    await finish(tracker, "order-1", "order-2")
    statuses = {task.key: task.status async for task in tracker.walk()}
    assert statuses["order-0"] == statuses["order-4"] == Status.IGNORED
    assert (await tracker.get("order-1")).status is Status.FINISHED


@pytest.mark.seed("0.26")
async def test_the_numbers_of_all_statuses_are_all_tasks(use_cases: UseCases, tracker: Tracker):
    await tracker.add_many([f"order-{n}" for n in range(9)])
    await finish(tracker, "order-0", "order-1")
    await fail(tracker, "order-2")
    await fail(tracker, "order-3", times=3)
    async with tracker.start("order-4"):
        counts = await tracker.counts()
        documents_now = use_cases.documents(tracker.name)

    assert counts.by_status == {
        Status.TODO: 4,
        Status.FAILED: 1,
        Status.PROCESSING: 1,
        Status.FINISHED: 2,
        Status.IGNORED: 1,
    }
    assert counts.total == len(documents_now) == 9
    assert await tracker.reasons() == {"task-error": 2}


@pytest.mark.seed("0.27")
async def test_the_same_story_leaves_the_same_ledger_on_every_store(
    on_mongodb: UseCases, tmp_path: Path
):
    on_sqlite = UseCases(f"sqlite:///{tmp_path}/ledger.db")
    told = [await story(store) for store in (on_mongodb, on_sqlite)]
    await on_sqlite.close()

    assert len(told[0]) == 5
    assert told[0] == told[1]


async def story(store: UseCases) -> list[Any]:
    """Run many operations on orders; return the final record of each."""
    first, second = await store.open(), await store.open()
    await first.add_many([f"order-{n}" for n in range(5)])
    await finish(first, "order-0", paid=True)
    store.clock.advance(seconds=5)
    await fail(second, "order-1", times=3)
    await fail(second, "order-2")
    try:
        async with first.start("order-3"):
            store.clock.advance(seconds=61)
            async with second.start("order-3") as execution:
                await execution.advance("ship", context={"by": ["air", None]})
    except LeaseLostError:
        pass
    await first.retry("order-2")
    await second.ignore("order-4")
    store.clock.advance(seconds=1)
    await first.reopen("again", "order-0")
    found = [task async for task in second.walk()]
    await store.close()
    return [
        (
            (task.key, task.stage, task.status, task.reason, task.due, task.update_time),
            (task.retry, task.lost, task.holder, task.data, task.results, task.context),
            [(error.attempt, error.message, error.time) for error in task.errors],
            [(trace.fence, trace.stage, trace.event, trace.ended_at) for trace in task.trace],
        )
        for task in found
    ]
