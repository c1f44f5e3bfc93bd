"""Host queues: the tasks that wait for their host's next turn, and heaps of the turns' times.

Synchronous: the time is an argument. A lease waits in its queue until its host may be asked again.
So no fetcher sleeps before a task's first request, and a slow host delays no other host. Further
requests of an attempt (hops of redirects, logins) take slots as well, and they go before waiting
tasks.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from crawlcw.model.task import Lease

#: If a host has a delay, its tasks are claimed for the turns of this number of seconds.
CLAIM_AHEAD_S = 5.0
_MAX_BONUS_S = 10
#: If there are more queues of hosts that are not ours, the idle queues are forgotten.
_MAX_UNOWNED = 1000


def bonus(priority: int) -> int:
    """Return the seconds of waiting that *priority* counts for: its value, at most ten."""
    return max(-_MAX_BONUS_S, min(priority, _MAX_BONUS_S))


@dataclass(slots=True, eq=False)
class HostQueue:
    """One host's queue in this process."""

    host: str
    limit: int  #: the user's maximum of concurrent requests; 0: no limit
    slots: int  #: concurrent requests allowed now
    delay: float  #: seconds between the starts of two requests
    next_start: float  #: the earliest start of the next request
    deadline: float  #: when the right to ask the host ends
    is_open: bool = False  #: false until the host's robots.txt is known
    last_sent_at: float = float("-inf")  #: when its last request started, if that is known
    rests_until: float = float("-inf")  #: end of its rest, regardless of its delay
    active: int = 0  #: requests in progress; more tasks may be in progress without a request
    #: The hops that wait for a slot, in order. A hop tries again when its event is set.
    hops: list[asyncio.Event] = field(default_factory=list)
    hops_rest_until: float = float("-inf")  #: end of the hops' rest after a throttled hop
    waiting: list[tuple[int, int, Lease]] = field(default_factory=list)  #: leases, as a heap
    is_scheduled: bool = False  #: whether it is in a heap of turns
    counted_leases: tuple[int, int] = (0, 0)  #: its share of the sums in `HostQueues`
    max_leases: int = 1  #: the number of leases worth claiming

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return 0 < self.slots <= self.active


