"""Query plans of MongoDB: each command uses an index and reads little more than it returns.

A listener records the commands of `MongoLedger`, and `explain` runs on them unchanged.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pymongo
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.store import BY_HOST, IS_REDIRECT
from crawlcw.ledger.protocol import Count, TaskFilter
from crawlcw.model.task import Status, task_id
from crawlcw.model.urls import locate
from tests.support.command_log import CommandLog, logged
from tests.support.ledgers import START, make_task

TASKS = 20_000
HOSTS = 40
LATER = START + timedelta(days=7)
#: Stages of a plan that read no task.
LIMITED = ("LIMIT", "PROJECTION_SIMPLE")
#: Fields that the driver adds to a command, and that `explain` refuses.
ENVELOPE = ("lsid", "$db", "$clusterTime", "$readPreference", "txnNumber", "maxTimeMS")
#: Plans contain the smallest and largest times of MongoDB, which Python cannot represent.
_OF_PLANS = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)


@pytest.fixture(scope="module")
def large_database(mongodb_uri: str) -> Iterator[pymongo.database.Database]:
    """A collection in which only a few of the tasks are due."""
    with pymongo.MongoClient(mongodb_uri, tz_aware=True) as client:
        database = client["crawlcw_test_plans"]
        yield database
        client.drop_database(database)


def crowd() -> Iterator[documents.Document]:
    template = documents.document(make_task())
    for n in range(TASKS):
        # One in ten is due; the rest is deferred, leased or finished.
        kind = n % 10
        status = {0: Status.TODO, 1: Status.PROCESSING, 2: Status.FAILED}.get(kind, Status.FINISHED)
        due = START - timedelta(milliseconds=n) if kind == 0 else LATER
        host = f"h{n // 10 % HOSTS}.com"
        document = template | {
            "_id": task_id(locate(f"http://{host}/{n}")),
            "host": host,
            "priority": n // 10 % 7 % 3,
            "status": int(status),
            "update_time": due,
        }
        if kind < 3:
            document["due"] = due
        else:
            del document["due"]
        if kind in (3, 4):
            document["revisit"] = START if n % 100 == 3 else LATER
        if status is Status.FAILED:
            document["reason"] = str(Reason.CONNECT)
        yield document


@pytest.fixture
async def ledger(
    mongodb_uri: str, large_database: pymongo.database.Database, command_log: CommandLog
) -> AsyncIterator[MongoLedger]:
    async with logged(mongodb_uri, large_database.name, command_log) as ledger:
        if not large_database["books"].estimated_document_count():
            large_database["books"].insert_many(crowd(), ordered=False)
        # Forget the commands of the preparation.
        command_log.commands.clear()
        yield ledger


def explained(database, command: dict[str, Any]) -> dict[str, Any]:
    bare = {name: value for name, value in command.items() if name not in ENVELOPE}
    return database.command(
        {"explain": bare, "verbosity": "executionStats"}, codec_options=_OF_PLANS
    )


def stages(plan: Any) -> Iterator[str]:
    if isinstance(plan, dict):
        if "stage" in plan:
            yield plan["stage"]
        for part in plan.values():
            yield from stages(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from stages(part)


def examined(explanation: dict[str, Any], what: str) -> int:
    """Return the largest number of "Keys" or "Docs" that a stage of the plan read."""
    read = re.findall(rf"'total{what}Examined': (\d+)", str(explanation))
    return max(map(int, read), default=0)


def plans_of_hosts(explanation: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the plan of each host's part of a command that unites them."""
    for stage in explanation:
        if "$cursor" in stage:
            yield stage["$cursor"]
        if "$unionWith" in stage:
            yield from plans_of_hosts(stage["$unionWith"]["pipeline"])


def check_plans(database, command_log: CommandLog, name: str, *, spare: int = 20) -> list[int]:
    """Assert that every command uses an index and reads little more than it returns."""
    commands = [command for command in command_log.commands if name in command]
    assert commands
    returned = []
    for command in commands:
        explanation = explained(database, command)
        found = set(stages(explanation["queryPlanner"]["winningPlan"]))
        assert not found & {"COLLSCAN", "SORT"}, found
        assert "IXSCAN" in found or "IDHACK" in found
        statistics = explanation["executionStats"]
        returned.append(statistics["nReturned"])
        assert statistics["totalKeysExamined"] <= 1.2 * returned[-1] + spare
        assert statistics["totalDocsExamined"] <= 1.2 * returned[-1] + spare
    return returned


