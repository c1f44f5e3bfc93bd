"""Permission to ask: hosts are opened, and URLs that are no tasks of their own are admitted.

No page is asked for before its host's robots.txt is known: from the ledger, or else by its owner's
request, once a day for all processes. A fetcher of each process asks for that of its other scheme,
in the turn of the first such page. A host whose breaker is half-open is asked first for a known
good page: only a host that is away does not answer it.

Redirects' targets, parts of rendered pages, repeated requests of a user's layers, probes and logins
are a few requests beside the pages. They keep the host's delay, as does its next page after them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, InitVar, dataclass

import anyio
import anyio.abc

from crawlcw.api.attempt import Attempt, Purpose
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.causes import Causes, PageAttempt
from crawlcw.crawl.hosts import Frontier, HeldHost
from crawlcw.crawl.robots import VALID, Robots
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, ProxiesAwayError, Reason, StopCrawl
from crawlcw.fetch.user_layers import SpiderFaultError
from crawlcw.model import urls
from crawlcw.model.hosts import RobotsRecord
from crawlcw.model.sanitize import printable, text_of

#: Hosts that are not held are forgotten above so many, once their delay has passed.
_REMEMBERED = 1000
#: How many sitemaps of a host are noted.
_SITEMAPS = 100


@dataclass
class Opening:
    """The hosts that are being opened, and probed."""

    frontier: Frontier
    robots: Robots
    causes: Causes
    _: KW_ONLY
    at_once: InitVar[int]  #: the most hosts that are asked at a time, for some will hang
    watchdog: Watchdog  #: a failure that it explains is none: the host is opened again

    def __post_init__(self, at_once: int) -> None:
        """Open no host yet."""
        self._room = anyio.Semaphore(at_once)
        self.robots.learned = self._learned

    def open(self, host: HeldHost, url: str, background: anyio.abc.TaskGroup) -> bool:
        """Open a host that has *url* among its tasks; say whether it is open already.

        Where it is not, it will be looked at again when it is.
        """
        rules = self.robots.known(url, host.state.robots)
        if self.probe(host, background):
            return False
        if rules is not None:
            host.open(crawl_delay=self.robots.crawl_delay(host.name))
            return True
        self._begin(host, f"{urls.origin_of(url)}/robots.txt", self._ask_robots, background)
        return False

    def probe(self, host: HeldHost, background: anyio.abc.TaskGroup) -> bool:
        """Ask a host that is half-open for a known good page; return whether there is one."""
        url = host.probe_url()
        if url is None:
            return False
        self._begin(host, url, self._probe, background)
        return True

    def _begin(
        self,
        host: HeldHost,
        url: str,
        ask: Callable[[HeldHost, str], Awaitable[None]],
        background: anyio.abc.TaskGroup,
    ) -> None:
        async def in_turn() -> None:
            frontier, causes = self.frontier, self.causes
            await anyio.sleep(max(0.0, host.queue.next_start - frontier.clock()))
            # While the network is away no failure counts: a host would be asked again and again.
            await causes.uplink_known()
            async with self._room:
                sent, began = frontier.ledger_now(), frontier.clock()
                if began >= host.queue.deadline:
                    return
                try:
                    await ask(host, url)
                except StopCrawl as stop:
                    causes.stop(printable(text_of(stop)))
                except FetchError as error:
                    says_nothing_of_host = (
                        self.watchdog.explains(error, began)
                        or causes.proxies.may_be_to_blame(error, url, is_fixed=False)
                        # It has waited for one, and will again.
                        or isinstance(error, ProxiesAwayError)
                    )
                    if not says_nothing_of_host:
                        await causes.unanswered(host.name, url, error, sent=sent, began=began)

        host.work(background, in_turn)

    async def _probe(self, host: HeldHost, url: str) -> None:
        """Ask for a page that was answered well before; the host is opened after that."""
        causes, sent, began = self.causes, self.frontier.ledger_now(), self.frontier.clock()
        origin = host.state.origins[urls.scheme_of(url)]
        try:
            response = await causes.ask(url)
        except SpiderFaultError:
            # The next page tells instead: this one would never be asked.
            origin.probes.pop(url, None)
            return
        except FetchError as error:
            if error.status is not None:
                causes.answered()
                origin.probes[url] = origin.probes.get(url, 0) + 1
            raise
        finally:
            self.frontier.sent(host.name, at=began)
        causes.proxies.got(url, response.proxy)
        causes.answered()
        origin.probes[url] = origin.probes.get(url, 0) + 1
        latency = response.elapsed.total_seconds() - self.watchdog.stalled(began)
        causes.answered_well(host.name, url, latency=latency, sent=sent)

    async def _ask_robots(self, host: HeldHost, url: str) -> None:
        try:
            rules = await self.robots.rules(url)
        except FetchError as error:
            is_refused = error.reason in (Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT)
            if not (is_refused or isinstance(error, SpiderFaultError)):
                raise
            # The pages fail for the same reason, each as its own outcome.
            host.open(asked=not is_refused)
            return
        self.causes.answered()
        self.causes.resolved(host.name, url)
        record = RobotsRecord(
            origin=urls.origin_of(url),
            body=rules.body,
            sitemaps=rules.sitemaps[:_SITEMAPS],
            expires=self.frontier.ledger_now() + VALID,
        )
        host.open(crawl_delay=self.robots.crawl_delay(host.name), robots=record, asked=True)

    def _learned(self, origin: str) -> None:
        """Keep the Crawl-delay of an origin whose robots.txt has been fetched."""
        if host := self.frontier.hosts.get(urls.locate(origin).host):
            host.crawl_delay = self.robots.crawl_delay(host.name)
            host.pace()


class Admission:
    """Scope, robots.txt and the turns of hosts; fulfils `redirects.Admission`.

    Where a person tries a page, there is neither a scope nor a turn: a person does not ask often.
    """

    # Set when they are made: they ask by layers that have this.
    robots: Robots
    opening: Opening | None = None

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope
        #: Until when hosts are left alone, whether this process holds them or not.
        self._free_at: dict[str, float] = {}

    async def admit(self, attempt: Attempt, url: str) -> None:
        """See `redirects.Admission.admit`."""
        # The waits are the crawl's own, and not the server's.
        if self.robots.known(url) is None:
            with attempt.deadline:
                await self.turn(url)
        if self._scope is not None and attempt.purpose is Purpose.PAGE:
            task = attempt.lease.task if isinstance(attempt, PageAttempt) else None
            self._scope.admit_url(url, redirected=task)
        await self.robots.admit(url)
        with attempt.deadline:
            await self.turn(url)

    async def part(self, url: str, *, is_document: bool) -> None:
        """See `redirects.Admission.part`."""
        if self._scope is not None and is_document:
            self._scope.admit_url(url)
        await self.robots.admit(url)

    async def turn(self, url: str) -> None:
        """Take the next turn at the host of *url*, and wait for it."""
        if self.opening is None:
            return
        frontier, host = self.opening.frontier, urls.locate(url).host
        now, delay = frontier.clock(), frontier.delay(host)
        if host not in frontier.hosts:
            delay = max(delay, self.robots.crawl_delay(host))
        if not delay:
            return
        turn = max(now, self.last(host) + delay, self._free_at.get(host, now))
        # Before it sleeps: the next request is to keep its distance from this turn.
        self._take(frontier, host, turn, delay)
        if turn > now:
            await anyio.sleep(turn - now)
            # The loop may have been busy.
            self._take(frontier, host, frontier.clock(), delay)

    def _take(self, frontier: Frontier, host: str, turn: float, delay: float) -> None:
        frontier.sent(host, at=turn)
        if len(self._free_at) >= _REMEMBERED:
            now = frontier.clock()
            self._free_at = {name: at for name, at in self._free_at.items() if at > now}
        self._free_at[host] = max(turn + delay, self._free_at.get(host, turn))

    def last(self, host: str) -> float:
        """Return when *host* was asked last, or will be, as far as is known; `-inf`: never."""
        held = self.opening and self.opening.frontier.hosts.get(host)
        return held.queue.began if held else float("-inf")

    def asked(self, url: str) -> None:
        """Note that *url* was asked for just now."""
        if self.opening is not None:
            frontier = self.opening.frontier
            frontier.sent(urls.locate(url).host, at=frontier.clock())

    async def is_innocent(self, url: str, error: FetchError, *, began: float) -> bool:
        """Return whether a proxy or our own network may be to blame for the failure of a login."""
        if self.opening is None:
            return False
        causes, host = self.opening.causes, urls.locate(url).host
        if isinstance(error, ProxiesAwayError):
            return True
        if causes.proxies.may_be_to_blame(error, url, is_fixed=True):
            return True
        # Behind a redirect another host has failed.
        return error.hop <= 1 and await causes.blames_uplink(
            host, url, error.underlying, began=began
        )
