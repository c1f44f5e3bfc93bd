"""The tables of a spider and their indexes, how they are made, and of which version they are."""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

import os
import sqlite3
from pathlib import Path

from crawlcw.errors import LedgerConfigurationError
from crawlcw.ledger.sqlite.connection import (
    MISCONFIGURED,
    Database,
    durable_transaction,
    enter_wal_mode,
)
from crawlcw.task import Status

SCHEMA_VERSION = 3
#: What is brought up to date when it is opened; it has no `begun`.
_UPGRADED_VERSION = 2
MARKER = "crawlcw.schema"

#: The document's fields as columns: times are milliseconds since 1970, and
#: headers, context, errors and response are JSON.
COLUMNS = {
    column.partition(" ")[0]: column
    for column in (
        "id BLOB PRIMARY KEY NOT NULL",
        "url TEXT NOT NULL",
        "host TEXT NOT NULL",
        "method TEXT",
        "headers TEXT",
        "body BLOB",
        "callback TEXT NOT NULL",
        "errback TEXT",
        "context TEXT",
        "depth INTEGER NOT NULL",
        "parent BLOB",
        "priority INTEGER NOT NULL",
        f"status INTEGER NOT NULL CHECK (status IN ({', '.join(str(int(s)) for s in Status)}))",
        "due INTEGER",
        "update_time INTEGER NOT NULL",
        "create_time INTEGER NOT NULL",
        "lock TEXT",
        "lock_time INTEGER",
        "fence INTEGER NOT NULL",
        "settled INTEGER NOT NULL",
        "retry INTEGER NOT NULL",
        "lost INTEGER NOT NULL",
        "reason TEXT",
        "errors TEXT",
        "response TEXT",
        "begun INTEGER",
    )
}
#: A host's fields as columns; robots and counts are JSON.
HOST_COLUMNS = {
    column.partition(" ")[0]: column
    for column in (
        "id TEXT PRIMARY KEY NOT NULL",
        "ready_at INTEGER",
        "owner TEXT",
        "epoch INTEGER NOT NULL",
        "released INTEGER",
        "not_before INTEGER",
        "delay REAL NOT NULL",
        "failures INTEGER NOT NULL",
        "page_failures INTEGER NOT NULL",
        "given_up TEXT",
        "robots TEXT",
        "counts TEXT NOT NULL",
    )
}


class Tables:
    """The tables and indexes of one spider: their names, quoted, and what makes them."""

    def __init__(self, spider: str) -> None:
        self.tasks, self.items, self.workers, self.hosts = (
            quoted(name)
            for name in (spider, f"{spider}.items", f"{spider}.workers", f"{spider}.hosts")
        )
        self.due, self.host_due, self.status, self.ready, self.owned = (
            quoted(f"{spider}.{name}")
            for name in ("due", "host_due", "status", "hosts_ready_at", "hosts_owner")
        )
        self.left = quoted(f"{spider}.workers_left")

        #: From version 2 to 3.
        self.upgrade = f"ALTER TABLE {self.tasks} ADD COLUMN {COLUMNS['begun']}"
        self.create = [
            f"CREATE TABLE IF NOT EXISTS {self.tasks} ({', '.join(COLUMNS.values())})",
            f"""CREATE TABLE IF NOT EXISTS {self.items} (
                task_id BLOB NOT NULL, n INTEGER NOT NULL, item TEXT NOT NULL,
                url TEXT NOT NULL, fetched_at INTEGER NOT NULL, PRIMARY KEY (task_id, n))""",
            f"""CREATE TABLE IF NOT EXISTS {self.workers} (
                id TEXT PRIMARY KEY NOT NULL, machine TEXT NOT NULL, host TEXT NOT NULL,
                pid INTEGER NOT NULL, birth TEXT NOT NULL, started INTEGER NOT NULL,
                heartbeat INTEGER NOT NULL, "left" INTEGER,
                hungry INTEGER NOT NULL, tally TEXT NOT NULL)""",
            f'CREATE INDEX IF NOT EXISTS {self.left} ON {self.workers} ("left", id)',
            # What is finished or ignored has no place in these two.
            f"""CREATE INDEX IF NOT EXISTS {self.due} ON {self.tasks}
                (priority DESC, due) WHERE due IS NOT NULL""",
            f"""CREATE INDEX IF NOT EXISTS {self.host_due} ON {self.tasks}
                (host, priority DESC, due) WHERE due IS NOT NULL""",
            f"CREATE INDEX IF NOT EXISTS {self.status} ON {self.tasks} (status, update_time DESC)",
            f"CREATE TABLE IF NOT EXISTS {self.hosts} ({', '.join(HOST_COLUMNS.values())})",
            f"""CREATE INDEX IF NOT EXISTS {self.ready} ON {self.hosts}
                (ready_at) WHERE ready_at IS NOT NULL""",
            # Of those that are held only: `leave` must not read all the others.
            f"""CREATE INDEX IF NOT EXISTS {self.owned} ON {self.hosts}
                (owner) WHERE owner IS NOT NULL""",
        ]


