"""Hosts on MongoDB: query plans, numbers of commands, and lost replies."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import pymongo
import pytest

from crawlcw.errors import LedgerConfigurationError, Reason
from crawlcw.ledger import documents
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.port import AtMost, Path
from crawlcw.ledger.protocol import Counters
from crawlcw.model.hosts import Host
from crawlcw.model.task import Status, task_id
from crawlcw.model.urls import locate
from tests.ledger.test_ledger_plans import check_plans, explained
from tests.support.command_log import CommandLog, logged
from tests.support.ledgers import (
    LEASE,
    START,
    make_task,
)

HOSTS = 20_000
LATER = START + timedelta(days=7)


def crowd() -> Iterator[documents.Document]:
    """Many hosts: one in ten is ready, the others are leased, resting or without due tasks."""
    for n in range(HOSTS):
        kind = n % 10
        host = Host(name=f"h{n}.com", epoch=n % 7)
        if kind == 0:
            host = replace(host, ready_at=START - timedelta(milliseconds=n))
        elif kind == 1:
            host = replace(host, ready_at=LATER, owner=f"w{n // 10 % 20}:{n}")
        elif kind < 5:
            host = replace(host, ready_at=LATER, not_before=LATER)
        yield documents.host_document(host)


def tasks() -> Iterator[documents.Document]:
    """Tasks of three priorities for one host in a hundred; half of them are leased."""
    template = documents.document(make_task())
    for n in range(HOSTS // 10 * 3):
        leased = n % 2
        host = f"h{n // 30 * 100}.com"
        document = template | {
            "_id": task_id(locate(f"http://{host}/{n}")),
            "host": host,
            "priority": n % 3,
            "status": int(Status.PROCESSING if leased else Status.TODO),
            "due": START + timedelta(seconds=n % 30),
        }
        yield document


@pytest.fixture(scope="module")
def large_database(mongodb_uri: str) -> Iterator[pymongo.database.Database]:
    with pymongo.MongoClient(mongodb_uri, tz_aware=True) as client:
        database = client["crawlcw_test_host_plans"]
        yield database
        client.drop_database(database)


@pytest.fixture
async def ledger(
    mongodb_uri: str, large_database: pymongo.database.Database, command_log: CommandLog
) -> AsyncIterator[MongoLedger]:
    async with logged(mongodb_uri, large_database.name, command_log) as ledger:
        if not large_database["books.hosts"].estimated_document_count():
            large_database["books.hosts"].insert_many(crowd(), ordered=False)
            large_database["books"].insert_many(tasks(), ordered=False)
        command_log.commands.clear()
        yield ledger


def sent(command_log: CommandLog) -> Counter[str]:
    """Return the number of commands sent of each kind, and reset the count."""
    kinds = Counter(next(iter(command)) for command in command_log.commands)
    command_log.commands.clear()
    return kinds


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


# --- plans


@pytest.mark.thorough
async def test_ready_hosts_are_found_by_the_index_alone(ledger, large_database, command_log):
    # A lease would change the hosts for the other tests.
    found = await ledger.store.ledger_tables.hosts.scan(
        {"ready_at": AtMost(START)}, by=Path.READY, limit=200, fields=("_id",)
    )

    # The host that is ready for the longest time comes first.
    assert found[0] == {"_id": f"h{HOSTS - 10}.com"}
    assert check_plans(large_database, command_log, "find", spare=1) == [200]


async def test_the_next_ready_host_is_one_key(ledger, large_database, command_log):
    assert await ledger.hosts.next_ready() == START - timedelta(milliseconds=HOSTS - 10)

    assert check_plans(large_database, command_log, "find", spare=0) == [1]
    (command,) = command_log.commands
    statistics = explained(large_database, command)["executionStats"]
    assert (statistics["totalKeysExamined"], statistics["totalDocsExamined"]) == (1, 0)


async def test_the_busiest_hosts_are_found_by_the_indexes_alone(
    ledger, large_database, command_log
):
    _, waiting = await ledger.hosts.busiest(limit=100)

    assert waiting
    check_plans(large_database, command_log, "find", spare=1)
    assert sent(command_log) == {"find": 2}


async def test_the_earliest_due_is_one_look_for_each_priority(ledger, large_database, command_log):
    assert await ledger.hosts.earliest_due("h100.com") == START
    assert check_plans(large_database, command_log, "find", spare=2) == [1, 1, 1, 0]

    command_log.commands.clear()
    assert await ledger.hosts.earliest_due("h101.com") is None
    assert check_plans(large_database, command_log, "find", spare=2) == [0]


async def test_the_hosts_without_tasks_are_looked_at_together(ledger, large_database, command_log):
    names = [f"h{n}.com" for n in range(1000, 1400)]

    dues = await ledger.hosts.earliest_dues(names)

    assert dues == {f"h{n}.com": START for n in (1000, 1100, 1200, 1300)}
    # For each host with tasks: its first task, its other priorities, and the end. For
    # each host between them: one or two index keys.
    assert check_plans(large_database, command_log, "find", spare=2 * len(names)) == [
        1,
        1,
        1,
        0,
    ] * 4 + [0]


async def test_the_workers_at_work_are_found_among_those_that_left(
    ledger, large_database, command_log
):
    template = {"machine": "m", "host": "h", "pid": 1, "birth": "1", "started": START}
    template |= {
        "heartbeat": START,
        "idle": False,
        "counters": documents.counters_document(Counters()),
    }
    left = [{**template, "_id": f"w{n}", "left_at": at(n)} for n in range(1_005)]
    at_work = {**template, "_id": "w.at-work", "left_at": None}
    large_database["books.workers"].insert_many([*left, at_work])

    assert [worker.name for worker in await ledger.workers.all()] == ["w.at-work"]
    assert check_plans(large_database, command_log, "find", spare=2) == [1]
    command_log.commands.clear()

    await ledger.workers.leave("w.at-work")
    (command,) = [each for each in command_log.commands if each.get("find") == "books.workers"]
    assert sent(command_log) == {"aggregate": 1, "update": 3, "find": 1, "delete": 1}
    names = {each["_id"] for each in large_database["books.workers"].find()}
    assert names == {f"w{n}" for n in range(5, 1_005)}

    # The command, explained again: the workers that left too long ago are deleted now.
    statistics = explained(large_database, command)["executionStats"]
    assert statistics["totalKeysExamined"] <= 1_002
    assert statistics["totalDocsExamined"] <= 1_000


async def test_a_wrong_index_is_named_with_its_collection(mongodb_uri: str, database_name: str):
    with pymongo.MongoClient(mongodb_uri) as client:
        client[database_name]["books.hosts"].create_index([("ready_at", -1)], name="ready_at")

    async with pymongo.AsyncMongoClient(mongodb_uri) as client:
        with pytest.raises(LedgerConfigurationError, match=r"ready_at of collection books\.hosts"):
            await MongoLedger(MongoStore(client[database_name], "books")).inspection.prepare()


# --- numbers of commands


async def test_hosts_cost_a_few_commands_however_many_they_are(ledger, large_database, command_log):
    leases = await ledger.host_leases.lease(worker="a", limit=150, lease=LEASE)
    assert len(leases) == 150
    assert sent(command_log) == {"find": 2, "update": 1}

    await ledger.host_leases.renew(leases, lease=LEASE)
    assert sent(command_log) == {"update": 1}

    await ledger.host_leases.save([(lease, lease.host) for lease in leases])
    assert sent(command_log) == {"update": 1}

    # Handed on after a slice: no read is needed.
    await ledger.host_leases.release(
        [(each, replace(each.host, ready_at=START)) for each in leases]
    )
    assert sent(command_log) == {"update": 1}

    await ledger.hosts.wake({each.host.name: START for each in leases})
    assert sent(command_log) == {"find": 1}

    await ledger.hosts.wake({f"new{n}.com": LATER for n in range(150)})
    assert sent(command_log) == {"find": 1, "update": 1}

    # Hosts without tasks: one read for all of them.
    empty = [f"empty{n}.com" for n in range(150)]
    await ledger.hosts.wake(dict.fromkeys(empty, START - timedelta(days=1)))
    leases = await ledger.host_leases.lease(worker="a", limit=150, lease=LEASE)
    assert sorted(lease.host.name for lease in leases) == sorted(empty)
    sent(command_log)
    await ledger.host_leases.release([(lease, lease.host) for lease in leases])
    assert sent(command_log) == {"update": 1, "find": 1}


async def test_the_tasks_of_a_host_are_given_up_by_the_batch(
    ledger, large_database, command_log, monkeypatch
):
    assert await ledger.hosts.give_up("h400.com", reason=Reason.HOST_UNREACHABLE) == 15
    assert sent(command_log) == {"find": 1, "update": 1}
    monkeypatch.setattr("crawlcw.ledger.hosts.BATCH", 5)
    large_database.command("profile", 2)

    assert await ledger.hosts.give_up("h300.com", reason=Reason.HOST_UNREACHABLE) == 15

    large_database.command("profile", 0)
    assert sent(command_log)["update"] == 3
    found = list(large_database["system.profile"].find({"ns": "crawlcw_test_host_plans.books"}))
    large_database["system.profile"].drop()
    read = [each["docsExamined"] for each in found if each["op"] in ("query", "getmore")]
    # The index is walked once: the fifteen leased tasks are not read for each batch.
    assert 15 <= sum(read) <= 30


# --- lost replies, and forced races
