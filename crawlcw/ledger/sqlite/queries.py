"""Questions on all the tasks: which there are, how many, what they gave, when the next is due."""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from crawlcw.ledger import documents
from crawlcw.ledger.protocol import (
    Counts,
    Cursor,
    Dimension,
    Groups,
    ItemCount,
    ItemRow,
    TaskFilter,
)
from crawlcw.ledger.sqlite.chosen import ChosenTasks
from crawlcw.ledger.sqlite.chosen_statements import ChosenStatements
from crawlcw.ledger.sqlite.connection import number_of, snapshot
from crawlcw.ledger.sqlite.priorities import priorities
from crawlcw.ledger.sqlite.rows import INT64, document_of, from_json, moment
from crawlcw.ledger.sqlite.store import COUNTED, ITEM_CHARACTERS, ITEM_ROWS, SqliteStore
from crawlcw.ledger.sqlite.walks import Row, bounds_of
from crawlcw.model.task import Record, Status

#: Later than any: the index begins with those last changed.
_FIRST_TIME = INT64 - 1


class _Cursor(NamedTuple):
    """Where a walk through the index of statuses has come to."""

    status: Status
    time: int
    id: bytes


class Queries:
    """Finds and counts tasks and items, and looks for the earliest."""

    def __init__(self, store: SqliteStore, groups: Groups) -> None:
        self._store = store
        self._groups = groups

    async def horizon(self) -> datetime | None:
        """See `protocol.Queries.horizon`."""
        return await self._store.reader.run(self._horizon)

    def _horizon(self, db: sqlite3.Connection) -> datetime | None:
        # One look a priority: the earliest due of each is the first in the index.
        # All of one moment: links may be added above a priority already seen
        # while their page, below it, is finished, and nothing would be found.
        with snapshot(db):
            firsts = [
                number_of(db, self._store.sql.first_due, {"priority": priority})
                for priority in priorities(db, self._store.sql)
            ]
        return moment(min(firsts)) if firsts else None

    async def has(self, statuses: Collection[Status]) -> bool:
        """See `protocol.Queries.has`."""
        return await self._store.reader.run(self._has, statuses)

    def _has(self, db: sqlite3.Connection, statuses: Collection[Status]) -> bool:
        found = (
            db.execute(self._store.sql.any_of_status, (status,)).fetchone() for status in statuses
        )
        return any(row is not None for row in found)

    async def counts(self) -> Counts:
        """See `protocol.Queries.counts`."""
        counts: Counter[Status] = Counter()
        async for status, row in self._numbers(
            tuple(Status), self._store.sql.count, at_once=COUNTED
        ):
            counts[status] += row["n"]
        redirects = await self._store.reader.run(number_of, self._store.sql.count_redirects, {})
        return Counts(by_status=dict(+counts), redirects=redirects)

    async def reasons(self) -> dict[str, int]:
        """See `protocol.Queries.reasons`."""
        groups = await self._groups.by(Dimension.REASON)
        return {str(group.value): group.total for group in groups}

    async def find(
        self, chosen: TaskFilter, *, limit: int, after: Cursor | None = None
    ) -> list[Record]:
        """See `protocol.Queries.find`."""
        tasks = ChosenTasks(self._store, chosen)
        rows = await self._store.reader.run(tasks.find, limit=limit, after=after)
        return [documents.record(document_of(row)) for row in rows]

    async def count(self, chosen: TaskFilter) -> int:
        """See `protocol.Queries.count`."""
        tasks = ChosenTasks(self._store, chosen.counted_at(self._store.now()))
        return await self._store.reader.run(tasks.count)

    async def items(self, chosen: TaskFilter | None = None) -> AsyncIterator[ItemRow]:
        """See `protocol.Queries.items`."""
        if chosen is not None:
            async for item in self._chosen_items(chosen):
                yield item
            return
        last = b""
        # Each page is a read of its own: one that stayed open would keep the
        # WAL from being folded into the file.
        while rows := await self._store.reader.run(self._some_items, last):
            for row in rows:
                yield _item(row)
            last = rows[-1]["task_id"]

    async def _chosen_items(self, chosen: TaskFilter) -> AsyncIterator[ItemRow]:
        sql = ChosenStatements(self._store.tables, chosen.statuses)
        for status in sorted(set(chosen.statuses)):
            place: Row | None = {**bounds_of(chosen), "status": status, "limit": ITEM_ROWS}
            while place is not None:
                rows, place = await self._store.reader.run(self._some_chosen_items, sql.walk, place)
                for row in rows:
                    yield _item(row)

    def _some_chosen_items(
        self, db: sqlite3.Connection, walk: str, place: Row
    ) -> tuple[list[sqlite3.Row], Row | None]:
        """Return the items of the next tasks, and where to go on, unless that was all."""
        rows: list[sqlite3.Row] = []
        characters = 0
        after: Row | None = None
        with snapshot(db):
            for task in db.execute(walk, place):
                found = db.execute(self._store.sql.items_of_task, (task["id"],)).fetchall()
                rows += found
                characters += sum(len(row["item"]) for row in found)
                after = {**place, "before": task["update_time"], "before_id": task["id"]}
                if len(rows) >= ITEM_ROWS or characters >= ITEM_CHARACTERS:
                    break
        return rows, after

    def _some_items(self, db: sqlite3.Connection, after: bytes) -> list[sqlite3.Row]:
        return self._some(db, self._store.sql.items, after)

    def _some(self, db: sqlite3.Connection, statement: str, after: bytes) -> list[sqlite3.Row]:
        """Return the items of the next tasks, of each of them all: they are of one commit."""
        rows: list[sqlite3.Row] = []
        characters = 0
        for row in db.execute(statement, (after,)):
            enough = len(rows) >= ITEM_ROWS or characters >= ITEM_CHARACTERS
            if enough and row["task_id"] != rows[-1]["task_id"]:
                break
            rows.append(row)
            characters += len(row["item"])
        return rows

    async def versions(self) -> AsyncIterator[ItemRow]:
        """See `protocol.Queries.versions`."""
        last = b""
        while rows := await self._store.reader.run(self._some, self._store.sql.versions, last):
            for row in rows:
                yield _item(row)
            last = rows[-1]["task_id"]

    async def item_count(self) -> int:
        """See `protocol.Queries.item_count`."""
        return await self._store.reader.run(number_of, self._store.sql.count_items, {})

    async def items_among(self, *, look_at: int) -> ItemCount:  # noqa: ARG002  # all are counted
        """See `protocol.Queries.items_among`."""
        return ItemCount(number=await self.item_count(), whole=True)

    async def _numbers(
        self, statuses: Collection[Status], statement: str, *, at_once: int
    ) -> AsyncIterator[tuple[Status, sqlite3.Row]]:
        """Yield what a statement finds in each status, in *at_once* tasks by one call."""
        place: _Cursor | None = _Cursor(min(statuses), _FIRST_TIME, b"")
        while place is not None:
            rest = sorted(status for status in statuses if status >= place.status)
            rows, place = await self._store.reader.run(
                self._some_numbers, statement, rest, place, at_once
            )
            for row in rows:
                yield row

    def _some_numbers(
        self,
        db: sqlite3.Connection,
        statement: str,
        statuses: Sequence[Status],
        place: _Cursor,
        room: int,
    ) -> tuple[list[tuple[Status, sqlite3.Row]], _Cursor | None]:
        """Count what comes behind a place; return where that ends, where there may be more."""
        rows: list[tuple[Status, sqlite3.Row]] = []
        # All of one moment: few tasks are counted as they are together.
        with snapshot(db):
            for status in statuses:
                if status != place.status:
                    place = _Cursor(status, _FIRST_TIME, b"")
                values = {"status": status, "time": place.time, "id": place.id, "limit": room}
                found = db.execute(statement, values).fetchall()
                rows += [(status, row) for row in found]
                number = sum(row["n"] for row in found)
                if number == room:
                    nth = {**values, "limit": 1, "skipped": room - 1}
                    last = db.execute(self._store.sql.nth_of_status, nth).fetchone()
                    return rows, _Cursor(status, last["update_time"], last["id"])
                room -= number
        return rows, None


def _item(row: sqlite3.Row) -> ItemRow:
    return ItemRow(
        item=documents.unescaped(from_json(row["item"])),
        url=row["url"],
        fetched_at=moment(row["fetched_at"]),
    )
