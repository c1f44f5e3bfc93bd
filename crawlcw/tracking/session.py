"""Define the ledger session of one process, which claims, renews and ends tasks of a use case.

All work of a process on tracked tasks uses one session. So the process has one name in the ledger,
and one loop that renews all its leases. The session writes outcomes of several tasks together
(group commit). The process joins the ledger's list of workers before its first claim.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import anyio

from crawlcw.engine.session import WorkerSession
from crawlcw.errors import LeaseLostError, LedgerError, LedgerUnavailableError, SettingsError
from crawlcw.ledger.protocol import Claimed, Ledger
from crawlcw.ledger.shielding import run_shielded
from crawlcw.model import values
from crawlcw.model.sanitize import printable
from crawlcw.model.task import BlobRef, Lease, Task
from crawlcw.model.transitions import Settlement
from crawlcw.tracking.coalescer import Coalescer
from crawlcw.tracking.use_case import Policy

logger = logging.getLogger(__name__)

#: Seconds between two reads of the settings that the ledger has for the use case.
_POLICY_INTERVAL_S = 30.0
#: The maximum wait for an unavailable ledger at the end of a session.
CLOSE_TIMEOUT = timedelta(seconds=5)


class Session(WorkerSession):
    """The ledger session of one process, with its leases of a use case's tasks."""

    def __init__(self, ledger: Ledger, policy: Policy, *, give_up: timedelta) -> None:
        """Calls fail after the ledger has been unavailable for the time *give_up*."""
        self.policy = policy
        super().__init__(ledger, lease_length=lambda: self.policy.lease, give_up=give_up)
        self._claims: Coalescer[Task, Claimed] = Coalescer(self._claim_for_callers)
        self._commits: Coalescer[Settlement, LedgerError | None] = Coalescer(self._commit)
        self._upkeep_task: asyncio.Task[None] | None = None
        self._join_lock = anyio.Lock()
        self._failure: Exception | None = None

    async def claim(self, tasks: Sequence[Task]) -> Claimed:
        """Claim tasks by `Leases.claim`, then renew the leases regularly; raises `LedgerError`."""
        await self._ensure_joined()
        return await self._await_claim(asyncio.create_task(self._claim(tasks)))

    async def claim_one(self, task: Task) -> Lease | None:
        """Claim one task as `claim` does; concurrent calls share one request to the ledger."""
        await self._ensure_joined()
        claimed = await self._await_claim(self._claims(task))
        return next(iter(claimed.leases), None)

    async def _await_claim(self, claim_future: asyncio.Future[Claimed]) -> Claimed:
        try:
            return await asyncio.shield(claim_future)
        except asyncio.CancelledError:
            await run_shielded(self._undo_claim(claim_future))
            raise

    async def _claim_for_callers(self, tasks: Sequence[Task]) -> list[Claimed]:
        """Claim a task for each caller; if two callers want one task, the first caller gets it."""
        task_by_id = {task.id: task for task in tasks}
        claimed = await self._claim(list(task_by_id.values()))
        lease_by_id = {lease.task.id: (lease,) for lease in claimed.leases}
        return [Claimed(leases=lease_by_id.pop(task.id, ())) for task in tasks]

    async def _claim(self, tasks: Sequence[Task]) -> Claimed:
        lease = self.policy.lease
        claimed = await self.ledger.leases.claim(
            tasks,
            worker=self.worker,
            lease=lease,
            max_lost=self.policy.max_lost,
        )
        self.stats.claims += len(tasks)
        self.stats.claims_missed += claimed.missed
        self.leases.add(claimed.leases)
        if lease != self.policy.lease:
            # The setting `lease` changed during the claim, so renew the new leases soon.
            self.lease_changed()
        return claimed

    async def _undo_claim(self, claim_future: asyncio.Future[Claimed]) -> None:
        """Release the tasks of a claim whose caller was cancelled."""
        await asyncio.wait([claim_future], timeout=CLOSE_TIMEOUT.total_seconds())
        if not claim_future.done():
            # The ledger is unavailable, so the next renewal of leases releases the claimed tasks.
            claim_future.add_done_callback(self._orphan_leases)
            return
        with suppress(LedgerError):
            await self.release(claim_future.result().leases)

    def _orphan_leases(self, claim_future: asyncio.Future[Claimed]) -> None:
        if not claim_future.cancelled() and claim_future.exception() is None:
            self.leases.orphans += claim_future.result().leases

    def commit(self, settlement: Settlement) -> asyncio.Future[LedgerError | None]:
        """Record an outcome, together with other pending outcomes, and end the outcome's lease.

        The result of the returned future is None, or the reason why the outcome was not recorded
        (see `commit_outcomes`). The future raises `LedgerError` if the ledger stays unavailable.
        This method raises `LedgerError` if the session has failed or was closed. If the caller is
        cancelled, the outcome is still recorded.
        """
        self._check()
        return self._commits(settlement)

    async def _commit(self, settlements: Sequence[Settlement]) -> list[LedgerError | None]:
        self._check()
        leases = [settlement.lease for settlement in settlements]
        self.leases.mark_settling(leases)
        try:
            errors = await commit_outcomes(self.ledger, settlements)
        except LedgerError as error:
            # `_fail` cancels the work on all leases, so first end the leases of this commit.
            self.leases.end(leases)
            self._fail(error)
            raise
        finally:
            self.leases.end(leases)
        for settlement, refusal in zip(settlements, errors, strict=True):
            if refusal is None:
                self.stats.record(settlement)
            elif isinstance(refusal, LeaseLostError):
                self.stats.leases_lost += 1
        return errors

    async def store_value(self, task_id: bytes, value: Any) -> Any:
        """Return *value* if it is small; if not, store it as a blob and return a `BlobRef`."""
        if value is None or values.size(value) <= self.policy.inline_limit:
            return value
        return await self.ledger.blobs.put(task_id, value)

    async def load_value(self, value: Any) -> Any:
        """Return *value*, or the stored value if *value* is a `BlobRef`; raises `LedgerError`."""
        return await self.ledger.blobs.read(value) if isinstance(value, BlobRef) else value

    async def delete_blobs(self, *stored_values: Any) -> None:
        """Delete the blobs that *stored_values* refer to; no task may still refer to the blobs."""
        if blobs := [value for value in stored_values if isinstance(value, BlobRef)]:
            await self.ledger.blobs.drop(blobs)

    async def release(self, leases: Iterable[Lease]) -> None:
        """Release tasks without counting an attempt, even if the caller is cancelled."""
        await run_shielded(self._release(list(leases)))

    async def release_in_time(self, leases: Iterable[Lease]) -> None:
        """Try for 5 s to release a cancelled caller's leases; unreleased leases expire."""
        with suppress(LedgerError, TimeoutError):
            release = self._release(list(leases))
            await run_shielded(asyncio.wait_for(release, CLOSE_TIMEOUT.total_seconds()))

    async def _release(self, leases: Sequence[Lease]) -> None:
        self.leases.mark_settling(leases)
        try:
            await self.ledger.outcomes.release(leases)
        finally:
            self.leases.end(leases)

    async def close(self) -> None:
        """Write the pending outcomes, release the leases, and leave the ledger's worker list."""
        if self._upkeep_task is None:
            return
        self.retry.shorten(CLOSE_TIMEOUT)
        await self._commits.finish()
        self._upkeep_task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._upkeep_task
        self._upkeep_task = None
        await self.watchdog.__aexit__()
        self._failure = self._failure or LedgerError("the tracker was closed")
        leases = self.leases.all()
        # Ignore an unavailable ledger. The next process on this machine detects that this process
        # has ended, and then releases this process's leases.
        try:
            with suppress(LedgerUnavailableError):
                await self.release_all()
                await self.leave()
        finally:
            # Call `lose` last, because `lose` may cancel the caller of `close`.
            self.leases.lose([lease.task.id for lease in leases])

    async def refresh(self) -> None:
        """Apply the use case's current settings; raises `LedgerUnavailableError`."""
        old_lease = self.policy.lease
        try:
            self.policy = Policy.of(await self.ledger.notes.policy())
        except SettingsError as error:
            # Keep the old settings if a user has made the settings in the database invalid.
            logger.warning(
                "the settings in the ledger are invalid, so the current ones stay in force: %s",
                printable(error),
                extra={"event": "policy_invalid"},
            )
        if self.policy.lease != old_lease:
            self.lease_changed()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _ensure_joined(self) -> None:
        """Join the ledger's list of workers and start to renew leases, if not done already."""
        self._check()
        if self._upkeep_task is not None:
            return
        async with self._join_lock:
            if self._upkeep_task is None:
                await self.join()
                await self.watchdog.__aenter__()
                self._upkeep_task = asyncio.create_task(self._keep_up(), name="crawlcw upkeep")

    async def _keep_up(self) -> None:
        try:
            async with anyio.create_task_group() as task_group:
                task_group.start_soon(partial(self.keep_alive, on_lost=self._count_lost))
                task_group.start_soon(self._follow_policy)
        except* Exception as errors:
            self._fail(errors.exceptions[0])

    def _fail(self, error: Exception) -> None:
        """Cancel all work on leased tasks, because the session cannot record outcomes any more."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        logger.error(
            "the session with the ledger failed: %s",
            printable(error),
            extra={"event": "session_broken"},
        )
        self._failure = error
        self.leases.lose([lease.task.id for lease in self.leases.all()])
        if self._upkeep_task is not None:
            self._upkeep_task.cancel()

    async def _follow_policy(self) -> None:
        """Read the use case's settings every 30 s, because other processes may change them."""
        while True:
            await anyio.sleep(_POLICY_INTERVAL_S)
            with suppress(LedgerUnavailableError):
                await self.refresh()

    def _count_lost(self, task_ids: set[bytes]) -> None:
        self.stats.leases_lost += len(task_ids)


async def commit_outcomes(
    ledger: Ledger, settlements: Sequence[Settlement]
) -> list[LedgerError | None]:
    """Record outcomes; for each, return None, or the reason why the outcome was not recorded.

    The reason is `LeaseLostError` if another worker has the task's lease now. The reason is
    `LedgerError` if the store cannot hold the outcome, and the ledger then gives up the task.
    """
    result = await ledger.outcomes.commit(settlements)
    errors: dict[tuple[bytes, str, int], LedgerError] = {}
    for lease in result.lost:
        message = f"another worker now has the lease of task {lease.task.url!r}"
        errors[_lease_key(lease)] = LeaseLostError(message)
    for lease, problem in result.rejected:
        message = f"the outcome of task {lease.task.url!r} cannot be stored: {problem}"
        errors[_lease_key(lease)] = LedgerError(message)
    return [errors.get(_lease_key(settlement.lease)) for settlement in settlements]


def _lease_key(lease: Lease) -> tuple[bytes, str, int]:
    # One batch may end two leases of one task, because a former and the current worker end theirs.
    # So the task's id does not identify a lease.
    return lease.task.id, lease.token, lease.fence
