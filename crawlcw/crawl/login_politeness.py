"""What a login owes the hosts that it asks: robots.txt, their delays, and the truth of failures.

A login is a few requests beside the pages of a host. They keep the host's delay
between each other, and the host's next page keeps it after them.
"""

import time

from crawlcw.crawl.causes import Causes
from crawlcw.crawl.hosts import Frontier, HostTurns
from crawlcw.crawl.robots import Robots
from crawlcw.errors import FetchError, ProxiesAwayError
from crawlcw.model import urls
from crawlcw.model.health import HOST_FAILURES


class HeldHosts:
    """The hosts as this process holds them; fulfils `logins.Politeness`."""

    def __init__(
        self,
        robots: Robots,
        frontier: Frontier,
        turns: HostTurns,
        causes: Causes,
    ) -> None:
        self._robots = robots
        self._frontier = frontier
        self._turns = turns
        self._causes = causes

    async def before(self, url: str) -> None:
        """See `logins.Politeness.before`."""
        await self._robots.admit(url)
        await self._turns.wait(url)

    def asked(self, url: str) -> None:
        """See `logins.Politeness.asked`."""
        self._frontier.sent(urls.locate(url).host, at=time.monotonic())

    async def failed(self, url: str, error: FetchError, *, began: float) -> bool:
        """See `logins.Politeness.failed`."""
        if isinstance(error, ProxiesAwayError):
            return True
        if self._causes.proxies.may_be_to_blame(error, url, is_fixed=True):
            return True
        if error.hop > 1 or error.underlying not in HOST_FAILURES:
            return False
        host, scheme = urls.locate(url).host, urls.scheme_of(url)
        return await self._causes.is_uplink(host, error.underlying, scheme=scheme, began=began)
