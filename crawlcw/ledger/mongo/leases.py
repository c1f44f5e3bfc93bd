"""Claim tasks, and renew their leases, on MongoDB.

If a reply is lost or the caller is cancelled, the worker may have the lease of a task without
knowing it. `Leases` notes such a claim in memory, and looks it up in the ledger at the next call.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.ledger.mongo.updates import locked, update_of
from crawlcw.ledger.protocol import Claimed
from crawlcw.ledger.workers import LeasedTasks
from crawlcw.model import transitions
from crawlcw.model.task import WAITING, Lease, Status, Task
from crawlcw.model.transitions import Change

_CLOCK_CHECK = 60.0
_CLAIM_FIELDS = ("status", "due", "update_time", "lock", "lock_time", "fence", "lost")
_LEASE_FIELDS = dict.fromkeys(("due", "lock", "fence"), 1)
_CARRIED = dict.fromkeys(documents.CARRIED_FIELDS, 1)


class Leases(LeasedTasks):
    """Claims tasks, and renews their leases."""

    _store: MongoStore

    def __init__(self, store: MongoStore) -> None:
        super().__init__(store)
        #: Tasks of claims that got no reply, so that the result is unknown, by id and token.
        self._unconfirmed: dict[bytes, dict[str, Task]] = {}

    @property
    def batch_size(self) -> int:
        """See `protocol.Leases.batch_size`; a batch of any size takes two commands."""
        return 200 if self._store.claims_in_batches else 32

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """Claim the tasks, one by one or in batches, as the option `claims` says.

        If a reply is lost, `claim` raises, and a repeated call returns the leases of both calls.
        """
        adopted_claims = await self._resolve_unconfirmed(tasks, lease=lease)
        adopted_ids = {claim.task.id for claim in adopted_claims}
        tasks = [task for task in tasks if task.id not in adopted_ids]
        batch_tasks = [
            t for t in tasks if self._store.claims_in_batches and t.status is not Status.PROCESSING
        ]
        # Claim tasks with expired leases one by one, because a claim after a crash may have to
        # raise the task's `lost`.
        singles = [
            t for t in tasks if not self._store.claims_in_batches or t.status is Status.PROCESSING
        ]
        pairs = [(claim, self._store.token(worker)) for claim in singles]
        batch_token = self._store.token(worker)
        try:
            results: list[Lease | Status | LedgerUnavailableError | None] = await asyncio.gather(
                *(self._claim_one(task, token, lease, max_lost) for task, token in pairs)
            )
            results += await self._claim_together(batch_tasks, batch_token, lease)
        except asyncio.CancelledError:
            # The server may have applied the claims, but the cancelled caller has no reply.
            sent_claims = [*pairs, *((task, batch_token) for task in batch_tasks)]
            for task, token in [
                *sent_claims,
                *((claim.task, claim.token) for claim in adopted_claims),
            ]:
                self._note_unconfirmed(task, token)
            raise
        leases = (*adopted_claims, *(result for result in results if isinstance(result, Lease)))
        for result in results:
            if isinstance(result, LedgerUnavailableError):
                for claim in leases:
                    self._note_unconfirmed(claim.task, claim.token)
                raise result
        return Claimed(
            leases=leases,
            missed=sum(result is None for result in results),
            abandoned=sum(result is Status.IGNORED for result in results),
            deferred=sum(result in WAITING for result in results),
        )

    async def _claim_one(
        self, task: Task, token: str, lease: timedelta, max_lost: int
    ) -> Lease | Status | LedgerUnavailableError | None:
        """Claim the task; return its lease, or its new status if it was given up or deferred.

        The result is None if another worker was faster. If the reply is lost, `_claim_one` returns
        the error and does not raise it, because one `gather` runs several claims.
        """
        now = self._store.now()
        change = transitions.claim(task, token=token, now=now, lease=lease, max_lost=max_lost)
        if change is None:
            return None
        # This filter tests the fence, so the update fails if another worker has claimed the task.
        guard = {
            "_id": task.id,
            "status": int(task.status),
            "fence": task.fence,
            "due": {"$lte": now},
        }
        # A claim that gives up or defers a task needs a durable write. A failover could undo
        # another write, and after the end of the crawl no worker would repeat the claim.
        collection = self._store.tasks if change.lock is not None else self._store.durable
        try:
            with mapped():
                document = await collection.find_one_and_update(
                    guard, _claim(change), projection=self._read({"_id": 1}), hint="_id_"
                )
        except LedgerUnavailableError as error:
            self._note_unconfirmed(task, token)
            return error
        if document is None:
            return None
        if change.lock is None:
            return change.status
        assert change.due is not None
        task = self._loaded(task, document)
        return Lease(task=task, token=token, fence=change.fence, expires=change.due)

    def _read(self, fields: Mapping[str, int]) -> dict[str, int]:
        """Return the fields that a claim reads; for a tracked task they include the payload."""
        return {**fields, **_CARRIED} if self._store.kind.tracked else dict(fields)

    def _loaded(self, task: Task, document: Mapping[str, Any]) -> Task:
        """Return the task; a tracked task also gets its payload from *document*."""
        return (
            replace(task, carried=documents.carried(document)) if self._store.kind.tracked else task
        )

    async def _claim_together(
        self, tasks: Sequence[Task], token: str, lease: timedelta
    ) -> Sequence[Lease | LedgerUnavailableError | None]:
        """Claim many tasks in two round trips: an update, then a read of the leased tasks."""
        if not tasks:
            return []
        now = self._store.now()
        ids_by_state: dict[tuple[int, int], list[bytes]] = {}
        for task in tasks:
            ids_by_state.setdefault((int(task.status), task.fence), []).append(task.id)
        guard = {
            "_id": {"$in": [task.id for task in tasks]},
            "due": {"$lte": now},
            # A task must still have the fence that we read. Without this test a late claim could
            # lease a task that another worker has leased and released since the read.
            "$or": [
                {"status": status, "fence": fence, "_id": {"$in": ids}}
                for (status, fence), ids in ids_by_state.items()
            ],
        }
        lease_fields = {
            "status": int(transitions.CLAIM.to_status),
            "due": now + lease,
            "update_time": now,
            "lock": token,
            "lock_time": now,
        }
        claims = {task.id: {token: task} for task in tasks}
        try:
            with mapped():
                await self._store.tasks.update_many(
                    guard, {"$set": lease_fields, "$inc": {"fence": 1}}, hint="_id_"
                )
                lease_by_id = {lease.task.id: lease for lease in await self._leases_of(claims)}
        except LedgerUnavailableError as error:
            for task in tasks:
                self._note_unconfirmed(task, token)
            return [error]
        return [lease_by_id.get(task.id) for task in tasks]

    def _note_unconfirmed(self, task: Task, token: str) -> None:
        # Keep several tokens for a task, because two calls may claim the task at the same time.
        self._unconfirmed.setdefault(task.id, {})[token] = task

    async def _resolve_unconfirmed(self, tasks: Sequence[Task], *, lease: timedelta) -> list[Lease]:
        """Return the leases of earlier claims of *tasks* if the reply to the claim was lost.

        If several callers repeat the claim of a task, only one caller gets the lease. The call
        extends each lease, because the lease may have expired while the ledger was unavailable.
        """
        claims = {
            task.id: self._unconfirmed.pop(task.id)
            for task in tasks
            if task.id in self._unconfirmed
        }
        if not claims:
            return []
        try:
            with mapped():
                await self._store.tasks.update_many(
                    locked(claims, (token for tokens in claims.values() for token in tokens)),
                    {"$max": {"due": self._store.now() + lease}},
                    hint="_id_",
                )
                return await self._leases_of(claims)
        except BaseException:
            # Remember the claims again, so that the next caller looks for the leases.
            for tokens in claims.values():
                for token, task in tokens.items():
                    self._note_unconfirmed(task, token)
            raise

    async def _leases_of(self, claims: Mapping[bytes, Mapping[str, Task]]) -> list[Lease]:
        """Return the leases that *claims* got: maps from task id to token to task."""
        query = {"_id": {"$in": list(claims)}, "status": int(Status.PROCESSING)}
        cursor = self._store.tasks.find(query, self._read(_LEASE_FIELDS)).hint("_id_")
        leases = []
        for document in await all_of(cursor, len(claims)):
            token = document["lock"]
            if task := claims[bytes(document["_id"])].get(token):
                claimed_task = self._loaded(task, document)
                leases.append(
                    Lease(
                        task=claimed_task,
                        token=token,
                        fence=document["fence"],
                        expires=document["due"],
                    )
                )
        return leases

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """Extend the leases by one update; read the tasks only if the update did not extend all."""
        with mapped():
            await self._check_clock(lease)
            if not leases:
                return set()
            query = locked((claim.task.id for claim in leases), (claim.token for claim in leases))
            # A late renewal must not shorten a lease that a newer renewal has extended.
            result = await self._store.tasks.update_many(
                query, {"$max": {"due": self._store.now() + lease}}, hint="_id_"
            )
            if result.matched_count == len(leases):
                return set()
            cursor = self._store.tasks.find(query, {"fence": 1}).hint("_id_")
            fences = {
                bytes(task["_id"]): task["fence"] for task in await all_of(cursor, len(leases))
            }
        return {claim.task.id for claim in leases if fences.get(claim.task.id) != claim.fence}

    async def _check_clock(self, lease: timedelta) -> None:
        """Measure the offset of the server's clock again if the last measurement is old."""
        # Measure more often for a short lease: if a clock drifts by the length of the lease, the
        # lease seems to have expired.
        interval = min(_CLOCK_CHECK, lease.total_seconds() / 2)
        if (
            self._store.own_clock
            and self._store.clock.monotonic() - self._store.clock_checked > interval
        ):
            await self._store.set_clock()


def _claim(change: Change) -> dict[str, Any]:
    """Return the update of a claim with only the changed fields, because claims are frequent."""
    if change.lock is None:
        return update_of(change)  # the change grants no lease: it gives up or defers the task
    fields = documents.changed(change)
    names = (
        _CLAIM_FIELDS if change.quarantine_fence is None else (*_CLAIM_FIELDS, "quarantine_fence")
    )
    return {"$set": {name: fields[name] for name in names}}
