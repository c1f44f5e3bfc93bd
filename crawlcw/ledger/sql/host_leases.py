"""Leasing hosts: taking many at once, and what their owner writes while it holds them."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.hosts import NEW_HOST, earliest_due
from crawlcw.ledger.sql.rows import document_of, milliseconds, row_of
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.hosts import Host, HostLease


class HostLeases:
    """Leases hosts, and writes what their owners have learned."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
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

    async def renew(self, leases: Sequence[HostLease], *, lease: timedelta) -> set[str]:
        """See `protocol.HostLeases.renew`."""
        end = {"ready_at": milliseconds(self._store.now() + lease)}
        return await self._store.writer.run(
            self._write, self._store.sql.renew_host, [(held, end) for held in leases]
        )

    async def save(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """See `protocol.HostLeases.save`."""
        writes = [(lease, _learned(lease, state)) for lease, state in states]
        return await self._store.writer.run(self._write, self._store.sql.save_host, writes)

    async def release(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """See `protocol.HostLeases.release`."""
        writes = [
            (lease, state, _learned(lease, state) | row_of({"ready_at": state.ready_at}))
            for lease, state in states
        ]
        if not writes:
            return set()
        return await self._store.writer.run(self._release, writes, milliseconds(self._store.now()))

    def _release(
        self,
        db: Database,
        writes: Sequence[tuple[HostLease, Host, Mapping[str, Any]]],
        now: int,
    ) -> set[str]:
        lost: set[str] = set()
        asleep: list[str] = []
        # A release that is lost in a power cut is a lease that runs out.
        with db.transaction():
            for lease, state, values in writes:
                name = lease.host.name
                mine = {**values, **_my_host(lease)}
                is_released = db.execute(self._store.sql.release_host, mine).rowcount == 1
                if not is_released:
                    # If it was sent before, and the reply was lost, its wake-up may be missing.
                    known = db.execute(self._store.sql.host_was_released, mine).fetchone()
                    is_released = known is not None
                if not is_released:
                    lost.add(name)
                    continue
                rest = max(now, milliseconds(state.not_before) if state.not_before else now)
                if values["ready_at"] is None or values["ready_at"] > rest:
                    asleep.append(name)
        # After the commit: a process that adds a task to a held host does not wake it.
        dues = {name: earliest_due(db, self._store.sql, name) for name in asleep}
        late = [
            {**NEW_HOST, "id": name, "due": max(due, now)}
            for name, due in dues.items()
            if due is not None
        ]
        if late:
            with db.transaction():
                db.executemany(self._store.sql.wake_host, late)
        return lost

    def _write(
        self,
        db: Database,
        statement: str,
        writes: Sequence[tuple[HostLease, Mapping[str, Any]]],
    ) -> set[str]:
        """Change hosts where they are held; return those that are not."""
        if not writes:
            return set()
        with db.transaction():
            return {
                lease.host.name
                for lease, values in writes
                if not db.execute(statement, {**values, **_my_host(lease)}).rowcount
            }


def _my_host(lease: HostLease) -> dict[str, Any]:
    """Return the columns that a host's row must still have under the lease."""
    return {"id": lease.host.name, "token": lease.token, "held_epoch": lease.epoch}


def _learned(lease: HostLease, state: Host) -> dict[str, Any]:
    learned = documents.host_learned(state, since=lease.host)
    return {"robots": None, "new_robots": "robots" in learned} | row_of(learned)
