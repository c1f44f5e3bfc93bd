"""Opening hosts: no page is asked for before the host's robots.txt is known.

What the ledger has of it is taken over; else the host's owner asks for it, once
a day for all processes.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime

import anyio
import anyio.abc

from crawlcw.errors import FetchError, Reason
from crawlcw.frontier import Frontier, HeldHost
from crawlcw.hosts import RobotsRecord
from crawlcw.printable import printable
from crawlcw.robots import VALID, Robots, Rules, origin_of

logger = logging.getLogger(__name__)

#: How many sitemaps of a host are noted.
_SITEMAPS = 100


class Openings:
    """The hosts that are being opened."""

    def __init__(
        self,
        frontier: Frontier,
        robots: Robots,
        *,
        at_once: int,
        ledger_now: Callable[[], datetime],
        on_change: Callable[[], None],
    ) -> None:
        """Ask at most *at_once* hosts at a time, for some will hang.

        *on_change* is called when one is open, or has failed.
        """
        self._frontier = frontier
        self._robots = robots
        self._room = anyio.Semaphore(at_once)
        self._ledger_now = ledger_now
        self._on_change = on_change

    def known(self, record: RobotsRecord | None, url: str) -> Rules | None:
        """Return the rules for *url* where they are known: here, or by the ledger's *record*."""
        rules = self._robots.known(url)
        if rules is None and record is not None and record.origin == origin_of(url):
            valid = (record.expires - self._ledger_now()).total_seconds()
            if valid > 0:
                self._robots.remember(record, valid=valid)
                rules = self._robots.known(url)
        return rules

    def open(self, host: HeldHost, url: str, background: anyio.abc.TaskGroup) -> bool:
        """Open a host that has *url* among its tasks; say whether it is open already.

        Where it is not, it will be looked at again when it is.
        """
        rules = self.known(host.state.robots, url)
        if rules is not None:
            self._frontier.open(
                host.name,
                crawl_delay=rules.crawl_delay,
                robots=None,
                asked=False,
                now=time.monotonic(),
            )
            return True
        host.busy = host.look = True
        background.start_soon(self._open, host, url)
        return False

    async def _open(self, host: HeldHost, url: str) -> None:
        try:
            rest = self._frontier.lanes[host.name].next_start - time.monotonic()
            await anyio.sleep(max(0.0, rest))
            async with self._room:
                if self._frontier.may_ask(host.name, now=time.monotonic()):
                    await self._ask(host.name, url)
        finally:
            host.busy = False
        self._on_change()

    async def _ask(self, name: str, url: str) -> None:
        sent = self._ledger_now()
        try:
            rules = await self._robots.rules(url)
        except FetchError as error:
            self._failed(name, error, sent=sent)
            return
        record = RobotsRecord(
            origin=origin_of(url),
            body=rules.body,
            sitemaps=rules.sitemaps[:_SITEMAPS],
            expires=self._ledger_now() + VALID,
        )
        self._frontier.open(
            name, crawl_delay=rules.crawl_delay, robots=record, asked=True, now=time.monotonic()
        )

    def _failed(self, name: str, error: FetchError, *, sent: datetime) -> None:
        now = time.monotonic()
        if error.reason is not Reason.ROBOTS_UNAVAILABLE:
            # The pages are refused for the same reason, each as its own outcome.
            self._frontier.open(name, crawl_delay=0.0, robots=None, asked=False, now=now)
            return
        logger.info(
            "robots.txt of %s is not to be had: %s",
            printable(name),
            printable(error),
            extra={"event": "host_failed", "host": name, "reason": str(error.reason)},
        )
        self._frontier.host_failed(
            name,
            error.underlying,
            sent=sent,
            status=error.status,
            retry_after=error.retry_after,
            now=now,
        )
