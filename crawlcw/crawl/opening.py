"""Open hosts: before the first page, request a host's robots.txt and, after failures, a probe page.

A page is requested only after the robots.txt of its host is known. The host's owner requests
robots.txt once a day and stores the rules in the ledger for all processes. If a host has pages with
both schemes (http and https), a fetcher requests the robots.txt of the second scheme before that
scheme's first page. If the breaker of a host is half-open, a request for a probe page (a page that
was good before) tests whether the host is up.

These requests take slots of their host, but do not wait for the host's delay.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, InitVar, dataclass

import anyio
import anyio.abc

from crawlcw.crawl.causes import Causes
from crawlcw.crawl.host_queues import HostQueue
from crawlcw.crawl.hosts import Frontier, FrontierHost
from crawlcw.crawl.robots import VALID, Robots
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import Defer, FetchError, ProxiesAwayError, Reason, StopCrawl
from crawlcw.fetch.user_layers import SpiderFaultError
from crawlcw.model import urls
from crawlcw.model.hosts import RobotsRecord
from crawlcw.model.sanitize import printable, text_of

#: Seconds between two tries to get a slot of a host.
_RECHECK_S = 1.0
#: Maximum number of sitemap URLs that a host's record holds.
_MAX_SITEMAPS = 100


@dataclass
class Opening:
    """Opens and probes hosts."""

    frontier: Frontier
    robots: Robots
    causes: Causes
    _: KW_ONLY
    max_parallel: InitVar[int]  #: maximum number of hosts that are opened at a time
    watchdog: Watchdog  #: tells whether a stall of the event loop caused a failure

    def __post_init__(self, at_once: int) -> None:
        """Start without hosts."""
        self._opening_slots = anyio.Semaphore(at_once)
        self.robots.learned = self._learned

    def open(self, host: FrontierHost, url: str, background: anyio.abc.TaskGroup) -> bool:
        """Open a host that has a task with *url*; return whether the host is open now.

        If a request must be sent first, the host opens later, and its due tasks are read again.
        """
        rules = self.robots.known_rules(url, host.state.robots)
        if self.probe(host, background):
            return False
        if rules is not None:
            host.open(crawl_delay=self.robots.crawl_delay(host.name))
            return True
        self._start(host, f"{urls.origin_of(url)}/robots.txt", self._ask_robots, background)
        return False

    def probe(self, host: FrontierHost, background: anyio.abc.TaskGroup) -> bool:
        """Request the probe page of a half-open host; return whether the host has a probe page."""
        url = host.probe_url()
        if url is None:
            return False
        self._start(host, url, self._probe, background)
        return True

    def _start(
        self,
        host: FrontierHost,
        url: str,
        ask: Callable[[FrontierHost, str], Awaitable[None]],
        background: anyio.abc.TaskGroup,
    ) -> None:
        async def in_turn() -> None:
            frontier, causes = self.frontier, self.causes
            queue = host.queue
            await anyio.sleep(max(0.0, queue.next_start - frontier.clock()))
            # Wait until our network works, because no failure counts during an outage.
            await causes.uplink_known()

            async def check() -> None:
                if frontier.clock() >= queue.deadline:
                    raise Defer("the host's lease has ended")

            async with self._opening_slots:
                try:
                    await self.wait_for_slot(queue, check, takes_slot=True, is_paced=False)
                except Defer:
                    return
                sent, started_at = frontier.ledger_now(), frontier.clock()
                try:
                    await ask(host, url)
                except StopCrawl as stop:
                    causes.stop(printable(text_of(stop)))
                except FetchError as error:
                    says_nothing_of_host = (
                        self.watchdog.explains(error, started_at)
                        or causes.proxies.may_be_to_blame(error, url, is_fixed=False)
                        # No proxy was free, so the host got no request.
                        or isinstance(error, ProxiesAwayError)
                    )
                    if not says_nothing_of_host:
                        await causes.unanswered(
                            host.name, url, error, sent=sent, started_at=started_at
                        )
                finally:
                    frontier.queues.end_hop(queue, now=frontier.clock(), frees_slot=True)

        host.work(background, in_turn)

    async def wait_for_slot(
        self,
        queue: HostQueue,
        check: Callable[[], Awaitable[None]],
        *,
        takes_slot: bool,
        is_paced: bool = True,
    ) -> None:
        """Wait until a request may be sent to a host; *check* runs before each try and may raise.

        If *is_paced* is true, the host's delay begins with this request.
        """
        queues, event = self.frontier.queues, asyncio.Event()
        # A hop that already has a slot goes first, because other hops may wait for its slot.
        queue.hops.insert(len(queue.hops) if takes_slot else 0, event)
        queues.changed.add(queue.host)
        try:
            while True:
                await check()
                now, is_first = self.frontier.clock(), queue.hops[0] is event
                if is_first and queues.start_hop(
                    queue, now=now, takes_slot=takes_slot, is_paced=is_paced
                ):
                    return
                event.clear()
                wait = queue.next_start - now if is_first else _RECHECK_S
                with anyio.move_on_after(wait if 0 < wait < _RECHECK_S else _RECHECK_S):
                    await event.wait()
        finally:
            queue.hops.remove(event)
            queues.end_hop(queue, now=self.frontier.clock(), frees_slot=False)

    async def _probe(self, host: FrontierHost, url: str) -> None:
        """Request a probe page; a good response closes the breaker of the host's origin."""
        causes, sent, started_at = self.causes, self.frontier.ledger_now(), self.frontier.clock()
        origin = host.state.origins[urls.scheme_of(url)]
        try:
            response = await causes.request_probe(url)
        except SpiderFaultError:
            # The spider's code raises an error for this page, so another page must test the host.
            origin.probes.pop(url, None)
            return
        except FetchError as error:
            if error.status is not None:
                causes.answered()
                origin.probes[url] = origin.probes.get(url, 0) + 1
            raise
        finally:
            self.frontier.note_request(host.name, sent_at=started_at)
        causes.proxies.note_fetched(url, response.proxy)
        causes.answered()
        origin.probes[url] = origin.probes.get(url, 0) + 1
        latency = response.elapsed.total_seconds() - self.watchdog.stall_since(started_at)
        causes.answered_well(host.name, url, latency=latency, sent=sent)

    async def _ask_robots(self, host: FrontierHost, url: str) -> None:
        try:
            rules = await self.robots.rules(url)
        except FetchError as error:
            is_refused = error.reason in (Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT)
            if not (is_refused or isinstance(error, SpiderFaultError)):
                raise
            # Open the host despite the error, because each page must get its own outcome.
            host.open(was_fetched=not is_refused)
            return
        self.causes.answered()
        self.causes.resolved(host.name, url)
        record = RobotsRecord(
            origin=urls.origin_of(url),
            body=rules.body,
            sitemaps=rules.sitemaps[:_MAX_SITEMAPS],
            expires=self.frontier.ledger_now() + VALID,
        )
        host.open(crawl_delay=self.robots.crawl_delay(host.name), robots=record, was_fetched=True)

    def _learned(self, origin: str) -> None:
        """Note the Crawl-delay of an origin whose robots.txt has been fetched."""
        if host := self.frontier.hosts.get(urls.locate(origin).host):
            host.crawl_delay = self.robots.crawl_delay(host.name)
            host.pace()
