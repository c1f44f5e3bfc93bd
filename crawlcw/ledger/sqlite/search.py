"""Looking for tasks among so many of those last changed, see `searching`."""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

import heapq
import sqlite3
from itertools import islice
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Cursor
from crawlcw.ledger.searching import Found, Wanted
from crawlcw.ledger.sqlite.chosen_statements import NARROWING, STRETCH, ChosenStatements
from crawlcw.ledger.sqlite.connection import snapshot
from crawlcw.ledger.sqlite.rows import document_of, moment
from crawlcw.ledger.sqlite.schema import Tables
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
            sorted(set(wanted.chosen.statuses)),
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
        statuses: list[Status],
        bounds: Row,
        limit: int,
        look_at: int,
    ) -> tuple[list[sqlite3.Row], Cursor | None]:
        found: list[sqlite3.Row] = []
        last: sqlite3.Row | None = None
        looked = 0
        # All of one moment, and each status is read only as far as it is looked at.
        with snapshot(db):
            streams = [db.execute(look, {**bounds, "status": status}) for status in statuses]
            merged = heapq.merge(*streams, key=_place, reverse=True)
            for last in islice(merged, look_at):
                looked += 1
                if last["wanted"]:
                    values: dict[str, Any] = {**bounds, "id": last["id"]}
                    found += db.execute(find_by_id, values).fetchall()
                    if len(found) == limit:
                        break
        if last is None or (looked < look_at and len(found) < limit):
            return found, None
        return found, Cursor(update_time=moment(last["update_time"]), id=last["id"])


def looking(tables: Tables, wanted: Wanted) -> str:
    """Return the statement that looks at the tasks of one status, the last changed first."""
    conditions = [NARROWING]
    if wanted.containing:
        conditions.append("instr(url, :containing) > 0")
    if wanted.reasons is not None:
        listed = ", ".join(f"'{reason}'" for reason in sorted(wanted.reasons))
        conditions.append(f"ifnull(reason IN ({listed}), 0)")
    return (
        f"SELECT update_time, id, {' AND '.join(conditions)} AS wanted "
        f"FROM {tables.tasks} INDEXED BY {tables.changed} WHERE status = :status "
        f"AND {STRETCH} ORDER BY update_time DESC, id DESC"
    )


def _place(row: sqlite3.Row) -> tuple[int, bytes]:
    return row["update_time"], row["id"]
