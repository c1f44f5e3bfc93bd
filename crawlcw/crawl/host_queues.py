"""Queues of the tasks that wait for their host, and heaps of these queues by their next start.

This module does no I/O, and its callers pass the time. The lease of a task waits in its host's
queue until the host may get a request, so no fetcher sleeps and a slow host delays no other host.
The hops of a request (redirects, logins) need slots too, and get them before waiting tasks.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from crawlcw.model.task import Lease

#: Claim a task of a host with a delay if the task can start within this number of seconds.
CLAIM_AHEAD_S = 5.0
_MAX_BONUS_S = 10
#: Maximum number of queues of hosts that this process does not own; idle ones are removed first.
_MAX_UNOWNED = 1000


def bonus(priority: int) -> int:
    """Return *priority* as seconds of waiting: one second for each point, from -10 to 10."""
    return max(-_MAX_BONUS_S, min(priority, _MAX_BONUS_S))


@dataclass(slots=True, eq=False)
class HostQueue:
    """The queue of a host's claimed tasks in this process."""

    host: str
    limit: int  #: the user's maximum of concurrent requests; 0: no limit
    slots: int  #: maximum of concurrent requests now; 0: no limit
    delay: float  #: seconds between the starts of two requests
    next_start: float  #: the earliest start of the next request
    deadline: float  #: latest start of a request; the host's lease or loan ends soon after
    is_open: bool = False  #: whether tasks may start; false until the host's robots.txt is known
    last_sent_at: float = float("-inf")  #: start of the host's last request, if known
    rests_until: float = float("-inf")  #: end of the host's rest; excludes the host's delay
    active: int = 0  #: requests in progress; a task in progress may have no request now
    #: Events that wake the hops that wait for a slot, in order.
    hops: list[asyncio.Event] = field(default_factory=list)
    hops_rest_until: float = float("-inf")  #: earliest start of a hop; a throttled hop sets it
    waiting: list[tuple[int, int, Lease]] = field(default_factory=list)  #: leases, as a heap
    is_scheduled: bool = False  #: whether the queue is in one of the heaps of `HostQueues`
    #: Numbers that this queue has added to `waiting_count` and to `soon_count` of `HostQueues`.
    counted_leases: tuple[int, int] = (0, 0)
    max_leases: int = 1  #: the maximum number of leases to claim ahead

    @property
    def is_full(self) -> bool:
        """Whether all slots of the host are in use."""
        return 0 < self.slots <= self.active


