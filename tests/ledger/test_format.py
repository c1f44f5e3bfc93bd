"""A ledger of another format is refused in one sentence; `--fresh` and `drop` delete it."""

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pymongo
import pytest

from crawlcw.errors import LedgerFormatError
from crawlcw.ledger.kind import FORMAT
from crawlcw.ledger_opening import open_for_inspection, open_ledger
from tests.cli.test_cli import crawlcw
from tests.support.commands import invoke
from tests.support.ledgers import make_task

SPIDER = """\
from crawlcw import Spider

class Books(Spider):
    name = "books"
    async def start(self):
        return
        yield

    def parse(self, response):
        return None
"""


def set_format(url: str, number: int) -> None:
    """Change the noted format of all names at *url*."""
    if url.startswith("mongodb"):
        with pymongo.MongoClient(url) as client:
            markers = client.get_default_database()["crawlcw.schema"]
            markers.update_many({}, {"$set": {"version": number}})
    elif url.startswith("postgres"):
        with psycopg.connect(url) as db:
            db.execute("UPDATE crawlcw.ledgers SET version = %s", (number,))
    else:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
            db.execute('UPDATE "crawlcw.schema" SET version = ?', (number,))


async def make_ledger(url: str, *, number: int) -> None:
    ledger = await open_ledger(url, "books")
    await ledger.tasks.add([make_task()])
    await ledger.close()
    set_format(url, number)


async def test_no_way_of_opening_takes_another_format(ledger_url: str):
    await make_ledger(ledger_url, number=FORMAT + 98)

    to_read = partial(open_ledger, create=False, kind=None)
    for opening in (open_ledger, to_read, open_for_inspection):
        with pytest.raises(
            LedgerFormatError,
            match=rf"\(format {FORMAT + 98}, this one reads {FORMAT}\): `crawlcw drop books`",
        ):
            await opening(ledger_url, "books")


async def test_fresh_deletes_a_ledger_of_another_format_and_crawls(ledger_url: str, tmp_path: Path):
    (tmp_path / "books.py").write_text(SPIDER)
    await make_ledger(ledger_url, number=8)
    run = ("run", str(tmp_path / "books.py"), "--ledger", ledger_url)

    refused = crawlcw(*run)
    fresh = crawlcw(*run, "--fresh", "--yes")

    assert (refused.returncode, refused.stdout) == (78, "")
    assert "another version of crawlcw wrote the data of books" in refused.stderr
    assert "`crawlcw drop books`" in refused.stderr
    assert fresh.returncode == 3, fresh.stderr
    assert "the ledger has no page of books yet" in fresh.stdout


async def test_drop_deletes_a_ledger_of_another_format(ledger_url: str):
    await make_ledger(ledger_url, number=8)

    dropped = invoke("drop", "books", "--yes", "--json", "--ledger", ledger_url)

    assert json.loads(dropped.stdout) == {"name": "books", "tasks": None}
    ledger = await open_ledger(ledger_url, "books")
    assert (await ledger.queries.counts()).total == 0
    await ledger.close()


@pytest.mark.thorough
async def test_tables_on_postgres_without_a_note_of_their_format_are_refused(postgres_url: str):
    """So the first version left them: its notes were in a table of another name."""
    await make_ledger(postgres_url, number=1)
    with psycopg.connect(postgres_url) as db:
        db.execute("ALTER TABLE crawlcw.ledgers RENAME TO names")

    with pytest.raises(LedgerFormatError, match="format unknown"):
        await open_ledger(postgres_url, "books")
    assert invoke("drop", "books", "--yes", "--ledger", postgres_url).returncode == 0
