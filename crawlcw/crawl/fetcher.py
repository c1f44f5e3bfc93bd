"""From a lease to an answer: ask for the page, and hand on what came of it.

N of these drain the queue. Nothing that happens to a page ends one: every failure of a
page becomes an outcome of that page alone, see `Outcomes`. An error of crawlcw's own is
no outcome: the page is put back, see `InternalErrors`.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol

import anyio

from crawlcw.api.attempt import LoggedOutError, Next, Session
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl.bans import BannedError, Bans
from crawlcw.crawl.hosts import Frontier, HostTurns
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.moved import MovedPages
from crawlcw.crawl.outcomes import (
    CallbackErrors,
    Deferred,
    Done,
    Failed,
    Failures,
    PageAttempt,
    Pages,
    Result,
    Slot,
)
from crawlcw.crawl.revisits import NOT_MODIFIED, conditional
from crawlcw.crawl.robots import Robots
from crawlcw.engine.instruments import UNSEEN, Instruments
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.pool import Pool
from crawlcw.engine.run_alone import RunAlone
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.errors import Defer, FetchError, LedgerError, StopCrawl, UsageError
from crawlcw.fetch import browser, dev_cache
from crawlcw.fetch.redirects import REDIRECTS, is_page
from crawlcw.fetch.user_layers import HOOKS, SpiderFaultError
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease, Task
from crawlcw.model.tracebacks import text_of
from crawlcw.model.transitions import put_off

logger = logging.getLogger(__name__)


class WorkSource(Protocol):
    """Who gives the fetchers their work."""

    def fetched(self, lease: Lease) -> None:
        """The request of a lease has ended, whatever came of it: its host may be asked again."""

    def done(self, lease: Lease) -> None:
        """Nobody works on a lease any more."""

    def put_back(self, lease: Lease, *, to_ledger: bool) -> None:
        """A task was not tried, by no fault of its own; it is to be when its `due` says.

        *to_ledger*: its lease is to end in any case.
        """


#: Exceptions about one page; any other is an error of crawlcw's own.
_REFUSALS = (StopCrawl, SpiderFaultError, LoggedOutError, BannedError, FetchError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """What every fetcher of a process shares."""

    asking: "Asking"
    held: HeldLeases
    state: KeptState
    run_alone: RunAlone
    turns: HostTurns
    pages: Pages
    failures: Failures
    moved: MovedPages

    async def run(self, pool: Pool, done: asyncio.Queue[Done], source: WorkSource) -> None:
        """Work on what the pool gives until cancelled."""
        while True:
            # One scope for many pages: it ends with the first lease that is lost.
            with anyio.CancelScope() as lost:
                while not lost.cancel_called:
                    lease = await pool.get()
                    self.held.scopes[lease.task.id] = lost
                    slot = Slot(partial(source.fetched, lease))
                    try:
                        try:
                            try:
                                result = await self._work(lease, slot)
                            finally:
                                self.held.scopes.pop(lease.task.id, None)
                                slot.free()
                                source.done(lease)
                            if isinstance(result, Deferred):
                                self.state.undo(lease)
                                self._put_back(lease, result, source)
                            else:
                                self.failures.internal.settled(lease)
                                await done.put(result)
                        except BaseException:
                            self.state.undo(lease)
                            raise
                        if self.run_alone.alone is lease:
                            # Until then a crash would count against it.
                            await self.held.ended(lease)
                    finally:
                        self.run_alone.leave(lease)
            self.failures.stats.leases_lost += 1

    async def _work(self, lease: Lease, slot: Slot) -> Done | Deferred:
        """Return what to write of one task; the only place that makes results of exceptions.

        The *slot* is freed as soon as the answer is there and what it shows of its host
        is noted, or not here at all.
        """
        task, pages, frontier = lease.task, self.pages, self.asking.frontier
        try:
            session = None
            if pages.sessions.are_used_by(task) and frontier.given_up(task) is None:
                session = await self._session(task)
            if not await self.run_alone.enter(lease):
                raise Defer("another page ran alone")
            begun = PageAttempt(
                lease=lease,
                request=Request.of(task),
                slot=slot,
                session=session,
                exchanges=None if pages.recorder.bodies is None else [],
                at=pages.outcomes.now(),
                began=time.monotonic(),
            )
            if (given_up := frontier.given_up(task)) is not None:
                result: Result = await self.failures.given_up(begun, given_up)
            elif not frontier.may_begin(task, now=begun.began):
                raise Defer("its host may not be asked now")
            else:
                async with begun:
                    try:
                        result = await self._page(begun)
                    except _REFUSALS as refusal:
                        result = await self._refused(begun, refusal)
            return pages.outcomes.done(lease, result)
        except Defer as wish:
            until = wish.until
            if isinstance(until, timedelta):
                until = pages.outcomes.now() + until
            return Deferred(until, wish.cause)
        except (LedgerError, UsageError):
            # The last: what is not installed is missing for every page.
            raise
        except Exception as error:
            return self.failures.internal.deferred(lease, error)

    async def _session(self, task: Task) -> Session | None:
        """Return the session to ask for a page with; raises `Defer`."""
        last_sent = self.turns.last(task.host)
        session = await self.pages.sessions.admit(task)
        if self.turns.last(task.host) > last_sent:
            # A login has asked its host since its turn came.
            await self.turns.wait(task.url)
        return session

    async def _refused(self, begun: PageAttempt, refusal: Exception) -> Failed:
        """Return the failure of a page that no answer was got for, or not the wanted one."""
        match refusal:
            case StopCrawl():
                self.pages.outcomes.end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(refusal)))
                raise Defer("the crawl ends") from refusal
            case SpiderFaultError():
                return await self.failures.faulty(begun, refusal)
            case LoggedOutError() | BannedError():
                return await self.failures.denied(begun, refusal)
            case FetchError():
                return await self.failures.unanswered(begun, refusal)
        raise refusal

    def _put_back(self, lease: Lease, result: Deferred, source: WorkSource) -> None:
        logger.debug(
            "%s is put back: %s",
            printable(lease.task.url),
            printable(result.cause),
            extra={"event": "deferred", "url": lease.task.url, "reason": result.cause},
        )
        back = lease if result.until is None else put_off(lease, until=result.until)
        source.put_back(back, to_ledger=self.run_alone.alone is lease)

    async def _page(self, begun: PageAttempt) -> Result:
        """Return what came of a page's answer; raises what comes of none."""
        slot, request = begun.slot, begun.request
        begun.follows = self.moved.follows(begun)
        response = await self.asking.fetch(begun)
        # Before the page is parsed: that takes time as well, and is not its host's.
        begun.stood = self.failures.watchdog.stalled(begun.began)
        self.pages.causes.answered()
        same = begun.is_conditional and response.status == NOT_MODIFIED and not begun.redirects
        wanted = same or is_page(response, request, self.asking.settings)
        moved = response.status in REDIRECTS and not wanted
        if not (moved or wanted):
            return await self.failures.no_page(begun, response)
        self.pages.answered(begun, response)
        # A page that stays open in a browser goes on asking its host.
        if response.page is None:
            slot.free()
        if moved:
            return await self.moved.redirected(begun, response)
        if same:
            return await self.pages.unchanged(begun, response)
        if (handed_on := await self.moved.refreshed(begun, response)) is not None:
            return handed_on
        if response.url != request.url and request.method == "GET":
            return await self.moved.parsed(begun, response)
        return await self.pages.parsed(begun, response)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Requests for pages, and the notes about each answer, good or bad."""

    settings: Settings
    ask: Next  #: the way of a page's request, see `pipeline.layers`
    robots: Robots
    frontier: Frontier
    stats: Stats
    bans: Bans
    errors: CallbackErrors
    instruments: Instruments | None

    async def fetch(self, begun: PageAttempt) -> Response:
        """Ask for a page, with robots.txt and scope asked at every hop."""
        request, task = begun.request, begun.lease.task
        if self.settings.obey_robots:
            await self.robots.admit(request.url)
        host = task.host
        # Its turn came before it waited in the queue, and for the loop.
        self.frontier.sent(host, at=begun.began)
        try:
            watched = self.instruments
            with UNSEEN if watched is None else watched.fetch(begun.lease) as seen:
                response = await self.ask(begun, self._conditional(begun))
                if seen is not None:
                    seen.answered(status=response.status, size=response.size)
        except (FetchError, LoggedOutError):
            # When the last request was sent is not known.
            self.frontier.sent(host, at=time.monotonic())
            raise
        self.errors.succeeded(*HOOKS)
        # Later still, where connecting took long.
        hops = response.url != request.url
        elapsed = 0.0 if hops else response.elapsed.total_seconds()
        self.frontier.sent(host, at=time.monotonic() - elapsed)
        self.stats.fetched += 1
        self.stats.bytes += response.size
        self.stats.truncated += response.truncated is not None
        self.stats.statuses[response.status] += 1
        if _may_be_banned(begun) and self.bans.is_ban(response):
            raise BannedError(response)
        return response

    def _conditional(self, begun: PageAttempt) -> Request:
        request, task = begun.request, begun.lease.task
        # A 304 has no body to be kept.
        is_missing = begun.exchanges is not None and task.stored is None
        # Of a page that scripts make, the document alone says nothing; and a cache for
        # development is to have the page: a 304 would have its server asked each time.
        anybody = begun.session is None and not request.options.cookies
        cached = self.settings.cache != "off" and anybody and dev_cache.may_keep(request)
        if is_missing or cached or browser.wants_browser(request, self.settings):
            return request
        asked = conditional(request, task)
        begun.is_conditional = asked is not request
        return asked


def _may_be_banned(begun: PageAttempt) -> bool:
    return begun.proxy is not None if begun.session is None else begun.session.may_be_banned
