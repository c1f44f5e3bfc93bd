"""Whose turn it is: a lane for each host that may be asked, and heaps of the times of turns.

All of it is synchronous and takes the time as an argument. A lease waits in its
host's lane until the host may be asked again, so that no fetcher ever sleeps
for politeness and a slow host holds up nobody but itself. A lane whose right to
ask its host has ended has no turn any more.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from crawlcw.model.task import Lease

#: Seconds: what a delayed host serves in this time is held for it.
AHEAD = 5.0
_MOST_BONUS = 10


def bonus(priority: int) -> int:
    """Return how many seconds of waiting *priority* is worth: as many as it is, up to ten."""
    return max(-_MOST_BONUS, min(priority, _MOST_BONUS))


@dataclass(slots=True, eq=False)
class Lane:
    """One host's queue in this process."""

    host: str
    limit: int  #: requests at once at the most; 0: no limit
    allowed: int  #: requests at once for now
    delay: float  #: seconds between the starts of two requests
    next_start: float  #: no request starts earlier
    deadline: float  #: when the right to ask the host ends
    opened: bool = False  #: false until the host's robots.txt is known
    began: float = float("-inf")  #: when its last request was started, as far as is known
    rests_until: float = float("-inf")  #: whatever its delay is
    active: int = 0  #: requests under way; of tasks that are only worked on there may be more
    waiting: list[tuple[int, int, Lease]] = field(default_factory=list)  #: a heap
    queued: bool = False  #: whether it is given a turn
    counted: tuple[int, int, int] = (0, 0, 0)  #: what it adds to the sums of `Lanes`


