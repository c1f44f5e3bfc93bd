"""Examine the SQLite file for the command `doctor`."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from crawlcw.ledger import examination
from crawlcw.ledger.examination import Health, Kind, Violation
from crawlcw.ledger.kind import FORMAT
from crawlcw.ledger.sqlite.connection import Database
from crawlcw.ledger.sqlite.file_modes import is_still
from crawlcw.ledger.sqlite.marker import MARKER, Tables, has_tasks, marker_of, names_in
from crawlcw.ledger.sqlite.store import SqliteStore

#: Maximum number of reported damages of a file.
_DAMAGES = 10


class Inspection(examination.Inspection):
    """Reads the state of the file and the ledger for the command `doctor`."""

    _store: SqliteStore

    async def prepare(self) -> None:
        """See `examination.Inspection.prepare`."""
        await self._store.prepare(kind=None)

    async def write_refusal(self) -> str | None:
        """See `examination.Inspection.write_refusal`."""
        return await self._store.writer.run(_write_refusal, self._store.path)

    async def health(self) -> Health:
        """See `examination.Inspection.health`."""
        return await self._store.reader.run(self._health)

    def _journal_mode(self, db: sqlite3.Connection) -> str:
        if is_still(self._store.path):
            # An immutable connection does not know the journal mode, so read the file's header.
            with self._store.path.open("rb") as file:
                return "wal" if file.read(20)[18:] == b"\2\2" else "delete"
        # Ask for the mode after a read, because a connection without a read reports an old mode.
        return str(db.execute("PRAGMA journal_mode").fetchone()[0])

    def _health(self, db: sqlite3.Connection) -> Health:
        violations = list(_store_violations(db, self._store.tables, self._store.name))
        mode = self._journal_mode(db)
        if mode != "wal":
            violations.append(Violation(kind=Kind.NOT_WAL, detail=f"the mode is {mode}"))
        # Check the `-wal` and `-shm` files too. SQLite creates them read-only beside a read-only
        # file, and they stay read-only when that file becomes writable.
        side_files = [
            self._store.path.with_name(f"{self._store.path.name}{end}") for end in ("-wal", "-shm")
        ]
        violations += [
            Violation(kind=Kind.STORE_READ_ONLY, detail=str(path))
            for path in (self._store.path, self._store.path.parent, *side_files)
            if path.exists() and not os.access(path, os.W_OK)
        ]
        violations += [
            Violation(kind=Kind.STORE_DAMAGED, detail=str(row[0]))
            for row in db.execute(f"PRAGMA quick_check({_DAMAGES})")
            # Leave out a task with an unknown status; the examination of tasks reports this task.
            if row[0] != "ok" and not row[0].startswith("CHECK constraint")
        ]
        return Health(
            recorded=has_tasks(db, self._store.name),
            facts={
                "store": f"SQLite {sqlite3.sqlite_version}, {self._store.path}",
                "journal mode": mode,
                "format": str(FORMAT),
            },
            violations=tuple(violations),
        )


def _write_refusal(db: Database, path: Path) -> str | None:
    for location in (path, path.parent):
        if not os.access(location, os.W_OK):
            return f"{location} is read-only"
    with db.transaction():
        return None


def _store_violations(db: sqlite3.Connection, tables: Tables, spider: str) -> Iterator[Violation]:
    """Yield each table or index that is missing, or that differs from its CREATE statement."""
    if MARKER not in names_in(db) or marker_of(db, spider) is None:
        yield Violation(kind=Kind.STORE_INCOMPLETE, detail="the number of its format is missing")
    texts = {row["name"]: row["sql"] for row in db.execute("SELECT name, sql FROM sqlite_master")}
    for statement in tables.create:
        # SQLite stores the text of a CREATE statement without the words `IF NOT EXISTS`.
        definition = statement.replace("IF NOT EXISTS ", "")
        name = definition.split('"')[1]
        if name not in texts:
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=f"{name} is missing")
        elif texts[name].split() != definition.split():
            yield Violation(kind=Kind.STORE_DIFFERENT, detail=f"{name} is {texts[name]}")
