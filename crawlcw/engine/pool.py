"""Run the coroutines that work on a queue of leases: fetchers, or handlers of tracked tasks.

A source fills the queue of a pool, and returns when no task remains. A quarantined task runs alone
in its process, so that a crash of the process shows which task has caused the crash.
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
    """The worker coroutines of one process; each works on one leased task at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dispatched = 0  #: number of leases that wait in the queue or are in progress
        self._queue: asyncio.Queue[Lease] = asyncio.Queue()
        #: Coroutine function that waits for a lease; call `task_done` after the work.
        self.get = self._queue.get
        #: Function that starts a worker; None unless the pool runs.
        self._start_worker: Callable[[], object] | None = None
        self._started_workers = 0  #: number of workers that were started; it never shrinks
        self._work_done = asyncio.Event()

    @property
    def queued_count(self) -> int:
        """The number of leases that no worker has started."""
        return self._queue.qsize()

    def has_idle_workers(self) -> bool:
        """Return whether a worker waits for a lease."""
        return self.dispatched < self.size

    def resize(self, size: int) -> None:
        """Let at most *size* workers work at a time; surplus workers finish their tasks first."""
        self.size = size
        while self._start_worker is not None and self._started_workers < size:
            self._start_worker()
            self._started_workers += 1

    def put(self, lease: Lease) -> None:
        """Let the next free worker start the task of a lease."""
        self.dispatched += 1
        self._queue.put_nowait(lease)

    def task_done(self) -> None:
        """Record that the work on a lease has ended, with or without success."""
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
        """Run worker coroutines until *source* ends; return the finish reason from *source*.

        Each worker runs *work*. If *source* returns another reason than `DRAINED`, *release_queued*
        releases the leases in the queue. Then the tasks in progress may finish until the time limit
        of *grace_scope*. Raises `UsageError` if code outside of crawlcw cancels the asyncio task of
        a worker.
        """
        async with anyio.create_task_group() as workers:
            self._start_worker = partial(workers.start_soon, _unless_others_cancel, work)
            self.resize(self.size)
            reason = FinishReason.STOPPED

            async def run_source() -> None:
                nonlocal reason
                reason = await source()
                if reason is not FinishReason.DRAINED:
                    # Release the queued leases first, because at an `await` a worker may start one.
                    await release_queued()
                    with grace_scope():
                        while self.dispatched:
                            self._work_done.clear()
                            await self._work_done.wait()
                self._start_worker = None
                workers.cancel_scope.cancel()

            # Run the source in a separate asyncio task, because a deeply nested coroutine is slow
            # to resume.
            workers.start_soon(run_source)
        return reason


async def _unless_others_cancel(work: Callable[[], Awaitable[None]]) -> None:
    """Await *work*; raises `UsageError` if code outside of crawlcw cancels this asyncio task."""
    try:
        await work()
    except asyncio.CancelledError as error:
        if anyio.current_effective_deadline() == -math.inf:
            raise
        raise UsageError(
            "your code cancelled a task of crawlcw: cancel only tasks that your code created, not "
            "all of asyncio.all_tasks()"
        ) from error


#: A quarantined task that could not run alone is put off by `max_wait_s` times this factor.
_DEFER_FACTOR = 12


class Quarantine:
    """Lets a quarantined task run alone, so that no other task of its process runs meanwhile."""

    def __init__(self, ledger: Ledger, leases: TaskLeases, *, max_wait_s: float = math.inf) -> None:
        """A quarantined task waits at most *max_wait_s* seconds for the end of other tasks."""
        self._ledger = ledger
        self._leases = leases
        self._max_wait_s = max_wait_s
        self._in_progress: set[tuple[bytes, int]] = set()  #: ids and fences of started tasks
        self._none_in_progress = anyio.Event()  #: set when no task is in progress any more
        #: Lease of the quarantined task that runs alone or waits to run; None without such a task.
        self.quarantined_lease: Lease | None = None
        self._quarantine_ended = anyio.Event()

    async def enter(
        self, lease: Lease, *, before_wait: Callable[[], object] = lambda: None
    ) -> bool:
        """Return whether to start a task now; the caller must call `leave` after a started task.

        If a quarantined task runs, `enter` waits for the end of that task and returns False. If
        *lease* is lost, `enter` cancels the work. If a quarantined task waits too long, `enter`
        raises `Defer`. Before `enter` waits for other tasks, it calls *before_wait*.
        """
        if self.quarantined_lease is not None:
            before_wait()
            await self._quarantine_ended.wait()
            return False
        needs_quarantine = is_quarantined(lease.task)
        try:
            if needs_quarantine:
                self.quarantined_lease = lease
                self._quarantine_ended = anyio.Event()
                if self._in_progress:  # from now on, new tasks wait in `enter`
                    self._none_in_progress = anyio.Event()
                    before_wait()
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
        """Record that the work on a task has ended or will not start."""
        self._in_progress.discard((lease.task.id, lease.fence))
        if not self._in_progress:
            self._none_in_progress.set()
        if self.quarantined_lease is lease:
            self.quarantined_lease = None
            self._quarantine_ended.set()
