"""Ledgers of an earlier version: they open, and their crawls go on to the end.

`written_before/` has one for each store: a crawl of twelve small pages that ended at
`--max-pages 6`, as a file, and as a dump of the database (MongoDB's extended JSON).
"""

import gzip
import shutil
from datetime import timedelta
from pathlib import Path

import pymongo
import pytest
from bson import json_util

from crawlcw.ledger.protocol import Dimension
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Status
from crawlcw.model.transitions import Succeeded, settle
from tests.support.mongod import with_database

BEFORE = Path(__file__).with_name("written_before")
FINISHED, IGNORED, TODO = 6, 2, 10


@pytest.fixture(params=["sqlite", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        path = tmp_path / "ledger.db"
        with gzip.open(BEFORE / "sqlite-4.db.gz") as written, path.open("wb") as file:
            shutil.copyfileobj(written, file)
        return f"sqlite:///{path}"
    uri = request.getfixturevalue("mongodb_uri")
    name = request.getfixturevalue("database_name")
    dump = json_util.loads(gzip.decompress((BEFORE / "mongodb-3.json.gz").read_bytes()))
    with pymongo.MongoClient(uri) as client:
        for collection, content in dump.items():
            for index in content["indexes"]:
                keys, given = index.pop("key").items(), {**index}
                if index["name"] != "_id_":
                    del given["v"]
                    client[name][collection].create_index(list(keys), **given)
            if content["documents"]:
                client[name][collection].insert_many(content["documents"])
    return with_database(uri, name)


async def test_what_was_recorded_is_there_and_what_is_left_can_be_done(url: str):
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
            page, worker="w:2", lease=timedelta(minutes=1), max_lost=RetryPolicy().max_lost
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
