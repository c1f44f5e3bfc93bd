"""Pool of coroutines that work on one queue of leases: fetchers, or handlers of tracked tasks.

The pool's source puts leases as it gets them, and returns when there is nothing more to do. A
quarantined task runs alone, to find the task that crashes its workers.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from crawlcw.engine.session import TaskLeases
from crawlcw.errors import Defer, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.counters import FinishReason
from crawlcw.model.task import Lease
from crawlcw.model.transitions import is_quarantined


class Pool:
    """The workers of one process, as coroutines."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dispatched = 0  #: leases that wait in the queue or are in progress
        self._queue: asyncio.Queue[Lease] = asyncio.Queue()
        #: Waits for a lease; the caller calls `task_done` at the end of the work.
        self.get = self._queue.get
        self._start_worker: Callable[[], object] | None = None  #: set while the pool runs
        self._started_workers = 0  #: workers; some have nothing to do after the size has shrunk
        self._work_done = asyncio.Event()

    @property
    def queued_count(self) -> int:
        """The number of leases that no worker has started."""
        return self._queue.qsize()

    def has_idle_workers(self) -> bool:
        """Return whether a worker waits for a lease."""
        return self.dispatched < self.size

    def resize(self, size: int) -> None:
        """Let *size* workers work from now on; surplus workers finish their work."""
        self.size = size
        while self._start_worker is not None and self._started_workers < size:
            self._start_worker()
            self._started_workers += 1

    def put(self, lease: Lease) -> None:
        """Let the next free worker start on a lease."""
        self.dispatched += 1
        self._queue.put_nowait(lease)

    def task_done(self) -> None:
        """Note that the work on a lease has ended, with or without success."""
        self.dispatched -= 1
        self._work_done.set()

    def take_queued(self) -> list[Lease]:
        """Take back and return the leases that no worker has started."""
        leases = []
        while not self._queue.empty():
            leases.append(self._queue.get_nowait())
            self.dispatched -= 1
        return leases

    async def run(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        source: Callable[[], Awaitable[FinishReason]],
        *,
        release_queued: Callable[[], Awaitable[None]],
        grace_scope: Callable[[], AbstractContextManager[object]],
    ) -> FinishReason:
        """Let every worker *work* on the leases of *source* until that returns a reason; return it.

        If *source* is not drained, *release_queued* is awaited, and then the remaining work, within
        *grace_scope*. Raises `UsageError` if other code cancels a worker's task.
        """
        async with anyio.create_task_group() as workers:
            self._start_worker = partial(workers.start_soon, _unless_others_cancel, work)
            self.resize(self.size)
            reason = FinishReason.STOPPED

            async def run_source() -> None:
                nonlocal reason
                reason = await source()
                if reason is not FinishReason.DRAINED:
                    # Release now, because in the next tick a worker could start one more lease.
                    await release_queued()
                    with grace_scope():
                        while self.dispatched:
                            self._work_done.clear()
                            await self._work_done.wait()
                self._start_worker = None
                workers.cancel_scope.cancel()

            # In a separate task, because each wake-up passes all coroutines that await it.
            workers.start_soon(run_source)
        return reason


async def _unless_others_cancel(work: Callable[[], Awaitable[None]]) -> None:
    """Work; raises `UsageError` if code other than an enclosing scope cancels this task."""
    try:
        await work()
    except asyncio.CancelledError as error:
        if anyio.current_effective_deadline() == -math.inf:
            raise
        raise UsageError(
            "your code cancelled a task of crawlcw: cancel only tasks that your code created, not "
            "all of asyncio.all_tasks()"
        ) from error


#: If a task found no time to run alone, its next try comes after this multiple of `max_wait_s`.
_DEFER_FACTOR = 12


class Quarantine:
    """The tasks in progress in one process, and the task that runs alone, if any."""

    def __init__(self, ledger: Ledger, leases: TaskLeases, *, max_wait_s: float = math.inf) -> None:
        """*max_wait_s* is how many seconds all tasks may wait for the tasks in progress."""
        self._ledger = ledger
        self._leases = leases
        self._max_wait_s = max_wait_s
        self._in_progress: set[tuple[bytes, int]] = set()  #: ids and fences
        self._none_in_progress = anyio.Event()  #: set when nothing is in progress any more
        #: The lease of the task that runs alone, from its `enter` until its `leave`.
        self.quarantined_lease: Lease | None = None
        self._quarantine_ended = anyio.Event()

    async def enter(self, lease: Lease) -> bool:
        """Return whether to start a task now; a started task must `leave`.

        False means that another task had to end first, so the turn of this task's host is over. If
        the lease is lost, `enter` cancels its work. Raises `Defer` if the wait takes too long.
        """
        if self.quarantined_lease is not None:
            await self._quarantine_ended.wait()
            return False
        needs_quarantine = is_quarantined(lease.task)
        try:
            if needs_quarantine:
                self.quarantined_lease = lease
                self._quarantine_ended = anyio.Event()
                if self._in_progress:  # no task joins the tasks in progress from now on
                    self._none_in_progress = anyio.Event()
                    with anyio.move_on_after(self._max_wait_s) as wait_scope:
                        await self._none_in_progress.wait()
                    if wait_scope.cancelled_caught:
                        wait = _DEFER_FACTOR * timedelta(seconds=self._max_wait_s)
                        raise Defer(
                            "it must run alone, and the other pages took too long", due=wait
                        )
            self._in_progress.add((lease.task.id, lease.fence))
            if needs_quarantine and not await self._ledger.leases.begin(lease):
                self._leases.lose([lease.task.id])
                await checkpoint()
        except BaseException:
            self.leave(lease)
            raise
        return True

    def leave(self, lease: Lease) -> None:
        """Note that the work on a task has ended, in any way; it may not have started."""
        self._in_progress.discard((lease.task.id, lease.fence))
        if not self._in_progress:
            self._none_in_progress.set()
        if self.quarantined_lease is lease:
            self.quarantined_lease = None
            self._quarantine_ended.set()