async def test_a_page_reads_what_it_returns(ledger, large_database, command_log):
    page = await ledger.tasks.page(limit=200)

    assert len(page) == 200
    assert {task.priority for task in page} == {2}
    assert check_plans(large_database, command_log, "find") == [200]


@pytest.mark.parametrize("hosts", [1, 5, 50])
async def test_a_page_of_some_hosts_reads_what_it_returns(
    ledger, large_database, command_log, hosts
):
    names = [f"h{n}.com" for n in range(hosts)]

    page = await ledger.tasks.page(limit=200, hosts=names)

    assert len(page) == min(200, hosts * 50)
    assert {task.host for task in page} <= set(names)
    # One seek for each host, and one for each of its priorities.
    check_plans(large_database, command_log, "find", spare=20 + 4 * hosts)


@pytest.mark.parametrize("most", [1, 8])
async def test_a_page_of_each_host_seeks_each_and_reads_what_it_returns(
    ledger, large_database, command_log, most: int
):
    names = [f"h{n}.com" for n in range(HOSTS)]

    page = await ledger.tasks.page_each(dict.fromkeys([*names, "other.com"], most))

    assert Counter(task.host for task in page) == dict.fromkeys(names, most)
    (command,) = command_log.commands
    plans = list(plans_of_hosts(explained(large_database, command)["stages"]))
    assert len(plans) == len(names) + 1
    for plan in plans:
        assert set(stages(plan["queryPlanner"]["winningPlan"])) <= {"IXSCAN", "FETCH", *LIMITED}
        assert BY_HOST in str(plan["queryPlanner"]["winningPlan"])
        statistics = plan["executionStats"]
        assert statistics["totalDocsExamined"] == statistics["nReturned"] <= most
        # One seek for the host, and one for each of its priorities.
        assert statistics["totalKeysExamined"] <= most + 4


async def test_a_page_when_nothing_is_due_reads_next_to_nothing(
    ledger, large_database, command_log
):
    ledger.store.now.time = START - timedelta(days=1)

    assert await ledger.tasks.page(limit=200) == []
    assert await ledger.tasks.page(limit=200, hosts=["h1.com", "h2.com"]) == []
    assert check_plans(large_database, command_log, "find") == [0, 0]


async def test_the_horizon_is_one_look_for_each_priority(ledger, large_database, command_log):
    earliest = min(
        d["due"] for d in large_database["books"].find({"status": Status.TODO}, {"due": 1})
    )

    assert await ledger.queries.next_due() == earliest
    assert check_plans(large_database, command_log, "find") == [1, 1, 1, 0]


