"""The marker table of an SQLite file: the format and the kind of each ledger, and its notes.

The table has one row for each spider or use case in the file. A row has no kind until a process
opens the ledger for a spider or for a use case. A process that only reads the ledger sets no kind.
"""

# ruff: noqa: S608  # no SQL injection: names of tables are quoted, values are parameters

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

#: Name of the table that records the kind and format version of each ledger in the file.
MARKER = "crawlcw.schema"
_TABLE = quoted(MARKER)


class Tables(schema.Tables):
    """The tables of one spider or use case; each table's name contains the ledger's name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            table=lambda part: quoted(name if part == "tasks" else f"{name}.{part}"),
            index=lambda part: quoted(f"{name}.{part}"),
            marker=quoted(MARKER),
        )
        #: Names of all tables and indexes of the ledger.
        self.names = {statement.split('"')[1] for statement in self.create}


def prepare(
    db: Database, tables: Tables, name: str, path: Path, *, kind: LedgerKind | None, create: bool
) -> LedgerKind:
    """Create the tables of *name*; raise an error if the file is not a ledger.

    *kind* is the expected kind of the tasks; None accepts any kind. Return the recorded kind.
    Without *create*, `prepare` raises `UnknownNameError` for a name without tables.
    """
    if path.exists() and not os.access(path, os.W_OK):
        raise LedgerConfigurationError(
            f"The ledger {path} {MISCONFIGURED[sqlite3.SQLITE_READONLY]}."
        )
    # Check the file before `enter_wal_mode`, which writes into the file.
    recorded_kind = check_marker(db, name, path, kind=kind)
    names = names_in(db)
    if not create and name not in names:
        raise UnknownNameError(name)
    enter_wal_mode(db)
    # Let SQLite sync only the main file, because `Connection` syncs the WAL.
    db.execute("PRAGMA synchronous = NORMAL")
    # Keep undo logs in memory. By default SQLite writes the undo log of a statement to a separate
    # file if the statement changes many rows.
    db.execute("PRAGMA temp_store = MEMORY")
    marker = None if create else marker_of(db, name)
    if marker is not None and tables.names <= names:
        # Begin no transaction if nothing changes, because it would wait for other writers.
        return recorded_kind
    with db.transaction(durable=True):
        # Ignore the case of names, because for SQLite "Books" and "books" are the same table.
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
            # Someone dropped the table of tasks, so delete the notes about the dropped tasks.
            db.execute(
                f"UPDATE {_TABLE} SET state = NULL, control = NULL WHERE spider = :name", parameters
            )
        for statement in tables.create:
            db.execute(statement)
        # Another process may have created the tables meanwhile. If the kind or format differs, the
        # error of `check_marker` undoes all changes.
        return check_marker(db, name, path, kind=kind)


def check_marker(
    db: sqlite3.Connection,
    name: str,
    path: Path,
    *,
    kind: LedgerKind | None,
) -> LedgerKind:
    """Raise an error for a file of another program, and for a ledger with a wrong format or kind.

    Return the kind of the ledger *name*.
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
    """Return the names of all tables and indexes in the file."""
    return {row["name"] for row in db.execute("SELECT name FROM sqlite_master")}


def marker_of(db: sqlite3.Connection, name: str) -> Mapping[str, Any] | None:
    """Return the row of the marker table for the ledger *name*, or None."""
    row = db.execute(f"SELECT * FROM {_TABLE} WHERE spider = ?", (name,)).fetchone()
    return None if row is None else dict(row)


def forget(db: Database, name: str) -> None:
    """Delete the row of the marker table for the dropped ledger *name*."""
    db.execute(f"DELETE FROM {_TABLE} WHERE spider = ?", (name,))


async def recorded_names(path: Path) -> list[str]:
    """Return the sorted names of the spiders and use cases that have tasks in the file."""
    return await once(Connection(path), _recorded)


def _recorded(db: sqlite3.Connection) -> list[str]:
    if MARKER not in names_in(db):
        return []
    names = [row["spider"] for row in db.execute(f"SELECT spider FROM {_TABLE}")]
    return sorted(name for name in names if has_tasks(db, name))


def has_tasks(db: sqlite3.Connection, name: str) -> bool:
    """Return whether the ledger *name* exists and has at least one task."""
    if name not in names_in(db):
        return False
    return db.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 1").fetchone() is not None
