"""Which priorities waiting tasks have; each is one stretch of an index."""

import math
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from crawlcw.ledger.sqlite.statements import Statements


def priorities(db: sqlite3.Connection, sql: Statements) -> Iterator[int]:
    """Yield the priorities that there are, highest first."""
    return descending(db, sql.next_priority, {})


def priorities_of_host(db: sqlite3.Connection, sql: Statements, host: str) -> list[int]:
    """Return the priorities that a host's tasks have, highest first."""
    return list(descending(db, sql.next_priority_of_host, {"host": host}))


def descending(db: sqlite3.Connection, statement: str, bounds: Mapping[str, Any]) -> Iterator[int]:
    """Yield the priorities there are, highest first, by a seek for each."""
    above = math.inf
    while row := db.execute(statement, {**bounds, "above": above}).fetchone():
        above = row["priority"]
        yield above
