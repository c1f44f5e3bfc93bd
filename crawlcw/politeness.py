"""Whose turn it is: a lane for each host, and a heap of the times of their turns.

All of it is synchronous and takes the time as an argument. A lease waits in its
host's lane until the host may be asked again, so that no fetcher ever sleeps
for politeness and a slow host holds up nobody but itself.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

from crawlcw.task import Lease

#: Lanes of hosts that are done with are forgotten above this number.
_KEPT_LANES = 10_000
#: Seconds: what a delayed host serves in this time is held for it.
_AHEAD = 5.0
#: What is held for a host without limits until its robots.txt is known.
_UNKNOWN_HOST = 8


@dataclass(slots=True)
class Lane:
    """What is known of one host in this process."""

    host: str
    delay: float = 0.0  #: seconds between the starts of two requests
    opened: bool = False  #: false until the host's robots.txt is known
    active: int = 0  #: requests under way
    next_start: float = 0.0
    waiting: list[tuple[int, int, Lease]] = field(default_factory=list)  #: a heap
    queued: bool = False  #: whether the heap of turns has it


class Lanes:
    """The lanes of all hosts that one process has tasks of."""

    def __init__(self, *, concurrency: int, delay: timedelta, lease: timedelta) -> None:
        """Serve each host with *concurrency* requests at once (0: no limit), *delay* apart."""
        self._concurrency = concurrency
        self._delay = delay.total_seconds()
        self._ahead = min(_AHEAD, lease.total_seconds() / 2)
        self._lanes: dict[str, Lane] = {}
        self._turns: list[tuple[float, int, Lane]] = []
        self._order = count()
        self.waiting = 0  #: leases in all lanes
        self.waiting_slow = 0  #: those of them whose hosts are served with a delay

    def add(self, lease: Lease, *, now: float) -> bool:
        """Queue a lease; return whether its host has yet to be opened, see `open`."""
        lane = self._lane(lease.task.host, now)
        heapq.heappush(lane.waiting, (-lease.task.priority, next(self._order), lease))
        self._count(lane, 1)
        self._queue(lane, now)
        return not lane.opened

    def open(self, host: str, *, crawl_delay: float, now: float, asked: bool) -> None:
        """Let a host be served; *asked* says that it was just asked for its robots.txt."""
        lane = self._lane(host, now)
        lane.opened = True
        self._count(lane, -len(lane.waiting))
        lane.delay = max(self._delay, crawl_delay)
        self._count(lane, len(lane.waiting))
        if asked:
            lane.next_start = max(lane.next_start, now + lane.delay)
        self._queue(lane, now)

    def room(self, host: str) -> int:
        """Return how many more leases of *host* are worth holding, see `_most`."""
        lane = self._lanes.get(host)
        return max(0, self._most(lane) - len(lane.waiting)) if lane else self._most(None)

    def is_hungry(self, host: str) -> bool:
        """Say whether *host* has used up half of what is worth holding for it."""
        lane = self._lanes.get(host)
        return lane is None or len(lane.waiting) <= self._most(lane) // 2

    def _most(self, lane: Lane | None) -> int:
        """Return how many leases of a host are worth holding.

        A few seconds' worth where it is served with a delay, which is far less
        than can be served in half a lease; a few turns where its concurrency
        is limited; and one turn as long as its robots.txt is not known, which
        may ask for a delay. Others wait too.
        """
        delay = lane.delay if lane else self._delay
        if lane is None or not lane.opened:
            most = self._concurrency or _UNKNOWN_HOST
        else:
            most = 4 * self._concurrency if self._concurrency else 1 << 30
        return min(most, max(1, int(self._ahead / delay))) if delay else most

    def trim(self, host: str) -> list[Lease]:
        """Return and forget the leases of *host* that are more than worth holding."""
        lane = self._lanes[host]
        surplus = sorted(lane.waiting)[self._most(lane) :]
        self._remove(lane, {entry[2].task.id for entry in surplus})
        return [entry[2] for entry in surplus]

    def take(self, *, now: float) -> Lease | None:
        """Return the next lease whose host's turn has come, or None. Hosts take turns."""
        while self._turns and self._turns[0][0] <= now:
            lane = heapq.heappop(self._turns)[2]
            lane.queued = False
            if not self._ready(lane):
                continue
            lease = heapq.heappop(lane.waiting)[2]
            self._count(lane, -1)
            lane.active += 1
            lane.next_start = now + lane.delay
            self._queue(lane, now)
            return lease
        return None

    def finished(self, host: str, *, now: float) -> None:
        """Note that a request to *host* has ended."""
        lane = self._lanes[host]
        lane.active -= 1
        self._queue(lane, now)

    def next_turn(self) -> float | None:
        """Return the time of the next turn, if any lane waits for one."""
        return self._turns[0][0] if self._turns else None

    def drop(self, task_ids: set[bytes]) -> None:
        """Forget waiting leases whose tasks are among *task_ids*."""
        for lane in self._lanes.values():
            self._remove(lane, task_ids)

    def empty(self) -> Iterator[Lease]:
        """Yield all waiting leases and forget them."""
        for lane in self._lanes.values():
            waiting, lane.waiting = lane.waiting, []
            self._count(lane, -len(waiting))
            yield from (lease for _, _, lease in waiting)

    def _remove(self, lane: Lane, task_ids: set[bytes]) -> None:
        kept = [entry for entry in lane.waiting if entry[2].task.id not in task_ids]
        self._count(lane, len(kept) - len(lane.waiting))
        heapq.heapify(kept)
        lane.waiting = kept

    def _count(self, lane: Lane, more: int) -> None:
        self.waiting += more
        if lane.delay:
            self.waiting_slow += more

    def _lane(self, host: str, now: float) -> Lane:
        lane = self._lanes.get(host)
        if lane is None:
            if len(self._lanes) >= _KEPT_LANES:
                self._forget_idle(now)
            lane = self._lanes[host] = Lane(host, delay=self._delay)
        return lane

    def _forget_idle(self, now: float) -> None:
        busy = {
            host: lane
            for host, lane in self._lanes.items()
            if lane.waiting or lane.active or lane.next_start > now
        }
        self._lanes = busy

    def _ready(self, lane: Lane) -> bool:
        free = not self._concurrency or lane.active < self._concurrency
        return bool(lane.opened and lane.waiting and free)

    def _queue(self, lane: Lane, now: float) -> None:
        if not lane.queued and self._ready(lane):
            lane.queued = True
            turn = max(lane.next_start, now)
            heapq.heappush(self._turns, (turn, next(self._order), lane))
