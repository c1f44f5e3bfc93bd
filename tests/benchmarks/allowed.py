"""Shortest possible time to crawl many hosts under the limits, without CPU costs.

A request takes the latency of its host. The limits are the requests at once to one
host, the delay between their starts, and the slots for all hosts together. The host
with the most pages left goes first. The slow start of new hosts is an option. The
delay after slow answers (`hosts.SLOW_RESPONSE`) is ignored.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from crawlcw.model.hosts import SlowStart

LINKS = 20  #: page n links to the pages 20n + 1 to 20n + 20, as in `many_hosts`


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a crawl."""

    slots: int  #: requests under way to all hosts
    per_host: int  #: to one host
    delay: float  #: seconds between the starts of two requests to one host
    slow_start: bool = False  #: whether a new host gets few requests at once


@dataclass(slots=True)
class _Progress:
    latency: float
    left: int  #: requests that have not started; the first one is for robots.txt
    known: int = 1  #: requests that may start: their URLs are known
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
        """Record the end of a request; the first one was for robots.txt."""
        self.active -= 1
        self.known += _found(self.ended, pages)
        if self.ended:
            sent = datetime.fromtimestamp(now - self.latency, UTC)
            self.slow_start.answered(latency=self.latency, sent=sent)
        self.ended += 1

    def urgency(self, limits: Limits) -> float:
        return self.left * max(self.latency / limits.per_host, limits.delay)


def least_seconds(latencies: Sequence[float], *, pages: int, limits: Limits) -> float:
    """Return the seconds for robots.txt and *pages* pages of each host, one for each latency."""
    hosts = [_Progress(latency, pages + 1) for latency in latencies]
    ready = [(-host.urgency(limits), n) for n, host in enumerate(hosts)]
    heapq.heapify(ready)
    #: (time, whether a request ends, host); if none ends, the host's delay is over.
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
    """Return the number of URLs that a page yields when it ends after *ended* others."""
    if ended == 0:
        return 1  # after robots.txt, the first page may be requested
    first = LINKS * (ended - 1) + 1
    return max(0, min(first + LINKS, pages) - first)