class Lanes:
    """The lanes of all hosts that one process may ask."""

    def __init__(self, *, half_lease: float) -> None:
        """Hold no more for a host than it can be served in *half_lease* seconds."""
        self._ahead = min(AHEAD, half_lease)
        self._lanes: dict[str, Lane] = {}
        self._turns: list[tuple[float, int, Lane]] = []
        #: Those whose turn has come and no fetcher was free, the most urgent first.
        self._urgent: list[tuple[float, int, Lane]] = []
        self._order = count()
        #: Leases that ask nothing of their hosts.
        self._unasked: deque[Lease] = deque()
        self.waiting = 0  #: leases in all lanes
        self.waiting_slow = 0  #: those of them whose hosts are served with a delay
        self.soon = 0  #: one turn of each of the others

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, host: str) -> Lane:
        return self._lanes[host]

    def begin(
        self,
        host: str,
        *,
        limit: int,
        allowed: int,
        delay: float,
        next_start: float,
        deadline: float,
    ) -> Lane:
        """Make a lane for a host; it is closed until `open`."""
        lane = Lane(host, limit, allowed, delay, next_start, deadline, rests_until=next_start)
        self._lanes[host] = lane
        return lane

    def end(self, host: str) -> list[Lease]:
        """Forget a host; return the leases that waited for it."""
        waiting = self.withdraw(host=host)
        self._lanes.pop(host).opened = False
        return waiting

    def withdraw(
        self, *, host: str | None = None, unwanted: Callable[[Lease], bool] = lambda _: True
    ) -> list[Lease]:
        """Return the waiting leases, of *host* if given, that are *unwanted*, and forget them."""
        withdrawn: list[Lease] = []
        for lane in self._lanes.values() if host is None else [self._lanes[host]]:
            gone = [lease for _, _, lease in lane.waiting if unwanted(lease)]
            if gone:
                lane.waiting = [entry for entry in lane.waiting if not unwanted(entry[2])]
                heapq.heapify(lane.waiting)
                self._count(lane)
                withdrawn += gone
        unasked, self._unasked = self._unasked, deque()
        for lease in unasked:
            if host in (None, lease.task.host) and unwanted(lease):
                withdrawn.append(lease)
                self.waiting -= 1
            else:
                self._unasked.append(lease)
        return withdrawn

    def open(self, host: str, *, now: float) -> None:
        """Let a host be served."""
        lane = self._lanes[host]
        lane.opened = True
        self._queue(lane, now)

    def close(self, host: str) -> None:
        """Serve a host no more, until `open`."""
        self._lanes[host].opened = False

    def pace(
        self, host: str, *, delay: float, allowed: int, now: float, limit: int | None = None
    ) -> None:
        """Serve a host with *allowed* requests at once from now on, *delay* seconds apart.

        With a *limit* it is the user who says so: never more than that at once, and a turn
        that a longer delay has put off comes earlier.
        """
        lane = self._lanes[host]
        if limit is not None:
            lane.limit = limit
            if delay < lane.delay:
                lane.next_start = max(lane.rests_until, lane.began + delay)
                # The turn that it waits for comes later; one that finds it served is no turn.
                lane.queued = False
        if delay > lane.delay and lane.active:
            # The request that showed the need for a longer delay has just been made.
            lane.began = now
            lane.next_start = max(lane.next_start, now + delay)
        lane.delay = delay
        lane.allowed = allowed
        self._count(lane)
        self._queue(lane, now)

    def rest(self, host: str, *, until: float, sent: float | None = None) -> None:
        """Start no request to a host before *until*.

        *sent*: only because of its delay, for a request was sent then that had no turn.
        """
        lane = self._lanes[host]
        if sent is None:
            lane.rests_until = max(lane.rests_until, until)
        else:
            lane.began = max(lane.began, sent)
        lane.next_start = max(lane.next_start, until)

    def extend(self, host: str, *, deadline: float, now: float) -> None:
        """Move the end of the right to ask a host."""
        lane = self._lanes[host]
        lane.deadline = deadline
        self._queue(lane, now)

    def add(self, lease: Lease, *, now: float, asks: bool = True) -> None:
        """Queue a lease of a host that has a lane.

        One that *asks* nothing of its host waits for a fetcher, and for no turn. It counts as
        under way until `finished` all the same.
        """
        if not asks:
            self._unasked.append(lease)
            self.waiting += 1
            return
        lane = self._lanes[lease.task.host]
        heapq.heappush(lane.waiting, (-lease.task.priority, next(self._order), lease))
        self._count(lane)
        self._queue(lane, now)

    def room(self, host: str) -> int:
        """Return how many more leases of *host* are worth holding.

        A few seconds' worth where it is served with a delay, and never more
        than can be served in half a lease; a few turns where its concurrency
        is limited. Others wait too.
        """
        lane = self._lanes[host]
        return max(0, self._most(lane) - len(lane.waiting))

    def is_hungry(self, host: str) -> bool:
        """Return whether *host* has used up half of what is worth holding for it."""
        lane = self._lanes[host]
        return len(lane.waiting) <= self._most(lane) // 2

    def _most(self, lane: Lane) -> int:
        most = min(4 * lane.limit or 1 << 30, 8 * lane.allowed or 1 << 30)
        return min(most, max(1, int(self._ahead / lane.delay))) if lane.delay else most

    def take(self, *, now: float) -> Lease | None:
        """Return the next lease whose host's turn has come, or None.

        Hosts take turns. Where more have their turn than there are fetchers,
        each priority of a host's best task counts like a second of waiting:
        higher ones go first, and nobody waits for ever. So does a host's delay, up to
        `AHEAD`: a turn that it misses is lost, while others make up for it.
        """
        if self._unasked:
            lease = self._unasked.popleft()
            self.waiting -= 1
            self._lanes[lease.task.host].active += 1
            return lease
        while self._turns and self._turns[0][0] <= now:
            turn, order, lane = heapq.heappop(self._turns)
            if self._may_start(lane, now):
                earlier = bonus(-lane.waiting[0][0]) + min(lane.delay, AHEAD)
                heapq.heappush(self._urgent, (turn - earlier, order, lane))
        while self._urgent:
            lane = heapq.heappop(self._urgent)[2]
            if not self._may_start(lane, now):
                continue
            lane.queued = False
            lease = heapq.heappop(lane.waiting)[2]
            self._count(lane)
            lane.active += 1
            lane.began, lane.next_start = now, now + lane.delay
            self._queue(lane, now)
            return lease
        return None

    def _may_start(self, lane: Lane, now: float) -> bool:
        """Return whether a lane's turn is to be used; if not, it has none or a later one."""
        if self._is_ready(lane) and now < lane.deadline and lane.next_start <= now:
            return True
        lane.queued = False
        if now < lane.deadline:
            self._queue(lane, now)
        return False

    def finished(self, host: str, *, now: float) -> None:
        """Note that a request to *host* has ended."""
        if lane := self._lanes.get(host):
            lane.active -= 1
            self._queue(lane, now)

    def may_ask(self, host: str, *, now: float) -> bool:
        """Return whether this process still has the right to ask *host*."""
        lane = self._lanes.get(host)
        return lane is not None and now < lane.deadline

    def next_turn(self) -> float | None:
        """Return the time of the next turn, if any lane waits for one."""
        if self._urgent or self._unasked:
            return float("-inf")
        return self._turns[0][0] if self._turns else None

    def _count(self, lane: Lane) -> None:
        waiting = len(lane.waiting)
        slow, soon = (waiting, 0) if lane.delay else (0, min(waiting, lane.allowed or waiting))
        before, lane.counted = lane.counted, (waiting, slow, soon)
        self.waiting += waiting - before[0]
        self.waiting_slow += slow - before[1]
        self.soon += soon - before[2]

    def _is_ready(self, lane: Lane) -> bool:
        free = not lane.allowed or lane.active < lane.allowed
        return bool(lane.opened and lane.waiting and free)

    def _queue(self, lane: Lane, now: float) -> None:
        if not lane.queued and self._is_ready(lane):
            lane.queued = True
            heapq.heappush(self._turns, (max(lane.next_start, now), next(self._order), lane))
