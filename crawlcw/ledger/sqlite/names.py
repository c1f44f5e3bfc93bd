"""Which spiders and use cases a file holds tasks of."""

# ruff: noqa: S608  # the tables' names are quoted

import sqlite3
from pathlib import Path

from crawlcw.ledger.sqlite.connection import Connection
from crawlcw.ledger.sqlite.marker import names_in
from crawlcw.ledger.sqlite.schema import MARKER, quoted


async def recorded_names(path: Path) -> list[str]:
    """Return the names in order; raises `LedgerConfigurationError` for a file that is none."""
    connection = Connection(path)
    try:
        return await connection.run(_recorded)
    finally:
        await connection.close()


def _recorded(db: sqlite3.Connection) -> list[str]:
    there = names_in(db)
    if MARKER not in there:
        return []
    names = [row["spider"] for row in db.execute(f"SELECT spider FROM {quoted(MARKER)}")]
    return sorted(name for name in names if name in there and _has_tasks(db, name))


def _has_tasks(db: sqlite3.Connection, name: str) -> bool:
    return db.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 1").fetchone() is not None
