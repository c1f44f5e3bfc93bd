"""Turns of requests that no lane gives one: hops of redirects, and those of logins.

Each takes the next place by its host's delay, and the host's next task keeps its
distance from that place.
"""

import time

import anyio

from crawlcw.crawl.frontier import Frontier
from crawlcw.crawl.robots import Robots
from crawlcw.downloader.memory_budget import deadline_paused
from crawlcw.model import urls

#: Hosts that are not held are forgotten above so many, once their delay has passed.
_REMEMBERED = 1000


class HostTurns:
    """The next turns at the hosts that one process asks."""

    def __init__(self, robots: Robots, frontier: Frontier) -> None:
        self._robots = robots
        self._frontier = frontier
        #: Until when hosts are left alone that this process does not hold.
        self._free_at: dict[str, float] = {}

    def last(self, host: str) -> float:
        """Return when *host* was asked last, or will be, as far as is known; `-inf`: never."""
        held = host in self._frontier
        return self._frontier.lanes[host].began if held else float("-inf")

    async def wait(self, url: str) -> None:
        """Take the next turn at the host of *url*, and wait for it; no deadline runs meanwhile."""
        host, now = urls.locate(url).host, time.monotonic()
        delay = self._delay(host, url)
        if not delay:
            self._frontier.sent(host, at=now)
            return
        turn = max(now, self.last(host) + delay, self._free_at.get(host, now))
        # Before it sleeps: whoever comes next is to keep its distance from this turn.
        self._take(host, turn, delay)
        if turn > now:
            with deadline_paused():
                await anyio.sleep(turn - now)
            # The loop may have been busy.
            self._take(host, time.monotonic(), delay)

    def _delay(self, host: str, url: str) -> float:
        delay = self._frontier.delay(host)
        if host in self._frontier:
            return delay
        rules = self._robots.known(url)
        return delay if rules is None else max(delay, rules.crawl_delay)

    def _take(self, host: str, turn: float, delay: float) -> None:
        self._frontier.sent(host, at=turn)
        if host in self._frontier:
            return
        if len(self._free_at) >= _REMEMBERED:
            now = time.monotonic()
            self._free_at = {name: at for name, at in self._free_at.items() if at > now}
        self._free_at[host] = max(turn + delay, self._free_at.get(host, turn))
