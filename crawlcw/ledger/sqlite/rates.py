"""What workers have shown of themselves: a row for each worker and minute."""

import sqlite3
from datetime import datetime, timedelta

from crawlcw.ledger.rate_documents import kept_for, outdated, point, point_document
from crawlcw.ledger.sqlite.connection import transaction
from crawlcw.ledger.sqlite.rows import document_of, milliseconds, row_of
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.rates import EVERY, Point, Span, first_read, minute_of, spans


class Rates:
    """Keeps the points in the order of how long they are kept, and of time."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def record(self, point: Point) -> None:
        """See `protocol.Rates.record`."""
        await self._store.writer.run(self._record, point)

    def _record(self, db: sqlite3.Connection, point: Point) -> None:
        old = outdated(point.time)
        # Not synced: a power cut may cost the last points, and the next ones make up for it.
        with transaction(db):
            db.execute(self._store.sql.add_point, row_of(point_document(point)))
            for days, until in old.items():
                places = {"kept": days, "until": milliseconds(until)}
                db.execute(self._store.sql.drop_points, places)

    async def between(
        self, since: datetime, until: datetime, *, step: timedelta = EVERY
    ) -> list[Span]:
        """See `protocol.Rates.between`."""
        first = milliseconds(minute_of(first_read(since)))
        last = milliseconds(until)
        found = await self._store.reader.run(self._between, first, last, kept_for(step))
        return spans(found, since=since, until=until)

    def _between(
        self, db: sqlite3.Connection, first: int, last: int, kept: list[int]
    ) -> list[Point]:
        return [
            point(document_of(row))
            for days in kept
            for row in db.execute(
                self._store.sql.points, {"kept": days, "first": first, "last": last}
            )
        ]
