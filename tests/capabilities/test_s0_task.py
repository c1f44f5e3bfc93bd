"""S0: the fields of a task and of its document."""

import asyncio
import random
import sqlite3
from datetime import UTC, datetime

import pymongo
import pytest
from pymongo.errors import WriteError

from crawlcw.ledger.protocol import Counts
from crawlcw.model.task import Status, key_id
from crawlcw.tracking import NewTask, Tracker
from tests.capabilities.journal import Journal
from tests.capabilities.use_cases import UseCases, fail, finish, task_of
from tests.support.ledgers import FakeClock

#: Names and values with a special meaning in a store, a shell or a template.
HOSTILE = {
    "$set": {"status": 50},
    "a.b": "$status",
    "": "%24",
    "%blob": "no pointer",
    "nul": "a\0b",
    "sql": "'; DROP TABLE orders; --",
    "script": "{{ 7 * 7 }} ${jndi:ldap://x} <script>",
    "bytes": b"\x00\xff",
    "date": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "int64": -(1 << 63),
    "deep": [[[{"$where": "sleep(1000)"}]]],
    "emoji": "\N{PILE OF POO}",
}


@pytest.mark.seed("0.1")
async def test_whatever_the_order_in_which_tasks_are_done_the_ledger_is_the_same(
    use_cases: UseCases,
):
    found = []
    for name in ("one", "two"):
        workers = [await use_cases.open(name) for _ in range(2)]
        keys = [f"order-{n}" for n in range(12)]
        await workers[0].add_many([NewTask(key, {"key": key}) for key in keys])
        random.shuffle(keys)

        for worker, mine in zip(workers, (keys[::2], keys[1::2]), strict=True):
            await fail(worker, *(key for key in mine if key.endswith("3")))
            await finish(worker, *mine, paid=True)

        tasks = [task async for task in workers[0].walk()]
        found.append({t.key: (t.status, t.data, t.retry, len(t.trace)) for t in tasks})
    assert len(found[0]) == 12
    assert found[0] == found[1]


@pytest.mark.seed("0.4")
async def test_a_key_that_is_added_a_thousand_times_at_once_is_one_task(
    tracker: Tracker, other: Tracker
):
    added = await asyncio.gather(
        *(each.add_many(["order-1"] * 50) for each in (tracker, other) * 10)
    )

    assert sum(each.new for each in added) == 1
    assert sum(each.existing for each in added) == 999
    assert (await tracker.counts()).total == 1


@pytest.mark.seed("0.5")
async def test_the_store_itself_refuses_any_other_status(use_cases: UseCases, tracker: Tracker):
    await tracker.add("order-1")

    assert [int(status) for status in Status] == [0, 20, 30, 50, 70]
    for wrong in (1, 40, 100, -1):
        if use_cases.is_mongodb:
            with pymongo.MongoClient(use_cases.url) as client, pytest.raises(WriteError):
                tasks = client.get_default_database()[tracker.name]
                tasks.update_one({}, {"$set": {"status": wrong}})
        else:
            with pytest.raises(sqlite3.IntegrityError):
                use_cases.execute(f'UPDATE "{tracker.name}" SET status = ?', wrong)
    assert (await tracker.get("order-1")).status is Status.TODO


@pytest.mark.seed("0.6")
async def test_a_new_task_is_todo_and_was_never_touched(use_cases: UseCases, tracker: Tracker):
    await tracker.add("order-1")

    (document,) = use_cases.documents(tracker.name)
    assert {name: document[name] for name in ("status", "retry", "lost", "fence", "lock")} == {
        "status": 0,
        "retry": 0,
        "lost": 0,
        "fence": 0,
        "lock": None,
    }


@pytest.mark.seed("0.7")
async def test_every_change_of_the_status_has_its_time(
    tracker: Tracker, clock: FakeClock, journal: Journal
):
    times = [clock.time]
    await tracker.add("order-1")
    for step in (fail, finish):
        clock.advance(seconds=1)
        times += [clock.time] * 2
        await step(tracker, "order-1")
    clock.advance(seconds=1)
    times.append(clock.time)
    await tracker.reset("order-1")

    assert [write.update_time for write in journal.writes()] == times


@pytest.mark.seed("0.11")
async def test_data_comes_back_as_it_was_whatever_is_in_it(tracker: Tracker, other: Tracker):
    await tracker.add("order-1", HOSTILE)
    async with other.start("order-1") as execution:
        received = dict(execution.data)
        execution.data["again"] = [HOSTILE]

    assert received == HOSTILE
    assert (await tracker.get("order-1")).data == HOSTILE | {"again": [HOSTILE]}
    assert await tracker.counts() == Counts(by_status={Status.FINISHED: 1})


@pytest.mark.seed("0.14")
async def test_the_work_itself_cannot_touch_the_status(tracker: Tracker):
    await tracker.add("order-1")
    async with tracker.start("order-1") as execution:
        with pytest.raises(AttributeError):
            execution.lease.task.status = Status.IGNORED  # type: ignore[misc]
        with pytest.raises(AttributeError):
            execution.key = "order-2"  # type: ignore[misc]
        execution.data.update(status=70, lock="me", _id="order-2", retry=9)
        await execution.checkpoint()
        during = await task_of(tracker, "order-1")
    after = await tracker.get("order-1")

    assert (during.status, during.retry) == (Status.PROCESSING, 0)
    assert (during.id, during.lock) == (key_id("order-1"), execution.lease.token)
    assert (after.status, after.retry, after.holder) == (Status.FINISHED, 0, None)
    assert after.data["status"] == 70
