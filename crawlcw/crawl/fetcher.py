"""From a lease to an answer: ask for the page, and hand on what came of it.

N of these drain the queue. Nothing that happens to a page ends one: every failure of a
page becomes an outcome of that page alone, see `Settling`. An error of crawlcw's own is
no outcome: the page is put back, see `InternalErrors`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio

from crawlcw.api.attempt import LoggedOutError, Next, Session
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl.bans import BannedError, Bans
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.hosts import Frontier, HostTurns
from crawlcw.crawl.identities import Identities, NotReadyError
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import (
    CallbackErrors,
    Done,
    InternalErrors,
    MovedPages,
    NotTriedError,
    PageAttempt,
    Settling,
    Slot,
)
from crawlcw.crawl.revisits import NOT_MODIFIED, conditional
from crawlcw.crawl.robots import Robots
from crawlcw.downloader import dev_cache, rendering
from crawlcw.downloader.recording import Recorder
from crawlcw.downloader.redirects import REDIRECTS, is_page
from crawlcw.downloader.user_layers import HOOKS, SpiderFaultError
from crawlcw.engine.instruments import Instruments
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.pool import Pool
from crawlcw.engine.run_alone import RunAlone
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, LedgerError, StopCrawl, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease
from crawlcw.model.tracebacks import text_of
from crawlcw.model.transitions import put_off

logger = logging.getLogger(__name__)


class WorkSource(Protocol):
    """Who gives the fetchers their work."""

    def fetched(self, lease: Lease) -> None:
        """The request of a lease has ended, whatever came of it: its host may be asked again."""

    def done(self) -> None:
        """Nobody works on a lease any more."""

    def put_back(self, lease: Lease, *, to_ledger: bool) -> None:
        """A task was not tried, by no fault of its own; it is to be when its `due` says.

        *to_ledger*: its lease is to end in any case.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """What every fetcher of a process shares."""

    settings: Settings
    ledger: Ledger
    ask: Next  #: the way of a page's request, see `pipeline.layers`
    robots: Robots
    frontier: Frontier
    turns: HostTurns
    blame: Blame
    held: HeldLeases
    stats: Stats
    run_alone: RunAlone
    internal_errors: InternalErrors
    end: Callable[[FinishReason, str], None]  #: ends the crawl softly, see `Ending.end`
    watchdog: Watchdog
    recorder: Recorder
    state: KeptState
    identities: Identities
    bans: Bans
    errors: CallbackErrors
    settling: Settling
    moved: MovedPages
    instruments: Instruments

    async def run(self, pool: Pool, done: asyncio.Queue[Done], source: WorkSource) -> None:
        """Work on what the pool gives until cancelled."""
        while True:
            # One scope for many pages: it ends with the first lease that is lost.
            with anyio.CancelScope() as lost:
                while not lost.cancel_called:
                    lease = await pool.get()
                    self.held.working(lease, lost)
                    slot = Slot(partial(source.fetched, lease))
                    try:
                        with self.state.attempt() as changes:
                            try:
                                result = await self._work(lease, slot)
                            finally:
                                self.held.idle(lease)
                                slot.free()
                                source.done()
                            if isinstance(result, Lease):
                                source.put_back(result, to_ledger=self.run_alone.is_alone(lease))
                            else:
                                self.internal_errors.settled(lease)
                                await done.put(result)
                                changes.clear()
                        await self.run_alone.recorded(lease)
                    finally:
                        self.run_alone.leave(lease)
            self.stats.leases_lost += 1

    async def _work(self, lease: Lease, slot: Slot) -> Done | Lease:
        """Return what came of one task, or its lease where nothing did.

        The *slot* is freed as soon as the answer is there and what it shows of its host
        is noted, or not here at all.
        """
        try:
            return await self._tried(lease, slot)
        except NotTriedError:
            return lease
        except (LedgerError, UsageError):
            # The last: what is not installed is missing for every page.
            raise
        except Exception as error:
            return self.internal_errors.put_off(lease, error)

    async def _tried(self, lease: Lease, slot: Slot) -> Done | Lease:
        last_sent = self.turns.last(lease.task.host)
        session = None
        if self.blame.given_up(lease.task) is None:
            try:
                session = await self.identities.admit(lease.task)
            except NotReadyError as wait:
                return put_off(lease, until=wait.until)
        if self.turns.last(lease.task.host) > last_sent:
            # A login has asked its host since its turn came.
            await self.turns.wait(lease.task.url)
        if not await self.run_alone.enter(lease):
            return lease
        given_up = self.blame.given_up(lease.task)
        if given_up is not None:
            return await self.settling.given_up(self._begun(lease, slot, session), given_up)
        if not self.blame.may_begin(lease.task):
            return lease
        async with self._begun(lease, slot, session) as begun:
            return await self._page(begun)

    def _begun(self, lease: Lease, slot: Slot, session: Session | None) -> PageAttempt:
        return PageAttempt(
            lease=lease,
            request=Request.of(lease.task),
            slot=slot,
            session=session,
            exchanges=None if self.recorder.bodies is None else [],
            at=self.ledger.now(),
            began=time.monotonic(),
        )

    async def _page(self, begun: PageAttempt) -> Done | Lease:
        slot = begun.slot
        try:
            response = await self._fetch(begun)
        except StopCrawl as wish:
            self.end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(wish)))
            raise NotTriedError from wish
        except SpiderFaultError as fault_of_spider:
            return await self.settling.faulty(begun, fault_of_spider)
        except (LoggedOutError, BannedError) as refused:
            return await self.settling.denied(begun, refused)
        except FetchError as refusal:
            return await self.settling.unanswered(begun, refusal)
        # Before the page is parsed: that takes time as well, and is not its host's.
        begun.stood = self.watchdog.stalled(begun.began)
        self.blame.answered()
        request = begun.request
        same = begun.is_conditional and response.status == NOT_MODIFIED and not begun.redirects
        wanted = same or is_page(response, request, self.settings)
        moved = response.status in REDIRECTS and not wanted
        if not (moved or wanted):
            return await self.settling.no_page(begun, response)
        self.settling.answered(begun, response)
        # A page that stays open in a browser goes on asking its host.
        if response.page is None:
            slot.free()
        if moved:
            return await self.moved.redirected(begun, response)
        if same:
            return await self.settling.unchanged(begun, response)
        if (handed_on := await self.moved.refreshed(begun, response)) is not None:
            return handed_on
        if response.url != request.url and request.method == "GET":
            return await self.moved.parsed(begun, response)
        return await self.settling.parsed(begun, response)

    async def _fetch(self, begun: PageAttempt) -> Response:
        """Ask for a page, with robots.txt and scope asked at every hop."""
        request, task = begun.request, begun.lease.task
        if self.settings.obey_robots:
            await self.robots.admit(request.url)
        host = task.host
        # Its turn came before it waited in the queue, and for the loop.
        self.frontier.sent(host, at=time.monotonic())
        try:
            with self.instruments.fetch(begun.lease) as seen:
                begun.follows = self.moved.follows(begun)
                response = await self.ask(begun, self._conditional(begun))
                seen.answered(status=response.status, size=response.size)
        except (FetchError, LoggedOutError):
            # When the last request was sent is not known.
            self.frontier.sent(host, at=time.monotonic())
            raise
        for name in HOOKS:
            self.errors.succeeded(name)
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
        is_missing = self.recorder.bodies is not None and task.stored is None
        # Of a page that scripts make, the document alone says nothing; and a cache for
        # development is to have the page: a 304 would have its server asked each time.
        anybody = begun.session is None and not request.options.cookies
        cached = self.settings.cache != "off" and anybody and dev_cache.may_keep(request)
        if is_missing or cached or rendering.wants_browser(request, self.settings):
            return request
        asked = conditional(request, task)
        begun.is_conditional = asked is not request
        return asked


def _may_be_banned(begun: PageAttempt) -> bool:
    return begun.proxy is not None if begun.session is None else begun.session.may_be_banned
