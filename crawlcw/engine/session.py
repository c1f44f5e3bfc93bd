"""Worker session: register a process as a worker in a ledger, and keep its leases alive.

A process has one worker session, both in a crawl and in the work on tracked tasks.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Protocol

import anyio

from crawlcw.engine.ledger_retry import LedgerRetry, retrying
from crawlcw.engine.stats import Instruments, Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.engine.workers import reap_dead_workers, resident_memory, this_worker
from crawlcw.errors import LedgerConfigurationError, LedgerError, LedgerUnavailableError, Reason
from crawlcw.ledger import copying
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.hosts import HostLease
from crawlcw.model.rates import Point, Vitals, minute_of
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import Event

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats.
_HEARTBEAT_INTERVAL_S = 5.0
#: A worker that has missed this number of heartbeats counts as gone.
_MISSED_BEATS = 3
_RATE_WINDOW_S = 60.0


class TaskLeases:
    """The leases of all tasks that this process has claimed, until each lease ends."""

    def __init__(self) -> None:
        self._lease_by_task: dict[bytes, Lease] = {}
        #: Cancel scopes of the work on tasks, by task id; the loss of a lease cancels the scope.
        self.cancel_scopes: dict[bytes, anyio.CancelScope] = {}
        #: Leases that must be released, because the work on their tasks was cancelled.
        self.orphans: list[Lease] = []
        self._settling_ids: set[bytes] = set()
        self.count_by_host: Counter[str] = Counter()  #: number of leased tasks, by host
        self._end_events: dict[bytes, anyio.Event] = {}

    def __len__(self) -> int:
        return len(self._lease_by_task)

    def __contains__(self, task_id: bytes) -> bool:
        return task_id in self._lease_by_task

    def is_current(self, lease: Lease) -> bool:
        """Return whether *lease* is this process's latest lease of the task."""
        current_lease = self._lease_by_task.get(lease.task.id)
        return current_lease is not None and current_lease.fence == lease.fence

    def add(self, leases: Iterable[Lease]) -> None:
        """Add the leases of tasks that were just claimed."""
        for lease in leases:
            if lease.task.id not in self._lease_by_task:
                self.count_by_host[lease.task.host] += 1
            self._lease_by_task[lease.task.id] = lease

    def all(self) -> list[Lease]:
        """Return all leases."""
        return list(self._lease_by_task.values())

    def mark_settling(self, leases: Iterable[Lease]) -> None:
        """Record that the outcomes of *leases* are being written to the ledger."""
        for lease in filter(self.is_current, leases):
            self._settling_ids.add(lease.task.id)

    def end(self, leases: Iterable[Lease]) -> None:
        """Forget leases that were committed, released or lost."""
        # Skip old leases, because a newer lease of the same task must stay in memory.
        for lease in filter(self.is_current, leases):
            task = lease.task
            self._settling_ids.discard(task.id)
            del self._lease_by_task[task.id]
            if end_event := self._end_events.pop(task.id, None):
                end_event.set()
            self.count_by_host[task.host] -= 1
            if not self.count_by_host[task.host]:
                del self.count_by_host[task.host]

    async def wait_for_end(self, lease: Lease) -> None:
        """Wait until *lease* is committed, released or lost."""
        if self.is_current(lease):
            await self._end_events.setdefault(lease.task.id, anyio.Event()).wait()

    def lose(self, task_ids: Iterable[bytes]) -> None:
        """Forget the leases of tasks that another worker has now, and cancel the tasks' work."""
        for task_id in task_ids:
            if lease := self._lease_by_task.get(task_id):
                self.end([lease])
            if scope := self.cancel_scopes.get(task_id):
                scope.cancel()

    async def renew(self, ledger: Ledger, *, lease: timedelta) -> set[bytes]:
        """Renew all task leases; call `lose` for the lost tasks, and return their ids."""
        leases = self.all()
        missing_ids = await ledger.leases.renew(leases, lease=lease) - self._settling_ids
        # A task is not lost if it was committed during the renewal or is being committed.
        lost_ids = {
            entry.task.id
            for entry in leases
            if entry.task.id in missing_ids and self.is_current(entry)
        }
        if lost_ids:
            logger.warning(
                "%d leases expired and other workers claimed them",
                len(lost_ids),
                extra={"event": "lease_lost"},
            )
            self.lose(lost_ids)
        return lost_ids


class Hosts(Protocol):
    """Keeps the host leases of one process."""

    def leases(self) -> Sequence[HostLease]:
        """Return the host leases; any thread may call this method."""

    async def renew(self) -> None:
        """Renew the host leases; raises `LedgerUnavailableError`."""

    async def leave(self) -> None:
        """Release the hosts; raises `LedgerUnavailableError`."""


