"""Examination of the server and its tables for `doctor`."""

from collections.abc import Iterator
from datetime import UTC, datetime

from crawlcw.ledger import examination
from crawlcw.ledger.examination import Health, Kind, Violation
from crawlcw.ledger.kind import FORMAT
from crawlcw.ledger.postgres.connection import Database
from crawlcw.ledger.postgres.schema import Tables, has_tasks, marker_of
from crawlcw.ledger.postgres.store import PostgresStore


class Inspection(examination.Inspection):
    """Reads the server's settings and the ledger's state for the command `doctor`."""

    _store: PostgresStore

    async def prepare(self) -> None:
        """See `examination.Inspection.prepare`."""
        await self._store.prepare(kind=None)

    async def write_refusal(self) -> str | None:
        """See `examination.Inspection.write_refusal`."""
        return await self._store.writer.run(_write_refusal, self._store.tables)

    async def health(self) -> Health:
        """See `examination.Inspection.health`."""
        return await self._store.reader.run(self._health)

    def _health(self, db: Database) -> Health:
        self._store.set_clock(db)
        offset = self._store.clock.now() - datetime.now(UTC)
        violations = list(self._violations(db))
        return Health(
            recorded=has_tasks(db, self._store.tables),
            facts={
                "store": f"PostgreSQL {_setting(db, 'server_version')}",
                "synchronous_commit": _setting(db, "synchronous_commit"),
                "format": str(FORMAT),
            },
            violations=tuple(violations),
            clock_offset=offset,
        )

    def _violations(self, db: Database) -> Iterator[Violation]:
        if marker_of(db, self._store.name) is None:
            yield Violation(
                kind=Kind.STORE_INCOMPLETE, detail="the number of its format is missing"
            )
        for name in self._store.tables.missing(db):
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=f"{name} is missing")
        for name in ("fsync", "full_page_writes"):
            if _setting(db, name) != "on":
                yield Violation(kind=Kind.NOT_DURABLE, detail=f"{name} is off")
        if (refusal := _write_refusal(db, self._store.tables)) is not None:
            yield Violation(kind=Kind.STORE_READ_ONLY, detail=refusal)


def _write_refusal(db: Database, tables: Tables) -> str | None:
    if db.execute("SELECT pg_is_in_recovery()").fetchone()[0]:
        return "the server is a standby, which accepts no writes"
    if (refusal := db.refusal()) is not None:
        return refusal
    if "tasks" in tables.missing(db):
        cursor = db.execute("SELECT has_database_privilege(current_database(), 'CREATE')")
        return None if cursor.fetchone()[0] else "the user may not create tables in the database"
    cursor = db.execute("SELECT has_table_privilege(?, 'UPDATE')", (tables.tasks,))
    return None if cursor.fetchone()[0] else "the user may not write to the tables"


def _setting(db: Database, name: str) -> str:
    return str(db.execute("SELECT current_setting(?)", (name,)).fetchone()[0])
