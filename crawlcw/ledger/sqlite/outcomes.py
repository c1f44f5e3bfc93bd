"""Recording the outcomes of tasks, and giving tasks back without one."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Committed
from crawlcw.ledger.sqlite.connection import Database, transaction
from crawlcw.ledger.sqlite.rows import UNHOLDABLE, describe_sqlite_error
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.ledger.sqlite.writes import Write, add_items, apply_each, mine, unmoved, written
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
        with transaction(db, durable=True):
            settled = self._apply(db, [(s.lease, write, mine(s.lease)) for s, write, _ in writes])
            for (settlement, _, refusal), held in zip(writes, settled, strict=True):
                lease = settlement.lease
                if isinstance(held, Exception):
                    # Only together with the results there it is too large.
                    instead, refusal = _rejected(settlement, held)
                    (held,) = self._apply(db, [(lease, instead, mine(lease))])
                if not held and not self._was_settled(db, lease):
                    lost.append(lease)
                elif refusal is not None:
                    rejected.append((lease, refusal))
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    def _apply(
        self, db: sqlite3.Connection, writes: Sequence[tuple[Lease, Write, Mapping[str, Any]]]
    ) -> list[bool | Exception]:
        """Apply outcomes where tasks still are as their guards say, see `apply_each`."""
        store = self._store
        applied = apply_each(db, store.sql, [(write, guard) for _, write, guard in writes])
        items: list[tuple[bytes, int, str, str, int]] = []
        versions: list[tuple[Lease, Write]] = []
        for (lease, write, _), is_applied in zip(writes, applied, strict=True):
            if is_applied is not True or write.items is None:
                continue
            if lease.task.settled:  # else it has none yet
                db.execute(store.sql.forget_items, (write.task_id,))
            items += write.items
            if write.kept_versions:
                versions.append((lease, write))
        add_items(db, store.tables.items, items)
        for lease, write in versions:
            self._keep_version(db, lease, write)
        return applied

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
        with transaction(db, durable=True):
            replaced = self._apply(
                db, [(each, write, unmoved(each.task)) for each, write in writes]
            )
            return [
                lease
                for (lease, _), is_replaced in zip(writes, replaced, strict=True)
                if is_replaced is not True and not self._was_settled(db, lease)
            ]

    async def release(self, leases: Sequence[Lease]) -> int:
        """See `protocol.Outcomes.release`."""
        now = self._store.now()
        settlements = [transitions.release(lease, now=now) for lease in leases]
        return await self._store.writer.run(self._release, settlements)

    def _release(self, db: Database, settlements: Sequence[Settlement]) -> int:
        writes = [(s.lease, written(s.lease.task, s.change), mine(s.lease)) for s in settlements]
        with transaction(db, durable=True):
            return self._apply(db, writes).count(True)


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
