"""Hosts on MongoDB: query plans, numbers of commands, and lost replies."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import pymongo
import pytest
from pymongo.errors import AutoReconnect

from crawlcw.errors import LedgerConfigurationError, LedgerUnavailableError, Reason
from crawlcw.ledger import documents
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import Counters
from crawlcw.model.hosts import Host, HostLease
from crawlcw.model.task import Status, task_id
from crawlcw.model.urls import locate
from tests.ledger.test_ledger_plans import check_plans, explained, stages
from tests.support.command_log import CommandLog, logged
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    LedgerFactory,
    make_task,
    make_tasks,
    on_mongomock,
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
    names = await ledger.host_leases._ready(START, 200)

    # The host that is ready for the longest time comes first.
    assert names[0] == f"h{HOSTS - 10}.com"
    assert check_plans(large_database, command_log, "find", spare=1) == [200]


@pytest.mark.thorough
async def test_a_look_for_ready_hosts_when_there_are_none_reads_nothing(
    ledger, large_database, command_log
):
    ledger.store.now.time = START - timedelta(days=1)

    assert await ledger.host_leases.lease(worker="a", limit=200, lease=LEASE) == []

    assert check_plans(large_database, command_log, "find", spare=1) == [0]
    assert sent(command_log) == {"find": 1}


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


async def test_hosts_are_got_by_their_ids(ledger, large_database, command_log):
    hosts = await ledger.hosts.get([f"h{n}.com" for n in range(200)] + ["unknown.com"])

    assert len(hosts) == 200
    # One or two index keys for each host.
    assert check_plans(large_database, command_log, "find", spare=200) == [200]


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


async def test_the_hosts_of_a_worker_are_found_by_their_index(ledger, large_database, command_log):
    await ledger.workers.leave("w7")

    (command,) = [c for c in command_log.commands if c.get("update") == "books.hosts"]
    assert command["updates"][0]["hint"] == "owner"
    explanation = explained(large_database, command)
    assert "IXSCAN" in set(stages(explanation))
    found = large_database["books.hosts"].count_documents({"owner": {"$regex": "^w7:"}})
    assert found == 0
    left = large_database["books.hosts"].find({"owner": None, "ready_at": START})
    assert sum(1 for _ in left) >= 100


async def test_the_workers_at_work_are_found_among_those_that_left(
    ledger, large_database, command_log
):
    template = {"machine": "m", "host": "h", "pid": 1, "birth": "1", "started": START}
    template |= {
        "heartbeat": START,
        "idle": False,
        "counters": documents.counters_document(Counters()),
    }
    left = [{**template, "_id": f"w{n}", "left": at(n)} for n in range(1_005)]
    at_work = {**template, "_id": "w.at-work", "left": None}
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


async def test_every_command_on_hosts_names_its_index(ledger, large_database, command_log):
    leases = await ledger.host_leases.lease(worker="a", limit=20, lease=LEASE)
    await ledger.host_leases.renew(leases, lease=LEASE)
    await ledger.host_leases.save([(lease, lease.host) for lease in leases])
    await ledger.hosts.wake({"h3.com": START, "new.com": START})
    await ledger.hosts.give_up("h200.com", reason=Reason.HOST_UNREACHABLE)
    await ledger.host_leases.release(
        [(each, replace(each.host, ready_at=START)) for each in leases]
    )

    for command in command_log.commands:
        if "find" in command:
            assert command["hint"]
        for update in command.get("updates", ()):
            assert update["hint"]


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


@pytest.fixture
async def store() -> AsyncIterator[LedgerFactory]:
    opened = on_mongomock()
    yield opened
    await opened.close()


@pytest.fixture
async def double(store: LedgerFactory) -> MongoLedger:
    ledger = await store.open()
    assert isinstance(ledger, MongoLedger)
    return ledger


class Losing:
    """A collection that loses one reply."""

    def __init__(self, collection, operation: str, *, applied: bool) -> None:
        self._collection = collection
        self._operation = operation
        self._applied = applied

    def __getattr__(self, name: str):
        if name != self._operation:
            return getattr(self._collection, name)

        async def lose(*args, **kwargs):
            self._operation = ""
            if self._applied:
                await getattr(self._collection, name)(*args, **kwargs)
            raise AutoReconnect("connection closed")

        return lose


async def lease(ledger: MongoLedger) -> list[HostLease]:
    return await ledger.host_leases.lease(worker="a", limit=9, lease=LEASE)


@pytest.mark.parametrize("applied", [True, False])
async def test_leases_whose_reply_was_lost_are_got_by_asking_again(double, applied):
    await double.hosts.wake({"a.com": START, "b.com": START})
    double.store.hosts = Losing(double.store.hosts, "update_many", applied=applied)
    with pytest.raises(LedgerUnavailableError):
        await lease(double)

    leases = await lease(double)

    assert sorted(each.host.name for each in leases) == ["a.com", "b.com"]
    assert {each.epoch for each in leases} == {1}
    assert await double.host_leases.renew(leases, lease=LEASE) == set()
    assert await lease(double) == []


async def test_a_lease_whose_reply_was_lost_and_that_ran_out_is_taken_anew(double, store):
    await double.hosts.wake({"a.com": START})
    double.store.hosts = Losing(double.store.hosts, "update_many", applied=True)
    with pytest.raises(LedgerUnavailableError):
        await lease(double)
    store.clock.advance(seconds=60)

    # The first answer may still be about the previous leases.
    leases = await lease(double) or await lease(double)

    assert [each.epoch for each in leases] == [2]


async def test_a_release_whose_reply_was_lost_still_looks_for_tasks(double):
    await double.hosts.wake({"example.com": START})
    leases = await lease(double)
    await double.tasks.add(make_tasks(1))
    double.store.hosts = Losing(double.store.hosts, "bulk_write", applied=True)
    states = [(each, each.host) for each in leases]
    with pytest.raises(LedgerUnavailableError):
        await double.host_leases.release(states)

    assert await double.host_leases.release(states) == set()

    assert [each.epoch for each in await lease(double)] == [2]


class Blind:
    """A collection whose reads find nothing, as a client sees it in a race."""

    def __init__(self, collection) -> None:
        self._collection = collection

    def __getattr__(self, name: str):
        return getattr(self._collection, name)

    def find(self, *_):
        return self._collection.find({"_id": None})


@pytest.fixture
async def racing_ledgers(
    mongodb_uri: str, database_name: str
) -> AsyncIterator[tuple[MongoLedger, MongoLedger]]:
    """A ledger, and one whose reads find no host."""
    async with pymongo.AsyncMongoClient(mongodb_uri, tz_aware=True) as client:
        ledgers = [
            MongoLedger(MongoStore(client[database_name], "books", clock=FakeClock())) for _ in "12"
        ]
        await ledgers[0].inspection.prepare()
        ledgers[1].store.hosts = Blind(ledgers[1].store.hosts)
        yield ledgers[0], ledgers[1]


async def test_a_host_that_another_made_known_meanwhile_is_still_hastened(racing_ledgers):
    first, second = racing_ledgers
    await first.hosts.wake({"a.com": at(10), "b.com": at(10)})

    await second.hosts.wake({"a.com": START, "b.com": at(20), "c.com": at(5)})

    ready = {host.name: host.ready_at async for host in first.hosts.all()}
    assert ready == {"a.com": START, "b.com": at(10), "c.com": at(5)}


async def test_a_host_that_another_leased_meanwhile_is_left_alone(racing_ledgers):
    first, second = racing_ledgers
    await first.hosts.wake({"a.com": START})
    (held,) = await lease(first)

    await second.hosts.wake({"a.com": START, "new.com": START})

    assert await first.host_leases.renew([held], lease=LEASE) == set()
    ready = {host.name: host.ready_at async for host in first.hosts.all()}
    assert ready == {"a.com": START + LEASE, "new.com": START}


class Overtaken:
    """A collection to which another client is faster with the first update of many documents."""

    def __init__(self, collection, other: MongoLedger) -> None:
        self._collection = collection
        self._others = [other]

    def __getattr__(self, name: str):
        return getattr(self._collection, name)

    async def update_many(self, *given, **named):
        if self._others:
            await self._others.pop().host_leases.lease(worker="b", limit=3, lease=LEASE)
        return await self._collection.update_many(*given, **named)


async def test_a_client_that_another_one_overtakes_looks_again_for_hosts(
    mongodb_uri: str, database_name: str
):
    async with pymongo.AsyncMongoClient(mongodb_uri, tz_aware=True) as client:
        first, second = (
            MongoLedger(MongoStore(client[database_name], "books", clock=FakeClock())) for _ in "12"
        )
        await first.inspection.prepare()
        await first.hosts.wake({f"h{n}.com": at(-n) for n in range(5)})
        first.store.hosts = Overtaken(first.store.hosts, second)

        taken = await first.host_leases.lease(worker="a", limit=3, lease=LEASE)

    assert [each.host.name for each in taken] == ["h1.com", "h0.com"]


async def test_many_who_lease_at_once_get_hosts_of_their_own(mongodb_uri: str, database_name: str):
    async with pymongo.AsyncMongoClient(mongodb_uri, tz_aware=True) as client:
        ledgers = [
            MongoLedger(MongoStore(client[database_name], "books", clock=FakeClock()))
            for _ in range(8)
        ]
        await ledgers[0].inspection.prepare()
        await ledgers[0].hosts.wake({f"h{n}.com": START for n in range(2_000)})

        shares = await asyncio.gather(
            *(
                each.host_leases.lease(worker=f"w{n}", limit=100, lease=LEASE)
                for n, each in enumerate(ledgers)
            )
        )

    names = [each.host.name for share in shares for each in share]
    assert len(names) == len(set(names))
    assert max(map(len, shares)) <= 100
    # Each host that a client tries is leased, by this client or another one. A client that gets
    # half of its limit or less has tried 200 hosts. Where no client gets so few, all eight together
    # have more than 400.
    assert len(names) >= 200
