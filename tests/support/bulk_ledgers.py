"""Large ledgers, written straight into their stores."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pymongo

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.sql.rows import row_of
from crawlcw.ledger.sql.schema import COLUMNS
from crawlcw.model.task import Status, task_id
from crawlcw.model.urls import locate
from tests.support.ledgers import START, make_task

HOSTS = 1_000
_AT_ONCE = 10_000
_COLUMNS = ", ".join(COLUMNS)
_OF_EIGHT = {0: Status.TODO, 1: Status.FAILED, 2: Status.IGNORED}


def host_of(n: int) -> str:
    return f"h{n % HOSTS}.com"


def task_documents(
    number: int, *, callbacks: Sequence[str], reasons: Sequence[Reason]
) -> Iterator[documents.Document]:
    """Yield tasks of all hosts as MongoDB documents: five of eight are finished, with an item."""
    template = documents.document(make_task())
    for n in range(number):
        # HOSTS is a multiple of eight; the shift gives each host tasks of each status.
        status = _OF_EIGHT.get((n + n // HOSTS) % 8, Status.FINISHED)
        changed = START + timedelta(milliseconds=n)
        host = host_of(n)
        url = f"https://{host}/catalogue/a-book-of-some-length_{n}.html"
        document = template | {
            "_id": task_id(locate(url)),
            "url": url,
            "host": host,
            "callback": callbacks[n // 7 % len(callbacks)],
            "depth": n % 7,
            "status": int(status),
            "update_time": changed,
            "due": changed,
        }
        if status in (Status.FAILED, Status.IGNORED):
            document["reason"] = str(reasons[n % len(reasons)])
            document["retry"] = 1
        if status is not Status.TODO:
            document |= {"fence": 1, "settled": 1, "quarantine_fence": 1}
        if status >= Status.FINISHED:
            del document["due"]
        if status is Status.FINISHED:
            document["response"] = {"status": 404 if n % 50 == 3 else 200, "final_url": "x"}
            document["items"] = [{"n": n}]
            document["items_from"] = {"time": changed, "fence": 1}
        yield document


def fill_sqlite(path: Path, name: str, tasks: Iterator[documents.Document]) -> None:
    """Write the tasks into the tables of a ledger, and an item of each that is finished."""
    values = ", ".join(f":{column}" for column in COLUMNS)
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(f'INSERT INTO "{name}" ({_COLUMNS}) VALUES ({values})', _rows(tasks))
        db.execute(
            f"INSERT INTO \"{name}.items\" SELECT id, 0, '{{}}', url, update_time "
            f'FROM "{name}" WHERE status = {Status.FINISHED:d}'
        )
    db.close()


def _rows(tasks: Iterator[documents.Document]) -> Iterator[dict[str, Any]]:
    """Yield the rows of tasks; items have a table of their own."""
    empty = dict.fromkeys(COLUMNS)
    for each in tasks:
        yield {**empty, **row_of({field: each[field] for field in each if field != "items"})}


def fill_postgres(url: str, name: str, tasks: Iterator[documents.Document]) -> None:
    """Do the same on PostgreSQL, and vacuum the tables."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f'SET search_path = "crawlcw.{name}"'.encode())
        with db.cursor().copy(f"COPY tasks ({_COLUMNS}) FROM STDIN".encode()) as copy:
            for row in _rows(tasks):
                copy.write_row([*row.values()])
        db.execute(
            "INSERT INTO items SELECT id, 0, '{}', url, update_time "
            f"FROM tasks WHERE status = {Status.FINISHED:d}".encode()
        )
        db.execute("VACUUM ANALYZE tasks, items, hosts")


def fill_mongodb(uri: str, database: str, name: str, tasks: Iterator[documents.Document]) -> None:
    """Write the tasks into the collection of a ledger."""
    with pymongo.MongoClient(uri) as client:
        while some := list(islice(tasks, _AT_ONCE)):
            client[database][name].insert_many(some, ordered=False)
