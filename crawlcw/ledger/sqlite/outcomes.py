"""Recording the outcomes of tasks, and giving tasks back without one."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Committed
from crawlcw.ledger.sqlite.connection import Database, durable_transaction
from crawlcw.ledger.sqlite.rows import UNHOLDABLE, describe_sqlite_error
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.ledger.sqlite.writes import Write, apply, mine, unmoved, written
from crawlcw.model import transitions
from crawlcw.model.task import Lease
from crawlcw.model.transitions import Settlement


class Outcomes:
    """Writes the outcomes of leases, and releases them."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """See `protocol.Outcomes.commit`."""
        return await self._store.writer.run(self._commit, settlements)

    def _commit(self, db: Database, settlements: Sequence[Settlement]) -> Committed:
        lost: list[Lease] = []
        rejected: list[tuple[Lease, str]] = []
        # Encoded before the transaction begins, for it keeps all others waiting.
        writes = [(settlement, *_storable(settlement)) for settlement in settlements]
        with durable_transaction(db):
            for settlement, write, refusal in writes:
                lease = settlement.lease
                try:
                    held = self._settle(db, lease, write)
                except UNHOLDABLE as error:
                    # Only together with the results there it is too large.
                    instead, refusal = _rejected(settlement, error)
                    held = self._settle(db, lease, instead)
                if not held and not self._was_settled(db, lease):
                    lost.append(lease)
                elif refusal is not None:
                    rejected.append((lease, refusal))
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    def _settle(self, db: sqlite3.Connection, lease: Lease, write: Write) -> bool:
        """Apply what ends a lease, where it is still held; say whether it was."""
        sql = self._store.sql
        statement = sql.settle if write.progress is None else sql.progress
        return self._apply(db, lease, write, statement, mine(lease))

    def _apply(
        self,
        db: sqlite3.Connection,
        lease: Lease,
        write: Write,
        statement: str,
        guard: Mapping[str, Any],
    ) -> bool:
        """Apply an outcome where the task still is as the guard says; say whether it was."""
        if not apply(db, self._store.sql, statement, write, guard):
            return False
        if write.items is not None:
            if lease.task.settled:  # else it has none yet
                db.execute(self._store.sql.forget_items, (write.task_id,))
            db.executemany(self._store.sql.add_item, write.items)
            if write.kept_versions:
                self._keep_version(db, lease, write)
        return True

    def _keep_version(self, db: sqlite3.Connection, lease: Lease, write: Write) -> None:
        version = {"id": write.task_id, "fence": lease.fence}
        db.execute(self._store.sql.add_version, version)
        kept = {"id": write.task_id, "kept": write.kept_versions}
        db.execute(self._store.sql.forget_old_versions, kept)

    def _was_settled(self, db: sqlite3.Connection, lease: Lease) -> bool:
        """Return whether an earlier send of the same settlement was applied, its reply lost."""
        row = db.execute(self._store.sql.settled, (lease.task.id,)).fetchone()
        return row is not None and row["settled"] == lease.fence

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """See `protocol.Outcomes.replace`."""
        writes: list[tuple[Lease, Write]] = []
        rejected: list[tuple[Lease, str]] = []
        for settlement in settlements:
            lease = settlement.lease
            try:
                writes.append((lease, written(lease.task, settlement.change)))
            except UNHOLDABLE as error:
                rejected.append((lease, describe_sqlite_error(error)))
        lost = await self._store.writer.run(self._replace, writes)
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    def _replace(self, db: Database, writes: Sequence[tuple[Lease, Write]]) -> list[Lease]:
        """Write what is as it was read; return the leases of the rest."""
        statement = self._store.sql.replace
        with durable_transaction(db):
            return [
                lease
                for lease, write in writes
                if not self._apply(db, lease, write, statement, unmoved(lease.task))
                and not self._was_settled(db, lease)
            ]

    async def release(self, leases: Sequence[Lease]) -> int:
        """See `protocol.Outcomes.release`."""
        now = self._store.now()
        settlements = [transitions.release(lease, now=now) for lease in leases]
        return await self._store.writer.run(self._release, settlements)

    def _release(self, db: Database, settlements: Sequence[Settlement]) -> int:
        writes = [(s.lease, written(s.lease.task, s.change)) for s in settlements]
        with durable_transaction(db):
            return sum(self._settle(db, lease, write) for lease, write in writes)


def _storable(settlement: Settlement) -> tuple[Write, str | None]:
    """Return what to write; and why it is a rejection, where the store cannot hold the outcome."""
    try:
        return written(settlement.lease.task, settlement.change), None
    except UNHOLDABLE as error:
        return _rejected(settlement, error)


def _rejected(settlement: Settlement, error: Exception) -> tuple[Write, str]:
    why = describe_sqlite_error(error)
    instead = transitions.rejected(settlement, reason=Reason.STORE_REJECTED, message=why)
    return written(settlement.lease.task, instead.change), why
