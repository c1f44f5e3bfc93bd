"""Opening hosts: no page is asked for before the host's robots.txt is known.

What the ledger has of it is taken over; else the host's owner asks for it, once
a day for all processes. A host whose breaker is half-open is asked first for a known
good page: a host that is away does not answer it, pages that are refused for good
have no bearing on it.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

import anyio
import anyio.abc

from crawlcw.crawl.causes import Causes
from crawlcw.crawl.held_host import HeldHost
from crawlcw.crawl.hosts import Frontier
from crawlcw.crawl.robots import VALID, Robots, Rules, origin_of
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, ProxiesAwayError, Reason
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.hosts import RobotsRecord
from crawlcw.model.sanitize import printable
from crawlcw.model.urls import scheme_of

logger = logging.getLogger(__name__)

#: How many sitemaps of a host are noted.
_SITEMAPS = 100


class Opening:
    """The hosts that are being opened."""

    def __init__(
        self,
        frontier: Frontier,
        robots: Robots,
        causes: Causes,
        *,
        at_once: int,
        ledger: Ledger,
        on_change: Callable[[], None],
        watchdog: Watchdog,
    ) -> None:
        """Ask at most *at_once* hosts at a time, for some will hang.

        *on_change* is called when one is open, or has failed. A failure that
        *watchdog* explains is none: the host is opened again.
        """
        self._frontier = frontier
        self._robots = robots
        self._causes = causes
        self._watch = causes.watch
        self._proxies = causes.proxies
        self._room = anyio.Semaphore(at_once)
        self._ledger = ledger
        self._on_change = on_change
        self._watchdog = watchdog

    def known(self, record: RobotsRecord | None, url: str) -> Rules | None:
        """Return the rules for *url* where they are known: here, or by the ledger's *record*."""
        rules = self._robots.known(url)
        if rules is None and record is not None and record.origin == origin_of(url):
            valid = (record.expires - self._ledger.now()).total_seconds()
            if valid > 0:
                self._robots.remember(record, valid=valid)
                rules = self._robots.known(url)
        return rules

    def open(self, host: HeldHost, url: str, background: anyio.abc.TaskGroup) -> bool:
        """Open a host that has *url* among its tasks; say whether it is open already.

        Where it is not, it will be looked at again when it is.
        """
        rules = self.known(host.state.robots, url)
        if self.probe(host, background):
            return False
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
        background.start_soon(self._open, host, url, self._ask)
        return False

    def probe(self, host: HeldHost, background: anyio.abc.TaskGroup) -> bool:
        """Ask a host that is half-open for a known good page; return whether there is one."""
        url = self._frontier.health.probe_url(host)
        if url is None:
            return False
        host.busy = host.look = True
        background.start_soon(self._open, host, url, self._probe)
        return True

    async def _open(
        self, host: HeldHost, url: str, ask: Callable[[str, str], Awaitable[None]]
    ) -> None:
        try:
            rest = self._frontier.queues[host.name].next_start - time.monotonic()
            await anyio.sleep(max(0.0, rest))
            # Hundreds of hosts that are opened on a network that is away would
            # each be counted as failing.
            await self._watch.settled()
            async with self._room:
                if self._frontier.queues.may_ask(host.name, now=time.monotonic()):
                    await ask(host.name, url)
        finally:
            host.busy = False
        self._on_change()

    async def _probe(self, name: str, url: str) -> None:
        """Ask for a page that was answered well before; the host is opened after that."""
        sent, began = self._ledger.now(), time.monotonic()
        try:
            response = await self._watch.ask(url)
        except FetchError as error:
            if error.status is not None:
                self._watch.answered()
            if not self._proxies.may_be_to_blame(error, url, is_fixed=False):
                await self._host_failed(name, url, error, sent=sent, began=began)
            return
        finally:
            self._frontier.sent(name, at=began)
        self._proxies.got(url, response.proxy)
        self._watch.answered()
        stood = self._watchdog.stalled(began)
        self._frontier.health.answered(
            name,
            latency=max(0.0, response.elapsed.total_seconds() - stood),
            scheme=scheme_of(url),
            sent=sent,
            now=time.monotonic(),
        )

    async def _ask(self, name: str, url: str) -> None:
        sent, began = self._ledger.now(), time.monotonic()
        asked = f"{origin_of(url)}/robots.txt"
        try:
            rules = await self._robots.rules(url)
        except FetchError as error:
            if self._watchdog.explains(error, began) or self._proxies.may_be_to_blame(
                error, asked, is_fixed=False
            ):
                return
            await self._failed(name, url, error, sent=sent, began=began)
            return
        self._proxies.got(asked, None)
        self._watch.answered()
        self._frontier.health.resolved(name, scheme=scheme_of(url))
        record = RobotsRecord(
            origin=origin_of(url),
            body=rules.body,
            sitemaps=rules.sitemaps[:_SITEMAPS],
            expires=self._ledger.now() + VALID,
        )
        self._frontier.open(
            name, crawl_delay=rules.crawl_delay, robots=record, asked=True, now=time.monotonic()
        )

    async def _failed(
        self, name: str, url: str, error: FetchError, *, sent: datetime, began: float
    ) -> None:
        now = time.monotonic()
        if isinstance(error, ProxiesAwayError):
            return  # it has waited for one, and will again
        if error.reason is not Reason.ROBOTS_UNAVAILABLE:
            # The pages are refused for the same reason, each as its own outcome.
            self._frontier.open(name, crawl_delay=0.0, robots=None, asked=False, now=now)
            return
        logger.info(
            "robots.txt of %s could not be fetched: %s",
            printable(name),
            printable(error),
            extra={"event": "host_failed", "host": name, "reason": str(error.reason)},
        )
        await self._host_failed(name, url, error, sent=sent, began=began)

    async def _host_failed(
        self, name: str, url: str, error: FetchError, *, sent: datetime, began: float
    ) -> None:
        if isinstance(error, ProxiesAwayError):
            return
        scheme = scheme_of(url)
        if not await self._causes.is_uplink(name, error.underlying, scheme=scheme, began=began):
            await self._causes.host_failed(name, error, scheme=scheme, sent=sent)
