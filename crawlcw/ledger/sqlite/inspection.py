"""Examining the ledger for `doctor`: how the store is, raw rows, and their mending."""

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.examination import Health
from crawlcw.ledger.sql.rows import INT64, TIMES, moment
from crawlcw.ledger.sql.store import ITEM_CHARACTERS, ITEM_ROWS
from crawlcw.ledger.sqlite.connection import Database
from crawlcw.ledger.sqlite.file_modes import is_still
from crawlcw.ledger.sqlite.marker import marker_of, names_in
from crawlcw.ledger.sqlite.schema import MARKER, SCHEMA_VERSION, Tables
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.invariants import Kind, Violation

#: How much of a damaged file is told.
_DAMAGES = 10
#: The last millisecond of 9999.
_LATEST = 253_402_300_799_999


class Inspection:
    """What `doctor` reads of the store."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

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
            # Such a connection knows of no journal. The header says WAL by a 2
            # (https://www.sqlite.org/fileformat.html, section 1.3).
            with self._store.path.open("rb") as file:
                return "wal" if file.read(20)[18:] == b"\2\2" else "delete"
        # After a read: until then a connection has the mode that was before.
        return str(db.execute("PRAGMA journal_mode").fetchone()[0])

    def _health(self, db: sqlite3.Connection) -> Health:
        violations = list(_store_violations(db, self._store.tables, self._store.name))
        mode = self._journal_mode(db)
        if mode != "wal":
            violations.append(Violation(kind=Kind.NOT_WAL, detail=f"the mode is {mode}"))
        # What SQLite has made beside a read-only file stays so when that is writable again.
        beside = [
            self._store.path.with_name(f"{self._store.path.name}{end}") for end in ("-wal", "-shm")
        ]
        violations += [
            Violation(kind=Kind.STORE_READ_ONLY, detail=str(place))
            for place in (self._store.path, self._store.path.parent, *beside)
            if place.exists() and not os.access(place, os.W_OK)
        ]
        violations += [
            Violation(kind=Kind.STORE_DAMAGED, detail=str(row[0]))
            for row in db.execute(f"PRAGMA quick_check({_DAMAGES})")
            # A status that does not exist is told of with its task.
            if row[0] != "ok" and not row[0].startswith("CHECK constraint")
        ]
        there = db.execute(self._store.sql.has_table, (self._store.name,)).fetchone()
        return Health(
            recorded=there is not None
            and db.execute(self._store.sql.any_task).fetchone() is not None,
            facts={
                "store": f"SQLite {sqlite3.sqlite_version}, {self._store.path}",
                "journal mode": mode,
                "schema version": str(SCHEMA_VERSION),
            },
            violations=tuple(violations),
        )

    async def examine(
        self, *, only: Collection[bytes] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `examination.Inspection.examine`."""
        sql = self._store.sql
        if only is not None:
            for identity in only:
                for _, found in await self._store.reader.run(
                    self._tasks_examined, sql.examine_one, (identity,)
                ):
                    yield found
        else:
            # By the row's number: ids that are no bytes have a place in its order too.
            last = -INT64
            while tasks := await self._store.reader.run(self._tasks_examined, sql.examine, (last,)):
                for _, found in tasks:
                    yield found
                last, _ = tasks[-1]
        async for found in self._walk(
            sql.items_of_no_task, of_one=sql.items_of_no_such_task, only=only, after=b"", by="id"
        ):
            yield found

    def _tasks_examined(
        self, db: Database, statement: str, values: Sequence[Any]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return the next tasks of a walk, with the numbers of their rows."""
        # All of one moment, for a value is dropped when nothing refers to it any more.
        with db.snapshot():
            rows = _examined(db, statement, values)
            return [(row["row"], {**_raw(row), **self._blobs_lost(db, row)}) for row in rows]

    def _blobs_lost(self, db: sqlite3.Connection, row: sqlite3.Row) -> dict[str, Any]:
        if not self._store.kind.tracked:
            return {}
        pointers = db.execute(self._store.sql.pointers, (row["id"],)).fetchone()
        found: dict[str, Any] = {}
        for name, text in dict(pointers).items():
            # A text that is no JSON refers to nothing.
            with suppress(TypeError, ValueError):
                found[name] = json.loads(text)
        wanted = documents.blobs(found)
        lost = [
            each for each in wanted if not db.execute(self._store.sql.has_blob, (each,)).fetchone()
        ]
        return {"asides_lost": lost} if lost else {}

    def unreferenced_blobs(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `examination.Inspection.unreferenced_blobs`."""
        sql = self._store.sql
        return self._walk(
            sql.unreferenced_blobs, of_one=sql.unreferenced_blob, only=only, after="", by="id"
        )

    def examine_hosts(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `examination.Inspection.examine_hosts`."""
        sql = self._store.sql
        return self._walk(
            sql.examine_hosts, of_one=sql.examine_host, only=only, after=-INT64, by="row"
        )

    async def _walk(
        self, statement: str, *, of_one: str, only: Collection[Any] | None, after: Any, by: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the rows behind *after* in the order of *by*, or the row of each in *only*."""
        if only is not None:
            for identity in only:
                for row in await self._store.reader.run(_examined, of_one, (identity,)):
                    yield _raw(row)
            return
        while rows := await self._store.reader.run(_examined, statement, (after,)):
            for row in rows:
                yield _raw(row)
            after = rows[-1][by]


def _write_refusal(db: Database, path: Path) -> str | None:
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            return f"{place} is read-only"
    with db.transaction():
        return None


def _store_violations(db: sqlite3.Connection, tables: Tables, spider: str) -> Iterator[Violation]:
    """Yield which tables and indexes are not as `create` makes them."""
    if MARKER not in names_in(db) or marker_of(db, spider) is None:
        yield Violation(kind=Kind.STORE_INCOMPLETE, detail="the schema's version is missing")
    there = {row["name"]: row["sql"] for row in db.execute("SELECT name, sql FROM sqlite_master")}
    for statement in tables.create:
        # SQLite keeps the text of a statement, without this.
        made = statement.replace("IF NOT EXISTS ", "")
        name = made.split('"')[1]
        if name not in there:
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=f"{name} is missing")
        elif there[name].split() != made.split():
            yield Violation(kind=Kind.STORE_DIFFERENT, detail=f"{name} is {there[name]}")


def _examined(db: sqlite3.Connection, statement: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    """Return the next rows of a walk through a table, few enough for the memory."""
    rows: list[sqlite3.Row] = []
    size = 0
    for row in db.execute(statement, values):
        rows.append(row)
        size += len(row["body"] or b"") if "body" in row.keys() else 0  # noqa: SIM118  # a Row's
        if len(rows) >= ITEM_ROWS or size >= ITEM_CHARACTERS:
            break
    return rows


def _raw(row: sqlite3.Row) -> dict[str, Any]:
    """Return a row as a document without nulls; values of wrong types as they are."""
    found = {name: row[name] for name in row.keys() if row[name] is not None}  # noqa: SIM118
    found.pop("row", None)
    for name in TIMES & found.keys():
        if isinstance(found[name], int) and abs(found[name]) < _LATEST:
            found[name] = moment(found[name])
    for name in ("counts", "options"):
        if isinstance(found.get(name), str):
            # Else it is shown as the text it is.
            with suppress(ValueError):
                found[name] = json.loads(found[name])
    if "id" in found:
        found["_id"] = found.pop("id")
    return found
