"""Finding and counting the tasks that somebody has chosen, by the way that reads fewest of them.

By an index of what is given, where it has few tasks of that. Else in the order of the answer, for
as long as that may fill it soon; and else as they lie in the file, all of them, which takes an
eighth of what it takes to look each up that an index names.
"""

import heapq
import sqlite3
from itertools import islice
from typing import Any

from crawlcw.ledger.prefixes import hosts_within, simplified
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.ledger.searching import Wanted
from crawlcw.ledger.sqlite.chosen_statements import ChosenStatements
from crawlcw.ledger.sqlite.connection import number_of, snapshot
from crawlcw.ledger.sqlite.looking import looked, looking, place_of
from crawlcw.ledger.sqlite.narrow_statements import NarrowStatements, narrowings
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.ledger.sqlite.walks import Row, bounds_of

#: So many tasks that an index has are read, and sorted, for some of them.
FEW = 50_000
#: So many are looked at in the order of the answer, or so many for each that is wanted.
LOOK_AT = 10_000
LOOK_AT_FOR_EACH = 50
#: Who wants more at once has them looked for in their order alone.
LARGEST_PAGE = 1_000


class ChosenTasks:
    """The tasks of one choice; its methods are called on the thread of a connection."""

    def __init__(self, store: SqliteStore, chosen: TaskFilter) -> None:
        self._tables = store.tables
        self._chosen = simplified(chosen, store.kind)
        hosts = hosts_within(self._chosen, store.kind)
        self._narrowings = narrowings(self._tables, self._chosen, hosts)
        self._sql = ChosenStatements(self._tables, chosen.statuses)
        self._bounds: dict[str, Any] = {**bounds_of(self._chosen), "few": FEW + 1}
        if hosts is not None:
            self._bounds |= {"host_first": hosts.first, "host_end": hosts.end}

    def find(
        self, db: sqlite3.Connection, *, limit: int, after: Cursor | None
    ) -> list[sqlite3.Row]:
        """Return the next rows behind a place, the last changed first."""
        bounds = {**self._bounds, **bounds_of(self._chosen, after), "limit": max(limit, 0)}
        if self._chosen.ids is not None:
            return heapq.nlargest(bounds["limit"], self._by_id(db, bounds), key=place_of)
        if not self._chosen.statuses:
            return []
        # Of one moment, so that what changes its status meanwhile is not overlooked.
        with snapshot(db):
            narrow = self._narrow(db)
            if narrow is not None:
                return db.execute(narrow.find, bounds).fetchall()
            if not self._is_narrowed or limit > LARGEST_PAGE:
                return self._in_order(db, bounds)
            near = self._near(db, bounds)
            if near is not None:
                return near
            return db.execute(self._among_all.find, bounds).fetchall()

    def count(self, db: sqlite3.Connection) -> int:
        """Return how many there are."""
        if self._chosen.ids is not None:
            return self._number_by_id(db, self._sql.count_by_id)
        if not self._chosen.statuses:
            return 0
        with snapshot(db):
            narrow = self._told_by_index() or self._counted_by(db)
            if narrow is not None:
                return number_of(db, narrow.count, self._bounds)
            rows = [{**self._bounds, "status": status} for status in set(self._chosen.statuses)]
            return sum(number_of(db, self._sql.count, row) for row in rows)

    def count_failed(self, db: sqlite3.Connection) -> int:
        """Return how many of them `retry_failed` brings back."""
        if self._chosen.ids is not None:
            return self._number_by_id(db, self._sql.count_failed_by_id)
        if not self._chosen.statuses:
            return 0
        with snapshot(db):
            narrow = self._counted_by(db)
            statement = self._sql.count_failed if narrow is None else narrow.count_failed
            return number_of(db, statement, self._bounds)

    @property
    def _is_narrowed(self) -> bool:
        """Whether anything is given that the index of statuses does not know."""
        return bool(self._narrowings or self._chosen.url_prefix or self._chosen.due_by)

    @property
    def _is_whole(self) -> bool:
        bounds = (self._chosen.since, self._chosen.until, self._chosen.due_by)
        return all(bound is None for bound in bounds)

    @property
    def _among_all(self) -> NarrowStatements:
        return NarrowStatements(self._tables, self._chosen, None, whole=False)

    def _told_by_index(self) -> NarrowStatements | None:
        """Return the statements of an index that has all that is given, if there is one."""
        # A bound of times would have every task read for its own.
        if len(self._narrowings) != 1 or self._chosen.url_prefix or not self._is_whole:
            return None
        return NarrowStatements(self._tables, self._chosen, self._narrowings[0], whole=True)

    def _narrow(self, db: sqlite3.Connection) -> NarrowStatements | None:
        """Return the statements of the first index that has few tasks of what is given."""
        for narrowing in self._narrowings:
            narrow = NarrowStatements(self._tables, self._chosen, narrowing, whole=False)
            if number_of(db, narrow.few, self._bounds) <= FEW:
                return narrow
        return None

    def _counted_by(self, db: sqlite3.Connection) -> NarrowStatements | None:
        """Return the statements of an index, or of all as they lie; None: those by the statuses."""
        narrow = self._narrow(db)
        if narrow is None and self._is_narrowed and not self._has_few_statuses(db):
            return self._among_all
        return narrow

    def _has_few_statuses(self, db: sqlite3.Connection) -> bool:
        rows = [{**self._bounds, "status": status} for status in set(self._chosen.statuses)]
        return sum(number_of(db, self._sql.few, row) for row in rows) <= FEW

    def _in_order(self, db: sqlite3.Connection, bounds: Row) -> list[sqlite3.Row]:
        """Merge the statuses, each read only as far as its tasks are taken."""
        streams = [
            db.execute(self._sql.find, {**bounds, "status": status})
            for status in sorted(set(self._chosen.statuses))
        ]
        return list(islice(heapq.merge(*streams, key=place_of, reverse=True), bounds["limit"]))

    def _near(self, db: sqlite3.Connection, bounds: Row) -> list[sqlite3.Row] | None:
        """Return the answer if the first tasks in its order fill it, or are all there are."""
        limit = bounds["limit"]
        look = looking(self._tables, Wanted(chosen=self._chosen))
        look_at = max(LOOK_AT, LOOK_AT_FOR_EACH * limit)
        ids, last = looked(db, look, self._chosen.statuses, bounds, limit=limit, look_at=look_at)
        if len(ids) < limit and last is not None:
            return None
        found = (db.execute(self._sql.find_by_id, {**bounds, "id": each}) for each in ids)
        return [row for rows in found for row in rows]

    def _by_id(self, db: sqlite3.Connection, bounds: Row) -> list[sqlite3.Row]:
        return [
            row
            for identity in set(self._chosen.ids or ())
            for row in db.execute(self._sql.find_by_id, {**bounds, "id": identity})
        ]

    def _number_by_id(self, db: sqlite3.Connection, statement: str) -> int:
        with snapshot(db):
            rows = [{**self._bounds, "id": identity} for identity in set(self._chosen.ids or ())]
            return sum(number_of(db, statement, row) for row in rows)
