"""Contract of `Ledger.groups`, run on every store: counts of tasks by a common value."""

import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymongo
import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.mongo import MongoLedger, groups
from crawlcw.ledger.protocol import Dimension, Ledger, TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Status
from tests.ledger.test_ledger_plans import explained, stages
from tests.support.command_log import CommandLog, logged
from tests.support.ledgers import FakeClock, claimed, failure, make_task, success

CALLBACKS = ("parse", "parse_book", "evil\x1b[2J")


async def filled(ledger: Ledger, number: int = 60) -> None:
    """Add tasks of several hosts, callbacks and depths, with various outcomes."""
    tasks = [
        replace(make_task(f"https://h{n % 4}.com/{n}"), callback=CALLBACKS[n % 3], depth=n % 5)
        for n in range(number)
    ]
    await ledger.tasks.add(tasks)
    leases = await claimed(ledger, limit=number // 2)
    outcomes = [
        failure(ledger, lease, reason=Reason.TIMEOUT_READ)
        if n % 5 == 0
        else failure(ledger, lease, reason=Reason.REFUSED_ROBOTS)
        if n % 5 == 1
        else success(ledger, lease, url=f"https://a.com/{n}" if n % 2 else None)
        for n, lease in enumerate(leases)
        if n % 5 < 4
    ]
    await ledger.outcomes.commit(outcomes)


async def counted(ledger: Ledger, by: str) -> dict[Any, tuple[int, int, int]]:
    """Return the expected groups, counted by reading every task."""
    open_, finished, ignored = Counter[Any](), Counter[Any](), Counter[Any]()
    for record in await ledger.queries.find(TaskFilter(), limit=1000):
        status = record.task.status
        value = {
            "host": record.task.host,
            "callback": record.task.callback,
            "depth": record.task.depth,
            "reason": record.task.reason and str(record.task.reason),
            "status-code": record.response and record.response.status,
        }[by]
        if by == "reason" and status not in (Status.FAILED, Status.IGNORED):
            continue
        if by == "status-code" and status < Status.FINISHED:
            continue
        sums = {Status.FINISHED: finished, Status.IGNORED: ignored}.get(status, open_)
        sums[value] += 1
    values = [*open_, *finished, *ignored]
    return {value: (open_[value], finished[value], ignored[value]) for value in values}


@pytest.mark.parametrize("by", list(Dimension))
async def test_groups_are_what_reading_every_task_gives(
    ledger: Ledger, by: Dimension, monkeypatch: pytest.MonkeyPatch
):
    await filled(ledger)

    found = await ledger.groups.by(by)

    expected = await counted(ledger, by)
    assert {each.value: (each.open, each.finished, each.ignored) for each in found} == expected
    assert [each.total for each in found] == sorted((each.total for each in found), reverse=True)
    monkeypatch.setattr(groups, "_KEYS_PER_COMMAND", 7)
    assert await ledger.groups.by(by) == found


async def test_many_hosts_are_told_apart_whatever_they_are_called(ledger: Ledger):
    names = ["$host", "$$ROOT", "{", *(f"h{n}.com" for n in range(130))]
    await ledger.tasks.add(
        [
            replace(make_task(f"https://h.com/{host}/{n}"), host=host)
            for number, host in enumerate(names)
            for n in range(1 + number % 3)
        ]
    )
    leases = await claimed(ledger, limit=90)
    await ledger.outcomes.commit([success(ledger, lease) for lease in leases[:60]])

    found = await ledger.groups.by(Dimension.HOST)
    by_host = await ledger.hosts.counts()

    assert {
        each.value: (each.open, each.finished, each.ignored) for each in found
    } == await counted(ledger, "host")
    assert {each.value: each.total for each in found} == {
        host: 1 + number % 3 for number, host in enumerate(names)
    }
    assert {host: counts.total for host, counts in by_host.items()} == {
        each.value: each.total for each in found
    }
    assert sum(counts[Status.PROCESSING] for counts in by_host.values()) == 30


async def test_what_changes_is_counted_where_it_is_now(ledger: Ledger):
    await filled(ledger)
    everything = sum(each.total for each in await ledger.groups.by(Dimension.HOST))

    await ledger.admin.retry_failed(TaskFilter())
    assert [each.value for each in await ledger.groups.by(Dimension.REASON)] == ["refused-robots"]

    purged = await ledger.admin.purge(TaskFilter(statuses=[Status.FINISHED, Status.IGNORED]))
    left = await ledger.groups.by(Dimension.CALLBACK)
    assert sum(each.total for each in left) == sum(each.open for each in left)
    assert sum(each.total for each in left) == everything - purged
    assert await ledger.groups.by(Dimension.STATUS_CODE) == []


async def test_an_empty_ledger_has_no_groups(ledger: Ledger):
    for by in Dimension:
        assert await ledger.groups.by(by) == []


# --- plans


@pytest.fixture
async def on_server(
    mongodb_uri: str, database_name: str, command_log: CommandLog
) -> AsyncIterator[MongoLedger]:
    """A ledger with a log of its commands."""
    async with logged(mongodb_uri, database_name, command_log) as ledger:
        yield ledger


def check(mongodb_uri: str, database_name: str, commands: list[dict[str, Any]]) -> None:
    """Assert that each command reads indexes alone."""
    with pymongo.MongoClient(mongodb_uri) as client:
        for command in commands:
            found = set(stages(explained(client[database_name], command)))
            assert not found & {"COLLSCAN", "FETCH"}, (command, found)
            if "count" in command:
                assert found == {"COUNT_SCAN"} | found & {"COUNT"}, (command, found)
            else:
                assert found & {"DISTINCT_SCAN", "IXSCAN"}, (command, found)


async def test_mongodb_counts_groups_by_indexes_alone(
    on_server: MongoLedger, command_log: CommandLog, mongodb_uri: str, database_name: str
):
    await filled(on_server)
    command_log.commands.clear()
    for by in Dimension:
        assert await on_server.groups.by(by)

    commands = [c for c in command_log.commands if {"count", "aggregate", "find"} & c.keys()]
    assert len(commands) > 20
    check(mongodb_uri, database_name, commands)


async def test_sqlite_counts_groups_by_indexes_alone(tmp_path: Path):
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books", clock=FakeClock())
    await filled(ledger)
    sql = ledger.store.sql
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db, db:
        answers = (sql.next_response_status, sql.of_response_status)
        values = {"above": 600, "code": 200}
        for statement in (*sql.groups.values(), *answers, sql.count_done, sql.count_items):
            (plan,) = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
            # Each uses one index, without a sort.
            index = r"(books|sqlite_autoindex_books)\."
            assert re.match(rf"(SCAN|SEARCH) \S+ USING (COVERING )?INDEX {index}", plan), plan
    await ledger.close()
