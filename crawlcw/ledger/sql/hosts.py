"""Waking hosts: what `hosts.Hosts.wake` does in a database of SQL."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.hosts import Hosts
from crawlcw.ledger.sql.database import Database, descending
from crawlcw.ledger.sql.rows import milliseconds, row_of
from crawlcw.ledger.sql.schema import HOST_COLUMNS
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.hosts import Host

#: One transaction wakes this many hosts: others wait meanwhile.
_BATCH = 5_000
#: The state of an unknown host, for `wake_host`.
NEW_HOST: Mapping[str, Any] = dict.fromkeys(HOST_COLUMNS) | row_of(
    documents.host_document(Host(name=""))
)


class SqlHosts(Hosts):
    """The hosts in a database of SQL."""

    _store: SqlStore

    async def wake(self, dues: Mapping[str, datetime]) -> None:
        """See `Hosts.wake`."""
        # In one order: two processes that wake the same hosts must not wait for each other.
        rows = [
            {**NEW_HOST, "id": host, "due": milliseconds(due)} for host, due in sorted(dues.items())
        ]
        for start in range(0, len(rows), _BATCH):
            await self._store.writer.run(self._wake, rows[start : start + _BATCH])

    def _wake(self, db: Database, rows: Sequence[Mapping[str, Any]]) -> None:
        # A host that is held when it is read needs no write, also if it is released
        # right after: the release looks for tasks, and the task that this is
        # about is in the ledger.
        late = [
            row for row in rows if not db.execute(self._store.sql.host_is_awake, row).fetchone()
        ]
        if late:
            # As durable as the task, which no process would find without it.
            with db.transaction(durable=True):
                db.executemany(self._store.sql.wake_host, late)


def earliest_due(db: Database, sql: Statements, host: str) -> int | None:
    """Return when the next task of *host* is due, in milliseconds; None: never."""
    firsts = descending(db, sql.next_due_of_host, {"host": host})
    return min((due for _, due in firsts), default=None)
