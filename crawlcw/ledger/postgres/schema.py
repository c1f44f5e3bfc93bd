"""A database schema for each spider or use case, and one table that lists all of these ledgers."""

# ruff: noqa: S608  # no SQL injection: names are quoted, values are parameters

import re
from collections.abc import Mapping
from typing import Any

from crawlcw.errors import LedgerConfigurationError, UnknownNameError
from crawlcw.ledger.kind import FORMAT, LedgerKind, check_format, check_kind
from crawlcw.ledger.postgres.connection import Database
from crawlcw.ledger.postgres.dialect import DIALECT, types
from crawlcw.ledger.sql import schema
from crawlcw.ledger.sql.schema import quoted
from crawlcw.model.task import WAITING

_SCHEMA = "crawlcw"
_MARKER = f"{quoted(_SCHEMA)}.ledgers"
#: PostgreSQL cuts names that have more bytes than this number.
_MAX_NAME_BYTES = 63
_RELATION = re.compile(r'IF NOT EXISTS (?:"(?:[^"]|"")*"\.)?"((?:[^"]|"")*)"')
#: Key of the advisory lock under which processes create tables. No other program uses this number.
_CREATION_LOCK_ID = 0x6372_6177_6C63_77
_MAKE_MARKER = (
    f"CREATE SCHEMA IF NOT EXISTS {quoted(_SCHEMA)}",
    (
        f'CREATE TABLE IF NOT EXISTS {_MARKER} (spider TEXT COLLATE "C" PRIMARY KEY NOT NULL, '
        "version BIGINT NOT NULL, tracked BIGINT, policy TEXT, state TEXT, control TEXT)"
    ),
)


class Tables(schema.Tables):
    """The tables of one spider or use case in PostgreSQL."""

    def __init__(self, name: str) -> None:
        """Raises `LedgerConfigurationError` for a name that is too long."""
        self.schema = f"{_SCHEMA}.{name}"
        if len(self.schema.encode()) > _MAX_NAME_BYTES:
            raise LedgerConfigurationError(
                f"the name {name!r} is too long for PostgreSQL: use at most "
                f"{_MAX_NAME_BYTES - len(_SCHEMA) - 1} bytes"
            )
        super().__init__(
            table=lambda part: f"{quoted(self.schema)}.{quoted(part)}",
            index=quoted,
            marker=_MARKER,
            dialect=DIALECT,
        )
        self.create = [types(statement) for statement in self.create]
        #: Channel for notifications of changed tasks, and the statements that create the trigger.
        self.channel = self.schema
        self.notify = (
            f"""CREATE OR REPLACE FUNCTION {quoted(self.schema)}.notify() RETURNS trigger
                LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_notify('{self.channel.replace("'", "''")}', ''); RETURN NULL; END $$""",
            f"""CREATE OR REPLACE TRIGGER notify AFTER INSERT OR UPDATE ON {self.tasks}
                FOR EACH ROW WHEN (NEW.due IS NOT NULL AND
                NEW.status IN ({", ".join(f"{status:d}" for status in WAITING)}))
                EXECUTE FUNCTION {quoted(self.schema)}.notify()""",
        )

    def missing(self, db: Database) -> list[str]:
        """Return the names of missing tables and indexes."""
        existing_names = {
            row["relname"]
            for row in db.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = "
                "(SELECT oid FROM pg_namespace WHERE nspname = ?)",
                (self.schema,),
            )
        }
        names = [match[1] for s in self.create if (match := _RELATION.search(s))]
        return [name for name in names if name not in existing_names]