class WorkerSession:
    """Registers a process as a worker in a ledger, and keeps the leases of its tasks and hosts."""

    hosts: Hosts | None = None  #: host leases of the process; None if it works on tracked tasks
    instruments: Instruments | None = None  #: observers of the steps of a task

    def __init__(
        self,
        ledger: Ledger,
        *,
        lease_length: Callable[[], timedelta],
        give_up: timedelta,
        limit: timedelta = timedelta(0),
        deadlines: Mapping[Reason, float] = MappingProxyType({}),
    ) -> None:
        """Prepare a session, which `join` starts; see `Watchdog` for *limit* and *deadlines*.

        *lease_length* returns the current length of a lease. The session's ledger operations fail
        if the ledger has not answered for *give_up*.
        """
        self.raw_ledger = ledger
        self.lease_length = lease_length
        self.retry = LedgerRetry(give_up)
        self.stats = Stats(ledger_operations=self.retry.calls_by_operation)
        #: The ledger with operations that are repeated while the ledger is unavailable.
        self.ledger = retrying(ledger, self.retry)
        self.leases = TaskLeases()
        self.renewed_at = time.monotonic()  #: monotonic time of the last renewal of task leases
        self._this_worker = this_worker(now=ledger.now())
        self.worker = self._this_worker.name  #: the name of this process in the ledger
        self.started_at = self._this_worker.started  #: start of this process, by the ledger's clock
        self._renewal_wanted = anyio.Event()
        self.watchdog = Watchdog(
            self.stats,
            limit=limit,
            renew_every=lease_length() / 3,
            renew=self._renew_during_stall,
            deadlines=deadlines,
        )
        #: Samples of the last minute: a monotonic time, and the number of pages at that time.
        self._rate_samples = deque([(time.monotonic(), 0)])
        self._last_vitals = Vitals()
        #: The minute whose rates were recorded last; at first the minute of the worker's start.
        self._recorded_minute = minute_of(self.started_at)
        self._max_lag = 0.0  #: longest lag of the event loop since the last recorded point
        self._is_idle = False
        #: Whether this worker has waited for new tasks because no task was due.
        self._keeps_running = False
        self._idle_changed = asyncio.Event()

    async def join(self) -> None:
        """Release the leases of dead processes on this machine, and enter the list of workers.

        Raises `LedgerConfigurationError` if the ledger is an unfinished copy.
        """
        if (await self.ledger.notes.state()).get(copying.UNFINISHED):
            raise LedgerConfigurationError(copying.HALF_COPIED)
        await reap_dead_workers(self.ledger)
        await self.ledger.workers.join(self._this_worker)

    async def keep_alive(
        self,
        *,
        on_lost: Callable[[set[bytes]], None],
        announce: Callable[[Iterable[Task]], Awaitable[None]] | None = None,
    ) -> None:
        """Renew leases and write heartbeats until cancelled; *on_lost* gets the ids of lost tasks.

        Renews the leases when a third of the lease length has passed, and releases the leases of
        dead processes on this machine. Passes to *announce* the tasks that were released because
        the work on them was cancelled.
        """
        self._renewal_wanted = anyio.Event()
        async with anyio.create_task_group() as renewal_tasks:
            renewal_tasks.start_soon(self._keep_beating)
            renewed_at = anyio.current_time()
            while True:
                # Measure from the last renewal, because an outage must not delay the next renewal.
                with anyio.CancelScope(
                    deadline=renewed_at + self.lease_length().total_seconds() / 3
                ):
                    await self._renewal_wanted.wait()
                self._renewal_wanted = anyio.Event()
                renewed_at = anyio.current_time()
                if lost_ids := await self.retry.call("leases.renew", self._renew_tasks):
                    on_lost(lost_ids)
                if self.hosts is not None:
                    await self.retry.call("host_leases.renew", self.hosts.renew)
                orphans, self.leases.orphans = self.leases.orphans, []
                if orphans:
                    await self.ledger.outcomes.release(orphans)
                    self.leases.end(orphans)
                    if announce is not None:
                        await announce([orphan.task for orphan in orphans])
                try:
                    await reap_dead_workers(self.raw_ledger)
                except LedgerUnavailableError as error:
                    log_fields = {"event": "not_reaped"}
                    logger.debug(
                        "cannot check the other workers: %s", printable(error), extra=log_fields
                    )

    async def _renew_tasks(self) -> set[bytes]:
        started_at = time.monotonic()
        lost_ids = await self.leases.renew(self.raw_ledger, lease=self.lease_length())
        self.renewed_at = started_at
        return lost_ids

    async def _renew_during_stall(self) -> None:
        """Renew leases in a second event loop while the session's event loop is blocked."""
        ledger = await self.raw_ledger.reconnected()
        try:
            # Read the leases from the ledger, because this process may not know its latest claim.
            if leases := await ledger.leases.leases_of(self.worker):
                await ledger.leases.renew(leases, lease=self.lease_length())
            if hosts := self.hosts.leases() if self.hosts is not None else ():
                await ledger.host_leases.renew(hosts, lease=self.lease_length())
            await self.beat(connection=ledger)
        finally:
            await ledger.close()

    def lease_changed(self) -> None:
        """Renew all leases now, because the length of a lease has changed.

        With a shorter length, a lease could expire before its next regular renewal.
        """
        self.watchdog.renew_every = self.lease_length().total_seconds() / 3
        self._renewal_wanted.set()

    async def abandon(self, ledger: Ledger) -> int:
        """Release all tasks over the connection of *ledger*; return the number of released tasks.

        If the session's event loop does not end, another thread runs `abandon` in a new loop.
        """
        released_count = await ledger.outcomes.release(self.leases.all())
        await ledger.workers.leave(self.worker)
        return released_count

    async def release_all(self) -> int:
        """Release all tasks; return the number of released tasks."""
        return await self.ledger.outcomes.release(self.leases.all())

    async def leave(self) -> None:
        """Release the hosts and leave the list of workers, after all tasks were released."""
        # Leave the list of workers last, because other workers release the leases of a worker that
        # is not in the list.
        if self.hosts is not None:
            await self.hosts.leave()
        await self.beat(connection=self.ledger)
        await self.record_point(last=True)
        await self.ledger.workers.leave(self.worker)

    async def _keep_beating(self) -> None:
        """Write a heartbeat every few seconds, and each time this worker becomes idle or busy."""
        while True:
            with anyio.move_on_after(
                min(_HEARTBEAT_INTERVAL_S, self.lease_length().total_seconds() / 3)
            ):
                await self._idle_changed.wait()
            self._idle_changed.clear()
            try:
                await self.beat()
            except LedgerUnavailableError as error:
                logger.debug(
                    "cannot write the heartbeat: %s",
                    printable(error),
                    extra={"event": "no_heartbeat"},
                )
            else:
                await self.record_point()

    async def beat(self, connection: Ledger | None = None) -> None:
        """Write a heartbeat with the worker's counters; raises `LedgerError`.

        A given *connection* means that this worker is blocked or leaving, and so it is not idle.
        """
        is_idle = self._is_idle and connection is None
        self._last_vitals = self.vitals()
        self._max_lag = max(self._max_lag, self._last_vitals.lag)
        await (connection or self.raw_ledger).workers.beat(
            self.worker, self.stats.snapshot(), idle=is_idle, vitals=self._last_vitals
        )

    def vitals(self) -> Vitals:
        """Return the current numbers of this process; any thread may call this method."""
        stats = self.stats
        return Vitals(
            finished=stats.pages,
            failed=stats.outcomes[Event.FAIL],
            ignored=stats.given_up + stats.unwanted,
            items=stats.items,
            bytes=stats.bytes,
            rate=round(self._rate(), 3),
            processing=len(self.leases),
            memory=resident_memory(),
            lag=round(self.watchdog.lag(), 4),
            keeps_running=self._keeps_running,
        )

    def _rate(self) -> float:
        """Return the number of finished tasks per second in the last minute, or since the start."""
        now, samples = time.monotonic(), self._rate_samples
        samples.append((now, self.stats.pages))
        while now - samples[1][0] >= _RATE_WINDOW_S:
            samples.popleft()
        start, pages_at_start = samples[0]
        return (self.stats.pages - pages_at_start) / (now - start) if now > start else 0.0

    async def record_point(self, *, last: bool = False) -> None:
        """Record the numbers of the last heartbeat once a minute, and at once if *last* is true."""
        now = self.raw_ledger.now()
        if not last and minute_of(now) <= self._recorded_minute:
            return
        vitals = replace(self._last_vitals, lag=self._max_lag)
        point = Point(
            worker=self.worker, started=self.started_at, time=now, vitals=vitals, last=last
        )
        try:
            await self.raw_ledger.rates.record(point)
        except LedgerError as error:
            # No count is lost, because the next point includes the counts of all earlier points.
            logger.debug(
                "cannot write the rates: %s", printable(error), extra={"event": "rates_not_written"}
            )
        else:
            self._recorded_minute, self._max_lag = minute_of(now), 0.0

    @property
    def is_idle(self) -> bool:
        """True if the ledger has tasks, but this worker's fetchers have no host to work on."""
        return self._is_idle

    def set_idle(self, idle: bool) -> None:
        """Note whether this worker has no host to work on although the ledger has tasks."""
        if idle != self._is_idle:
            self._is_idle = idle
            self._idle_changed.set()

    def note_waiting(self) -> None:
        """Note that this worker waits for new tasks instead of ending."""
        if not self._keeps_running:
            self._keeps_running = True
            self._idle_changed.set()

    async def neighbours(self) -> tuple[int, int]:
        """Return the number of all workers, and the number of other workers that are idle."""
        now = self.ledger.now()
        max_silence = timedelta(seconds=_MISSED_BEATS * _HEARTBEAT_INTERVAL_S)
        registered = await self.ledger.workers.all()
        workers = [worker for worker in registered if now - worker.heartbeat < max_silence]
        return len(workers), sum(
            neighbour.idle and neighbour.name != self.worker for neighbour in workers
        )
