"""Lease hosts in one transaction, and skip hosts that another transaction has locked."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.hosts import HostLeases
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.rows import document_of, milliseconds
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.hosts import HostLease


class SqlHostLeases(HostLeases):
    """The leases of hosts in an SQL database."""

    _store: SqlStore

    async def _take(
        self, token: str, limit: int, *, now: datetime, end: datetime
    ) -> list[HostLease]:
        times = {"now": milliseconds(now), "end": milliseconds(end)}
        bounds = {**times, "owner": token, "limit": limit}
        return await self._store.writer.run(self._lease, bounds)

    def _lease(self, db: Database, bounds: Mapping[str, Any]) -> list[HostLease]:
        # Search without a transaction first, because most searches find no host to lease.
        if not db.execute(self._store.sql.ready_hosts, bounds).fetchone():
            return []
        with db.transaction():
            rows = db.execute(self._store.sql.take_ready_hosts, bounds).fetchall()
            db.executemany(
                self._store.sql.lease_host, [{**bounds, "id": row["id"]} for row in rows]
            )
        fields = {"owner": bounds["owner"], "ready_at": bounds["end"]}
        return [
            documents.host_lease(document_of({**dict(row), **fields, "epoch": row["epoch"] + 1}))
            for row in rows
        ]
