"""Notes about the tables of each name: their format, their kind, their policy.

There is one row for each spider or use case in the file. A row has no kind until a process opens
the name as a spider or a use case: a read of a misspelt or unused name decides nothing.
"""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crawlcw.errors import LedgerConfigurationError, UnknownNameError
from crawlcw.ledger.kind import FORMAT, LedgerKind, check_format, check_kind
from crawlcw.ledger.sql import schema
from crawlcw.ledger.sql.database import once
from crawlcw.ledger.sql.schema import quoted
from crawlcw.ledger.sqlite.connection import MISCONFIGURED, Connection, Database, enter_wal_mode

#: The table that notes the kind and version of each name's tables.
MARKER = "crawlcw.schema"
_TABLE = quoted(MARKER)


class Tables(schema.Tables):
    """The tables of one spider or use case; their names contain its name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            table=lambda part: quoted(name if part == "tasks" else f"{name}.{part}"),
            index=lambda part: quoted(f"{name}.{part}"),
            marker=quoted(MARKER),
        )
        #: Names of the tables and indexes.
        self.names = {statement.split('"')[1] for statement in self.create}


def prepare(
    db: Database, tables: Tables, name: str, path: Path, *, kind: LedgerKind | None, create: bool
) -> LedgerKind:
    """Create the tables of *name*; raise if the file is not a ledger.

    *kind* is the expected kind of the tasks; None: any. Return the recorded kind. Without
    *create* it raises `UnknownNameError` for a name without tables.
    """
    if path.exists() and not os.access(path, os.W_OK):
        raise LedgerConfigurationError(
            f"The ledger {path} {MISCONFIGURED[sqlite3.SQLITE_READONLY]}."
        )
    # Check the file before any change, because the WAL mode is written into it.
    recorded_kind = check_marker(db, name, path, kind=kind)
    names = names_in(db)
    if not create and name not in names:
        raise UnknownNameError(name)
    enter_wal_mode(db)
    # SQLite syncs when it copies the WAL into the file; otherwise the connection itself does.
    db.execute("PRAGMA synchronous = NORMAL")
    # A statement on many rows may have to be undone alone, and by default SQLite writes its undo
    # log to a separate file.
    db.execute("PRAGMA temp_store = MEMORY")
    marker = None if create else marker_of(db, name)
    if marker is not None and tables.names <= names:
        # Do not use a transaction: it would wait for processes that write, and a reader needs none.
        return recorded_kind
    with db.transaction(durable=True):
        # The marker ignores case, because for SQLite "Books" and "books" are the same table.
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {_TABLE} "
            "(spider TEXT PRIMARY KEY NOT NULL COLLATE NOCASE, version INTEGER NOT NULL, "
            "tracked INTEGER, policy TEXT, state TEXT, control TEXT)"
        )
        parameters = {"name": name, "version": FORMAT, "tracked": kind and kind.tracked}
        db.execute(
            f"INSERT OR IGNORE INTO {_TABLE} (spider, version) VALUES (:name, :version)", parameters
        )
        db.execute(
            f"UPDATE {_TABLE} SET tracked = :tracked WHERE spider = :name AND tracked IS NULL",
            parameters,
        )
        if name not in names_in(db):
            # The tasks were dropped, so the notes about them are invalid.
            db.execute(
                f"UPDATE {_TABLE} SET state = NULL, control = NULL WHERE spider = :name", parameters
            )
        for statement in tables.create:
            db.execute(statement)
        # Another process may have created the tables meanwhile; if they are not as expected, undo
        # everything.
        return check_marker(db, name, path, kind=kind)


def check_marker(
    db: sqlite3.Connection,
    name: str,
    path: Path,
    *,
    kind: LedgerKind | None,
) -> LedgerKind:
    """Raise an error if the file is another program's, or *name* has a different format or kind.

    Return the kind of the tables.
    """
    names = names_in(db)
    if names and MARKER not in names:
        raise LedgerConfigurationError(
            f"The ledger {path} is an SQLite database of another program: use a file that only "
            "crawlcw uses."
        )
    marker = marker_of(db, name) if names else None
    if marker is None:
        return kind or LedgerKind.SPIDER
    check_format(marker["version"], name)
    if marker["spider"] != name:
        raise LedgerConfigurationError(
            f"The ledger {path} has a spider {marker['spider']}, which SQLite cannot "
            f"distinguish from {name}: rename the spider, or use another file."
        )
    recorded_kind = LedgerKind.of(marker["tracked"])
    if kind is not None and marker["tracked"] is not None:
        check_kind(recorded_kind, kind, name, ledger=f"The ledger {path}", other="another file")
    return recorded_kind


def names_in(db: sqlite3.Connection) -> set[str]:
    """Return the tables and indexes in the file, of all names."""
    return {row["name"] for row in db.execute("SELECT name FROM sqlite_master")}


def marker_of(db: sqlite3.Connection, name: str) -> Mapping[str, Any] | None:
    """Return the notes about the tables of *name*, if there are any."""
    row = db.execute(f"SELECT * FROM {_TABLE} WHERE spider = ?", (name,)).fetchone()
    return None if row is None else dict(row)


def forget(db: Database, name: str) -> None:
    """Delete the notes about the dropped tables of *name*."""
    db.execute(f"DELETE FROM {_TABLE} WHERE spider = ?", (name,))


async def recorded_names(path: Path) -> list[str]:
    """Return the names in order; raises `LedgerConfigurationError` for a file that is no ledger."""
    return await once(Connection(path), _recorded)


def _recorded(db: sqlite3.Connection) -> list[str]:
    if MARKER not in names_in(db):
        return []
    names = [row["spider"] for row in db.execute(f"SELECT spider FROM {_TABLE}")]
    return sorted(name for name in names if has_tasks(db, name))


def has_tasks(db: sqlite3.Connection, name: str) -> bool:
    """Return whether the tables of *name* exist, and contain a task."""
    if name not in names_in(db):
        return False
    return db.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 1").fetchone() is not None
