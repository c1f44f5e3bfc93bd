"""Define the worker of a use case, which claims tasks and runs the handlers of their stages.

A worker claims more tasks only when few of its leased tasks wait, so that each leased task starts
soon. If no task is due, the worker polls the ledger with growing pauses. The worker polls
immediately when its own process adds a task, or when the store reports a change.
"""

import asyncio
import logging
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import anyio
from anyio import CapacityLimiter

from crawlcw.api.user_code import Cancellation, EscapedError
from crawlcw.engine.pool import Pool, Quarantine
from crawlcw.errors import (
    LeaseLostError,
    LedgerError,
    LedgerUnavailableError,
    UsageError,
    single_errors,
)
from crawlcw.ledger.protocol import Counts
from crawlcw.ledger.shielding import cancelled_gently
from crawlcw.model.counters import FinishReason
from crawlcw.model.sanitize import describe_error, printable
from crawlcw.model.task import Lease
from crawlcw.model.transitions import ended_since
from crawlcw.tracking.handling import run_handler
from crawlcw.tracking.session import CLOSE_TIMEOUT
from crawlcw.tracking.tracker import Tracker
from crawlcw.tracking.use_case import Handler

logger = logging.getLogger(__name__)

_MIN_PAUSE_S = 0.05
_MAX_PAUSE_S = 10.0
_MIN_RECONNECT_PAUSE_S = 1.0
_MAX_RECONNECT_PAUSE_S = 60.0
#: Number of additional tasks in a read after an outage, because the worker then skips some.
_GRACE_SCAN = 1_000
_MAX_RETREAT_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReport:
    """The result of a worker's run in this process."""

    finish_reason: FinishReason  #: `drained`, `stopped` or `stopped-at-once`
    succeeded: int  #: number of stages that ended successfully
    failed: int  #: number of failed attempts
    released: int  #: number of tasks released at the end
    counts: Counts | None = None  #: tasks of the whole use case by status; None: unknown


