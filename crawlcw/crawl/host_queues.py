"""Host queues: the tasks that wait for their host's next turn, and heaps of the turns' times.

Synchronous: the time is an argument. A lease waits here until its host may be asked again. So no
fetcher sleeps before a task's first request, and a slow host delays no other host. Further requests
of an attempt (hops of redirects, logins) take slots as well, and they go before waiting tasks.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from crawlcw.model.task import Lease

#: If a host has a delay, its tasks are claimed for the turns of this number of seconds.
AHEAD = 5.0
_MOST_BONUS = 10
#: If there are more queues of hosts that are not ours, the idle ones are forgotten.
_REMEMBERED = 1000


def bonus(priority: int) -> int:
    """Return the seconds of waiting that *priority* counts for: its value, at most ten."""
    return max(-_MOST_BONUS, min(priority, _MOST_BONUS))


@dataclass(slots=True, eq=False)
class HostQueue:
    """One host's queue in this process."""

    host: str
    limit: int  #: the user's maximum of concurrent requests; 0: no limit
    allowed: int  #: concurrent requests allowed now
    delay: float  #: seconds between the starts of two requests
    next_start: float  #: no request starts earlier
    deadline: float  #: when the right to ask the host ends
    opened: bool = False  #: false until the host's robots.txt is known
    began: float = float("-inf")  #: when its last request started, if that is known
    rests_until: float = float("-inf")  #: end of its rest, regardless of its delay
    active: int = 0  #: requests in progress; more tasks may be in progress without a request
    #: The hops that wait for a slot, in order. A hop tries again when its event is set.
    hops: list[asyncio.Event] = field(default_factory=list)
    hops_rest_until: float = float("-inf")  #: end of the hops' rest after a throttled hop
    waiting: list[tuple[int, int, Lease]] = field(default_factory=list)  #: a heap
    has_turn: bool = False  #: whether it is in a heap of turns
    counted: tuple[int, int] = (0, 0)  #: its share of the sums in `HostQueues`
    most: int = 1  #: the number of leases worth claiming

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return 0 < self.allowed <= self.active


