"""The limits that hosts are asked by: the spider's own, and settings that change meanwhile."""

import time

from crawlcw.api.host_limits import HostLimit, Limits, limit_of
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl.frontier import Frontier


class FollowedLimits:
    """What holds for each host by the settings that are followed just now."""

    def __init__(self, spider: Spider, settings: Settings) -> None:
        self._limits = Limits(spider.limits)
        self._some_shared = any(limit.concurrency == 0 for limit in spider.limits.values())
        self._settings = settings

    def of(self, host: str) -> HostLimit:
        """Return how many requests a host may have at once, and how far apart."""
        return limit_of(host, self._limits, self._settings)

    @property
    def may_share(self) -> bool:
        """Whether any host is left without limits, so that several processes may ask it."""
        return self._some_shared or self._settings.per_host_concurrency == 0

    def follow(self, settings: Settings, frontier: Frontier) -> None:
        """Ask all hosts by other settings from now on, those that are held as well."""
        self._settings = settings
        frontier.may_share = self.may_share
        now = time.monotonic()
        for host in frontier:
            host.limit = self.of(host.name)
            frontier.lanes.pace(
                host.name,
                delay=host.delay,
                allowed=host.allowed,
                limit=host.limit.concurrency,
                now=now,
            )
            if host.lease is None and not frontier.shares(host.name, now=now):
                # It is its owner's alone from now on.
                frontier.phases.leave(host)