class HostQueues:
    """The queues of all hosts that one process may ask."""

    def __init__(self, *, half_lease: float) -> None:
        """Queue no more tasks for a host than it can serve in *half_lease* seconds."""
        self._claim_ahead_s = min(CLAIM_AHEAD_S, half_lease)
        self.by_host: dict[str, HostQueue] = {}
        #: Queues of hosts that are not ours, while hops ask these hosts.
        self.unowned: dict[str, HostQueue] = {}
        self._scheduled: list[tuple[float, int, HostQueue]] = []
        #: Queues whose turn came while no fetcher was free, the most urgent first.
        self._urgent: list[tuple[float, int, HostQueue]] = []
        self._order = count()
        #: Leases that need no request to their host.
        self._without_request: deque[Lease] = deque()
        #: Names of hosts that have changed, or whose queues have changed.
        self.changed: set[str] = set()
        self.waiting_count = 0  #: leases in all queues
        #: leases that may start soon: leases in queues without a delay, up to `slots` in each
        self.soon_count = 0

    def add_host(self, host: str, *, limit: int, next_start: float, deadline: float) -> HostQueue:
        """Make a queue for a host; it is closed until `open` and has no delay until `pace`."""
        queue = HostQueue(host, limit, limit, 0.0, next_start, deadline, rests_until=next_start)
        if (old_queue := self.unowned.pop(host, None)) is not None:
            # Keep the object, because waiting hops refer to it.
            old_queue.limit = old_queue.slots = limit
            old_queue.delay, old_queue.deadline = 0.0, deadline
            old_queue.next_start = old_queue.rests_until = max(old_queue.next_start, next_start)
            queue = old_queue
        self._limit_leases(queue)
        self.by_host[host] = queue
        return queue

    def remove_host(self, host: str) -> list[Lease]:
        """Forget a host; return the leases that waited for it."""
        leases = self.withdraw(host=host)
        queue = self.by_host.pop(host)
        if queue.active or queue.hops or queue.hops_rest_until > queue.next_start:
            queue.is_open, queue.deadline = False, float("inf")
            queue.limit = queue.slots = 1
            self.unowned[host] = queue
            self._schedule(queue, queue.next_start)
        return leases

    def hop_queue(self, host: str, *, now: float) -> HostQueue:
        """Return the queue for hops to a host; one request at a time if its lease is not ours."""
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
        """Start a hop if it may be sent now, and return whether; without a slot, it *takes_slot*.

        The next request after a hop that *is_paced* keeps the host's delay.
        """
        if (takes_slot and queue.is_full) or not queue.next_start <= now < queue.deadline:
            return False
        queue.active += takes_slot
        if is_paced:
            queue.last_sent_at, queue.next_start = now, now + queue.delay
        return True

    def end_hop(self, queue: HostQueue, *, now: float, frees_slot: bool) -> None:
        """Note that a hop stopped waiting, or that its request ended, which *frees_slot*."""
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
        """Forget and return the unwanted leases in all queues, or in that of *host* if given."""
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
        """Start to serve a host."""
        queue = self.by_host[host]
        queue.is_open = True
        self._schedule(queue, now)

    def pace(
        self, host: str, *, delay: float, slots: int, now: float, limit: int | None = None
    ) -> None:
        """Serve a host with *slots* concurrent requests, *delay* seconds apart.

        If the user has set a new *limit*, the delay counts from the last request.
        """
        queue = self.by_host[host]
        if limit is None and (queue.delay, queue.slots) == (delay, slots):
            return
        if limit is not None:
            queue.limit = limit
            queue.next_start = max(queue.rests_until, queue.last_sent_at + delay)
            # The heap may have only a later turn. A turn with nothing to serve is skipped.
            queue.is_scheduled = False
        if delay > queue.delay and queue.active:
            # The request that showed the need for a longer delay was sent just now.
            queue.last_sent_at = now
            queue.next_start = max(queue.next_start, now + delay)
        queue.delay = delay
        queue.slots = slots
        self._limit_leases(queue)
        self._update_counts(queue)
        self._schedule(queue, now)

    def rest(self, host: str, *, rest_end: float, sent_at: float | None = None) -> None:
        """Start no request to a host before *rest_end*.

        If *sent_at* is given, the rest is only the delay after a request that was sent at that time
        without a lease.
        """
        queue = self.by_host[host]
        if sent_at is None:
            queue.rests_until = max(queue.rests_until, rest_end)
        else:
            queue.last_sent_at = max(queue.last_sent_at, sent_at)
        queue.next_start = max(queue.next_start, rest_end)

    def extend(self, host: str, *, deadline: float, now: float) -> None:
        """Set the end of the right to ask a host."""
        queue = self.by_host[host]
        queue.deadline = deadline
        self._schedule(queue, now)

    def add(self, lease: Lease, *, now: float, needs_request: bool = True) -> None:
        """Queue a lease; if it *needs_request*, it waits for its host's next start."""
        if not needs_request:
            self._without_request.append(lease)
            self.waiting_count += 1
            return
        queue = self.by_host[lease.task.host]
        heapq.heappush(queue.waiting, (-lease.task.priority, next(self._order), lease))
        self._update_counts(queue)
        self._schedule(queue, now)

    def free_capacity(self, host: str) -> int:
        """Return how many more leases of *host* are worth claiming."""
        queue = self.by_host[host]
        return max(0, queue.max_leases - len(queue.waiting))

    def _limit_leases(self, queue: HostQueue) -> None:
        """Limit the leases to a few turns; with a delay, to a few seconds within half a lease."""
        max_leases = min(4 * queue.limit or 1 << 30, 8 * queue.slots or 1 << 30)
        if queue.delay:
            max_leases = min(max_leases, max(1, int(self._claim_ahead_s / queue.delay)))
        queue.max_leases = max_leases

    def take(self, *, now: float) -> Lease | None:
        """Return the next lease whose host's turn has come, or None; the longest wait comes first.

        A priority counts as seconds of waiting. A delay counts in the same way, up to
        `CLAIM_AHEAD_S`, because a missed turn of a host with a delay is lost.
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
                heapq.heappush(self._urgent, (start_at - bonus_s, order, queue))
        while self._urgent:
            queue = heapq.heappop(self._urgent)[2]
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
        """Return whether a queue may use its turn now; if not, it gets a later turn or no turn."""
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
        """Note that a request to *host* has ended."""
        if queue := self.by_host.get(host):
            queue.active -= 1
            self.changed.add(host)
            self._schedule(queue, now)
        elif queue := self.unowned.get(host):
            self.end_hop(queue, now=now, frees_slot=True)

    def next_start(self) -> float | None:
        """Return the time of the next turn, if any queue waits for one."""
        if self._urgent or self._without_request:
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
