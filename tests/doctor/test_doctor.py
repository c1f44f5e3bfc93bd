"""The doctor on both stores: it finds writes past the ledger, and repairs safe ones.

Without mongomock: only a real server shows this corruption.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest

from crawlcw import Request, Settings, Spider, doctor, run_spider
from crawlcw.doctor import Report
from crawlcw.engine.workers import this_worker
from crawlcw.errors import Reason
from crawlcw.ledger.examination import Kind
from crawlcw.ledger.mongo import MongoLedger, inspection, store
from crawlcw.ledger.port import Part
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger_opening import open_for_inspection, open_ledger
from crawlcw.model.task import Status
from crawlcw.testing import ReplayDownloader
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    PatchedFacet,
    failure,
    make_task,
    make_tasks,
    success,
)
from tests.support.mongod import with_database

HOST = "example.com"


@dataclass
class Patient:
    """A ledger with a task of each status, and a way to write past it."""

    clock: FakeClock
    ledger: Ledger
    look: Callable[[], Awaitable[Ledger]]
    worker: str = ""

    async def fill(self) -> None:
        worker = this_worker(now=START)
        self.worker = worker.name
        await self.ledger.workers.join(worker)
        await self.ledger.tasks.add(make_tasks(5))
        await self.ledger.hosts.wake({HOST: START})
        await self.ledger.host_leases.lease(worker=worker.name, limit=1, lease=LEASE)
        page = await self.ledger.tasks.page(limit=5)
        page = [task for task in page if task.url != url(TODO)]
        claimed = await self.ledger.leases.claim(page, worker=worker.name, lease=LEASE, max_lost=3)
        leases = {lease.task.url: lease for lease in claimed.leases}
        await self.ledger.outcomes.commit(
            [
                failure(self.ledger, leases[url(FAILED)]),
                success(self.ledger, leases[url(FINISHED)], {"n": 1}, {"n": 2}),
                failure(self.ledger, leases[url(IGNORED)], Reason.REFUSED_SCOPE),
            ]
        )

    def write(self, number: int, **fields: Any) -> None:
        """Set fields of task *number* past the ledger; `...` is absent."""
        self.write_to("books", make_task(url(number)).id, fields)

    def write_host(self, **fields: Any) -> None:
        self.write_to("books.hosts", HOST, fields)

    def write_to(self, part: str, identity: Any, fields: Mapping[str, Any]) -> None:
        raise NotImplementedError

    async def examined(self, **options: Any) -> Report:
        looked = await self.look()
        try:
            report = await doctor.examine(looked, recheck_delay=timedelta(0), **options)
        finally:
            await looked.close()
        assert report is not None
        return report

    async def found(self, **options: Any) -> dict[Kind, tuple[int, int]]:
        """Return the numbers found and repaired, by kind.

        Notes about the tests' store, such as a standalone server, are left out.
        """
        report = await self.examined(**options)
        return {kind: (f.count, f.repaired) for kind, f in report.findings.items()}


class OnSqlite(Patient):
    path: Path

    def execute(self, statement: str, values: Any = ()) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            db.execute(statement, values)
        db.close()

    def write_to(self, part: str, identity: Any, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            if hasattr(value, "timestamp"):
                value = int(value.timestamp() * 1000)
            value = None if value is ... else value
            self.execute(f'UPDATE "{part}" SET {name} = ? WHERE id = ?', (value, identity))


class OnMongodb(Patient):
    database: Any

    def write_to(self, part: str, identity: Any, fields: Mapping[str, Any]) -> None:
        absent = {name: "" for name, value in fields.items() if value is ...}
        present = {name: value for name, value in fields.items() if value is not ...}
        update = {"$set": present} if present else {}
        update |= {"$unset": absent} if absent else {}
        collection = self.database.get_collection(part)
        self.database.command(
            "update",
            collection.name,
            updates=[{"q": {"_id": identity}, "u": update}],
            bypassDocumentValidation=True,
        )


TODO, FAILED, FINISHED, IGNORED, PROCESSING = range(5)


def url(number: int) -> str:
    return f"http://{HOST}/{number}"


@pytest.fixture(params=["sqlite", "pymongo"])
async def patient(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Patient]:
    clock = FakeClock()
    opened: Patient
    if request.param == "sqlite":
        path = tmp_path / "ledger.db"
        ledger: Ledger = await SqliteLedger.open(path, "books", clock=clock)
        opened = OnSqlite(
            clock, ledger, lambda: SqliteLedger.open_existing(path, "books", clock=clock)
        )
        opened.path = path
        await opened.fill()
        yield opened
    else:
        uri = request.getfixturevalue("mongodb_uri")
        name = request.getfixturevalue("database_name")
        place = with_database(uri, name)
        ledger = await MongoLedger.open(place, "books", driver=request.param, clock=clock)
        opened = OnMongodb(
            clock,
            ledger,
            lambda: MongoLedger.open_existing(place, "books", driver=request.param, clock=clock),
        )
        with pymongo.MongoClient(uri) as client:
            opened.database = client[name]
            await opened.fill()
            yield opened
    await ledger.close()


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[OnSqlite]:
    clock, path = FakeClock(), tmp_path / "ledger.db"
    ledger = await SqliteLedger.open(path, "books", clock=clock)
    opened = OnSqlite(clock, ledger, lambda: SqliteLedger.open_existing(path, "books", clock=clock))
    opened.path = path
    await opened.fill()
    yield opened
    await ledger.close()


@pytest.fixture
async def served(mongodb_uri: str, database_name: str) -> AsyncIterator[OnMongodb]:
    clock, place = FakeClock(), with_database(mongodb_uri, database_name)
    ledger = await MongoLedger.open(place, "books", clock=clock)
    opened = OnMongodb(
        clock, ledger, lambda: MongoLedger.open_existing(place, "books", clock=clock)
    )
    with pymongo.MongoClient(mongodb_uri) as client:
        opened.database = client[database_name]
        await opened.fill()
        yield opened
    await ledger.close()


async def test_nothing_is_wrong_with_a_ledger_at_work(patient: Patient):
    report = await patient.examined(repair=True)

    assert report.findings == {}
    assert report.is_clean
    assert (report.tasks, report.hosts, report.workers) == (5, 1, 1)


async def test_there_is_nothing_to_examine_where_nothing_is_recorded(patient: Patient):
    patient.ledger = await patient.look()
    for name in ("books", "books.items"):
        if isinstance(patient, OnSqlite):
            patient.execute(f'DELETE FROM "{name}"')
        elif isinstance(patient, OnMongodb):
            patient.database[name].delete_many({})

    assert await doctor.examine(patient.ledger) is None
    await patient.ledger.close()


LOCK = {"lock": "x:1", "lock_time": START}


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
@pytest.mark.parametrize(
    ("number", "fields", "kinds"),
    [
        (PROCESSING, {"lock": None}, [Kind.LEASE_INCOMPLETE]),
        (PROCESSING, {"due": ...}, [Kind.LEASE_INCOMPLETE]),
        (TODO, LOCK, [Kind.FIELD_LEFT]),
        (FAILED, {"due": ...}, [Kind.DUE_MISSING]),
        (FINISHED, {"reason": "connect"}, [Kind.FIELD_LEFT]),
        (IGNORED, LOCK | {"due": START}, [Kind.FIELD_LEFT]),
    ],
)
async def test_what_can_be_mended_is_found_and_mended(
    patient: Patient, number: int, fields: dict[str, Any], kinds: list[Kind]
):
    patient.write(number, **fields)

    assert await patient.found() == dict.fromkeys(kinds, (1, 0))
    assert await patient.found() == dict.fromkeys(kinds, (1, 0))
    repaired = await patient.examined(repair=True)
    assert repaired.is_clean
    assert {f.kind: (f.count, f.repaired) for f in repaired.findings.values()} == dict.fromkeys(
        kinds, (1, 1)
    )
    assert await patient.found() == {}


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
@pytest.mark.parametrize(
    ("number", "fields", "kind"),
    [
        (TODO, {"status": 33}, Kind.MALFORMED),
        (FINISHED, {"settled": 9}, Kind.FENCE_BEHIND),
        (FINISHED, {"fence": "one"}, Kind.MALFORMED),
    ],
)
async def test_what_cannot_be_mended_is_found_and_left(
    patient: Patient, number: int, fields: dict[str, Any], kind: Kind
):
    patient.write(number, **fields)

    for repair in (True, False):
        report = await patient.examined(repair=repair)
        assert {f.kind: (f.count, f.repaired) for f in report.findings.values()} == {kind: (1, 0)}
        assert not report.is_clean


async def test_a_task_mended_to_be_due_is_claimed_and_its_host_woken(patient: Patient):
    patient.write(TODO, due=...)
    await patient.ledger.workers.leave(patient.worker)
    (held,) = await patient.ledger.host_leases.lease(worker="b", limit=1, lease=LEASE)
    patient.clock.advance(seconds=3)
    await patient.ledger.host_leases.release([(held, replace(held.host, ready_at=None))])
    patient.write_host(ready_at=...)

    await patient.examined(repair=True)

    assert url(TODO) in {task.url for task in await patient.ledger.tasks.page(limit=9)}
    assert await patient.ledger.hosts.next_ready() is not None


class Changing:
    """A ledger in which a task changes between the second look and the mend."""

    def __init__(self, ledger: Ledger, change: Callable[[], Awaitable[object]]) -> None:
        self._ledger = ledger
        self._change = change
        self.admin = PatchedFacet(ledger.admin, mend=self.mend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def mend(self, found: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
        await self._change()
        return await self._ledger.admin.mend(found, change)


async def test_what_changed_meanwhile_is_left_alone(patient: Patient):
    patient.write(TODO, **LOCK)

    async def claim() -> None:
        task = make_task(url(TODO))
        await patient.ledger.leases.claim([task], worker=patient.worker, lease=LEASE, max_lost=3)

    looked = await patient.look()
    report = await doctor.examine(Changing(looked, claim), repair=True, recheck_delay=timedelta(0))
    await looked.close()

    assert report is not None
    assert report.findings[Kind.FIELD_LEFT].repaired == 0
    record = await patient.ledger.tasks.get(make_task(url(TODO)).id)
    assert record is not None
    assert record.task.status is Status.PROCESSING
    assert str(record.task.lock).startswith(patient.worker)
    assert await patient.found() == {}


class Passing:
    """A ledger with findings that disappear before the second check."""

    def __init__(self, ledger: Ledger, *, mend: Callable[[], object]) -> None:
        self._ledger = ledger
        self._mend = mend
        self.inspection = PatchedFacet(ledger.inspection, examine=self.examine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def examine(self, part: Part, *, wanted_ids: Any = None) -> AsyncIterator[Any]:
        if part is Part.TASKS and wanted_ids is not None:
            self._mend()
        async for found in self._ledger.inspection.examine(part, wanted_ids=wanted_ids):
            yield found


async def test_what_is_gone_at_the_second_look_is_not_reported(patient: Patient):
    patient.write(TODO, **LOCK)
    looked = await patient.look()
    passing = Passing(looked, mend=lambda: patient.write(TODO, lock=None, lock_time=None))

    report = await doctor.examine(passing, recheck_delay=timedelta(0))
    await looked.close()

    assert report is not None
    assert report.findings == {}


async def test_what_is_shown_is_printable(patient: Patient):
    patient.write(TODO, url=f"http://{HOST}/\x1b[2J\u202e", lock="\x9b")

    report = await patient.examined()

    assert report.findings
    for finding in report.findings.values():
        for example in finding.examples:
            assert all(text.isprintable() for text in (*example.where.values(), example.detail))


class Chain(Spider):
    """Twenty pages that each link to twenty more, on several hosts."""

    name = "books"
    start_urls = [f"http://h{n}.com/" for n in range(4)]
    allowed_hosts = ["*"]
    settings = Settings(concurrency=16, per_host_concurrency=4, obey_robots=False, lease="2s")

    def parse(self, response):
        yield {"url": response.url}
        for n in range(20) if response.request.context is None else ():
            yield Request(f"{response.url}{n}", context={"last": True})


class Products(Spider):
    name = "books"
    start_urls = ("http://h0.com/",)

    def parse(self, response: Any) -> Any:
        for path in ("p?id=1", "p?id=1&from=list", "q?id=2"):
            product = path.partition("id=")[2][:1]
            yield response.follow(path, self.parse_product, fingerprint=product.encode())

    def parse_product(self, response: Any) -> Any:
        yield {"url": response.url}


async def test_nothing_is_wrong_with_tasks_that_a_fingerprint_identifies(ledger_url: str):
    pages = dict.fromkeys((f"http://h0.com/{path}" for path in ("", "p?id=1", "q?id=2")), "<p>")

    report = await run_spider(Products(), ledger=ledger_url, downloader=ReplayDownloader(pages))

    assert (report.pages, report.items, report.given_up) == (3, 2, 0)
    ledger = await open_for_inspection(ledger_url, "books")
    try:
        examined = await doctor.examine(ledger)
    finally:
        await ledger.close()
    assert examined is not None
    assert (examined.tasks, examined.findings) == (3, {})


class SlowReplay(ReplayDownloader):
    """Downloader with slow answers, so that examinations run between the writes."""

    async def fetch(self, request: Any, *, url: str) -> Any:
        await asyncio.sleep(0.1)
        return await super().fetch(request, url=url)


async def test_nothing_is_wrong_while_a_crawl_goes_on(ledger_url: str):
    urls = [f"http://h{n}.com/{path}" for n in range(4) for path in ("", *range(20))]
    await (await open_ledger(ledger_url, "books")).close()
    crawl = asyncio.create_task(
        run_spider(Chain(), ledger=ledger_url, downloader=SlowReplay(dict.fromkeys(urls, "<p>")))
    )
    reports: list[Report] = []
    while not crawl.done():
        await asyncio.sleep(0.02)
        looked = await open_for_inspection(ledger_url, "books")
        try:
            if report := await doctor.examine(looked, recheck_delay=timedelta(seconds=0.2)):
                reports.append(report)
        finally:
            await looked.close()

    assert (await crawl).pages == 84
    assert len(reports) > 3
    assert [report.findings for report in reports if report.findings] == []


# --- hosts


async def test_a_host_that_is_held_for_ever_is_let_go_after_a_minute(patient: Patient):
    patient.write_host(ready_at=...)

    assert await patient.found() == {Kind.LEASE_INCOMPLETE: (1, 0)}
    assert await patient.found(repair=True) == {Kind.LEASE_INCOMPLETE: (1, 1)}
    assert await patient.found() == {}
    assert await patient.ledger.host_leases.lease(worker="b", limit=1, lease=LEASE) == []
    patient.clock.advance(seconds=60)
    assert len(await patient.ledger.host_leases.lease(worker="b", limit=1, lease=LEASE)) == 1


@pytest.mark.parametrize("ready_at", [..., START + timedelta(hours=9)])
async def test_a_lost_wake_up_is_noted_and_the_host_woken(patient: Patient, ready_at: Any):
    patient.write_host(owner=None, released=1, ready_at=ready_at)

    report = await patient.examined()

    assert report.is_clean
    assert list(report.findings) == [Kind.HOST_ASLEEP]
    assert await patient.found(repair=True) == {Kind.HOST_ASLEEP: (1, 1)}
    assert await patient.found() == {}
    assert await patient.ledger.hosts.next_ready() == START


async def test_a_host_that_rests_until_its_task_is_due_is_not_asleep(patient: Patient):
    rest = START + timedelta(hours=1)
    patient.write_host(owner=None, released=1, ready_at=rest, not_before=rest)

    assert await patient.found() == {}


# --- workers


async def test_a_dead_worker_is_noted_and_gives_back_what_it_held(patient: Patient):
    await patient.ledger.workers.join(replace(this_worker(now=START), name="dead", birth="0"))
    await patient.ledger.leases.claim(
        [make_task(url(TODO))], worker="dead", lease=LEASE, max_lost=3
    )

    report = await patient.examined()
    repaired = await patient.found(repair=True)

    assert report.is_clean
    assert list(report.findings) == [Kind.WORKER_DEAD]
    assert repaired == {Kind.WORKER_DEAD: (1, 1)}
    assert url(TODO) in {task.url for task in await patient.ledger.tasks.page(limit=9)}
    assert [worker.name for worker in await patient.ledger.workers.all()] == [patient.worker]


# --- the embedded store


async def test_an_id_that_is_no_bytes_is_found_in_the_file(embedded: OnSqlite):
    embedded.execute("UPDATE books SET id = 'x' WHERE status = 70")

    assert await embedded.found() == {Kind.MALFORMED: (1, 0)}


@pytest.mark.parametrize(
    "statement",
    [
        'DROP INDEX "books.due"',
        'DROP INDEX "books.hosts_ready_at"',
        'DROP TABLE "books.workers"',
        'DELETE FROM "crawlcw.schema"',
    ],
)
async def test_what_is_missing_in_the_file_is_found_and_made(embedded: OnSqlite, statement: str):
    embedded.execute(statement)

    report = await embedded.examined()

    assert list(report.findings) == [Kind.STORE_INCOMPLETE]
    assert report.tasks == 0
    repaired = await embedded.examined(repair=True)
    assert repaired.is_clean
    assert repaired.tasks == 5
    assert Kind.STORE_INCOMPLETE not in await embedded.found()


async def test_an_index_of_another_make_is_found_in_the_file_and_left(embedded: OnSqlite):
    embedded.execute('DROP INDEX "books.due"')
    embedded.execute('CREATE INDEX "books.due" ON books (due)')

    assert await embedded.found(repair=True) == {Kind.STORE_DIFFERENT: (1, 0)}


async def test_a_file_that_is_not_in_wal_mode_is_switched(embedded: OnSqlite):
    await embedded.ledger.close()
    embedded.execute("PRAGMA journal_mode = DELETE")

    assert await embedded.found() == {Kind.NOT_WAL: (1, 0)}
    assert await embedded.found(repair=True) == {Kind.NOT_WAL: (1, 1)}
    assert await embedded.found() == {}


async def test_a_file_that_cannot_be_written_is_found(
    embedded: OnSqlite, monkeypatch: pytest.MonkeyPatch
):
    # Not by its file mode, which does not bind root.
    monkeypatch.setattr(os, "access", lambda place, _: place != embedded.path)

    assert await embedded.found() == {Kind.STORE_READ_ONLY: (1, 0)}


async def test_a_damaged_file_is_found(embedded: OnSqlite):
    await embedded.ledger.close()
    embedded.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with closing(sqlite3.connect(embedded.path)) as db, db:
        root = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'books.status_update_time'"
        )
        page, size = root.fetchone()[0], db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    with embedded.path.open("r+b") as file:
        # The number of cells in the index's root page, and their offsets.
        file.seek((page - 1) * size + 3)
        file.write(b"\x00\x09\xff\xff")

    assert Kind.STORE_DAMAGED in await embedded.found()


async def test_a_look_makes_nothing(tmp_path: Path):
    (tmp_path / "empty.db").touch()

    looked = await SqliteLedger.open_existing(tmp_path / "empty.db", "books")

    assert await doctor.examine(looked) is None
    await looked.close()
    assert (tmp_path / "empty.db").stat().st_size == 0


# --- the server


async def test_the_server_is_told_of(served: OnMongodb):
    report = await served.examined()

    assert report.facts["store"].startswith("MongoDB ")
    assert report.facts["topology"] == "replica set tests of 1 member"
    assert report.facts["w: majority, j: true"] == "confirmed"
    assert "clock offset" in report.facts


async def test_a_large_item_that_is_lost_is_found(served: OnMongodb):
    (lease,) = (
        await served.ledger.leases.claim(
            [make_task(url(TODO))], worker=served.worker, lease=LEASE, max_lost=3
        )
    ).leases
    large = {"text": "x" * (2 << 20)}
    await served.ledger.outcomes.commit([success(served.ledger, lease, {"n": 1}, large, large)])
    assert await served.found() == {}

    served.database["books.items"].delete_one({"_id.n": 2})

    report = await served.examined(repair=True)
    assert [f.kind for f in report.findings.values()] == [Kind.ITEM_LOST]
    assert report.findings[Kind.ITEM_LOST].examples[0].detail == "item 2 of 3"


async def test_a_due_that_is_null_on_the_server_is_taken_away(served: OnMongodb):
    served.write(FINISHED, due=None)

    assert await served.found() == {Kind.MALFORMED: (1, 0)}
    assert await served.found(repair=True) == {Kind.MALFORMED: (1, 1)}
    assert await served.found() == {}


async def test_documents_of_another_kind_end_no_walk(
    served: OnMongodb, monkeypatch: pytest.MonkeyPatch
):
    odd: list[Any] = [{"_id": 7}, {"_id": "x"}, {"_id": {"a": 1}}, {"_id": float("nan")}]
    served.database["books"].insert_many(odd)
    monkeypatch.setattr(store, "_IN_REPLY", 1)

    assert (await served.examined()).tasks == 5 + len(odd)


@pytest.mark.parametrize(
    ("collection", "index"),
    [("books", "priority_due"), ("books.hosts", "ready_at"), ("books.workers", "left_at")],
)
async def test_what_is_missing_on_the_server_is_found_and_made(
    served: OnMongodb, collection: str, index: str
):
    served.database[collection].drop_index(index)

    report = await served.examined()

    assert list(report.findings) == [Kind.STORE_INCOMPLETE]
    assert report.tasks == 0
    assert await served.found(repair=True) == {Kind.STORE_INCOMPLETE: (1, 1)}
    assert await served.found() == {}


async def test_an_index_of_another_make_is_found_on_the_server_and_left(served: OnMongodb):
    served.database["books"].drop_index("priority_due")
    served.database["books"].create_index([("due", 1)], name="priority_due")

    assert await served.found(repair=True) == {Kind.STORE_DIFFERENT: (1, 0)}


async def test_writes_that_are_not_confirmed_are_found(
    served: OnMongodb, monkeypatch: pytest.MonkeyPatch
):
    # A write concern of three members, on a set of one.
    monkeypatch.setattr(store, "_DURABLE", pymongo.WriteConcern(w=3, wtimeout=100))

    report = await served.examined()

    assert list(report.findings) == [Kind.NOT_DURABLE]
    assert report.facts["w: majority, j: true"] == "not confirmed"
    assert report.tasks == 5


@pytest.mark.parametrize(
    ("hello", "topology", "kinds"),
    [
        (
            {"setName": "rs", "hosts": ["a", "b"], "passives": ["c"]},
            "replica set rs of 3 members",
            [],
        ),
        ({}, "standalone", [Kind.STANDALONE]),
        ({"msg": "isdbgrid"}, "sharded cluster", []),
    ],
)
def test_what_a_server_is_part_of(hello: dict[str, Any], topology: str, kinds: list[Kind]):
    named, violations = inspection.topology_of(hello)

    assert (named, [violation.kind for violation in violations]) == (topology, kinds)
