"""The least time in which many hosts can be crawled: no CPU, only limits.

Requests end when their host's latency is over; a host has so many under way at
once, their starts are a delay apart, and all hosts together have so many slots.
Of the hosts that may be asked, the one goes first that has the most left to do.
The slow start of new hosts is one of the limits where it is asked for; that
slow answers bring a delay is none (`hosts.SLOW_ANSWER`).
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from crawlcw.model.hosts import SlowStart

LINKS = 20  #: page n links to the pages 20n + 1 to 20n + 20, as `many_hosts` has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a crawl may do at once."""

    slots: int  #: requests under way to all hosts
    per_host: int  #: to one host
    delay: float  #: seconds between the starts of two requests to one host
    slow_start: bool = False  #: whether a host is asked for few pages at once at first


@dataclass(slots=True)
class _Progress:
    latency: float
    left: int  #: requests that are not begun with; the first one is for robots.txt
    known: int = 1  #: requests that may be begun with: found, and not begun with
    active: int = 0
    ended: int = 0
    next_start: float = 0.0
    slow_start: SlowStart = field(default_factory=SlowStart)

    def may_start(self, now: float, limits: Limits) -> bool:
        free = self.known > 0 and self.active < self._window(limits)
        return free and self.next_start <= now

    def _window(self, limits: Limits) -> int:
        if not limits.slow_start:
            return limits.per_host
        return min(limits.per_host, self.slow_start.window(finished=max(0, self.ended - 1)))

    def end(self, pages: int, *, now: float) -> None:
        """Note that a request has ended *now*, the first of which was for robots.txt."""
        self.active -= 1
        self.known += _found(self.ended, pages)
        if self.ended:
            sent = datetime.fromtimestamp(now - self.latency, UTC)
            self.slow_start.answered(latency=self.latency, sent=sent)
        self.ended += 1

    def urgency(self, limits: Limits) -> float:
        return self.left * max(self.latency / limits.per_host, limits.delay)


def least_seconds(latencies: Sequence[float], *, pages: int, limits: Limits) -> float:
    """Return the seconds for robots.txt and *pages* pages of hosts with these *latencies*."""
    hosts = [_Progress(latency, pages + 1) for latency in latencies]
    ready = [(-host.urgency(limits), n) for n, host in enumerate(hosts)]
    heapq.heapify(ready)
    #: (when, whether a request ends then, host); else the host's delay is over.
    events: list[tuple[float, bool, int]] = []
    now, ended, free = 0.0, 0.0, limits.slots
    while ready or events:
        while free and ready:
            n = heapq.heappop(ready)[1]
            host = hosts[n]
            if not host.may_start(now, limits):
                continue
            free -= 1
            host.left, host.known, host.active = host.left - 1, host.known - 1, host.active + 1
            host.next_start = now + limits.delay
            heapq.heappush(events, (now + host.latency, True, n))
            if limits.delay:
                heapq.heappush(events, (host.next_start, False, n))
            elif host.may_start(now, limits):
                heapq.heappush(ready, (-host.urgency(limits), n))
        if not events:
            break
        now, is_end, n = heapq.heappop(events)
        host = hosts[n]
        if is_end:
            free, ended = free + 1, now
            host.end(pages, now=now)
        if host.may_start(now, limits):
            heapq.heappush(ready, (-host.urgency(limits), n))
    return ended


def _found(ended: int, pages: int) -> int:
    """Return how many requests become known when another one ends after *ended* others."""
    if ended == 0:
        return 1  # robots.txt is known, and the first page may be asked for
    first = LINKS * (ended - 1) + 1
    return max(0, min(first + LINKS, pages) - first)
