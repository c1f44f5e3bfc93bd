"""Coordinate a crawl: lease hosts, read and claim the hosts' tasks, and queue the tasks by host.

The coordinator leases hosts that are ready, reads their due tasks and claims tasks before fetchers
need them. The coordinator claims two tasks for each fetcher, or up to eight if many hosts are slow.
The coordinator gives a task to a fetcher when the task's host may get a request.

The coordinator sleeps until something changes or the next task is due. The coordinator ends when no
task in the ledger is due or will become due. After a long outage of the ledger, the coordinator
claims nothing for 10 s, so that workers can first renew their expired leases.
"""

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Iterable
from datetime import datetime, timedelta

import anyio
import anyio.abc

from crawlcw.api.settings import Settings
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.crawl.host_queues import bonus
from crawlcw.crawl.hosts import FrontierHost, Phase
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.opening import Opening
from crawlcw.crawl.outcomes import End, InternalErrors
from crawlcw.engine.pool import Pool
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import Reason
from crawlcw.model.counters import FinishReason
from crawlcw.model.idle_reason import IdleReason
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import deferred_lease, losses

logger = logging.getLogger(__name__)

_MIN_IDLE_S = 0.05
_MAX_IDLE_S = 8.0
_SHARED_IDLE_S = 1.0
_HOSTS_PER_QUERY = 100
#: Number of tasks that the coordinator claims ahead for each fetcher.
_PREFETCH = 2
#: The minimum number of tasks to claim for a host without limits.
_MIN_CLAIM = 8
_SLOW_HOST_TASKS = 8  #: additional tasks to claim for each slow host, besides `_PREFETCH`
_MAX_CLAIMED_FACTOR = 4  #: limit of all claimed tasks, as a multiple of `_PREFETCH`
#: Seconds without work until an idle process polls its hosts and sweeps for lost wake-ups.
_SWEEP_AFTER_S = 0.8
#: Seconds to wait before the next claim while workers may still renew leases that have expired.
_GRACE_PAUSE_S = 1.0
#: A crawl counts as waiting if it has had no request in progress for this number of seconds.
_WAITING_AFTER_S = 1.0
#: Minimum pause between two polls: these seconds for each host, from `_MANY_HOSTS` hosts on.
_PAUSE_PER_HOST_S = 20e-6
_MANY_HOSTS = 100
#: Seconds that the poll of host leases may wait for a free fetcher.
_BUSY_PAUSE_S = 1.0
#: A worker that has had no host for these seconds tells other workers that it needs hosts.
_IDLE_AFTER_S = 0.1


