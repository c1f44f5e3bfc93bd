"""Which priorities waiting tasks have; each is one stretch of an index."""

import math
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from crawlcw.ledger.sqlite.store import SqliteStore


class Priorities(SqliteStore):
    """Seeks from each priority to the next one."""

    def _priorities(self, db: sqlite3.Connection) -> Iterator[int]:
        return descending(db, self._sql.next_priority, {})

    def _priorities_of_host(self, db: sqlite3.Connection, host: str) -> list[int]:
        return list(descending(db, self._sql.next_priority_of_host, {"host": host}))


def descending(db: sqlite3.Connection, statement: str, bounds: Mapping[str, Any]) -> Iterator[int]:
    """Yield the priorities there are, highest first, by a seek for each."""
    above = math.inf
    while row := db.execute(statement, {**bounds, "above": above}).fetchone():
        above = row["priority"]
        yield above
