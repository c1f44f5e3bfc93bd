"""Questions on all the tasks of a spider: how many there are, and when the next one is due."""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from crawlcw.ledger.protocol import Counts
from crawlcw.ledger.sqlite.connection import number_of, snapshot
from crawlcw.ledger.sqlite.priorities import Priorities
from crawlcw.ledger.sqlite.rows import INT64, moment
from crawlcw.ledger.sqlite.store import COUNTED, READ
from crawlcw.model.task import Status

#: Later than any: the index begins with those last changed.
_FIRST_TIME = INT64 - 1


class _Cursor(NamedTuple):
    """Where a walk through the index of statuses has come to."""

    status: Status
    time: int
    id: bytes


class Questions(Priorities):
    """Counts tasks, and looks for the earliest."""

    async def horizon(self) -> datetime | None:
        """See `Ledger.horizon`."""
        return await self._reader.run(self._horizon)

    def _horizon(self, db: sqlite3.Connection) -> datetime | None:
        # One look a priority: the earliest due of each is the first in the index.
        # All of one moment: links may be added above a priority already seen
        # while their page, below it, is finished, and nothing would be found.
        with snapshot(db):
            firsts = [
                number_of(db, self._sql.first_due, {"priority": priority})
                for priority in self._priorities(db)
            ]
        return moment(min(firsts)) if firsts else None

    async def has(self, statuses: Collection[Status]) -> bool:
        """See `Ledger.has`."""
        return await self._reader.run(self._has, statuses)

    def _has(self, db: sqlite3.Connection, statuses: Collection[Status]) -> bool:
        found = (db.execute(self._sql.any_of_status, (status,)).fetchone() for status in statuses)
        return any(row is not None for row in found)

    async def counts(self) -> Counts:
        """See `Ledger.counts`."""
        counts: Counter[Status] = Counter()
        async for status, row in self._numbers(tuple(Status), self._sql.count, at_once=COUNTED):
            counts[status] += row["n"]
        return Counts(by_status=dict(+counts))

    async def reasons(self) -> dict[str, int]:
        """See `Ledger.reasons`."""
        reasons: Counter[str] = Counter()
        among = [Status.FAILED, Status.IGNORED]
        async for _, row in self._numbers(among, self._sql.count_reasons, at_once=READ):
            if row["reason"] is not None:
                reasons[row["reason"]] += row["n"]
        return dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0])))

    async def _numbers(
        self, statuses: Collection[Status], statement: str, *, at_once: int
    ) -> AsyncIterator[tuple[Status, sqlite3.Row]]:
        """Yield what a statement finds in each status, in *at_once* tasks by one call."""
        place: _Cursor | None = _Cursor(min(statuses), _FIRST_TIME, b"")
        while place is not None:
            rest = sorted(status for status in statuses if status >= place.status)
            rows, place = await self._reader.run(
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
                    last = db.execute(self._sql.nth_of_status, nth).fetchone()
                    return rows, _Cursor(status, last["update_time"], last["id"])
                room -= number
        return rows, None