class Coordinator:
    """Keeps the queue of claimed tasks filled for the fetchers of one process."""

    def __init__(
        self,
        session: WorkerSession,
        settings: Settings,
        *,
        opening: Opening,
        state: KeptState,
        end: End,
    ) -> None:
        """Coordinate the process of *session*; *end* (`Ending.end`) ends the crawl."""
        self.frontier = frontier = opening.frontier
        self.host_leaser = HostLeaser(session, frontier, settings)
        self.internal_errors = InternalErrors(session, end=end)
        self.pool = Pool(settings.concurrency)
        self._kept_state = state
        self._ledger = session.ledger
        self._task_leases = session.leases
        self._stats = session.stats
        self._session = session
        self._settings = settings
        self._queues = frontier.queues
        self._opening = opening
        self._poll_wanted = frontier.poll_wanted
        #: Leases that use a slot of their host, as pairs of a task's id and its fence.
        self._slot_users: set[tuple[bytes, int]] = set()
        limits = [
            (FinishReason.MAX_PAGES, "pages", settings.max_pages),
            (FinishReason.MAX_ITEMS, "items", settings.max_items),
        ]
        #: The limits of this run: finish reason, name of a counter, and the counter's maximum.
        self._limits = [(reason, name, limit) for reason, name, limit in limits if limit]
        self._is_stopping = False
        self._paused_since: datetime | None = None  #: when the user paused the crawl
        self._idle_pause_s = _MIN_IDLE_S
        self._last_request_end = time.monotonic()  #: when the last request ended
        #: Why the crawl waits, as the last poll of the ledger has found.
        self._idle_reason: IdleReason | None = None
        self._timer_at = 0.0  #: when the timer calls `dispatch`
        self._lease_poll_at = 0.0  #: when to poll the host leases next
        self._ledger_poll_at = 0.0  #: when to poll the whole ledger next

    async def run(self) -> FinishReason:
        """Fill the queue of claimed tasks until no work remains; return why the crawl ended."""
        async with anyio.create_task_group() as background:
            reason = await self._fill_queue(background)
            self.frontier.lends = False
            self.frontier.loans_changed.set()
            background.cancel_scope.cancel()
        return reason

    async def _fill_queue(self, background: anyio.abc.TaskGroup) -> FinishReason:
        while True:
            # Clear the event before the poll, so that a change during the poll sets it again.
            self._poll_wanted.clear()
            self.dispatch()
            if self._is_stopping:
                return FinishReason.STOPPED
            for reason, counter, limit in self._limits:
                if self._written(counter) >= limit:
                    return reason
            if self._paused_since is not None:
                self._session.set_idle(False)
                await self.release_undispatched()
                await self.host_leaser.leave_all(background)
                with anyio.move_on_after(_SHARED_IDLE_S):
                    await self._poll_wanted.wait()
                continue
            if await self._poll(background):
                return FinishReason.DRAINED
            host_count = len(self.frontier.hosts)
            rest_end = time.monotonic() + (
                host_count * _PAUSE_PER_HOST_S if host_count >= _MANY_HOSTS else 0
            )
            with anyio.move_on_after(self._next_poll()):
                await self._poll_wanted.wait()
            await anyio.sleep(max(0, rest_end - time.monotonic()))

    def note_seeded(self) -> None:
        """Record that all seeds are in the ledger."""
        self.frontier.is_seeded = True
        self.wake()

    def wake(self) -> None:
        """Poll the ledger again soon, because there may be new tasks to claim."""
        self._idle_pause_s = _MIN_IDLE_S
        self._ledger_poll_at = 0.0
        self.host_leaser.wake()
        self._poll_wanted.set()

    def note_written(self, *, has_more: bool, retry_hosts: Iterable[str]) -> None:
        """Look for due tasks after a write of outcomes; *retry_hosts* have tasks to retry."""
        self.frontier.poll(*retry_hosts)
        if has_more or not self._task_leases:
            self.wake()
        elif self._limits:
            self._poll_wanted.set()

    async def announce(self, tasks: Iterable[Task]) -> None:
        """Wake the hosts of tasks that are now in the ledger and may be due."""
        now, leased_hosts = self._ledger.now(), self.frontier.leased
        own_hosts: set[str] = set()
        dues: dict[str, datetime] = {}
        for task in tasks:
            if task.host in self.frontier.hosts:
                own_hosts.add(task.host)
            if task.host not in leased_hosts and task.due is not None:
                # A priority counts as seconds of waiting, and makes the host ready earlier.
                earlier = timedelta(seconds=max(0, bonus(task.priority)))
                due = now - earlier if task.due <= now else task.due
                dues[task.host] = min(due, dues.get(task.host, due))
        self.frontier.poll(*own_hosts)
        if dues:
            await self._ledger.hosts.wake(dues)
            self.wake()

    def stop(self) -> None:
        """Stop claiming and dispatching."""
        self._is_stopping = True
        self._poll_wanted.set()

    def pause(self, paused_since: datetime | None) -> None:
        """Start no more tasks; if *paused_since* is None, start tasks again."""
        self._paused_since = paused_since
        self.wake()

    def use_settings(self, settings: Settings) -> None:
        """Use new *settings* from now on, for all hosts and for the number of fetchers."""
        self.frontier.use_settings(settings)
        self.pool.resize(settings.concurrency)
        self.host_leaser.resize(settings.concurrency)
        self.wake()

    def free_slot(self, lease: Lease) -> None:
        """Free the host slot that a dispatched task uses, so that the next request may start."""
        key = (lease.task.id, lease.fence)
        if key not in self._slot_users:
            return
        self._slot_users.remove(key)
        now = self._last_request_end = time.monotonic()
        self._queues.request_ended(lease.task.host, now=now)
        self.dispatch()

    def note_done(self, lease: Lease) -> None:
        """Record that a fetcher has ended its work on a task."""
        self.free_slot(lease)
        self.pool.task_done()
        now = self._last_request_end = time.monotonic()
        self.dispatch()
        # Do not check for new links, because the code that adds links sets `Frontier.poll_wanted`.
        needs_tasks = self._is_low() and now >= min(
            self._ledger_poll_at, self.frontier.low_hosts()[1]
        )
        if needs_tasks or now >= self._lease_poll_at:
            self._poll_wanted.set()

    def requeue(self, lease: Lease, *, to_ledger: bool) -> None:
        """Queue a deferred task again; if *to_ledger* is true, release the task instead."""
        if to_ledger:
            self.frontier.pending.release([lease])
        else:
            self._queue_or_release(lease)
        self._poll_wanted.set()

    def _queue_or_release(self, lease: Lease) -> None:
        """Queue a task until its host may get a request; release it if the host gets none."""
        task, frontier = lease.task, self.frontier
        host = frontier.hosts.get(task.host)
        if host is None or host.phase is Phase.LEAVING:
            frontier.pending.release([lease])
            return
        obstacle = host.obstacle(task)
        if obstacle is None:
            # If the host is not open yet, the task is released. The next read of the host's tasks
            # opens the host.
            if host.is_open and (task.due is None or task.due <= self._ledger.now()):
                self._queues.add(lease, now=time.monotonic())
                return
        elif isinstance(obstacle, datetime):
            lease = deferred_lease(lease, due=obstacle)
        elif frontier.calls.include(task.errback):
            # The task needs no request, because its origin is given up and only its errback runs.
            self._queues.add(lease, now=time.monotonic(), needs_request=False)
            return
        # Release the task, because all tasks of a given-up origin become ignored together.
        frontier.pending.release([lease])

    def forget_lost(self, task_ids: set[bytes]) -> None:
        """Forget the queued tasks whose leases this process has lost."""
        # Lost leases may stay in `pending.to_release`, because their release does nothing.
        self._queues.withdraw(is_unwanted=lambda lease: lease.task.id in task_ids)

    def idle_reason(self) -> IdleReason | None:
        """Return why the crawl makes no requests, or None if it makes requests."""
        if self._paused_since is not None:
            return IdleReason(paused_since=self._paused_since)
        reason = self._opening.causes.rests.idle_reason(self._ledger.now())
        if reason.down_since is not None:
            return reason  # requests may be in progress, to test whether the network is back
        if self.pool.dispatched or time.monotonic() - self._last_request_end < _WAITING_AFTER_S:
            return None
        return reason if reason.hosts or reason.proxies else self._idle_reason or reason

    def dispatch(self) -> None:
        """Give free fetchers tasks whose hosts may get a request; set a timer for later tasks."""
        pool = self.pool
        free_fetchers = pool.size - pool.dispatched
        # Check `free_fetchers` first, because most calls of `dispatch` find no free fetcher.
        if (
            free_fetchers <= 0
            or self._is_stopping
            or self._paused_since
            or self.frontier.uplink.is_blocked
        ):
            return
        stats = self._stats
        for _, counter, limit in self._limits:
            # Count each page in progress as one item. If a page produces several items, the crawl
            # records all items of the page, even beyond the limit.
            count = self._written(counter) + getattr(stats, f"unwritten_{counter}")
            free_fetchers = min(free_fetchers, limit - count - pool.dispatched)
        now = time.monotonic()
        while free_fetchers > 0:
            lease = self._queues.take(now=now)
            if lease is None:
                next_start = self._queues.next_start()
                if next_start is not None and not now < self._timer_at <= next_start:
                    self._timer_at = next_start
                    asyncio.get_running_loop().call_later(next_start - now, self._on_timer)
                return
            self._slot_users.add((lease.task.id, lease.fence))
            pool.put(lease)
            free_fetchers -= 1

    def _written(self, counter: str) -> int:
        """Return how much of the limit of *counter* this run has used up."""
        number: int = getattr(self._stats, counter)
        return number + self._stats.taskless if counter == "pages" else number

    def _on_timer(self) -> None:
        # uvloop rounds to milliseconds: if the timer fires early, `dispatch` must set a new timer.
        self._timer_at = 0.0
        self.dispatch()

    def _free_capacity(self) -> int:
        """Return how many more tasks to claim: two for each fetcher, some for each slow host."""
        queues, size = self._queues, self.pool.size
        prefetch = _PREFETCH * size
        slow_host_tasks = min(_SLOW_HOST_TASKS, size) * len(self.frontier.hosts)
        max_waiting = max(prefetch, min(slow_host_tasks, _MAX_CLAIMED_FACTOR * prefetch))
        return min(prefetch - queues.soon_count, max_waiting - queues.waiting_count)

    def _is_low(self) -> bool:
        return self._free_capacity() >= _PREFETCH * self.pool.size // 2

    async def _poll(self, background: anyio.abc.TaskGroup) -> bool:
        """Release tasks, lease hosts, and claim tasks; return whether the ledger is drained."""
        # Release tasks before their hosts, because a host's next owner finds no leased tasks.
        frontier = self.frontier
        if frontier.pending.to_release:
            await self._release(frontier.pending.take_to_release())
        for host in [*frontier.opening]:
            # Request the probe page of a failed host before any other page of the host.
            if not (host.is_busy or self._opening.probe(host, background)) and host.is_open:
                host.enter(Phase.SERVING)
        if await self.host_leaser.poll(background, idle=self.pool.has_idle_workers()):
            self._idle_pause_s = _MIN_IDLE_S
        # Claim no more tasks than needed, because no other process can work on a claimed task.
        if not self._is_low() or await self._page_and_claim(background):
            return False
        if time.monotonic() < self._ledger_poll_at:
            return False
        return await self._drained()

    async def release_undispatched(self) -> int:
        """Release the tasks that no fetcher has started; return the number of tasks."""
        leases = self.pool.take_queued()
        for lease in leases:
            self.free_slot(lease)
        leases += [*self._queues.withdraw(), *self.frontier.pending.take_to_release()]
        return await self._release(leases) if leases else 0

    async def _release(self, leases: list[Lease]) -> int:
        count = await self._ledger.outcomes.release(leases)
        # Forget the leases only after the release, because a failed release must be repeated.
        self._task_leases.end(leases)
        # If this process dies before it wakes the hosts of the tasks, an idle process later finds
        # these hosts.
        await self.announce(lease.task for lease in leases)
        return count

    async def _page_and_claim(self, background: anyio.abc.TaskGroup) -> bool:
        """Read and claim tasks for hosts that have too few; return whether a host had too few."""
        low_hosts, _ = self.frontier.low_hosts()
        if not low_hosts:
            return False
        now, free_capacity = time.monotonic(), self._free_capacity()
        share = free_capacity // len(low_hosts)
        hosts = heapq.nsmallest(_HOSTS_PER_QUERY, low_hosts, key=_feeding_order)
        batch_size_by_host = dict[str, int]()
        for host in hosts:
            # Clear the flag before the read, because a task that is added meanwhile sets the flag.
            host.poll(is_stale=False)
            # Read at most two tasks for each slot, because other hosts need tasks too.
            batches = 1 if host.queue.delay else 2 * host.queue.slots or _MIN_CLAIM
            task_count = min(
                free_capacity, self._queues.free_capacity(host.name), max(share, batches)
            )
            if host.quota is not None:
                task_count = min(task_count, host.quota)
            batch_size_by_host[host.name] = (
                task_count if host.borrowed_loan is None else 2 * task_count
            )
        tasks_by_host: dict[str, list[Task]] = {name: [] for name in batch_size_by_host}
        for task in await self._ledger.tasks.page_each(batch_size_by_host):
            tasks_by_host[task.host].append(task)
        for host in hosts:
            if tasks := tasks_by_host[host.name]:
                host.priority = tasks[0].priority
        tasks_to_claim: list[Task] = []
        for host in sorted(hosts, key=_feeding_order):
            tasks = tasks_by_host[host.name]
            if host.borrowed_loan is not None:
                # The host's owner claims from the first half of the tasks, and its borrowers from
                # the second half, so that they rarely claim the same tasks.
                tasks = tasks[len(tasks) // 2 :]
                random.shuffle(tasks)
            claimable_tasks = self._claimable(host, tasks, background)
            chosen_tasks = claimable_tasks[: free_capacity - len(tasks_to_claim)]
            if chosen_tasks:
                host.last_claimed_at = now
                tasks_to_claim += chosen_tasks
                if host.quota is not None:
                    host.quota = max(0, host.quota - len(chosen_tasks))
            is_full = (
                len(tasks_by_host[host.name]) == batch_size_by_host[host.name]
            )  # more tasks may be due
            if is_full or len(chosen_tasks) < len(claimable_tasks):
                host.poll()
        await self._claim(tasks_to_claim)
        return True

    def _claimable(
        self, host: FrontierHost, tasks: list[Task], background: anyio.abc.TaskGroup
    ) -> list[Task]:
        """Return the tasks to claim at a host; if the host is new, start to open the host.

        Until a host is open, only tasks that need no request are claimed. If a task needs a
        request, its lease could expire while the task waits for the host.
        """
        # The ledger lists a task of this process again if the lease expired during a stall.
        tasks = [task for task in tasks if task.id not in self._task_leases]
        # Tasks of a resting origin are deferred after the claim.
        ready_tasks = (
            [] if host.is_open else [task for task in tasks if host.obstacle(task) is None]
        )
        if not ready_tasks:
            return tasks
        # The first request to a host tests it, so take a task whose origin has no failures.
        opening_task = min(ready_tasks, key=lambda task: host.origin(task).failures > 0)
        if self._opening.open(host, opening_task.url, background):
            return tasks
        return [task for task in tasks if isinstance(host.obstacle(task), Reason)]

    async def _claim(self, tasks: list[Task]) -> None:
        # Read the clock here, because the query for tasks may have waited for the ledger. After a
        # short outage no lease has expired, so the claim need not wait.
        now = self._ledger.now()
        outage_start = self._session.retry.grace_start(now)
        if outage_start is not None and now - outage_start >= self._settings.lease / 2:
            self.frontier.poll(*(task.host for task in tasks))
            await anyio.sleep(_GRACE_PAUSE_S)
            return
        # Claim in batches, so that fetchers can start with the first batch early.
        batch_size, stats = self._ledger.leases.batch_size, self._stats
        for start in range(0, len(tasks), batch_size):
            batch = tasks[start : start + batch_size]
            claimed = await self._ledger.leases.claim(
                batch,
                worker=self._session.worker,
                lease=self._settings.lease,
                max_lost=self._settings.max_lost,
            )
            self._task_leases.add(claimed.leases)
            # Read the spider's state after the claim. If a page has linked to a claimed task, the
            # ledger already contains the state changes of that page.
            await self._kept_state.refresh()
            stats.claims += len(batch)
            stats.claims_missed += claimed.missed
            stats.given_up += claimed.abandoned
            if claimed.deferred or claimed.abandoned:
                stats.failures[Reason.CRASHED_WORKER] += claimed.deferred + claimed.abandoned
                self._tell_of_crashes(batch)
            for lease in claimed.leases:
                self._queue_or_release(lease)
            self.dispatch()

    def _tell_of_crashes(self, tasks: list[Task]) -> None:
        max_lost = self._settings.max_lost
        for task in tasks:
            if (lost_count := losses(task)) != task.lost:
                event = "given_up" if lost_count >= max_lost else "quarantined"
                logger.warning(
                    "%s: worker %s crashed while it ran this task alone (%d of %d)",
                    *(printable(task.url), printable(task.lock or ""), lost_count, max_lost),
                    extra={"event": event, "url": task.url, "reason": Reason.CRASHED_WORKER},
                )

    async def _drained(self) -> bool:
        """Return whether all work of this process and the ledger is done; else plan a poll."""
        # Background work on a host, such as a request for robots.txt, counts as work.
        has_work = bool(self._task_leases) or any(
            host.is_busy for host in self.frontier.hosts.values()
        )
        # If all leased hosts have a page in progress and no task waits, free fetchers need a host.
        under_way, leased = self._task_leases.count_by_host.keys(), self.frontier.leased.keys()
        lacks_hosts = leased <= under_way and not self._queues.waiting_count
        if has_work:
            self._idle_reason = None
            if self._idle_pause_s >= _SWEEP_AFTER_S:
                # Read the tasks of busy hosts again, because other workers may have added tasks.
                self.frontier.poll(*self._task_leases.count_by_host)
            if self._idle_pause_s < _SWEEP_AFTER_S or not lacks_hosts:
                self._rest(min(self._idle_pause_s, _SHARED_IDLE_S))
                return False
        next_due = await self._ledger.queries.next_due(due_by=self._ledger.now())
        if self._poll_wanted.is_set():
            return False  # work arrived while the query ran

        # A task keeps a due time until its outcome is committed, and its links are written before
        # the commit. So the ledger is drained if no task has a due time.
        if next_due is None and self.frontier.is_seeded and not has_work:
            if not self._settings.keep_running:
                return True
            self._session.note_waiting()
            if await self._ledger.admin.revisit_due():
                self.wake()
                return False
        await self.internal_errors.end_if_only_these_remain()
        now, idle_s, wakes_at = self._ledger.now(), self._idle_pause_s, next_due
        others_work = next_due is not None and next_due <= now
        lacks_hosts = lacks_hosts and self.frontier.borrowed_host is None
        self._session.set_idle(others_work and lacks_hosts and idle_s >= _IDLE_AFTER_S)
        if idle_s >= _SWEEP_AFTER_S:
            if others_work:
                # Other processes own the hosts with due tasks, or this process owns its maximum.
                wakes_at = await self._ledger.hosts.next_ready()
                await self.host_leaser.sweep()
            is_waiting = not (has_work or self.frontier.leased)
            self._idle_reason = await self._waiting(next_due, wakes_at) if is_waiting else None
        if wakes_at is not None and wakes_at > now:
            idle_s = (wakes_at - now).total_seconds()
        if next_due is not None and next_due <= now + self._settings.lease:
            # Poll often, because another process may finish or find more work at any time.
            idle_s = min(idle_s, _SHARED_IDLE_S)
        # A wake-up during the query has shortened `self._idle_pause_s`.
        self._rest(min(idle_s, self._idle_pause_s))
        return False

    def _rest(self, seconds: float) -> None:
        """Poll the ledger and the hosts again after *seconds*; double the next wait."""
        self._ledger_poll_at = time.monotonic() + max(seconds, _MIN_IDLE_S)
        self.host_leaser.next_lease_at = self._ledger_poll_at
        self._idle_pause_s = min(self._idle_pause_s * 2, _MAX_IDLE_S)

    async def _waiting(self, next_due: datetime | None, wakes_at: datetime | None) -> IdleReason:
        """Return why this process has no work now; *wakes_at* is when it may have work again."""
        now = self._ledger.now()
        if next_due is None:
            # Without `keep_running`, only `start` keeps a crawl without due tasks alive.
            is_seeded = self.frontier.is_seeded
            return IdleReason(start=not is_seeded, new_pages=is_seeded)
        workers, _ = await self._session.neighbours()
        # A due time that is nearer than the length of a lease is probably the end of a lease.
        if workers > 1 and (wakes_at is None or wakes_at <= now + self._settings.lease):
            return IdleReason(others_have_tasks=True)
        return IdleReason(ends_at=wakes_at)

    def _next_poll(self) -> float:
        """Return the seconds until the next poll; a change causes an earlier poll."""
        is_idle = self.pool.has_idle_workers()
        self._lease_poll_at = self.host_leaser.next_poll(idle=is_idle)
        # If all fetchers are busy, the next free fetcher wakes the coordinator. An earlier poll
        # could release a host that may get a request now.
        next_poll_at = self._lease_poll_at + (0 if is_idle else _BUSY_PAUSE_S)
        if self._is_low():
            next_poll_at = min(next_poll_at, self._ledger_poll_at, self.frontier.low_hosts()[1])
        return next_poll_at - time.monotonic()


def _feeding_order(host: FrontierHost) -> tuple[bool, float]:
    """Return the key that sorts hosts for new tasks: hosts with a delay come first.

    Hosts without a delay follow, sorted by the time of their last claim. The key subtracts the
    host's priority (from -10 to 10) from this time, as seconds.
    """
    return not host.queue.delay, host.last_claimed_at - bonus(host.priority)