class HostQueues:
    """The queues of all hosts that one process may ask."""

    def __init__(self, *, half_lease: float) -> None:
        """Queue no more tasks for a host than it can serve in *half_lease* seconds."""
        self._ahead = min(AHEAD, half_lease)
        self.by_host: dict[str, HostQueue] = {}
        #: Queues of hosts that are not ours, while hops ask these hosts.
        self.elsewhere: dict[str, HostQueue] = {}
        self._turns: list[tuple[float, int, HostQueue]] = []
        #: Queues whose turn came while no fetcher was free, the most urgent first.
        self._urgent: list[tuple[float, int, HostQueue]] = []
        self._order = count()
        #: Leases that need no request to their host.
        self._unasked: deque[Lease] = deque()
        #: Names of hosts that have changed, or whose queues have changed.
        self.changed: set[str] = set()
        self.waiting = 0  #: leases in all queues
        #: leases that may start soon: those in queues without a delay, up to `allowed` in each
        self.soon = 0

    def begin(self, host: str, *, limit: int, next_start: float, deadline: float) -> HostQueue:
        """Make a queue for a host; it is closed until `open` and has no delay until `pace`."""
        queue = HostQueue(host, limit, limit, 0.0, next_start, deadline, rests_until=next_start)
        if (old_queue := self.elsewhere.pop(host, None)) is not None:
            # Keep the object, because waiting hops refer to it.
            old_queue.limit = old_queue.allowed = limit
            old_queue.delay, old_queue.deadline = 0.0, deadline
            old_queue.next_start = old_queue.rests_until = max(old_queue.next_start, next_start)
            queue = old_queue
        self._measure(queue)
        self.by_host[host] = queue
        return queue

    def end(self, host: str) -> list[Lease]:
        """Forget a host; return the leases that waited for it."""
        leases = self.withdraw(host=host)
        queue = self.by_host.pop(host)
        if queue.active or queue.hops or queue.hops_rest_until > queue.next_start:
            queue.opened, queue.deadline = False, float("inf")
            queue.limit = queue.allowed = 1
            self.elsewhere[host] = queue
            self._give_turn(queue, queue.next_start)
        return leases

    def of_hops(self, host: str, *, now: float) -> HostQueue:
        """Return the queue for hops to a host; one request at a time if its lease is not ours."""
        queue = self.by_host.get(host) or self.elsewhere.get(host)
        if queue is None:
            if len(self.elsewhere) >= _REMEMBERED:
                for other in [*self.elsewhere.values()]:
                    self._forget_idle(other, now)
            never, forever = float("-inf"), float("inf")
            queue = self.elsewhere[host] = HostQueue(host, 1, 1, 0.0, never, forever)
        return queue

    def begin_hop(
        self, queue: HostQueue, *, now: float, takes_slot: bool, is_paced: bool = True
    ) -> bool:
        """Start a hop if it may be sent now, and return whether; it *takes_slot* if it has none.

        The next request after a hop that *is_paced* keeps the host's delay.
        """
        if (takes_slot and queue.is_full) or not queue.next_start <= now < queue.deadline:
            return False
        queue.active += takes_slot
        if is_paced:
            queue.began, queue.next_start = now, now + queue.delay
        return True

    def leave(self, queue: HostQueue, *, now: float, frees_slot: bool) -> None:
        """Note that a hop stopped waiting, or that its request ended, which *frees_slot*."""
        queue.active -= frees_slot
        if queue is self.elsewhere.get(queue.host):
            self._forget_idle(queue, now)
        else:
            self.changed.add(queue.host)
        self._give_turn(queue, now)

    def _forget_idle(self, queue: HostQueue, now: float) -> None:
        is_idle = not (queue.active or queue.hops)
        if is_idle and max(queue.next_start, queue.hops_rest_until) <= now:
            del self.elsewhere[queue.host]

    def withdraw(
        self, *, host: str | None = None, unwanted: Callable[[Lease], bool] = lambda _: True
    ) -> list[Lease]:
        """Return the waiting leases, of *host* if given, that are *unwanted*, and forget them."""
        withdrawn: list[Lease] = []
        for queue in self.by_host.values() if host is None else [self.by_host[host]]:
            withdrawn += [lease for _, _, lease in queue.waiting if unwanted(lease)]
            queue.waiting = [entry for entry in queue.waiting if not unwanted(entry[2])]
            heapq.heapify(queue.waiting)
            self._count(queue)
        unasked, self._unasked = self._unasked, deque()
        for lease in unasked:
            if host in (None, lease.task.host) and unwanted(lease):
                withdrawn.append(lease)
                self.waiting -= 1
            else:
                self._unasked.append(lease)
        return withdrawn

    def open(self, host: str, *, now: float) -> None:
        """Start to serve a host."""
        queue = self.by_host[host]
        queue.opened = True
        self._give_turn(queue, now)

    def pace(
        self, host: str, *, delay: float, allowed: int, now: float, limit: int | None = None
    ) -> None:
        """Serve a host with *allowed* concurrent requests, *delay* seconds apart.

        If the user has set a new *limit*, the delay counts from the last request.
        """
        queue = self.by_host[host]
        if limit is None and (queue.delay, queue.allowed) == (delay, allowed):
            return
        if limit is not None:
            queue.limit = limit
            queue.next_start = max(queue.rests_until, queue.began + delay)
            # The heap may have only a later turn. A turn with nothing to serve is skipped.
            queue.has_turn = False
        if delay > queue.delay and queue.active:
            # The request that showed the need for a longer delay was sent just now.
            queue.began = now
            queue.next_start = max(queue.next_start, now + delay)
        queue.delay = delay
        queue.allowed = allowed
        self._measure(queue)
        self._count(queue)
        self._give_turn(queue, now)

    def rest(self, host: str, *, until: float, sent: float | None = None) -> None:
        """Start no request to a host before *until*.

        With *sent*, this is only the delay after a request without a turn, which was sent at that
        time.
        """
        queue = self.by_host[host]
        if sent is None:
            queue.rests_until = max(queue.rests_until, until)
        else:
            queue.began = max(queue.began, sent)
        queue.next_start = max(queue.next_start, until)

    def extend(self, host: str, *, deadline: float, now: float) -> None:
        """Set the end of the right to ask a host."""
        queue = self.by_host[host]
        queue.deadline = deadline
        self._give_turn(queue, now)

    def add(self, lease: Lease, *, now: float, asks: bool = True) -> None:
        """Queue a lease; without *asks* it needs no request, so it waits for no turn."""
        if not asks:
            self._unasked.append(lease)
            self.waiting += 1
            return
        queue = self.by_host[lease.task.host]
        heapq.heappush(queue.waiting, (-lease.task.priority, next(self._order), lease))
        self._count(queue)
        self._give_turn(queue, now)

    def room(self, host: str) -> int:
        """Return how many more leases of *host* are worth claiming."""
        queue = self.by_host[host]
        return max(0, queue.most - len(queue.waiting))

    def _measure(self, queue: HostQueue) -> None:
        """Limit the leases to a few turns; with a delay, to a few seconds within half a lease."""
        max_leases = min(4 * queue.limit or 1 << 30, 8 * queue.allowed or 1 << 30)
        if queue.delay:
            max_leases = min(max_leases, max(1, int(self._ahead / queue.delay)))
        queue.most = max_leases

    def take(self, *, now: float) -> Lease | None:
        """Return the next lease whose host's turn has come, or None; the longest wait comes first.

        A priority counts as seconds of waiting. So does a delay, up to `AHEAD`, because a missed
        turn of a host with a delay is lost.
        """
        if self._unasked:
            lease = self._unasked.popleft()
            self.waiting -= 1
            self.by_host[lease.task.host].active += 1
            self.changed.add(lease.task.host)
            return lease
        while self._turns and self._turns[0][0] <= now:
            turn_at, order, queue = heapq.heappop(self._turns)
            if self._may_start(queue, now):
                earlier = bonus(-queue.waiting[0][0]) + min(queue.delay, AHEAD)
                heapq.heappush(self._urgent, (turn_at - earlier, order, queue))
        while self._urgent:
            queue = heapq.heappop(self._urgent)[2]
            if not self._may_start(queue, now):
                continue
            queue.has_turn = False
            lease = heapq.heappop(queue.waiting)[2]
            self._count(queue)
            queue.active += 1
            queue.began, queue.next_start = now, now + queue.delay
            self._give_turn(queue, now)
            return lease
        return None

    def _may_start(self, queue: HostQueue, now: float) -> bool:
        """Return whether a queue may use its turn now; if not, it gets a later one or none."""
        free = not queue.hops and not queue.is_full
        if queue.opened and queue.waiting and free and queue.next_start <= now < queue.deadline:
            return True
        queue.has_turn = False
        if now < queue.deadline:
            self._give_turn(queue, now)
        return False

    def finished(self, host: str, *, now: float) -> None:
        """Note that a request to *host* has ended."""
        if queue := self.by_host.get(host):
            queue.active -= 1
            self.changed.add(host)
            self._give_turn(queue, now)
        elif queue := self.elsewhere.get(host):
            self.leave(queue, now=now, frees_slot=True)

    def next_turn(self) -> float | None:
        """Return the time of the next turn, if any queue waits for one."""
        if self._urgent or self._unasked:
            return float("-inf")
        return self._turns[0][0] if self._turns else None

    def _count(self, queue: HostQueue) -> None:
        waiting_count, old_counts = len(queue.waiting), queue.counted
        soon_count = 0 if queue.delay else min(waiting_count, queue.allowed or waiting_count)
        queue.counted = (waiting_count, soon_count)
        self.waiting += waiting_count - old_counts[0]
        self.soon += soon_count - old_counts[1]
        self.changed.add(queue.host)

    def _give_turn(self, queue: HostQueue, now: float) -> None:
        if queue.hops:
            queue.hops[0].set()
            return
        if queue.opened and queue.waiting and not (queue.has_turn or queue.is_full):
            queue.has_turn = True
            heapq.heappush(self._turns, (max(queue.next_start, now), next(self._order), queue))
