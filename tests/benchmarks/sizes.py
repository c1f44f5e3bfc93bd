"""Bytes of a task on each store, for planning disks and memory.

    python -m tests.benchmarks.sizes --tasks 100000 --postgres --mongodb mongodb://127.0.0.1:27017/

The tasks are those of a crawl: URLs of 60 characters on 100 hosts, half of them finished with
an answer and one item of 200 bytes, half waiting. `--postgres` starts a server of its own.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pymongo

from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Lease, ResponseInfo, Task
from crawlcw.model.transitions import Succeeded, settle
from tests.support.ledgers import make_task
from tests.support.mongod import with_database
from tests.support.postgres import running

_DATABASE = "crawlcw_sizes"
_AT_ONCE = 1_000
_ITEM = {"title": "A book of some length", "price": 51.77, "text": "x" * 140}


def urls(number: int) -> Iterator[str]:
    for n in range(number):
        yield f"https://host-{n % 100:02}.example/catalogue/a-book-of-some-length_{n:07}.html"


async def fill(ledger: Ledger, number: int) -> None:
    await add(ledger, number)
    for _ in range(number // 2 // _AT_ONCE):
        tasks = await ledger.tasks.page(limit=_AT_ONCE)
        await finish(ledger, await claim(ledger, tasks))


async def add(ledger: Ledger, number: int) -> None:
    now = ledger.now()
    due = {"due": now, "update_time": now, "create_time": now}
    found = (make_task(url, depth=2, **due) for url in urls(number))
    while some := list(islice(found, _AT_ONCE)):
        await ledger.tasks.add(some)


async def claim(ledger: Ledger, tasks: Sequence[Task]) -> Sequence[Lease]:
    hour = timedelta(hours=1)
    claimed = await ledger.leases.claim(tasks, worker="sizes:1", lease=hour, max_lost=5)
    return claimed.leases


async def finish(ledger: Ledger, leases: Sequence[Lease]) -> None:
    await ledger.outcomes.commit(
        [
            settle(
                lease,
                Succeeded(response=_answer(lease.task.url), items=(dict(_ITEM),)),
                now=ledger.now(),
                policy=RetryPolicy(),
                chance=0.5,
            )
            for lease in leases
        ]
    )


def _answer(url: str) -> ResponseInfo:
    return ResponseInfo(
        status=200,
        final_url=url,
        content_type="text/html; charset=utf-8",
        bytes=20_000,
        elapsed=0.1,
        etag='"5f3-5d0c1c1c1c1c1"',
    )


async def sqlite(number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        ledger = await open_ledger(f"sqlite:///{path}", "sizes")
        await fill(ledger, number)
        await ledger.close()
        print(f"sqlite   {path.stat().st_size / number:8.0f} bytes a task in the file")


async def mongodb(number: int, uri: str) -> None:
    with pymongo.MongoClient(uri) as client:
        client.drop_database(_DATABASE)
        ledger = await open_ledger(with_database(uri, _DATABASE), "sizes")
        await fill(ledger, number)
        await ledger.close()
        # The size on disk is known after a checkpoint.
        client.admin.command("fsync")
        found = client[_DATABASE].command("collStats", "sizes")
        client.drop_database(_DATABASE)
    print(
        f"mongodb  {found['size'] / number:8.0f} bytes a task in memory, "
        f"{found['totalIndexSize'] / number:.0f} of indexes, "
        f"{(found['storageSize'] + found['totalIndexSize']) / number:.0f} on the disk"
    )


async def on_postgres(number: int) -> None:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "server") as database:
        url = database(_DATABASE)
        ledger = await open_ledger(url, "sizes")
        await fill(ledger, number)
        await ledger.close()
        with psycopg.connect(url) as db:
            table, indexes = table_sizes(db, "sizes")
            of_items = db.execute("SELECT pg_total_relation_size('\"crawlcw.sizes\".items')")
            (items,) = of_items.fetchone()
        print(
            f"postgres {table / number:8.0f} bytes a task in the table, {indexes / number:.0f} of "
            f"indexes, {items / number:.0f} of items"
        )


def table_sizes(db: "psycopg.Connection[Any]", name: str) -> tuple[int, int]:
    """Return the bytes of the table of tasks, and of its indexes."""
    asked = "SELECT pg_table_size(t), pg_indexes_size(t) FROM (SELECT %s::regclass AS t) AS named"
    table, indexes = db.execute(asked, (f'"crawlcw.{name}".tasks',)).fetchone()
    return table, indexes


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--mongodb", metavar="URI")
    given = parser.parse_args()
    await sqlite(given.tasks)
    if given.postgres:
        await on_postgres(given.tasks)
    if given.mongodb:
        await mongodb(given.tasks, given.mongodb)


if __name__ == "__main__":
    asyncio.run(main())
