"""Ledgers of an earlier version: they open, and their crawls go on to the end.

`written_before/` has them as files and as dumps of databases (MongoDB's extended JSON):

- `sqlite-4` and `mongodb-3`: a crawl of twelve small pages that ended at `--max-pages 6`.
- `sqlite-7` and `mongodb-3-dc8714b`, by commit dc8714b: a spider `books` and a use case `orders`
  with tasks of every status, leases of a killed worker, hosts, a session, items and a blob. The
  `filled` of its own `tests.ledger.test_copying` wrote most of it.
"""

import gzip
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import json_util

from crawlcw import Spider
from crawlcw.assembly import assemble
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.indexes import BY_STATUS, OUTDATED
from crawlcw.ledger.protocol import Dimension, Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import BlobRef, Status
from crawlcw.model.transitions import Succeeded, settle
from crawlcw.testing import ReplayDownloader
from tests.support.ledgers import make_task
from tests.support.mongod import with_database

BEFORE = Path(__file__).with_name("written_before")
FINISHED, IGNORED, TODO = 6, 2, 10
#: A process that opens a ledger, and is killed at the first statement or command of a kind.
KILLED_AT = """
import asyncio, os, signal, sys
import pymongo.monitoring
from crawlcw.ledger.sqlite import connection
from crawlcw.ledger_opening import open_ledger

url, name, last = sys.argv[1:]

def look(said):
    if said.startswith(last):
        os.kill(os.getpid(), signal.SIGKILL)

class Listener(pymongo.monitoring.CommandListener):
    def started(self, event): look(event.command_name)
    def succeeded(self, event): pass
    def failed(self, event): pass

pymongo.monitoring.register(Listener())
connect = connection.Database.__init__

def traced(self, *args, **options):
    connect(self, *args, **options)
    self.set_trace_callback(look)

connection.Database.__init__ = traced
asyncio.run(open_ledger(url, name))
"""


def file_of(name: str, folder: Path) -> str:
    """Return the URL of a copy of an SQLite file."""
    path = folder / "ledger.db"
    with gzip.open(BEFORE / name) as written, path.open("wb") as file:
        shutil.copyfileobj(written, file)
    return f"sqlite:///{path}"


