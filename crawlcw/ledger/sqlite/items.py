"""The items of tasks, which have a table of their own."""

import sqlite3
from collections.abc import AsyncIterator

from crawlcw.ledger import documents
from crawlcw.ledger.protocol import ItemRow
from crawlcw.ledger.sqlite.connection import number_of
from crawlcw.ledger.sqlite.rows import from_json, moment
from crawlcw.ledger.sqlite.store import ITEM_CHARACTERS, ITEM_ROWS, SqliteStore


class Items(SqliteStore):
    """Reads the items."""

    async def items(self) -> AsyncIterator[ItemRow]:
        """See `Ledger.items`."""
        last = b""
        # Each page is a read of its own: one that stayed open would keep the
        # WAL from being folded into the file.
        while rows := await self._reader.run(self._some_items, last):
            for row in rows:
                yield ItemRow(
                    item=documents.unescaped(from_json(row["item"])),
                    url=row["url"],
                    fetched_at=moment(row["fetched_at"]),
                )
            last = rows[-1]["task_id"]

    def _some_items(self, db: sqlite3.Connection, after: bytes) -> list[sqlite3.Row]:
        """Return the items of the next tasks, of each of them all: they are of one commit."""
        rows: list[sqlite3.Row] = []
        characters = 0
        for row in db.execute(self._sql.items, (after,)):
            enough = len(rows) >= ITEM_ROWS or characters >= ITEM_CHARACTERS
            if enough and row["task_id"] != rows[-1]["task_id"]:
                break
            rows.append(row)
            characters += len(row["item"])
        return rows

    async def item_count(self) -> int:
        """See `Ledger.item_count`."""
        return await self._reader.run(number_of, self._sql.item_count, {})