class HostQueues:
    """The queues of all hosts at which one process may start requests."""

    def __init__(self, *, half_lease: float) -> None:
        """Queue no more tasks for a host than it can serve in *half_lease* seconds."""
        self._claim_ahead_s = min(CLAIM_AHEAD_S, half_lease)
        self.by_host: dict[str, HostQueue] = {}
        #: Queues for hops to hosts that this process does not own.
        self.unowned: dict[str, HostQueue] = {}
        self._scheduled: list[tuple[float, int, HostQueue]] = []
        #: Heap of the queues with a task that may start now; the most urgent queue comes first.
        self._startable: list[tuple[float, int, HostQueue]] = []
        self._order = count()
        #: Leases of tasks that need no request, because only their errback runs.
        self._without_request: deque[Lease] = deque()
        #: Names of hosts that have changed, or whose queues have changed.
        self.changed: set[str] = set()
        self.waiting_count = 0  #: leases in all queues
        #: leases that may start soon: up to `slots` leases of each queue without a delay
        self.soon_count = 0

    def add_host(self, host: str, *, limit: int, next_start: float, deadline: float) -> HostQueue:
        """Add a queue for a host; `open` lets its tasks start, and `pace` sets its delay."""
        queue = HostQueue(host, limit, limit, 0.0, next_start, deadline, rests_until=next_start)
        if (old_queue := self.unowned.pop(host, None)) is not None:
            # Use the old queue again, because waiting hops refer to it.
            old_queue.limit = old_queue.slots = limit
            old_queue.delay, old_queue.deadline = 0.0, deadline
            old_queue.next_start = old_queue.rests_until = max(old_queue.next_start, next_start)
            queue = old_queue
        self._limit_leases(queue)
        self.by_host[host] = queue
        return queue

    def remove_host(self, host: str) -> list[Lease]:
        """Remove the queue of a host; return the leases that waited in the queue."""
        leases = self.withdraw(host=host)
        queue = self.by_host.pop(host)
        if queue.active or queue.hops or queue.hops_rest_until > queue.next_start:
            queue.is_open, queue.deadline = False, float("inf")
            queue.limit = queue.slots = 1
            self.unowned[host] = queue
            self._schedule(queue, queue.next_start)
        return leases

    def hop_queue(self, host: str, *, now: float) -> HostQueue:
        """Return the queue for hops to a host; a host that we do not own gets one hop at a time."""
        queue = self.by_host.get(host) or self.unowned.get(host)
        if queue is None:
            if len(self.unowned) >= _MAX_UNOWNED:
                for other in [*self.unowned.values()]:
                    self._forget_idle(other, now)
            never, forever = float("-inf"), float("inf")
            queue = self.unowned[host] = HostQueue(host, 1, 1, 0.0, never, forever)
        return queue

    def start_hop(
        self, queue: HostQueue, *, now: float, takes_slot: bool, is_paced: bool = True
    ) -> bool:
        """Start a hop if its host may get a request now; return whether the hop has started.

        *takes_slot* is true if the hop has no slot yet. If *is_paced* is true, the host's delay
        begins with this hop.
        """
        if (takes_slot and queue.is_full) or not queue.next_start <= now < queue.deadline:
            return False
        queue.active += takes_slot
        if is_paced:
            queue.last_sent_at, queue.next_start = now, now + queue.delay
        return True

    def end_hop(self, queue: HostQueue, *, now: float, frees_slot: bool) -> None:
        """Record that a hop has ended; *frees_slot* is true if the hop took a slot at its start."""
        queue.active -= frees_slot
        if queue is self.unowned.get(queue.host):
            self._forget_idle(queue, now)
        else:
            self.changed.add(queue.host)
        self._schedule(queue, now)

    def _forget_idle(self, queue: HostQueue, now: float) -> None:
        is_idle = not (queue.active or queue.hops)
        if is_idle and max(queue.next_start, queue.hops_rest_until) <= now:
            del self.unowned[queue.host]

    def withdraw(
        self, *, host: str | None = None, is_unwanted: Callable[[Lease], bool] = lambda _: True
    ) -> list[Lease]:
        """Remove and return the leases that *is_unwanted* selects, of *host* or of all hosts."""
        withdrawn: list[Lease] = []
        for queue in self.by_host.values() if host is None else [self.by_host[host]]:
            withdrawn += [lease for _, _, lease in queue.waiting if is_unwanted(lease)]
            queue.waiting = [entry for entry in queue.waiting if not is_unwanted(entry[2])]
            heapq.heapify(queue.waiting)
            self._update_counts(queue)
        old_leases, self._without_request = self._without_request, deque()
        for lease in old_leases:
            if host in (None, lease.task.host) and is_unwanted(lease):
                withdrawn.append(lease)
                self.waiting_count -= 1
            else:
                self._without_request.append(lease)
        return withdrawn

    def open(self, host: str, *, now: float) -> None:
        """Let the tasks of a host start from now on."""
        queue = self.by_host[host]
        queue.is_open = True
        self._schedule(queue, now)

    def pace(
        self, host: str, *, delay: float, slots: int, now: float, limit: int | None = None
    ) -> None:
        """Allow *slots* concurrent requests to a host, which start at least *delay* seconds apart.

        If the user has set a new *limit*, the new delay begins at the host's last request.
        """
        queue = self.by_host[host]
        if limit is None and (queue.delay, queue.slots) == (delay, slots):
            return
        if limit is not None:
            queue.limit = limit
            queue.next_start = max(queue.rests_until, queue.last_sent_at + delay)
            # Schedule the queue again, because its entry in the heap may have a later time.
            queue.is_scheduled = False
        if delay > queue.delay and queue.active:
            # Let the longer delay begin now, because a request that was just sent has caused it.
            queue.last_sent_at = now
            queue.next_start = max(queue.next_start, now + delay)
        queue.delay = delay
        queue.slots = slots
        self._limit_leases(queue)
        self._update_counts(queue)
        self._schedule(queue, now)

    def rest(self, host: str, *, rest_end: float, sent_at: float | None = None) -> None:
        """Start no request to a host before *rest_end*.

        If *sent_at* is given, *rest_end* is the end of the host's delay, not the end of a rest. The
        delay began with a request that was sent at *sent_at*.
        """
        queue = self.by_host[host]
        if sent_at is None:
            queue.rests_until = max(queue.rests_until, rest_end)
        else:
            queue.last_sent_at = max(queue.last_sent_at, sent_at)
        queue.next_start = max(queue.next_start, rest_end)

    def extend(self, host: str, *, deadline: float, now: float) -> None:
        """Let requests to a host start until *deadline*, because its lease or loan was renewed."""
        queue = self.by_host[host]
        queue.deadline = deadline
        self._schedule(queue, now)

    def add(self, lease: Lease, *, now: float, needs_request: bool = True) -> None:
        """Add a lease to a queue; if *needs_request*, it waits until its host may get a request."""
        if not needs_request:
            self._without_request.append(lease)
            self.waiting_count += 1
            return
        queue = self.by_host[lease.task.host]
        heapq.heappush(queue.waiting, (-lease.task.priority, next(self._order), lease))
        self._update_counts(queue)
        self._schedule(queue, now)

    def free_capacity(self, host: str) -> int:
        """Return how many more tasks of *host* may be claimed before they can start."""
        queue = self.by_host[host]
        return max(0, queue.max_leases - len(queue.waiting))

    def _limit_leases(self, queue: HostQueue) -> None:
        """Set the maximum number of waiting leases: a few for each slot, fewer with a delay."""
        max_leases = min(4 * queue.limit or 1 << 30, 8 * queue.slots or 1 << 30)
        if queue.delay:
            max_leases = min(max_leases, max(1, int(self._claim_ahead_s / queue.delay)))
        queue.max_leases = max_leases

    def take(self, *, now: float) -> Lease | None:
        """Choose the host that waits longest for its next request; return a lease of it, or None.

        A task's priority counts as seconds of waiting. A host's delay also counts as waiting, up to
        `CLAIM_AHEAD_S`, because after a late request such a host gets all later requests late.
        """
        if self._without_request:
            lease = self._without_request.popleft()
            self.waiting_count -= 1
            self.by_host[lease.task.host].active += 1
            self.changed.add(lease.task.host)
            return lease
        while self._scheduled and self._scheduled[0][0] <= now:
            start_at, order, queue = heapq.heappop(self._scheduled)
            if self._may_start(queue, now):
                bonus_s = bonus(-queue.waiting[0][0]) + min(queue.delay, CLAIM_AHEAD_S)
                heapq.heappush(self._startable, (start_at - bonus_s, order, queue))
        while self._startable:
            queue = heapq.heappop(self._startable)[2]
            if not self._may_start(queue, now):
                continue
            queue.is_scheduled = False
            lease = heapq.heappop(queue.waiting)[2]
            self._update_counts(queue)
            queue.active += 1
            queue.last_sent_at, queue.next_start = now, now + queue.delay
            self._schedule(queue, now)
            return lease
        return None

    def _may_start(self, queue: HostQueue, now: float) -> bool:
        """Return whether a task of a queue may start now; if not, schedule the queue again."""
        has_slot = not queue.hops and not queue.is_full
        if (
            queue.is_open
            and queue.waiting
            and has_slot
            and queue.next_start <= now < queue.deadline
        ):
            return True
        queue.is_scheduled = False
        if now < queue.deadline:
            self._schedule(queue, now)
        return False

    def request_ended(self, host: str, *, now: float) -> None:
        """Record that a request to *host* has ended."""
        if queue := self.by_host.get(host):
            queue.active -= 1
            self.changed.add(host)
            self._schedule(queue, now)
        elif queue := self.unowned.get(host):
            self.end_hop(queue, now=now, frees_slot=True)

    def next_start(self) -> float | None:
        """Return the earliest time at which a waiting task may start; None if no task waits."""
        if self._startable or self._without_request:
            return float("-inf")
        return self._scheduled[0][0] if self._scheduled else None

    def _update_counts(self, queue: HostQueue) -> None:
        new_waiting, old_counts = len(queue.waiting), queue.counted_leases
        new_soon = 0 if queue.delay else min(new_waiting, queue.slots or new_waiting)
        queue.counted_leases = (new_waiting, new_soon)
        self.waiting_count += new_waiting - old_counts[0]
        self.soon_count += new_soon - old_counts[1]
        self.changed.add(queue.host)

    def _schedule(self, queue: HostQueue, now: float) -> None:
        if queue.hops:
            queue.hops[0].set()
            return
        if queue.is_open and queue.waiting and not (queue.is_scheduled or queue.is_full):
            queue.is_scheduled = True
            heapq.heappush(self._scheduled, (max(queue.next_start, now), next(self._order), queue))
