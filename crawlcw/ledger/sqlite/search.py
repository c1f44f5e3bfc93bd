"""Looking for tasks among so many of those last changed, see `searching`."""

import sqlite3
from collections.abc import Collection

from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Cursor
from crawlcw.ledger.searching import Found, Wanted
from crawlcw.ledger.sqlite.chosen_statements import ChosenStatements
from crawlcw.ledger.sqlite.connection import snapshot
from crawlcw.ledger.sqlite.looking import looked, looking
from crawlcw.ledger.sqlite.rows import document_of, moment
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.ledger.sqlite.walks import Row, bounds_of
from crawlcw.model.task import Status


class Search:
    """Walks through the index of each status, and says of each task whether it is wanted."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def find(
        self, wanted: Wanted, *, limit: int, look_at: int, after: Cursor | None = None
    ) -> Found:
        """See `searching.Search.find`."""
        sql = ChosenStatements(self._store.tables, wanted.chosen.statuses)
        look = looking(self._store.tables, wanted)
        bounds = {**bounds_of(wanted.chosen, after), "containing": wanted.containing}
        rows, place = await self._store.reader.run(
            self._find,
            look,
            sql.find_by_id,
            wanted.chosen.statuses,
            bounds,
            limit,
            look_at,
        )
        return Found(records=tuple(documents.record(document_of(row)) for row in rows), after=place)

    def _find(
        self,
        db: sqlite3.Connection,
        look: str,
        find_by_id: str,
        statuses: Collection[Status],
        bounds: Row,
        limit: int,
        look_at: int,
    ) -> tuple[list[sqlite3.Row], Cursor | None]:
        # All of one moment.
        with snapshot(db):
            ids, last = looked(db, look, statuses, bounds, limit=limit, look_at=look_at)
            found = [
                row
                for identity in ids
                for row in db.execute(find_by_id, {**bounds, "id": identity})
            ]
        if last is None:
            return found, None
        return found, Cursor(update_time=moment(last["update_time"]), id=last["id"])
