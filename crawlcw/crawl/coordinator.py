"""Choice of the next work: host, page, claim, host queue.

The coordinator leases hosts that are ready, pages their due tasks, claims them ahead, twice as many
as there are fetchers (of many slow hosts up to eight times as many), and dispatches them as their
hosts' turns come. It sleeps until something changes or the next task is due, and ends when the
ledger has nothing that ever will be due. After a long outage of the ledger it claims nothing for
10 s: the holders of leases that ran out meanwhile renew them first.
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
from crawlcw.crawl.hosts import HeldHost, Phase
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.opening import Opening
from crawlcw.crawl.outcomes import End, InternalErrors
from crawlcw.engine.pool import Pool
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import Reason
from crawlcw.model.counters import FinishReason
from crawlcw.model.sanitize import printable
from crawlcw.model.standstill import Standstill
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import losses, put_off

logger = logging.getLogger(__name__)

_SHORTEST_IDLE = 0.05
_LONGEST_IDLE = 8.0
_IDLE_BESIDE_OTHERS = 1.0
_HOSTS_A_PAGE = 100
#: Tasks held ahead for each fetcher.
_PREFETCH = 2
#: The least number of tasks for a host without limits.
_TURN = 8
_A_FEW = 8  #: tasks of each of many hosts that may be held beyond the prefetch
_MOST_HELD = 4  #: bound of all tasks held, in prefetches
#: Seconds without work until an idle process looks at the hosts, and for lost wake-ups.
_SWEEP_FROM = 0.8
#: Seconds between two claims that are put off, while leases have their renewal grace.
_GRACE_PAUSE = 1.0
#: Seconds without a request under way until a crawl stands still.
_A_MOMENT = 1.0
#: Seconds between two polls for each of many hosts: one query feeds all that changed meanwhile.
_PAUSE_A_HOST = 20e-6
_MANY_HOSTS = 100
#: Seconds that the leases of hosts may wait for the end of a page.
_BUSY_PAUSE = 1.0
#: Seconds without a host until a worker says that it wants some.
_IDLE_FROM = 0.1


class Coordinator:
    """Keeps the queue filled for the fetchers of one process."""

    def __init__(
        self,
        session: WorkerSession,
        settings: Settings,
        *,
        opening: Opening,
        state: KeptState,
        end: End,
    ) -> None:
        """Work for the process of *session*; *end* ends the crawl, see `Ending.end`."""
        self.frontier = frontier = opening.frontier
        self.host_leaser = HostLeaser(session, frontier, settings)
        self.internal_errors = InternalErrors(session, end=end)
        self.pool = Pool(settings.concurrency)
        self._state = state
        self._ledger = session.ledger
        self._held = session.held
        self._stats = session.stats
        self._session = session
        self._settings = settings
        self._queues = frontier.queues
        self._opening = opening
        self._changed = frontier.poll_wanted
        #: Leases whose hosts' slots are held, by the ids and fences of their tasks.
        self._asking: set[tuple[bytes, int]] = set()
        limits = [
            (FinishReason.MAX_PAGES, "pages", settings.max_pages),
            (FinishReason.MAX_ITEMS, "items", settings.max_items),
        ]
        #: The limits of this run: the reason of the end, the counter, and the number.
        self._limits = [(reason, name, limit) for reason, name, limit in limits if limit]
        self._stopping = False
        self._paused: datetime | None = None  #: since when nothing is begun with
        self._idle = _SHORTEST_IDLE
        self._moved_at = time.monotonic()  #: when the last request ended
        #: The reason to wait that the last poll of the ledger found.
        self._waits_for: Standstill | None = None
        self._turn_at = 0.0  #: when the next turn of a host is taken by a timer
        self._leases_at = 0.0  #: when the leases of hosts are to be looked at
        self._poll_at = 0.0  #: when a poll of the whole ledger is next worth its while

    async def run(self) -> FinishReason:
        """Keep the queue filled until there is nothing more to do; return why it ended."""
        async with anyio.create_task_group() as background:
            reason = await self._fill(background)
            self.frontier.lends = False
            self.frontier.loans_changed.set()
            background.cancel_scope.cancel()
        return reason

    async def _fill(self, background: anyio.abc.TaskGroup) -> FinishReason:
        while True:
            # Before the poll: a change during it ends the wait below at once.
            self._changed.clear()
            self.dispatch()
            if self._stopping:
                return FinishReason.STOPPED
            for reason, counter, limit in self._limits:
                if getattr(self._stats, counter) >= limit:
                    return reason
            if self._paused is not None:
                self._session.set_idle(False)
                await self.give_back_undispatched()
                await self.host_leaser.leave_all(background)
                with anyio.move_on_after(_IDLE_BESIDE_OTHERS):
                    await self._changed.wait()
                continue
            if await self._poll(background):
                return FinishReason.DRAINED
            number = len(self.frontier.hosts)
            rested = time.monotonic() + (number * _PAUSE_A_HOST if number >= _MANY_HOSTS else 0)
            with anyio.move_on_after(self._next_poll()):
                await self._changed.wait()
            await anyio.sleep(max(0, rested - time.monotonic()))

    def seeded(self) -> None:
        """Note that all seeds are in the ledger."""
        self.frontier.seeded = True
        self.wake()

    def wake(self) -> None:
        """Look at the ledger again: there may be more to claim."""
        self._idle = _SHORTEST_IDLE
        self._poll_at = 0.0
        self.host_leaser.wake()
        self._changed.set()

    def written(self, *, more: bool, again: Iterable[str]) -> None:
        """Note outcomes in the ledger: *more* is left to do, hosts have tasks to try *again*."""
        self.frontier.poll(*again)
        if more or not self._held:
            self.wake()
        elif self._limits:
            self._changed.set()

    async def announce(self, tasks: Iterable[Task]) -> None:
        """Wake the hosts of tasks that are in the ledger by now and may be due."""
        now, ours = self._ledger.now(), self.frontier.leased
        looked: set[str] = set()
        dues: dict[str, datetime] = {}
        for task in tasks:
            if task.host in self.frontier.hosts:
                looked.add(task.host)
            if task.host not in ours and task.due is not None:
                # Earlier than others for a priority.
                earlier = timedelta(seconds=max(0, bonus(task.priority)))
                due = now - earlier if task.due <= now else task.due
                dues[task.host] = min(due, dues.get(task.host, due))
        self.frontier.poll(*looked)
        if dues:
            await self._ledger.hosts.wake(dues)
            self.wake()

    def stop(self) -> None:
        """Claim and dispatch nothing more."""
        self._stopping = True
        self._changed.set()

    def pause(self, since: datetime | None) -> None:
        """Begin with nothing until this is called with None."""
        self._paused = since
        self.wake()

    def follow(self, settings: Settings) -> None:
        """Ask all hosts by other *settings* from now on, by as many fetchers as these name."""
        self.frontier.follow(settings)
        self.pool.resize(settings.concurrency)
        self.host_leaser.resize(settings.concurrency)
        self.wake()

    def free_slot(self, lease: Lease) -> None:
        """Free the host's slot of a dispatched lease, once: its next request may begin."""
        key = (lease.task.id, lease.fence)
        if key not in self._asking:
            return
        self._asking.remove(key)
        now = self._moved_at = time.monotonic()
        self._queues.finished(lease.task.host, now=now)
        self.dispatch()

    def done(self, lease: Lease) -> None:
        """Note the end of the work on a dispatched lease."""
        self.free_slot(lease)
        self.pool.done()
        now = self._moved_at = time.monotonic()
        self.dispatch()
        # What else it may leave to do is noted where it comes about: `Frontier.poll_wanted`.
        feeds = self._is_low() and now >= min(self._poll_at, self.frontier.wanted()[1])
        if feeds or now >= self._leases_at:
            self._changed.set()

    def requeue(self, lease: Lease, *, to_ledger: bool) -> None:
        """Take back a task that was not tried: its host has failed, or is not ours any more."""
        if to_ledger:
            self.frontier.pending.release([lease])
        else:
            self._place(lease)
        self._changed.set()

    def _place(self, lease: Lease) -> None:
        """Let a task wait for its host's turn, or go back where that is not now."""
        task, frontier = lease.task, self.frontier
        host = frontier.hosts.get(task.host)
        if host is None or host.phase is Phase.LEAVING:
            frontier.pending.release([lease])
            return
        obstacle = host.obstacle(task)
        if obstacle is None:
            # Its origin's rest may have just ended: a task that is due again opens the host.
            if host.opened and (task.due is None or task.due <= self._ledger.now()):
                self._queues.add(lease, now=time.monotonic())
                return
        elif isinstance(obstacle, datetime):
            lease = put_off(lease, until=obstacle)
        elif frontier.calls.include(task.errback):
            # It is settled unasked.
            self._queues.add(lease, now=time.monotonic(), asks=False)
            return
        # If its origin was given up, it is ignored with all others once it is back.
        frontier.pending.release([lease])

    def lost(self, task_ids: set[bytes]) -> None:
        """Forget waiting tasks whose leases are lost."""
        # Those that are to go back do so: the release of a lease that is lost does nothing.
        self._queues.withdraw(unwanted=lambda lease: lease.task.id in task_ids)

    def standstill(self) -> Standstill | None:
        """Return why no request has been under way for a moment; None where one has."""
        if self._paused is not None:
            return Standstill(paused_since=self._paused)
        known = self._opening.causes.rests.standstill(self._ledger.now())
        if known.away_since is not None:
            return known  # the requests under way ask whether it is back
        if self.pool.dispatched or time.monotonic() - self._moved_at < _A_MOMENT:
            return None
        return known if known.hosts or known.proxies else self._waits_for or known

    def dispatch(self) -> None:
        """Give free fetchers leases whose turn has come; a timer repeats this at the next turn."""
        pool = self.pool
        free = pool.size - pool.dispatched
        # The likeliest reason first: this runs several times a page.
        if free <= 0 or self._stopping or self._paused or self.frontier.uplink.is_blocked:
            return
        stats = self._stats
        for _, counter, limit in self._limits:
            # A page under way may have an item. Of one with several, all are recorded.
            recorded = getattr(stats, counter) + getattr(stats, f"unwritten_{counter}")
            free = min(free, limit - recorded - pool.dispatched)
        now = time.monotonic()
        while free > 0:
            lease = self._queues.take(now=now)
            if lease is None:
                turn = self._queues.next_turn()
                if turn is not None and not now < self._turn_at <= turn:
                    self._turn_at = turn
                    asyncio.get_running_loop().call_later(turn - now, self._take_turn)
                return
            self._asking.add((lease.task.id, lease.fence))
            pool.put(lease)
            free -= 1

    def _take_turn(self) -> None:
        # uvloop rounds to milliseconds: a timer that is early finds no turn and must be set again.
        self._turn_at = 0.0
        self.dispatch()

    def _room(self) -> int:
        """Return how many more tasks to hold: beyond the prefetch a few of each slow host."""
        queues, size = self._queues, self.pool.size
        prefetch = _PREFETCH * size
        few = min(_A_FEW, size) * len(self.frontier.hosts)
        most = max(prefetch, min(few, _MOST_HELD * prefetch))
        return min(prefetch - queues.soon, most - queues.waiting)

    def _is_low(self) -> bool:
        return self._room() >= _PREFETCH * self.pool.size // 2

    async def _poll(self, background: anyio.abc.TaskGroup) -> bool:
        """Give back, lease, page and claim; return whether the ledger is drained."""
        # Tasks go back before their hosts, whose next owners would not find leased tasks.
        frontier = self.frontier
        if frontier.pending.returned:
            await self._give_back(frontier.pending.take_returned())
        for host in [*frontier.opening]:
            # A good page of a host that is half-open is asked for before any other.
            if not (host.is_busy or self._opening.probe(host, background)) and host.opened:
                host.enter(Phase.SERVING)
        if await self.host_leaser.poll(background, idle=self.pool.has_idle_workers()):
            self._idle = _SHORTEST_IDLE
        # Claims only where there is room: no other process can work on a task that waits here.
        if not self._is_low() or await self._feed(background):
            return False
        if time.monotonic() < self._poll_at:
            return False
        return await self._drained()

    async def give_back_undispatched(self) -> int:
        """Give back the tasks that no fetcher has begun with; return how many went back."""
        leases = self.pool.take_back()
        for lease in leases:
            self.free_slot(lease)
        leases += [*self._queues.withdraw(), *self.frontier.pending.take_returned()]
        return await self._give_back(leases) if leases else 0

    async def _give_back(self, leases: list[Lease]) -> int:
        count = await self._ledger.outcomes.release(leases)
        # Only now: killed in between, the leases run out, and nothing is lost.
        self._held.end(leases)
        # Killed in between, an idle process finds the host by its sweep.
        await self.announce(lease.task for lease in leases)
        return count

    async def _feed(self, background: anyio.abc.TaskGroup) -> bool:
        """Page and claim tasks of the hosts held; return whether there were any to look at."""
        low, _ = self.frontier.wanted()
        if not low:
            return False
        now, room = time.monotonic(), self._room()
        share = room // len(low)
        hosts = heapq.nsmallest(_HOSTS_A_PAGE, low, key=_feeding_order)
        asked = dict[str, int]()
        for host in hosts:
            # Before the page is read: a process that adds a task from here on sets this again.
            host.poll(wanted=False)
            # Two turns, by the requests that it may be sent now: the room is for others as well.
            turns = 1 if host.queue.delay else 2 * host.queue.allowed or _TURN
            number = min(room, self._queues.room(host.name), max(share, turns))
            if host.quota is not None:
                number = min(number, host.quota)
            asked[host.name] = number if host.borrowed is None else 2 * number
        found: dict[str, list[Task]] = {name: [] for name in asked}
        for task in await self._ledger.tasks.page_each(asked):
            found[task.host].append(task)
        for host in hosts:
            if tasks := found[host.name]:
                host.priority = tasks[0].priority
        wanted: list[Task] = []
        for host in sorted(hosts, key=_feeding_order):
            tasks = found[host.name]
            if host.borrowed is not None:
                # Its owner claims the first ones, and other borrowers some of these.
                tasks = tasks[len(tasks) // 2 :]
                random.shuffle(tasks)
            ready = self._ready(host, tasks, background)
            taken = ready[: room - len(wanted)]
            if taken:
                host.fed = now
                wanted += taken
                if host.quota is not None:
                    host.quota = max(0, host.quota - len(taken))
            is_full = len(found[host.name]) == asked[host.name]  # there may be more
            if is_full or len(taken) < len(ready):
                host.poll()
        await self._claim(wanted)
        return True

    def _ready(
        self, host: HeldHost, tasks: list[Task], background: anyio.abc.TaskGroup
    ) -> list[Task]:
        """Return which tasks of a host may be claimed; a new host with any begins to be opened.

        Until it is open only tasks that ask nothing are claimed: other leases would run out.
        """
        # A lease of ours that ran out while this process stood still shows up again.
        tasks = [task for task in tasks if task.id not in self._held]
        # Tasks whose origin rests are put off once they are claimed.
        ready = [] if host.opened else [task for task in tasks if host.obstacle(task) is None]
        if not ready:
            return tasks
        # Not of an origin that fails, if there is another.
        first = min(ready, key=lambda task: host.origin(task).failures > 0)
        if self._opening.open(host, first.url, background):
            return tasks
        return [task for task in tasks if isinstance(host.obstacle(task), Reason)]

    async def _claim(self, wanted: list[Task]) -> None:
        # Only now: the page may have waited for the ledger. A short outage ends no lease.
        now = self._ledger.now()
        since = self._session.retry.grace_since(now)
        if since is not None and now - since >= self._settings.lease / 2:
            self.frontier.poll(*(task.host for task in wanted))
            await anyio.sleep(_GRACE_PAUSE)
            return
        # Claims take a while: let fetchers begin with the first ones.
        at_once, stats = self._ledger.leases.at_once, self._stats
        for start in range(0, len(wanted), at_once):
            some = wanted[start : start + at_once]
            claimed = await self._ledger.leases.claim(
                some,
                worker=self._session.worker,
                lease=self._settings.lease,
                max_lost=self._settings.max_lost,
            )
            self._held.add(claimed.leases)
            # After the claim: a page's change was written before its links.
            await self._state.refresh()
            stats.claims += len(some)
            stats.claims_missed += claimed.missed
            stats.given_up += claimed.abandoned
            if claimed.put_off or claimed.abandoned:
                stats.failures[Reason.CRASHED_WORKER] += claimed.put_off + claimed.abandoned
                self._tell_of_crashes(some)
            for lease in claimed.leases:
                self._place(lease)
            self.dispatch()

    def _tell_of_crashes(self, tasks: list[Task]) -> None:
        most = self._settings.max_lost
        for task in tasks:
            if (lost := losses(task)) != task.lost:
                event = "give up" if lost >= most else "quarantined"
                logger.warning(
                    "%s: %s was lost while it worked on nothing else (%d of %d)",
                    *(printable(task.url), printable(task.lock or ""), lost, most),
                    extra={"event": event, "url": task.url, "reason": Reason.CRASHED_WORKER},
                )

    async def _drained(self) -> bool:
        """Return whether nothing is left, here or in the ledger; else note when to look again."""
        # Background work on a host counts until it has ended.
        works = bool(self._held) or any(host.is_busy for host in self.frontier.hosts.values())
        # Beside nothing but long pages the fetchers that are left have no host to ask.
        under_way, leased = self._held.of_host.keys(), self.frontier.leased.keys()
        lacks_hosts = leased <= under_way and not self._queues.waiting
        if works:
            self._waits_for = None
            if self._idle >= _SWEEP_FROM:
                # A retry, or a task of another worker, is not to wait for the end of a long page.
                self.frontier.poll(*self._held.of_host)
            if self._idle < _SWEEP_FROM or not lacks_hosts:
                self._rest(min(self._idle, _IDLE_BESIDE_OTHERS))
                return False
        horizon = await self._ledger.queries.horizon(enough=self._ledger.now())
        if self._changed.is_set():
            return False  # something came to this process while it asked
        # A task has a due until its outcome is committed, and its links have one before that.
        if horizon is None and self.frontier.seeded and not works:
            return True
        await self.internal_errors.end_where_nothing_else_is_left()
        now, idle, until = self._ledger.now(), self._idle, horizon
        others_work = horizon is not None and horizon <= now
        lacks_hosts = lacks_hosts and self.frontier.borrowed is None
        self._session.set_idle(others_work and lacks_hosts and idle >= _IDLE_FROM)
        if idle >= _SWEEP_FROM:
            if others_work:
                # Another process leases a host that is ready, or we hold as many as we may.
                until = await self._ledger.hosts.next_ready()
                await self.host_leaser.sweep()
            waits = not (works or self.frontier.leased)
            self._waits_for = await self._waiting(horizon, until) if waits else None
        if until is not None and until > now:
            idle = (until - now).total_seconds()
        if horizon is not None and horizon <= now + self._settings.lease:
            # Another process is at work, and may be done, or find more to do, at any time.
            idle = min(idle, _IDLE_BESIDE_OTHERS)
        # A wake-up that came while it asked has shortened the wait.
        self._rest(min(idle, self._idle))
        return False

    def _rest(self, seconds: float) -> None:
        """Look at the whole ledger, and for hosts, after *seconds*, and then more seldom."""
        self._poll_at = time.monotonic() + max(seconds, _SHORTEST_IDLE)
        self.host_leaser.lease_at = self._poll_at
        self._idle = min(self._idle * 2, _LONGEST_IDLE)

    async def _waiting(self, horizon: datetime | None, until: datetime | None) -> Standstill:
        """Return what there is to wait for, where this process has nothing to do *until* then."""
        now = self._ledger.now()
        if horizon is None:
            return Standstill(start=True)
        workers, _ = await self._session.neighbours()
        # The leases of others end by then, or are renewed.
        if workers > 1 and (until is None or until <= now + self._settings.lease):
            return Standstill(others=True)
        return Standstill(until=until)

    def _next_poll(self) -> float:
        """Return in how many seconds there is something to look at, if nothing changes before."""
        is_idle = self.pool.has_idle_workers()
        self._leases_at = self.host_leaser.next_poll(idle=is_idle)
        # If all fetchers are busy, wait: the next free one wakes us. Handing hosts on now could
        # hand on one whose turn has just come.
        until = self._leases_at + (0 if is_idle else _BUSY_PAUSE)
        if self._is_low():
            until = min(until, self._poll_at, self.frontier.wanted()[1])
        return until - time.monotonic()


def _feeding_order(host: HeldHost) -> tuple[bool, float]:
    """Return the order of feeding: hosts with a delay, whose missed turns are lost, go first.

    Then those fed longest ago; as in `HostQueues.take`, a priority counts as seconds of waiting.
    """
    return not host.queue.delay, host.fed - bonus(host.priority)