def quoted(name: str) -> str:
    """Return a name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def create(db: Database, tables: Tables, spider: str, path: Path) -> None:
    """Make the tables of *spider*, or find out that the file is not one of ours."""
    # SQLite itself would read, and leave files beside it that are read-only as well
    # and keep it so when this one has become writable.
    if path.exists() and not os.access(path, os.W_OK):
        raise LedgerConfigurationError(
            f"The ledger {path} {MISCONFIGURED[sqlite3.SQLITE_READONLY]}."
        )
    # Before anything is changed, for the mode is written into the file.
    check_marker(db, spider, path, upgrades=True)
    enter_wal_mode(db)
    # Synced when the WAL is folded into the file; otherwise by the connection itself.
    db.execute("PRAGMA synchronous = NORMAL")
    with durable_transaction(db):
        # SQLite takes "Books" and "books" for the same table, so the marker does too.
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {quoted(MARKER)} "
            "(spider TEXT PRIMARY KEY NOT NULL COLLATE NOCASE, version INTEGER NOT NULL)"
        )
        db.execute(
            f"INSERT OR IGNORE INTO {quoted(MARKER)} VALUES (?, ?)", (spider, SCHEMA_VERSION)
        )
        check_marker(db, spider, path, upgrades=True)
        outdated = {"spider": spider, "old": _UPGRADED_VERSION, "new": SCHEMA_VERSION}
        if db.execute(
            f"UPDATE {quoted(MARKER)} SET version = :new WHERE spider = :spider AND version = :old",
            outdated,
        ).rowcount:
            db.execute(tables.upgrade)
        for statement in tables.create:
            db.execute(statement)


def check_marker(
    db: sqlite3.Connection, spider: str, path: Path, *, upgrades: bool = False
) -> None:
    """Raise where the file is another program's, or the spider's tables are of another version.

    *upgrades* says that a version which can be brought up to date will be.
    """
    names = names_in(db)
    if names and MARKER not in names:
        raise LedgerConfigurationError(
            f"The ledger {path} is an SQLite database of another program: "
            "name a file that crawlcw has for itself."
        )
    marker = marker_of(db, spider) if names else None
    if marker is None:
        return
    if marker["version"] == _UPGRADED_VERSION:
        if not upgrades:
            raise LedgerConfigurationError(
                f"The ledger {path} has schema version {_UPGRADED_VERSION} for {spider}: bring it "
                f"up to date by `crawlcw stats {spider}`."
            )
    elif marker["version"] != SCHEMA_VERSION:
        raise LedgerConfigurationError(
            f"The ledger {path} has schema version {marker['version']} for {spider}, and this "
            f"crawlcw knows version {SCHEMA_VERSION}: use the crawlcw that wrote it, or "
            "another file."
        )
    if marker["spider"] != spider:
        raise LedgerConfigurationError(
            f"The ledger {path} holds a spider {marker['spider']}, which SQLite cannot tell "
            f"from {spider}: rename the spider, or use another file."
        )


def names_in(db: sqlite3.Connection) -> set[str]:
    """Return what tables and indexes the file has, of all spiders."""
    return {row["name"] for row in db.execute("SELECT name FROM sqlite_master")}


def marker_of(db: sqlite3.Connection, spider: str) -> sqlite3.Row | None:
    """Return the version that is recorded of the spider's tables, if there is one."""
    marker: sqlite3.Row | None = db.execute(
        f"SELECT spider, version FROM {quoted(MARKER)} WHERE spider = ?", (spider,)
    ).fetchone()
    return marker
