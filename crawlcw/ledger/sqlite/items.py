"""The items of tasks, which have a table of their own."""

import sqlite3
from collections.abc import AsyncIterator, Mapping
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.protocol import ItemRow
from crawlcw.ledger.sqlite.connection import number_of, snapshot
from crawlcw.ledger.sqlite.rows import from_json, moment
from crawlcw.ledger.sqlite.store import COUNTED, ITEM_CHARACTERS, ITEM_ROWS, SqliteStore


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
        total = 0
        place: Mapping[str, Any] | None = {"task_id": b"", "n": -1}
        while place is not None:
            number, place = await self._reader.run(self._count_items, place)
            total += number
        return total

    def _count_items(
        self, db: sqlite3.Connection, place: Mapping[str, Any]
    ) -> tuple[int, Mapping[str, Any] | None]:
        """Count the next items; return where the last of them is, where there may be more."""
        with snapshot(db):
            number = number_of(db, self._sql.count_items, {**place, "limit": COUNTED})
            if number < COUNTED:
                return number, None
            last = {**place, "limit": 1, "skipped": COUNTED - 1}
            return number, dict(db.execute(self._sql.nth_item, last).fetchone())
