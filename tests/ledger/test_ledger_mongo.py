"""Features of MongoDB only: versions of the indexes, query plans, and change streams."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pymongo
import pytest

from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerUnavailableError,
    Reason,
    UnknownNameError,
)
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger, changes, inspection
from crawlcw.ledger.mongo.store import BY_STATUS
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.model.task import Payload, ResponseInfo, Status
from crawlcw.model.transitions import Failed, Progress, Succeeded
from tests.faults.proxy import End, Fault, Loss, proxied
from tests.ledger.test_ledger_plans import check_plans
from tests.support import mongod_server
from tests.support.command_log import CommandLog, logged
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    claimed,
    failure,
    make_task,
    make_tasks,
    settled,
)
from tests.support.mongod import with_database

SOON = 20.0


@pytest.fixture
def url(mongodb_uri: str, database_name: str) -> str:
    return with_database(mongodb_uri, database_name)


async def test_what_was_said_of_tasks_that_somebody_has_dropped_is_void(
    mongodb_uri: str, database_name: str, url: str
):
    first = await MongoLedger.open(url, "books")
    await first.notes.set_state({"seeds": {"hosts": []}})
    again = await MongoLedger.open(url, "books")
    assert await again.notes.state() == {"seeds": {"hosts": []}}
    with pymongo.MongoClient(mongodb_uri) as client:
        client[database_name]["books"].drop()

    second = await MongoLedger.open(url, "books")

    assert await second.notes.state() == {}
    for ledger in (first, again, second):
        await ledger.close()


async def test_a_ledger_that_is_just_being_made_has_no_tasks_yet(
    mongodb_uri: str, database_name: str, url: str
):
    with pymongo.MongoClient(mongodb_uri) as client:
        client[database_name].create_collection("books")
    ledger = await MongoLedger.open(url, "books", create=False)

    assert not await ledger.queries.has(tuple(Status))
    await ledger.close()


@pytest.mark.parametrize("kind", [None, LedgerKind.SPIDER])
async def test_an_unknown_name_is_an_error_of_its_own_and_makes_nothing(
    mongodb_uri: str, database_name: str, url: str, kind: LedgerKind | None
):
    await (await MongoLedger.open(url, "books", kind=kind)).close()
    with pymongo.MongoClient(mongodb_uri) as client:
        before = set(client[database_name].list_collection_names())

        with pytest.raises(UnknownNameError, match="nothing is recorded for 'boks'"):
            await MongoLedger.open(url, "boks", kind=kind, create=False)

        assert set(client[database_name].list_collection_names()) == before
        assert client[database_name]["crawlcw.schema"].count_documents({}) == 1
    empty = await MongoLedger.open(url, "books", kind=kind, create=False)
    assert not await empty.queries.has(tuple(Status))
    await empty.close()


async def test_an_index_that_is_another_one_is_refused_by_name(
    mongodb_uri: str, database_name: str, url: str
):
    with pymongo.MongoClient(mongodb_uri) as client:
        client[database_name]["books"].create_index([("status", 1)], name=BY_STATUS)

        with pytest.raises(LedgerConfigurationError, match=f"index {BY_STATUS} of collection"):
            await MongoLedger.open(url, "books")


async def test_an_index_under_another_name_is_refused_with_the_command_that_drops_it(
    mongodb_uri: str, database_name: str, url: str
):
    with pymongo.MongoClient(mongodb_uri) as client:
        books = client[database_name]["books"]
        books.create_index([("host", 1)], name="hosts")

        with pytest.raises(LedgerConfigurationError, match="index hosts of collection books") as e:
            await MongoLedger.open(url, "books")
        assert "db['books'].dropIndex('hosts')" in str(e.value)
        books.drop_index("hosts")
    await (await MongoLedger.open(url, "books")).close()


async def test_a_server_that_is_too_old_is_refused_by_its_version(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(inspection, "OLDEST_SERVER", (99, 0))

    with pytest.raises(
        LedgerConfigurationError,
        match=r"the server is MongoDB .*, but crawlcw needs 99\.0 or later",
    ):
        await MongoLedger.open(url, "books")


# --- plans


@pytest.fixture
async def ledger(
    mongodb_uri: str, database_name: str, command_log: CommandLog
) -> AsyncIterator[MongoLedger]:
    kind = LedgerKind.USE_CASE
    async with logged(mongodb_uri, database_name, command_log, kind=kind) as ledger:
        yield ledger


async def test_finding_reads_what_it_returns_and_sorts_nothing(
    ledger: MongoLedger, mongodb_uri: str, database_name: str, command_log: CommandLog
):
    numbers = count()
    await ledger.tasks.add(
        [
            make_task(
                id=next(numbers).to_bytes(16, "big"),
                status=status,
                # Many tasks of one time, so that a page ends among them.
                update_time=START + timedelta(seconds=n // 300),
            )
            for status in Status
            for n in range(1_000)
        ]
    )
    chosen = [
        TaskFilter(),
        TaskFilter(statuses=[Status.FAILED]),
        TaskFilter(
            statuses=(Status.FAILED, Status.IGNORED), changed_since=START + timedelta(seconds=1)
        ),
        TaskFilter(changed_before=START + timedelta(seconds=2)),
    ]
    behind = Cursor(update_time=START + timedelta(seconds=2), id=(2_700).to_bytes(16, "big"))
    with pymongo.MongoClient(mongodb_uri) as client:
        for each in chosen:
            for after in (None, behind):
                command_log.commands.clear()
                assert len(await ledger.queries.find(each, limit=100, cursor=after)) == 100
                assert sum(check_plans(client[database_name], command_log, "find")) == 100


async def test_a_page_is_filled_up_where_a_task_has_changed_meanwhile(
    ledger: MongoLedger, monkeypatch: pytest.MonkeyPatch
):
    await ledger.tasks.add(make_tasks(6))
    aggregate = ledger.store.aggregate
    purged: list[bytes] = []

    async def aggregated(pipeline: list[Any], **options: Any) -> list[Any]:
        found = await aggregate(pipeline, **options)
        if not purged:
            purged.append(bytes(found[0]["_id"]))
            await ledger.admin.purge(TaskFilter(ids=purged))
        return found

    monkeypatch.setattr(ledger.store, "aggregate", aggregated)
    found = await ledger.queries.find(TaskFilter(callback="parse"), limit=3)

    # A reader takes a page below the limit for the last one.
    assert len({record.task.id for record in found} - set(purged)) == 3


async def test_outcomes_that_the_driver_and_the_server_refuse_take_none_of_the_others(
    ledger: MongoLedger,
):
    half = "x" * (10 << 20)
    tasks = make_tasks(4)
    await ledger.tasks.add(
        [*tasks[:3], replace(tasks[3], carried=Payload(data={}, results={"scan": half}))]
    )
    leases = {lease.task.id: lease for lease in await claimed(ledger)}
    good, answered, unclean, large = (leases[task.id] for task in tasks)
    bad = ResponseInfo(status=200, final_url="http://example.com/", etag="\udcff")
    progress = Progress(worker="a", started_at=START, results={"pay": half})
    batch = [
        settled(ledger, good, Succeeded()),
        # The driver cannot encode it.
        settled(ledger, answered, Succeeded(response=bad)),
        # Its items are refused first; its response would be as well.
        settled(ledger, unclean, Succeeded(response=bad, items=({"v": "\ud800"},))),
        # The server refuses it: it is too large together with the stored results.
        settled(ledger, large, Succeeded(progress=progress)),
    ]

    answer = await ledger.outcomes.commit(batch)

    assert [lease for lease, _ in answer.rejected] == [unclean, answered, large]
    assert answer.lost == ()
    assert (await ledger.queries.counts()).by_status == {Status.FINISHED: 1, Status.IGNORED: 3}
    assert await ledger.queries.reasons() == {"store-rejected": 3}


async def test_items_outside_are_written_and_read_in_batches_behind_other_outcomes(
    ledger: MongoLedger, mongodb_uri: str, database_name: str, command_log: CommandLog
):
    kib = {"text": "x" * 1024}
    await ledger.tasks.add(make_tasks(12))
    of_versions = Succeeded(items=(kib,) * 10, kept_versions=2)
    # 8 MiB have room in the document.
    outcomes = [Succeeded(items=(kib,) * 10_000), *[of_versions] * 10, Succeeded(items=(kib,))]
    leases = await claimed(ledger)
    command_log.commands.clear()

    await ledger.outcomes.commit(
        [settled(ledger, lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)]
    )

    updates = [c for c in command_log.commands if "update" in c]
    collections = [c["update"] for c in updates]
    assert (collections[0], len(updates[0]["updates"]), collections[-1]) == ("books", 1, "books")
    assert set(collections[1:-1]) == {"books.items"}
    assert len(collections) <= 6
    command_log.commands.clear()
    assert [row.item async for row in ledger.queries.items()] == [kib] * 10_101
    assert len(command_log.commands) <= 10


async def test_an_item_outside_that_the_server_refuses_takes_no_other_outcome(
    ledger: MongoLedger,
):
    deep: dict[str, Any] = {"text": "x" * (1 << 20)}
    for _ in range(190):
        deep = {"inside": deep}
    await ledger.tasks.add(make_tasks(2))
    bad, good = await claimed(ledger)

    answer = await ledger.outcomes.commit(
        [
            settled(ledger, bad, Succeeded(items=(deep,))),
            settled(ledger, good, Succeeded(items=({"text": "x" * (1 << 20)},))),
        ]
    )

    assert [lease for lease, _ in answer.rejected] == [bad]
    assert (await ledger.queries.counts()).by_status == {Status.FINISHED: 1, Status.IGNORED: 1}


async def test_the_items_and_values_of_a_task_are_found_by_an_index(
    ledger: MongoLedger, mongodb_uri: str, database_name: str, command_log: CommandLog
):
    tasks = make_tasks(30)
    await ledger.tasks.add(tasks)
    for task in tasks:
        await ledger.blobs.put(task.id, "x")
    large = {"x": "x" * (1 << 21)}
    await ledger.outcomes.commit(
        [settled(ledger, each, Succeeded(items=(large,))) for each in await claimed(ledger)]
    )
    command_log.commands.clear()
    assert await ledger.admin.purge(TaskFilter(ids=[tasks[0].id])) == 1

    with pymongo.MongoClient(mongodb_uri) as client:
        database = client[database_name]
        assert database["books.items"].count_documents({}) == 29
        assert database["books.blobs.files"].count_documents({}) == 29
        assert database["books.blobs.chunks"].count_documents({}) == 29
    (items,) = [each for each in command_log.commands if each.get("delete") == "books.items"]
    assert items["deletes"][0]["hint"] == "task"
    assert all("hint" in each for each in command_log.commands if "find" in each)


# --- lost replies, and forced races


class Beforehand:
    """A collection that calls *act* before each write."""

    def __init__(self, collection: Any, act: Callable[[], Awaitable[object]]) -> None:
        self._collection = collection
        self._act = act

    def __getattr__(self, name: str) -> Any:
        if not name.endswith("_many"):
            return getattr(self._collection, name)

        async def act_first(*args: Any, **options: Any) -> Any:
            await self._act()
            return await getattr(self._collection, name)(*args, **options)

        return act_first


@pytest.mark.parametrize("change", ["withdraw", "reopen", "purge"])
async def test_a_task_that_is_claimed_after_it_was_chosen_is_left_alone(
    ledger: MongoLedger, change: str
):
    task = make_task(carried=Payload())
    await ledger.tasks.add([task])
    blob = await ledger.blobs.put(task.id, "x")
    waiting = TaskFilter(statuses=[Status.TODO])
    changes = {
        "withdraw": lambda: ledger.admin.withdraw(waiting, reason=Reason.WITHDRAWN),
        "reopen": lambda: ledger.admin.reopen(waiting),
        "purge": lambda: ledger.admin.purge(waiting),
    }
    tasks = ledger.store.ledger_tables.tasks
    tasks.collection = Beforehand(tasks.collection, lambda: claimed(ledger))

    assert await changes[change]() == 0

    record = await ledger.tasks.get(task.id)
    assert record is not None
    assert (record.task.status, record.task.fence) == (Status.PROCESSING, 1)
    assert await ledger.blobs.read(blob) == "x"


# --- change streams


class Told:
    """An open change stream, and its notices."""

    def __init__(self, ledger: MongoLedger) -> None:
        self._notices = ledger.changes.watch()

    async def __aenter__(self) -> "Told":
        await self.next()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait_for(self._notices.aclose(), SOON)

    async def next(self, *, within: float = SOON) -> None:
        await asyncio.wait_for(anext(self._notices), within)


@pytest.fixture
async def watched(url: str) -> AsyncIterator[MongoLedger]:
    ledger = await MongoLedger.open(url, "orders", clock=FakeClock(), kind=LedgerKind.USE_CASE)
    yield ledger
    await ledger.close()


async def test_what_is_added_or_made_due_is_told(watched: MongoLedger):
    progress = Progress(worker="w", started_at=START)
    failed = Failed(reason=Reason.TASK_ERROR, progress=progress)
    tasks = make_tasks(3, carried=Payload())

    async with Told(watched) as told:
        await watched.tasks.add(tasks)
        await told.next()
    first, second, third = await claimed(watched, worker="w")
    async with Told(watched) as told:
        await watched.outcomes.commit([settled(watched, first, failed)])
        await told.next()
    async with Told(watched) as told:
        await watched.outcomes.release([second])
        await told.next()
    async with Told(watched) as told:
        await watched.workers.leave("w")
        await told.next()
    async with Told(watched) as told:
        await watched.admin.reopen(TaskFilter(ids=[second.task.id]), stage="next")
        await told.next()
    async with Told(watched) as told:
        await watched.admin.retry_failed(TaskFilter())
        await told.next()
    assert third.task.id in {lease.task.id for lease in await watched.leases.leases_of("w")}


async def test_claims_renewals_and_results_are_told_to_nobody(watched: MongoLedger):
    await watched.tasks.add(make_tasks(2, carried=Payload()))

    async with Told(watched) as told:
        leases = await claimed(watched)
        watched.store.now.advance(seconds=1)
        assert await watched.leases.renew(leases, lease=LEASE) == set()
        assert await watched.leases.save(leases[0], data={"n": 1}, duration=LEASE)
        done = Succeeded(progress=Progress(worker="w", started_at=START))
        await watched.outcomes.commit([settled(watched, lease, done) for lease in leases])
        # Notices of those writes would come before this one; after it, none comes.
        await watched.tasks.add([make_task("http://x/last", carried=Payload())])
        await told.next()
        with pytest.raises(TimeoutError):
            await told.next(within=0.2)


async def test_a_stream_whose_connection_breaks_raises(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(changes, "_MAX_AWAIT", 0.2)
    monkeypatch.setattr(changes, "_REPLY_WITHIN", 0.5)
    with proxied(url) as (proxy, near):
        ledger = await MongoLedger.open(
            f"{near}&serverSelectionTimeoutMS=200",
            "orders",
            kind=LedgerKind.USE_CASE,
        )
        told = ledger.changes.watch()
        await anext(told)
        # The driver reopens a stream once by itself. Other commands get through: PyMongo
        # leaks a socket if it is closed while it connects.
        reset = Fault(loss=Loss.REQUEST, end=End.RESET)
        proxy.plan(lambda command: reset if command.name in ("getMore", "aggregate") else None)

        with pytest.raises(LedgerUnavailableError):
            await asyncio.wait_for(anext(told), SOON)

        await ledger.close()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server without a replica set."""
    folder: Path = tmp_path_factory.mktemp("standalone")
    server = mongod_server.Server(mongod_server.found(), folder / "data")
    place = server.command.index("--replSet")
    del server.command[place : place + 2]
    server.start()
    try:
        with pymongo.MongoClient("127.0.0.1", server.port, serverSelectionTimeoutMS=60_000) as c:
            c.admin.command("ping")
        yield f"mongodb://127.0.0.1:{server.port}/alone?directConnection=true"
    finally:
        server.kill()


async def test_a_server_that_is_alone_and_motor_tell_of_nothing(standalone: str, url: str):
    alone = await MongoLedger.open(standalone, "orders", kind=LedgerKind.USE_CASE)
    motor = await MongoLedger.open(url, "orders", driver="motor", kind=LedgerKind.USE_CASE)

    for ledger in (alone, motor):
        assert [notice async for notice in ledger.changes.watch()] == [None]
        await ledger.close()


async def test_failures_of_any_number_are_reset_once_beside_those_that_stay(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.ledger.admin.BATCH", 2)
    clock = FakeClock()
    ledger = await MongoLedger.open(url, "books", clock=clock)
    await ledger.tasks.add(make_tasks(9))
    reasons = [Reason.TIMEOUT_READ, Reason.REFUSED_SCOPE, Reason.REFUSED_SCOPE]
    await ledger.outcomes.commit(
        [failure(ledger, lease, reasons[n % 3]) for n, lease in enumerate(await claimed(ledger))]
    )

    assert await ledger.admin.retry_failed(TaskFilter()) == 3
    counted = await ledger.queries.counts()
    assert counted.by_status == {Status.TODO: 3, Status.IGNORED: 6}
    await ledger.close()
