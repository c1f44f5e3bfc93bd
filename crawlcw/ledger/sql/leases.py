"""Claims of tasks and renewal of leases in an SQL database.

If the reply to a claim was lost or the caller was cancelled, the worker does not know whether it
has the lease. `Leases` keeps such an unconfirmed lease, and looks it up at the next claim.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Claimed
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.outcomes import apply_each, changed, lease_guard, portions, written
from crawlcw.ledger.sql.rows import document_of, milliseconds
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.ledger.workers import LeasedTasks
from crawlcw.model import transitions
from crawlcw.model.task import Lease, Payload, Task
from crawlcw.model.transitions import Change, Event


class Leases(LeasedTasks):
    """Claims tasks of an SQL ledger, and renews their leases."""

    _store: SqlStore
    batch_size = 200  #: a claim of 200 tasks takes 5 ms

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        #: Leases from claims whose reply was lost, by task id. If such a claim failed, the ledger
        #: does not have its leases.
        self._unconfirmed: dict[bytes, list[Lease]] = {}

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """See `protocol.Leases.claim`."""
        now = self._store.now()
        adopted: list[Lease] = []
        if self._unconfirmed:
            adopted = await self._resolve_unconfirmed(tasks, now + lease)
            adopted_ids = {adopted_lease.task.id for adopted_lease in adopted}
            tasks = [task for task in tasks if task.id not in adopted_ids]
        decisions: list[tuple[Task, Change]] = []
        for task in tasks:
            token = f"{worker}:{next(self._store.numbers)}"
            change = transitions.claim(task, token=token, now=now, lease=lease, max_lost=max_lost)
            if change is not None:
                decisions.append((task, change))
        try:
            leases, counts = await self._store.writer.run(self._claim, decisions, milliseconds(now))
        except (LedgerUnavailableError, asyncio.CancelledError):
            self._note_unconfirmed(adopted)
            self._note_unconfirmed(
                [
                    Lease(task=task, token=change.lock, fence=change.fence, expires=now + lease)
                    for task, change in decisions
                    if change.lock is not None
                ]
            )
            raise
        return Claimed(
            leases=(*adopted, *leases),
            missed=len(tasks) - len(leases) - counts.total(),
            abandoned=counts[Event.ABANDON],
            deferred=counts[Event.LOSE],
        )

    def _claim(
        self, db: Database, decisions: Sequence[tuple[Task, Change]], now: int
    ) -> tuple[list[Lease], Counter[Event]]:
        leases: list[Lease] = []
        counts: Counter[Event] = Counter()
        writes = []
        is_outcome = False
        for task, change in decisions:
            guard = {"id": task.id, "status": int(task.status), "fence": task.fence, "due": now}
            writes.append((written(task, change), guard))
            # A change that ignores or defers a task also counts a crash of the task's worker. The
            # change must be durable, because perhaps no worker counts the crash again.
            is_outcome = is_outcome or change.lock is None
        with db.transaction(durable=is_outcome):
            applied = apply_each(db, self._store.sql, writes)
            for (task, change), is_ours in zip(decisions, applied, strict=True):
                if is_ours is not True:
                    continue
                if change.lock is None or change.due is None:
                    counts[change.event] += 1
                    continue
                lease = Lease(task=task, token=change.lock, fence=change.fence, expires=change.due)
                leases.append(lease)
            if self._store.kind is LedgerKind.USE_CASE:
                leases = self._with_payloads(db, leases)
        return leases, counts

    def _note_unconfirmed(self, leases: Sequence[Lease]) -> None:
        # Keep all leases of a task, because any of several calls may have leased the task.
        for lease in leases:
            self._unconfirmed.setdefault(lease.task.id, []).append(lease)

    async def _resolve_unconfirmed(self, tasks: Sequence[Task], end: datetime) -> list[Lease]:
        """Extend unconfirmed leases of *tasks* to *end*; return the leases that the ledger has.

        Without the extension, a lease that expired while the ledger was unavailable would add to
        the task's `lost`.
        """
        unconfirmed_leases = [
            lease for task in tasks for lease in self._unconfirmed.pop(task.id, ())
        ]
        if not unconfirmed_leases:
            return []
        leases = [
            replace(unconfirmed_lease, expires=end) for unconfirmed_lease in unconfirmed_leases
        ]
        try:
            return await self._store.writer.run(self._adopt, leases)
        except BaseException:
            # Put the leases back, so that the next claim looks them up in the ledger.
            self._note_unconfirmed(unconfirmed_leases)
            raise

    def _adopt(self, db: Database, leases: Sequence[Lease]) -> list[Lease]:
        adopted: list[Lease] = []
        with db.transaction():
            for lease in sorted(leases, key=lambda lease: lease.task.id):
                # Lock the task's row: the lock waits for the commit of a claim in progress.
                db.execute(self._store.sql.lock_task, (lease.task.id,))
                renewed = {**lease_guard(lease), "due": milliseconds(lease.expires)}
                if db.execute(self._store.sql.renew, renewed).rowcount:
                    adopted.append(lease)
            return self._with_payloads(db, adopted) if self._store.kind.tracked else adopted

    def _with_payloads(self, db: Database, leases: Sequence[Lease]) -> list[Lease]:
        payloads: dict[bytes, Payload] = {}
        for number, portion in portions(leases):
            rows = db.execute(self._store.sql.carried(number), [claim.task.id for claim in portion])
            payloads |= {row["id"]: documents.carried(document_of(row)) for row in rows}
        return [
            replace(lease, task=replace(lease.task, carried=payloads[lease.task.id]))
            for lease in leases
        ]

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """See `protocol.Leases.renew`."""
        return await self._store.writer.run(
            self._renew, leases, milliseconds(self._store.now() + lease)
        )

    def _renew(self, db: Database, leases: Sequence[Lease], due: int) -> set[bytes]:
        writes = [(lease_guard(lease), {"due": due}) for lease in leases]
        with db.transaction():
            if changed(db, self._store.sql, writes) == len(writes):
                return set()
            return {
                lease.task.id
                for lease in leases
                if not db.execute(
                    self._store.sql.renew, {**lease_guard(lease), "due": due}
                ).rowcount
            }