async def test_counting_reads_no_document_and_only_so_many_keys_at_once(
    ledger, large_database, command_log, monkeypatch
):
    monkeypatch.setattr("crawlcw.ledger.mongo.task_table.COUNT_BATCH_SIZE", TASKS // 5)
    counts = await ledger.queries.counts()

    assert counts.total == TASKS
    assert counts[Status.TODO] == TASKS // 10
    # A status with too many tasks is counted in stretches, with a read at the end of each.
    # Redirects are no stretch: their index has no order in which a second command could go on.
    counted = [c for c in command_log.commands if "count" in c]
    stretches = [c for c in counted if c["query"] != IS_REDIRECT]
    assert len(stretches) == len(counted) - 1 >= len(Status) + TASKS * 7 // 10 // (TASKS // 5)
    assert max(c["limit"] for c in stretches) == TASKS // 5
    for command in counted:
        assert "COUNT_SCAN" in set(stages(explained(large_database, command)))
    commands = [c for c in command_log.commands if "aggregate" in c or "find" in c]
    assert len([c for c in commands if "find" in c]) == TASKS * 7 // 10 // (TASKS // 5)
    for command in commands:
        explanation = explained(large_database, command)
        assert "COLLSCAN" not in set(stages(explanation))
        assert "SORT" not in set(stages(explanation))
        assert examined(explanation, "Docs") == 0
        assert examined(explanation, "Keys") <= TASKS // 5 + 10


async def test_a_look_for_one_task_reads_one_key(ledger, large_database, command_log):
    assert await ledger.queries.has([Status.FINISHED, Status.IGNORED])
    assert await ledger.queries.has([Status.TODO])

    assert len(command_log.commands) == 2
    for command in command_log.commands:
        explanation = explained(large_database, command)
        assert not set(stages(explanation)) & {"COLLSCAN", "FETCH"}
        assert examined(explanation, "Keys") <= 2


async def test_updates_find_their_tasks_by_id(ledger, large_database, command_log):
    page = await ledger.tasks.page(limit=3)
    claimed = await ledger.leases.claim(page, worker="w", lease=timedelta(minutes=1), max_lost=3)
    leases = list(claimed.leases)
    await ledger.leases.renew(leases, lease=timedelta(minutes=1))

    # These commands change the collection; the release restores it.
    assert await ledger.outcomes.release(leases) == 3
    assert len(check_plans(large_database, command_log, "findAndModify", spare=5)) == 3
    hints = [update["hint"] for c in command_log.commands for update in c.get("updates", ())]
    assert set(hints) == {"_id_"}


async def test_items_are_counted_among_so_many_tasks_and_no_others(
    ledger, large_database, command_log
):
    assert not (await ledger.queries.item_count_within(scan_limit=500)).is_exact

    read = 0
    for command in command_log.commands:
        explanation = explained(large_database, command)
        assert not set(stages(explanation)) & {"COLLSCAN", "SORT"}
        read += examined(explanation, "Docs")
    assert read == 500


async def test_counting_by_host_reads_the_leased_tasks_alone(ledger, large_database, command_log):
    counts = await ledger.hosts.counts()

    assert sum(each.total for each in counts.values()) == TASKS
    read = 0
    for command in (c for c in command_log.commands if "aggregate" in c):
        explanation = explained(large_database, command)
        assert not set(stages(explanation)) & {"COLLSCAN", "SORT"}
        read += examined(explanation, "Docs")
    assert read <= TASKS // 10 + 20


async def test_a_search_reads_the_tasks_that_it_looks_at_and_no_others(
    ledger, large_database, command_log
):
    wanted = TaskFilter(callback="parse", containing="nowhere")
    place = None
    for _ in range(3):
        found = await ledger.queries.page(wanted, limit=50, scan_limit=1_000, cursor=place)
        place = found.cursor

    assert found.records == ()
    for command in command_log.commands:
        explanation = explained(large_database, command)
        assert not set(stages(explanation)) & {"COLLSCAN", "SORT"}
        for what in ("Keys", "Docs"):
            assert examined(explanation, what) <= 1_000 + 20


@pytest.mark.parametrize(
    "chosen",
    [
        TaskFilter(host="h1.com"),
        TaskFilter(host="none.com"),
        TaskFilter(host="h1.com", callback="parse"),
        TaskFilter(reason=Reason.TLS),
        TaskFilter(url_prefix="https://h1.com/catalogue/"),
        TaskFilter(url_prefix="https://none.com/"),
    ],
)
async def test_a_choice_is_found_and_counted_by_an_index_that_narrows_it_down(
    ledger, large_database, command_log, chosen
):
    await ledger.queries.find(chosen, limit=50)
    await ledger.queries.count(chosen)
    await ledger.admin.count_failed(chosen)

    assert command_log.commands
    for command in command_log.commands:
        explanation = explained(large_database, command)
        assert "COLLSCAN" not in set(stages(explanation)), command
        # At most the tasks of one host of 40.
        assert examined(explanation, "Docs") <= TASKS // HOSTS + 20, command


async def test_what_no_index_narrows_down_is_read_by_its_statuses_up_to_a_bound(
    ledger, large_database, command_log, monkeypatch
):
    monkeypatch.setattr("crawlcw.ledger.queries.SCAN_LIMIT", 500)
    monkeypatch.setattr("crawlcw.ledger.queries.COUNT_LIMIT", 1_000)
    # The prefix covers many hosts, and no URL has it.
    chosen = TaskFilter(url_prefix="https://h", statuses=[Status.TODO])

    assert await ledger.queries.count(chosen) == Count(number=0, is_exact=False)
    page = await ledger.queries.page(chosen, limit=50, scan_limit=500)
    assert page.records == ()
    assert page.cursor is not None

    for command in command_log.commands:
        explanation = explained(large_database, command)
        assert not set(stages(explanation)) & {"COLLSCAN", "SORT"}, command
        assert examined(explanation, "Docs") <= 500, command


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (TaskFilter(reason=Reason.CONNECT), TASKS // 10),
        (TaskFilter(callback="parse"), TASKS),
        (TaskFilter(), TASKS),
    ],
    ids=["of-a-reason", "of-a-callback", "all"],
)
async def test_a_choice_of_very_many_is_counted_without_reading_one(
    ledger, large_database, command_log, chosen, expected
):
    assert await ledger.queries.count(chosen) == Count(number=expected)
    for command in command_log.commands:
        assert not set(stages(explained(large_database, command))) & {"COLLSCAN", "FETCH"}, command