def database_of(name: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a database that a dump was read into."""
    uri, database = (request.getfixturevalue(each) for each in ("mongodb_uri", "database_name"))
    dump = json_util.loads(gzip.decompress((BEFORE / name).read_bytes()))
    with pymongo.MongoClient(uri) as client:
        for collection, content in dump.items():
            for index in content["indexes"]:
                keys, given = index.pop("key").items(), {**index}
                if index["name"] != "_id_":
                    del given["v"]
                    client[database][collection].create_index(list(keys), **given)
            if content["documents"]:
                client[database][collection].insert_many(content["documents"])
    return with_database(uri, database)


@pytest.fixture(params=["sqlite", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return file_of("sqlite-4.db.gz", tmp_path)
    return database_of("mongodb-3.json.gz", request)


async def work_off(url: str) -> None:
    """Check the ledger of twelve pages, and finish the other tasks."""
    ledger = await open_ledger(url, "old")
    try:
        counts = await ledger.queries.counts()
        assert counts.by_status == {
            Status.FINISHED: FINISHED,
            Status.IGNORED: IGNORED,
            Status.TODO: TODO,
        }
        # Tables and indexes of later versions exist.
        assert sum(each.total for each in await ledger.groups.by(Dimension.HOST)) == counts.total
        now = ledger.now()
        assert await ledger.rates.between(now - timedelta(days=1), now) == []
        assert min([row.item["title"] async for row in ledger.queries.items()]) == "Page 0"

        hosts = await ledger.host_leases.lease(worker="w:1", limit=9, lease=timedelta(minutes=1))
        page = await ledger.tasks.page(limit=99, hosts=[lease.host.name for lease in hosts])
        claimed = await ledger.leases.claim(
            page, worker="w:2", lease=timedelta(minutes=1), max_lost=5
        )
        outcomes = [
            settle(lease, Succeeded(), now=ledger.now(), policy=RetryPolicy(), chance=0.5)
            for lease in claimed.leases
        ]
        committed = await ledger.outcomes.commit(outcomes)

        assert (len(claimed.leases), committed.lost) == (TODO, ())
        assert await ledger.queries.horizon() is None
        assert (await ledger.queries.counts())[Status.FINISHED] == FINISHED + TODO
    finally:
        await ledger.close()


async def test_what_was_recorded_is_there_and_what_is_left_can_be_done(url: str):
    await work_off(url)


def kill_at(url: str, name: str, last: str) -> None:
    """Open a ledger in a process that is killed at a statement or command: *last*."""
    done = subprocess.run([sys.executable, "-c", KILLED_AT, url, name, last], check=False)
    assert done.returncode == -9


@pytest.mark.thorough
@pytest.mark.representative("UPDATE")
@pytest.mark.parametrize("last", ["ALTER TABLE", "UPDATE", "CREATE INDEX", "COMMIT"])
async def test_an_upgrade_of_a_file_that_is_killed_goes_on_at_the_next_opening(
    tmp_path: Path, last: str
):
    url = file_of("sqlite-4.db.gz", tmp_path)

    kill_at(url, "old", last)

    await work_off(url)


@pytest.mark.thorough
@pytest.mark.representative("dropIndexes")
@pytest.mark.parametrize("last", ["createIndexes", "dropIndexes", "update"])
async def test_an_upgrade_of_a_database_that_is_killed_goes_on_at_the_next_opening(
    request: pytest.FixtureRequest, last: str
):
    url = database_of("mongodb-3.json.gz", request)
    # Version 2 had another index of the statuses.
    with pymongo.MongoClient(url) as client:
        database = client.get_default_database()
        database["old"].drop_index(BY_STATUS)
        database["old"].create_index([("status", 1), ("update_time", -1)], name=OUTDATED)
        database["crawlcw.schema"].update_one({"_id": "old"}, {"$set": {"version": 2}})

        kill_at(url, "old", last)
        await work_off(url)

        assert OUTDATED not in database["old"].index_information()
        assert database["crawlcw.schema"].find_one({"_id": "old"})["version"] == 3


Open = Callable[..., Any]


@pytest.fixture(params=["sqlite", "mongodb"])
def open_later(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that opens a ledger of commit dc8714b after the end of all its leases."""

    def later() -> datetime:
        return datetime.now(UTC) + timedelta(days=1)

    if request.param == "sqlite":
        url = file_of("sqlite-7.db.gz", tmp_path)
        path = tmp_path / "ledger.db"
        return lambda name, kind: SqliteLedger.open(path, name, clock=later, kind=kind)
    url = database_of("mongodb-3-dc8714b.json.gz", request)
    return lambda name, kind: MongoLedger.open(url, name, clock=later, kind=kind)


async def check_all(ledger: Ledger, *, open_tasks: int) -> None:
    """Assert that a ledger has all that `filled` wrote."""
    assert (await ledger.queries.counts()).by_status == {
        Status.TODO: open_tasks,
        Status.FAILED: 1,
        Status.PROCESSING: 3,
        Status.FINISHED: 2,
        Status.IGNORED: 1,
    }
    assert len(await ledger.leases.held("a")) == 3
    posted, gone = [
        await ledger.tasks.get(make_task(f"http://a.example/{path}").id) for path in ("", "gone")
    ]
    assert (posted.task.method, posted.task.body, posted.task.headers) == (
        "POST",
        b"\0\xff",
        (("A", "1"),),
    )
    assert (posted.task.errback, posted.task.depth) == ("lost", 3)
    assert posted.task.context["$a"] == {"b.c": 1.5}
    assert posted.task.options.max_retry == 7
    assert (gone.task.reason, [error.message for error in gone.errors]) == (
        "connect",
        ["it is gone"],
    )
    first, second, third = [row.item async for row in ledger.queries.items()]
    assert (first["$n"], len(second["large"]), third) == (1, (1 << 20) + 1, {"n": 3})
    assert [row.item async for row in ledger.queries.versions()] == [first, second, third]
    found = await ledger.hosts.get(["example.com", "a.example"])
    assert (found["example.com"].delay, found["example.com"].finished) == (0.25, 3)
    session = await ledger.sessions.get("ada")
    assert (session.cookies["c"].value, session.data) == ("1", {"$a.b": 1})
    tally = await ledger.workers.tally()
    assert (tally.pages, tally.items) == (2, 3)
    seeds = {"fingerprint": "0" * 32, "hosts": ["example.com"]}
    assert await ledger.notes.state() == {"seeds": seeds}


class Books(Spider):
    name = "books"
    start_urls = ("http://example.com/0",)

    def parse(self, response):
        yield {"url": response.url}


async def test_a_crawl_that_commit_dc8714b_has_begun_is_all_there_and_goes_on(open_later: Open):
    ledger = await open_later("books", LedgerKind.SPIDER)
    try:
        await check_all(ledger, open_tasks=1)
        urls = [f"http://example.com/{n}" for n in range(6)]
        web = ReplayDownloader(dict.fromkeys((*urls, "http://a.example/"), "<p>"))

        report = await assemble(Books(), ledger, web, Books.settings).run()

        assert report.pages == 5
        assert report.counts.by_status == {Status.FINISHED: 7, Status.IGNORED: 1}
        assert await ledger.queries.horizon() is None
    finally:
        await ledger.close()


async def test_a_use_case_that_commit_dc8714b_has_begun_is_all_there(open_later: Open):
    ledger = await open_later("orders", LedgerKind.USE_CASE)
    try:
        await check_all(ledger, open_tasks=2)
        found = await ledger.tasks.get(make_task("http://a.example/blob").id)
        assert isinstance(found.task.context, BlobRef)
        assert await ledger.blobs.read(found.task.context) == {"a.b": [1, b"\0"]}
        assert await ledger.notes.policy() == {"max_retry": 2}
    finally:
        await ledger.close()
