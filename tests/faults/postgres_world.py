"""The world of `world` on PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from crawlcw.ledger.postgres import PostgresLedger, connection
from crawlcw.ledger.postgres.store import PostgresStore
from crawlcw.ledger.sql.rows import document_of, from_json
from tests.faults.invariants import Documents
from tests.faults.world import World

#: Until a client gives up an operation.
TIMEOUT = timedelta(seconds=0.4)
#: Until the server ends a transaction whose client is silent.
SILENCE = timedelta(seconds=0.65)
_IN_MONGODB = {"tasks": "books", "hosts": "books.hosts"}
#: Fields that a document has without a value, too.
_ALWAYS = ("lock", "lock_time", "owner", "ready_at")


class PostgresWorld(World):
    """One database on PostgreSQL."""

    #: Between the two others: the client has given up, and the server has not.
    late = timedelta(seconds=0.5)

    @contextmanager
    def _connected(self, near: str) -> Iterator[None]:
        self._near = near
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as self._db:
            self.far = self.run(PostgresLedger.open(self.url, "books", clock=self.clock))
            self.near = self._process()
            with impatient(answer=TIMEOUT, silence=SILENCE):
                try:
                    yield
                finally:
                    self.run(self.near.close())

    def _process(self) -> PostgresLedger:
        return PostgresLedger(PostgresStore(self._near, "books", clock=self.clock))

    def begin(self, *, claims: str = "each") -> None:
        """See `World.begin`."""
        self.run(self.near.close())
        super().begin(claims=claims)

    def documents(self) -> Documents:
        """See `World.documents`."""
        return documents(self._db)

    def _keep(self) -> None:
        self._db.execute("CREATE SCHEMA kept")
        for name, place in _tables(self._db):
            self._db.execute(f"CREATE TABLE kept.{name} AS TABLE {place}")

    def _restore(self) -> None:
        tables = _tables(self._db)
        self._db.execute(
            "; ".join(
                f"DELETE FROM {place}; INSERT INTO {place} TABLE kept.{name}"
                for name, place in tables
            )
        )


@contextmanager
def impatient(*, answer: timedelta, silence: timedelta) -> Iterator[None]:
    """Let clients give up after *answer*, and servers a transaction after *silence*."""
    limit = (
        f"SET idle_in_transaction_session_timeout = '{silence / timedelta(milliseconds=1):.0f}ms'"
    )
    with pytest.MonkeyPatch.context() as patch:
        settings = [limit if "idle_in" in each else each for each in connection._SETTINGS]
        patch.setattr(connection, "_SETTINGS", settings)
        patch.setattr(connection, "_REPLY_TIMEOUT", answer.total_seconds())
        yield


def documents(db: Any) -> Documents:
    """Return the documents of `books`; a row of another table has its values for an id."""
    found: dict[str, dict[Any, Any]] = {"books.items": {}}
    for name, place in _tables(db):
        rows = db.execute(f"SELECT * FROM {place} ORDER BY 1, 2").fetchall()
        if name not in _IN_MONGODB:
            found[name] = {str(row): row for row in rows}
            continue
        documents = [
            {key: value for key, value in each.items() if value is not None or key in _ALWAYS}
            for each in map(document_of, rows)
        ]
        found[_IN_MONGODB[name]] = {each["_id"]: each for each in documents}
    for row in found["items"].values():
        task = found["books"][row["task_id"]]
        task.setdefault("items", []).append(from_json(row["item"]))
    return found


def _tables(db: Any) -> list[tuple[str, str]]:
    rows = db.execute(
        "SELECT tablename, format('%I.%I', schemaname, tablename) AS place FROM pg_tables "
        "WHERE schemaname LIKE 'crawlcw%' ORDER BY 2"
    )
    return [(row["tablename"], row["place"]) for row in rows]
