"""Leasing hosts: taking many at once."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.hosts import HostLeases, Hosts
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.rows import document_of, milliseconds
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.hosts import HostLease


class SqlHostLeases(HostLeases):
    """Leases hosts in a database of SQL."""

    _store: SqlStore

    def __init__(self, store: SqlStore, hosts: Hosts) -> None:
        super().__init__(store, hosts)
        #: Tokens of calls whose reply was lost: their hosts may or may not be ours.
        self._unsure: list[str] = []

    async def lease(self, *, worker: str, limit: int, lease: timedelta) -> list[HostLease]:
        """See `protocol.HostLeases.lease`."""
        now = self._store.now()
        token = f"{worker}:{next(self._store.numbers)}"
        bounds = {
            "now": milliseconds(now),
            "limit": max(limit, 0),
            "owner": token,
            "end": milliseconds(now + lease),
        }
        if self._unsure:
            adopted = await self._store.writer.run(self._adopt, self._unsure, bounds)
            self._unsure = []
            if adopted:
                return adopted
        try:
            return await self._store.writer.run(self._lease, bounds)
        except (LedgerUnavailableError, asyncio.CancelledError):
            # They may be ours without our knowing, and would stand still for a lease.
            self._unsure.append(token)
            raise

    def _lease(self, db: Database, bounds: Mapping[str, Any]) -> list[HostLease]:
        # Most looks find nothing, and those must not take the writers' turn.
        if not db.execute(self._store.sql.ready_hosts, bounds).fetchone():
            return []
        with db.transaction():
            rows = db.execute(self._store.sql.take_ready_hosts, bounds).fetchall()
            db.executemany(
                self._store.sql.lease_host, [{**bounds, "id": row["id"]} for row in rows]
            )
        taken = {"owner": bounds["owner"], "ready_at": bounds["end"]}
        return [
            documents.host_lease(document_of({**dict(row), **taken, "epoch": row["epoch"] + 1}))
            for row in rows
        ]

    def _adopt(
        self, db: Database, tokens: Sequence[str], bounds: Mapping[str, Any]
    ) -> list[HostLease]:
        """Return the leases of earlier calls that were committed."""
        with db.transaction():
            # A commit that is on its way is waited for: its hosts are those ready longest.
            db.execute(self._store.sql.lock_ready_hosts, bounds)
            rows = [
                row for each in tokens for row in db.execute(self._store.sql.owned_hosts, (each,))
            ]
        # A host whose lease has run out meanwhile is ready, and is leased like any other.
        return [
            documents.host_lease(document_of(row))
            for row in rows
            if row["ready_at"] > bounds["now"]
        ]