def prepare(
    db: Database, tables: Tables, name: str, *, kind: LedgerKind | None, create: bool
) -> LedgerKind:
    """Create the missing tables of the ledger *name*; return the kind of the ledger's tasks.

    *kind* is the expected kind; None accepts any kind. Without *create*, `prepare` raises
    `UnknownNameError` for a name without tables. Raises `LedgerConfigurationError` too.
    """
    if create and (refusal := db.refusal()):
        raise LedgerConfigurationError(f"PostgreSQL: {refusal}")
    # Read the marker after the tables, because another process may create the ledger meanwhile.
    missing, marker = tables.missing(db), marker_of(db, name)
    recorded_kind = check_marker(marker, name, kind=kind)
    if marker is None and "tasks" not in missing:
        check_format(None, name)
    if not create and (marker is None or "tasks" in missing):
        raise UnknownNameError(name)
    has_kind = marker is not None and (kind is None or marker["tracked"] is not None)
    if not missing and (has_kind or not create):
        return recorded_kind
    with db.transaction(durable=True):
        db.execute("SELECT pg_advisory_xact_lock(?)", (_CREATION_LOCK_ID,))
        for statement in () if _has_marker(db) else _MAKE_MARKER:
            db.execute(statement)
        db.execute(
            f"INSERT INTO {_MARKER} (spider, version) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (name, FORMAT),
        )
        db.execute(
            f"UPDATE {_MARKER} SET tracked = ? WHERE spider = ? AND tracked IS NULL",
            (None if kind is None else int(kind.tracked), name),
        )
        if missing := tables.missing(db):
            if "tasks" in missing:
                # Someone dropped the table of tasks, so delete the notes about the dropped tasks.
                forget_notes = f"UPDATE {_MARKER} SET state = NULL, control = NULL WHERE spider = ?"
                db.execute(forget_notes, (name,))
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(tables.schema)}")
            for statement in tables.create:
                db.execute(statement)
        # Another process may have created the tables meanwhile. If the kind or format differs, the
        # error of `check_marker` undoes all changes.
        final_kind = check_marker(marker_of(db, name), name, kind=kind)
        if final_kind.tracked:
            for statement in tables.notify:
                db.execute(statement)
    return final_kind


def check_marker(
    marker: Mapping[str, Any] | None, name: str, *, kind: LedgerKind | None
) -> LedgerKind:
    """Return the kind of the ledger *name*; raise an error for an unexpected kind or format."""
    if marker is None:
        return kind or LedgerKind.SPIDER
    check_format(marker["version"], name)
    if marker["tracked"] is None:
        return kind or LedgerKind.SPIDER
    recorded_kind = LedgerKind.of(marker["tracked"])
    check_kind(recorded_kind, kind or recorded_kind, name)
    return recorded_kind


def marker_of(db: Database, name: str) -> Mapping[str, Any] | None:
    """Return the marker (format, kind, notes) of the ledger *name*, or None without a marker."""
    if not _has_marker(db):
        return None
    row = db.execute(f"SELECT * FROM {_MARKER} WHERE spider = ?", (name,)).fetchone()
    return None if row is None else dict(row)


def _has_marker(db: Database) -> bool:
    return db.execute("SELECT to_regclass(?)", (_MARKER,)).fetchone()[0] is not None


def drop(db: Database, tables: Tables, name: str) -> None:
    """Delete all data of a spider or use case in one transaction."""
    with db.transaction(durable=True):
        db.execute(f"DROP SCHEMA IF EXISTS {quoted(tables.schema)} CASCADE")
        if _has_marker(db):
            db.execute(f"DELETE FROM {_MARKER} WHERE spider = ?", (name,))


def recorded_names(db: Database) -> list[str]:
    """Return the sorted names of the spiders and use cases that have tasks."""
    if not _has_marker(db):
        return []
    names = [row["spider"] for row in db.execute(f"SELECT spider FROM {_MARKER} ORDER BY 1")]
    return [name for name in names if has_tasks(db, Tables(name))]


def has_tasks(db: Database, tables: Tables) -> bool:
    """Return whether the ledger has any task."""
    if "tasks" in tables.missing(db):
        return False
    return db.execute(f"SELECT 1 FROM {tables.tasks} LIMIT 1").fetchone() is not None