class Worker:
    """Works on the tasks of one use case until no task remains, or until it is stopped."""

    def __init__(
        self,
        tracker: Tracker,
        handlers: Mapping[str, Callable[..., Any]] | None = None,
        *,
        concurrency: int = 50,
        prefetch: int | None = None,
        drain: bool = False,
        grace: timedelta = timedelta(seconds=10),
        stall_timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        """*handlers* maps stages to functions that become handlers of the tracker's use case.

        At most *concurrency* tasks run at a time, and at most *prefetch* further leased tasks wait.
        The default of *prefetch* is *concurrency*. If *drain* is true, `run` ends when no work
        remains. A handler that blocks the event loop for longer than *stall_timeout* (0: no limit)
        ends the process. Raises `UsageError`.
        """
        for stage, function in (handlers or {}).items():
            tracker.use_case.add_handler(stage, function)
        if not tracker.use_case.handlers:
            raise UsageError(
                f"the use case {tracker.name} has no handler: declare one with @use_case.stage"
            )
        if concurrency < 1:
            raise UsageError("concurrency must be at least 1")
        if prefetch is None:
            prefetch = concurrency
        if not 0 <= prefetch <= concurrency:
            raise UsageError("prefetch must be from 0 to the concurrency")
        self.grace = grace
        tracker.session.watchdog.limit = stall_timeout.total_seconds()
        self._tracker = tracker
        self._session = tracker.session
        self._ledger = tracker.ledger
        self._handlers: Mapping[str, Handler] = tracker.use_case.handlers
        self._stages = tracker.use_case.stored_stages(tracker.use_case.handlers)
        self._pool = Pool(concurrency)
        self._prefetch = prefetch
        self._drain = drain
        self._threads = CapacityLimiter(concurrency)
        self._processes = CapacityLimiter(max(1, min(concurrency, os.cpu_count() or 1)))
        self._quarantine = Quarantine(self._ledger, self._session.leases)
        self._wake = asyncio.Event()
        self._pause_s = _MIN_PAUSE_S
        self._stopping = False
        self._stopping_now = False
        self._run_scope: anyio.CancelScope | None = None
        self._succeeded = self._failed = self._released = 0
        self._warned_of_stages = False

    @property
    def in_flight(self) -> int:
        """The number of tasks whose handlers are running."""
        return self._pool.dispatched - self._pool.queued_count

    def stop(self) -> None:
        """Release all queued tasks; stop when no task runs, or after the grace period."""
        self._stopping = True
        # Limit the wait for an unavailable ledger, because the worker must stop soon.
        self._session.retry.shorten(max(self.grace, CLOSE_TIMEOUT))
        self._wake.set()

    def stop_now(self) -> None:
        """Stop immediately, and release all tasks."""
        self._stopping_now = True
        self._session.retry.shorten(CLOSE_TIMEOUT)
        self.stop()
        if self._run_scope is not None:
            self._run_scope.cancel()

    def abandon(self) -> None:
        """Release all tasks; if `run` hangs, a thread calls `abandon` before the process ends."""
        anyio.run(self._abandon)

    async def _abandon(self) -> None:
        ledger = await self._session.raw_ledger.reconnected()
        await self._session.abandon(ledger)

    def stuck_in(self) -> str:
        """Return the name of the handler that blocks the event loop now, or an empty text."""
        return self._session.watchdog.blocking_code()

    async def run(self) -> WorkReport:
        """Work until no task remains or the worker is stopped; raises `LedgerError`."""
        with single_errors():
            reason = await self._run()
        counts = await self._session.retry.read_for_report(self._ledger.queries.counts)
        return WorkReport(
            finish_reason=reason,
            succeeded=self._succeeded,
            failed=self._failed,
            released=self._released,
            counts=counts,
        )

    async def _run(self) -> FinishReason:
        reason = FinishReason.STOPPED  # if `run` is cancelled
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(self._wake_by_additions)
            task_group.start_soon(cancelled_gently, self._wake_by_changes)
            with anyio.CancelScope() as self._run_scope:
                reason = await self._pool.run(
                    self._work_loop,
                    self._pull,
                    release_queued=self._release_waiting,
                    grace_scope=lambda: anyio.move_on_after(self.grace.total_seconds()),
                )
            # `stop_now` may have ended the block at any point.
            await self._release_waiting()
            task_group.cancel_scope.cancel()
        stopped_at_once = self._stopping_now and reason is not FinishReason.DRAINED
        return FinishReason.STOPPED_AT_ONCE if stopped_at_once else reason

    async def _pull(self) -> FinishReason:
        """Claim tasks to keep the pool filled, until the worker stops or no work remains."""
        while not self._stopping:
            self._wake.clear()
            free_capacity = self._pool.size + self._prefetch - self._pool.dispatched
            is_low = self._pool.queued_count <= self._prefetch // 2
            if not (is_low and free_capacity > 0):
                await self._wake.wait()
            elif not await self._claim_due(free_capacity):
                next_due = await self._next_due()
                if next_due is None and not self._pool.dispatched and self._drain:
                    return FinishReason.DRAINED
                await self._wait_for_due(next_due)
        return FinishReason.STOPPED

    async def _claim_due(self, free_capacity: int) -> bool:
        """Claim up to *free_capacity* due tasks; return whether any task was due."""
        grace_start = self._session.retry.grace_start(self._ledger.now())
        limit = free_capacity if grace_start is None else free_capacity + _GRACE_SCAN
        page = await self._ledger.tasks.page(limit=limit, hosts=self._stages)
        claimable = [
            task
            for task in page
            if task.id not in self._session.leases
            # After an outage, a task's worker may still renew its expired lease, so skip the task.
            and not ended_since(task, grace_start)
        ][:free_capacity]
        if not claimable:
            return False
        claimed = await self._session.claim(claimable)
        for lease in claimed.leases:
            self._pool.put(lease)
        if claimed.leases:
            self._pause_s = _MIN_PAUSE_S
        elif claimed.missed:
            # Other workers claim at the same moments as this worker, so pause for a random time.
            await anyio.sleep(random.random() * _MAX_RETREAT_S)
        return True

    async def _next_due(self) -> datetime | None:
        return await self._ledger.queries.next_due(due_by=self._ledger.now())

    async def _wait_for_due(self, next_due: datetime | None) -> None:
        """Pause until more tasks may be due, because this worker can claim no task now.

        While no task is due, the worker only reads the time of the next due task.
        """
        if self._is_due(next_due):
            self._warn_of_stages()
        while True:
            pause = self._pause_s
            if next_due is not None and not self._is_due(next_due):
                pause = min(pause, (next_due - self._ledger.now()).total_seconds())
            with anyio.move_on_after(pause):
                await self._wake.wait()
                return
            self._pause_s = min(3 * self._pause_s, _MAX_PAUSE_S)
            if self._is_due(next_due):
                return
            next_due = await self._next_due()
            if self._is_due(next_due) or (next_due is None and self._drain):
                return

    def _is_due(self, due_time: datetime | None) -> bool:
        return due_time is not None and due_time <= self._ledger.now()

    def _warn_of_stages(self) -> None:
        if not (self._warned_of_stages or self._pool.dispatched) and self._pause_s > 1:
            self._warned_of_stages = True
            logger.warning(
                "tasks are due in stages without a handler here (handlers: %s)",
                printable(", ".join(self._handlers)),
                extra={"event": "stage_unknown"},
            )

    async def _work_loop(self) -> None:
        while True:
            lease = await self._pool.get()
            try:
                await self._work_on(lease)
            finally:
                self._pool.task_done()
                self._wake.set()

    async def _work_on(self, lease: Lease) -> None:
        if not self._session.leases.is_current(lease):
            return  # the lease was lost while the task was queued
        handler = self._handlers[self._tracker.use_case.resolve_stage(lease.task.callback)]
        try:
            async with self._tracker.start_leased(lease) as execution:
                while not await self._quarantine.enter(lease):
                    pass  # another quarantined task ran first, so wait again
                async with Cancellation().contained():
                    await run_handler(
                        handler, execution, threads=self._threads, processes=self._processes
                    )
        except anyio.get_cancelled_exc_class():
            self._released += 1
            raise
        except LeaseLostError:
            logger.info(
                "dropped the result of %s, because another worker has its lease",
                printable(lease.task.url),
                extra={"event": "lease_lost", "key": lease.task.url},
            )
        except LedgerError as error:
            logger.warning(
                "could not record the outcome of %s: %s",
                printable(lease.task.url),
                printable(error),
                extra={"event": "not_settled", "key": lease.task.url},
            )
        except Exception as error:
            self._failed += 1
            logger.warning(
                "%s failed: %s",
                printable(lease.task.url),
                printable(
                    describe_error(error.error if isinstance(error, EscapedError) else error)
                ),
                extra={"event": "task_failed", "key": lease.task.url},
            )
        else:
            self._succeeded += 1
        finally:
            self._quarantine.leave(lease)

    async def _release_waiting(self) -> None:
        """Release the leased tasks whose handlers have not begun."""
        if waiting_leases := self._pool.take_queued():
            await self._session.release(waiting_leases)
            self._released += len(waiting_leases)

    async def _wake_by_additions(self) -> None:
        while True:
            await self._tracker.tasks_due.wait()
            self._tracker.tasks_due.clear()
            self._wake.set()

    async def _wake_by_changes(self) -> None:
        """Wake the worker whenever the store reports a change, if the store can report changes."""
        pause = _MIN_RECONNECT_PAUSE_S
        while True:
            try:
                async for _ in self._ledger.changes.watch():
                    pause = _MIN_RECONNECT_PAUSE_S
                    self._wake.set()
            except LedgerUnavailableError as error:
                logger.debug(
                    "the ledger reports no changes now: %s",
                    printable(error),
                    extra={"event": "not_watching"},
                )
            else:
                return
            await anyio.sleep(pause)
            pause = min(2 * pause, _MAX_RECONNECT_PAUSE_S)
