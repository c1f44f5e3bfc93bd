"""From a lease to an outcome: fetch the page, run its callback, hand on what came of it.

N of these drain the queue. Nothing that happens to a page ends one: every
failure becomes an outcome of that page alone.
"""

import asyncio
import logging
import random
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

import anyio

from crawlcw.api.request import EACH_RUN, Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl import callbacks, recording
from crawlcw.crawl.adding import TaskAdder
from crawlcw.crawl.bans import BannedError, Bans
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.callback_errors import CallbackErrors
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.frontier import Frontier
from crawlcw.crawl.host_evidence import Fault
from crawlcw.crawl.identities import Identified, Identities, LoggedOutError, NotReadyError
from crawlcw.crawl.recording import Recorder
from crawlcw.crawl.redirect_targets import RedirectTargets, Way
from crawlcw.crawl.redirects import (
    REDIRECTS,
    attempt,
    is_page,
    onward,
    portable_headers,
    status_error,
    throttles,
)
from crawlcw.crawl.revisits import NOT_MODIFIED, Revisits, conditional
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.seen import SeenFilter
from crawlcw.crawl.slot import Slot
from crawlcw.crawl.spider_fault import HOOKS, SpiderFaultError
from crawlcw.crawl.suspects import (
    ChildDiedError,
    ChildDownloader,
    Children,
    NoChildError,
    Suspects,
)
from crawlcw.crawl.url_lists import WriteLinks
from crawlcw.downloader import dev_cache, memory_budget, rendering
from crawlcw.downloader.credentials import Credentials
from crawlcw.downloader.identified import IdentifiedDownloader
from crawlcw.downloader.protocol import Downloader
from crawlcw.downloader.proxy_pool import ProxyPool
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.poison import PoisonGuard
from crawlcw.engine.pool import Pool
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.errors import (
    FAILURE_REASONS,
    FetchError,
    LedgerError,
    ProxiesAwayError,
    Reason,
    SpiderError,
    StopCrawl,
    UsageError,
)
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.dropped import DroppedLinks
from crawlcw.model.sanitize import printable
from crawlcw.model.stalls import Excuses
from crawlcw.model.task import WAITING, Lease, ResponseInfo, Status, Task, task_id
from crawlcw.model.tracebacks import text_of
from crawlcw.model.transitions import (
    Failed,
    Outcome,
    Settlement,
    Succeeded,
    is_suspect,
    put_off,
    settle,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: A page that sends its reader on within this time is a redirect by other means.
_REDIRECTING = timedelta(seconds=5)
#: What goes wrong after the host has answered as it should.
_BEHIND_AN_ANSWER = frozenset(
    {
        Reason.BROWSER_CRASHED,
        Reason.BROWSER_FAILED,
        Reason.BODY_TOO_LARGE,
        Reason.REDIRECT_INVALID,
        Reason.REDIRECT_LIMIT,
        Reason.REDIRECT_LOOP,
        Reason.URL_INVALID,
    }
)
#: What is said of a page that is denied by an answer whose status says nothing.
_DENIED = {
    Reason.LOGGED_OUT: "with a session that is logged in",
    Reason.BANNED: "whichever proxy or session asks",
}


class NotTriedError(Exception):
    """Nothing of an attempt counts, neither for the page nor for its host: it is put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A task that was worked on: what to write, in this order."""

    tasks: tuple[Task, ...] = ()  #: its links
    too_deep: tuple[Task, ...] = ()  #: those that are only kept
    settlements: tuple[Settlement, ...] = ()
    aliases: tuple[Settlement, ...] = ()  #: tasks whose redirect led to it: no pages of their own
    dropped: DroppedLinks = field(default_factory=DroppedLinks)
    items_dropped: Mapping[str, int] = field(default_factory=dict)  #: by reason


class WorkSource(Protocol):
    """Who gives the fetchers their work."""

    def fetched(self, lease: Lease) -> None:
        """The request of a lease has ended, whatever came of it: its host may be asked again."""

    def done(self, lease: Lease) -> None:
        """Nobody works on a lease any more."""

    def put_back(self, lease: Lease) -> None:
        """A task was not tried, by no fault of its own; it is to be when its `due` says."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """When an attempt began, and for how many seconds the loop stood still until its end."""

    at: datetime
    stood: float

    def latency(self, elapsed: float) -> float:
        """Return how much of the seconds *elapsed* the host took."""
        return max(0.0, elapsed - self.stood)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """What every fetcher of a process shares."""

    settings: Settings
    ledger: Ledger
    downloader: Downloader
    credentials: Credentials
    runner: Runner
    robots: Robots
    frontier: Frontier
    blame: Blame
    scope: Scope
    held: HeldLeases
    seen: SeenFilter
    stats: Stats
    poison_guard: PoisonGuard
    suspects: Suspects
    worker: str
    end: Callable[[FinishReason, str], None]  #: ends the crawl softly, see `Ending.end`
    excuses: Excuses
    #: Puts the browser and the spider's hooks before a downloader.
    hooked: Callable[[Downloader], Downloader]
    revisits: Revisits
    recorder: Recorder
    targets: RedirectTargets
    adder: TaskAdder
    write_links: WriteLinks
    identities: Identities
    proxies: ProxyPool
    bans: Bans
    identified: Identified | None = None  #: as whom the one page is asked for
    errors: CallbackErrors = field(default_factory=CallbackErrors)

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
                        try:
                            result = await self._work(lease, slot)
                        finally:
                            self.held.idle(lease)
                            slot.free()
                            source.done(lease)
                        if isinstance(result, Lease):
                            if not self.suspects.waits(result):
                                source.put_back(result)
                        else:
                            await done.put(result)
                            await self.poison_guard.recorded(lease)
                    finally:
                        self.poison_guard.leave(lease)
                        for waiting in self.suspects.take_waiting():
                            source.put_back(waiting)
            self.stats.leases_lost += 1

    async def _work(self, lease: Lease, slot: Slot) -> Done | Lease:
        """Return what came of one task, or its lease where nothing did.

        Whatever is raised belongs to that task alone.
        """
        try:
            identified = await self.identities.admit(lease.task)
        except NotReadyError as wait:
            return put_off(lease, until=wait.until)
        inside = self if identified is None else replace(self, identified=identified)
        if children := self.suspects.children_for(lease):
            # The browser, and the page that it keeps open for the callback, are this process's.
            if not rendering.wants_browser(Request.of(lease.task), self.settings):
                return await inside._work_by(children, lease, slot)  # noqa: SLF001  # its own
            if verdict := self.suspects.lost_too_often(lease):
                return Done(settlements=(self._settle(lease, verdict),))
        if not await self.poison_guard.enter(lease):
            return lease
        return await inside.tried(lease, slot)

    async def _work_by(self, children: Children, lease: Lease, slot: Slot) -> Done | Lease:
        """Do the same for a suspect, by a child."""
        if not children.free:
            self.suspects.wait(lease)
            return lease
        try:
            async with children.one() as child:
                runner = child.runner(
                    scope=self.scope, seen=self.seen, now=self.ledger.now, write=self.write_links
                )
                # A session with its cookies is this process's, and so are the proxies and
                # the bodies to be kept.
                downloader: Downloader = self.downloader
                if not self._is_asked_here(lease.task) and self.recorder.bodies is None:
                    downloader = ChildDownloader(
                        child.downloader(self.credentials), self.downloader
                    )
                inside = replace(self, downloader=downloader, runner=runner)
                done = await inside.tried(lease, slot)
        except NoChildError as error:
            logger.debug("no child: %s", printable(error))
            return lease
        except ChildDiedError as death:
            verdict = self.suspects.died(lease, death)
            return lease if verdict is None else Done(settlements=(self._settle(lease, verdict),))
        self.suspects.lived(lease)
        return done

    def _is_asked_here(self, task: Task) -> bool:
        """Return whether only this process may ask for a page, whoever parses it."""
        options = task.options
        if self.identified is not None or options.cookies or options.proxy:
            return True
        return self.proxies.asks_for(task.url)

    async def tried(self, lease: Lease, slot: Slot) -> Done | Lease:
        """Return what comes of an attempt, or the lease where nothing does.

        The *slot* is freed as soon as the answer is there and what it shows of its host
        is noted, or not here at all.
        """
        if not self.blame.may_begin(lease.task):
            return lease
        try:
            with memory_budget.page(), recording.page():
                async with rendering.pages_open():
                    with self.targets.way(lease.task.id) as way:
                        try:
                            return await self._page(lease, slot, way)
                        finally:
                            if way.taken:
                                # Others may have added what it has come to nothing with.
                                self.frontier.look(lease.task.host)
        except NotTriedError:
            return lease
        except (LedgerError, ChildDiedError, UsageError):
            # The last: what is not installed is missing for every page.
            raise
        except Exception as error:
            logger.exception("an error of crawlcw itself", extra={"event": "internal"})
            failed = Failed(
                reason=Reason.INTERNAL,
                message=f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
            )
            return Done(settlements=(self._settle(lease, failed),))

    async def _page(self, lease: Lease, slot: Slot, way: Way) -> Done | Lease:
        request = Request.of(lease.task)
        at, began = self.ledger.now(), time.monotonic()
        try:
            response = await self._fetch(request, lease, way)
        except StopCrawl as wish:
            self.end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(wish)))
            raise NotTriedError from wish
        except SpiderFaultError as fault_of_spider:
            return await self._faulty(lease, request, fault_of_spider)
        except (LoggedOutError, BannedError) as refused:
            sent = _Sent(at, self.excuses.seconds(began))
            denied = self._banned if isinstance(refused, BannedError) else self._refused
            return await denied(lease, request, refused.response, slot, sent=sent)
        except FetchError as refusal:
            return await self._unanswered(lease, request, refusal, slot, at=at, began=began)
        # Before the page is parsed: that takes time as well, and is not its host's.
        sent = _Sent(at, self.excuses.seconds(began))
        self.blame.answered(lease.task)
        same = _is_unmodified(request, response)
        wanted = same or is_page(response, request, self.settings)
        moved = response.status in REDIRECTS and not wanted
        if not (moved or wanted):
            return await self._no_page(lease, request, response, slot, sent=sent)
        self._answered(lease, response, sent=sent)
        # A page that stays open in a browser goes on asking its host.
        if response.page is None:
            slot.free()
        if moved:
            return await self._moved(lease, request, response, way)
        if same:
            return await self._unchanged(lease, request, response)
        if (target := await self._refreshed(lease, request, response)) is not None:
            await self._kept(self.recorder.keep(request))
            return self._handed_on(lease, target, response)
        if response.url != request.url and request.method == "GET":
            return await self._redirected(lease, request, response, sent=sent)
        return await self._parsed(lease, request, response)

    def _may_be_banned(self, response: Response) -> bool:
        if self.identified is not None:
            return self.identified.may_be_banned
        return response.proxy is not None

    async def _banned(
        self, lease: Lease, request: Request, response: Response, slot: Slot, *, sent: _Sent
    ) -> Done:
        """Have another proxy or session ask for a page; or settle what is refused to all."""
        self.blame.answered(lease.task)
        why = f"HTTP {response.status} for {response.url}"
        if self.identified is not None:
            own = self.bans.note(lease.task, None)
            await self.identities.banned(self.identified, f"banned: {why}")
        else:
            own = self.bans.note(lease.task, response.proxy)
        if not own:
            raise NotTriedError
        return await self._denied(lease, request, response, slot, sent=sent, reason=Reason.BANNED)

    async def _denied(
        self,
        lease: Lease,
        request: Request,
        response: Response,
        slot: Slot,
        *,
        sent: _Sent,
        reason: Reason,
    ) -> Done:
        """Settle a page that nobody is given, with any session or proxy."""
        if response.status >= 400:
            error = status_error(response, now=self.ledger.now())
        else:
            message = f"HTTP {response.status} for {response.url}, {_DENIED[reason]}"
            error = FetchError(reason, message)
        failed = replace(self._failure(error), response=_info(response))
        self._note(lease, failed, error, sent=sent)
        slot.free()
        return await self._failed(lease, request, failed, error)

    async def _no_page(
        self, lease: Lease, request: Request, response: Response, slot: Slot, *, sent: _Sent
    ) -> Done | Lease:
        """Settle an answer that is no page by its status, or return the lease."""
        error = status_error(response, now=self.ledger.now())
        # Behind a redirect it is another page that is refused.
        if throttles(response) and response.url == request.url:
            fault = self.blame.throttled(lease.task, error, sent=sent.at)
            if not fault.own:
                return _not_tried(lease, fault)
        failed = replace(self._failure(error), response=_info(response))
        self._note(lease, failed, error, sent=sent)
        slot.free()
        return await self._failed(lease, request, failed, error)

    async def _unanswered(
        self,
        lease: Lease,
        request: Request,
        refusal: FetchError,
        slot: Slot,
        *,
        at: datetime,
        began: float,
    ) -> Done | Lease:
        """Settle a page that no answer came of, or put it back where that is not its fault."""
        if refusal.reason is Reason.FILES_UNWRITABLE:
            # Nor would any other file be saved: no attempt is spent until somebody mends it.
            self.end(FinishReason.FILES_UNWRITABLE, refusal.message)
            raise NotTriedError from refusal
        if isinstance(refusal, ProxiesAwayError):
            until = self.ledger.now() + timedelta(seconds=refusal.wait)
            return put_off(lease, until=until)
        if self.excuses.failure(refusal, began):
            raise NotTriedError from refusal
        own_proxy = self.identified is not None and self.identified.proxy is not None
        fault = self.blame.failed(
            lease.task, refusal, sent=at, began=began, has_own_proxy=own_proxy
        )
        if not fault.own:
            return _not_tried(lease, fault)
        sent = _Sent(at, self.excuses.seconds(began))
        told = _with_advice(refusal, lease.task)
        failed = self._failure(told)
        self._note(lease, failed, told, sent=sent)
        slot.free()
        return await self._failed(lease, request, failed, told)

    async def _faulty(self, lease: Lease, request: Request, fault: SpiderFaultError) -> Done:
        """Settle a page on whose way a hook or the spider's own downloader raised."""
        if self.errors.is_broken(fault.name):
            raise NotTriedError
        self._note_callback(fault.name, fault.raised, lease)
        # Of the host it says nothing.
        failed = replace(fault.raised, message=fault.message)
        return await self._failed(lease, request, failed, fault)

    async def _fetch(self, request: Request, lease: Lease, way: Way) -> Response:
        """Make one attempt, with robots.txt and scope asked at every hop."""
        if self.settings.obey_robots:
            await self.robots.admit(request.url)
        host = lease.task.host
        # Its turn came before it waited in the queue, and for the loop.
        self.frontier.sent(host, at=time.monotonic())
        try:
            response = await attempt(
                self._conditional(request, lease.task),
                downloader=self._as_identified(request),
                settings=self.settings,
                admit=self._admit_hop,
                stays=self._stays(request, lease.task, way),
                cookies=self.identified is not None,
            )
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
        if self._may_be_banned(response) and self.bans.is_ban(response):
            raise BannedError(response)
        return response

    def _conditional(self, request: Request, task: Task) -> Request:
        # A 304 has no body to be kept.
        is_missing = self.recorder.bodies is not None and task.stored is None
        # Of a page that scripts make, the document alone says nothing; and a cache for
        # development is to have the page: a 304 would have its server asked each time.
        anybody = self.identified is None and not request.options.cookies
        cached = self.settings.cache != "off" and anybody and dev_cache.may_keep(request)
        if is_missing or cached or rendering.wants_browser(request, self.settings):
            return request
        return conditional(request, task)

    def _as_identified(self, request: Request) -> Downloader:
        if self.identified is not None:
            return self.identified.downloader(self.identities.downloader, self.hooked)
        if request.options.cookies:
            return self.hooked(IdentifiedDownloader(self.identities.downloader, jar=None))
        return self.downloader

    async def _refused(
        self, lease: Lease, request: Request, response: Response, slot: Slot, *, sent: _Sent
    ) -> Done:
        """Have the session logged in anew, the page put back; or settle what is its own failure."""
        assert self.identified is not None
        self.blame.answered(lease.task)
        self.stats.fetched += 1
        self.stats.statuses[response.status] += 1
        why = f"HTTP {response.status} for {response.url}"
        if not await self.identities.refused(self.identified, lease.task, why, told=False):
            raise NotTriedError
        return await self._denied(
            lease, request, response, slot, sent=sent, reason=Reason.LOGGED_OUT
        )

    async def _admit_hop(self, url: str) -> None:
        self.scope.admit_url(url)
        await self.robots.admit(url)

    def _stays(
        self, request: Request, task: Task, way: Way
    ) -> Callable[[str], Awaitable[bool]] | None:
        """Return what says whether a redirect is followed here, or None where all are.

        Another host has another owner, so what it is asked for is a task of
        its own; and so it is on a host that is served with a delay, for which
        it has to wait, and of a page that has a task already. But with a session the
        way through it may be what matters, and what it leads to shows who is logged
        out; and a form, or a request that is to be repeated, is not a page.
        """
        plain = request.method == "GET" and task.id == request.identity()[1]
        if self.identified is not None or not plain:
            return None

        async def stays(url: str) -> bool:
            location = urls.locate(url)
            if location.host != task.host:
                return False
            # Another spelling of its own URL cannot be another task.
            if task_id(location) == task.id:
                return True
            return not self.frontier.delay(task.host) and await way.goes_on(url)

        return stays

    async def _moved(self, lease: Lease, request: Request, response: Response, way: Way) -> Done:
        """Hand on a page that is to be fetched by the owner of its host, later, or is anyway."""
        await self._kept(self.recorder.keep(request))
        try:
            task = self._target(lease, onward(request, response), way)
        except FetchError as refusal:
            refusal.response = response
            return await self._failed(lease, request, self._failure(refusal), refusal)
        return self._handed_on(lease, task, response)

    async def _refreshed(self, lease: Lease, request: Request, response: Response) -> Task | None:
        """Return the task of where a page sends its reader at once; None where it is a page itself.

        Unlike a redirect it has content of its own, so it is one wherever its
        target may not be asked for, or is known by another way: two pages that
        lead to each other are two pages.
        """
        refresh = response.refresh
        plain = request.method == "GET" and lease.task.id == request.identity()[1]
        if refresh is None or refresh.after > _REDIRECTING or not plain:
            return None
        rules = self.robots.known(refresh.url)
        if rules is not None and not rules.allows(refresh.url):
            return None
        try:
            task = self._target(lease, onward(request, response, refresh=refresh.url), None)
        except FetchError:
            return None
        known = await self.ledger.tasks.get(task.id)
        return task if known is None or known.task.parent == lease.task.id else None

    def _target(self, lease: Lease, home: Request, way: Way | None) -> Task:
        """Return the task of what a redirect leads to; raises `FetchError` where it may not."""
        home.changed = _like(lease.task)
        self.scope.admit_url(home.url)
        if way is not None and home.identity()[1] in way.known:
            # Asked for by another way, or just here by another task: no link further.
            return home.task(
                now=self.ledger.now(),
                depth=lease.task.depth,
                parent=lease.task.id,
                hops=lease.task.hops,
            )
        deepest = lease.task.options.max_depth
        if deepest is None:
            deepest = self.settings.max_depth
        if deepest is not None and lease.task.depth >= deepest:
            raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        # Hosts that lead to one another for ever have no other end than this number.
        hops = lease.task.hops + 1
        if hops > self.settings.max_redirects:
            message = f"more than {self.settings.max_redirects} redirects, the last one to "
            raise FetchError(Reason.REDIRECT_LIMIT, message + home.url)
        return home.task(
            now=self.ledger.now(), depth=lease.task.depth + 1, parent=lease.task.id, hops=hops
        )

    def _handed_on(self, lease: Lease, target: Task, response: Response) -> Done:
        visit, revisit = self.revisits.of_alias(lease.task, now=self.ledger.now())
        info = replace(_info(response), final_url=target.url)
        handed_on = Succeeded(response=info, visit=visit, revisit=revisit)
        alias = self._settle(lease, handed_on)
        return Done(tasks=(target,), aliases=(alias,))

    async def _redirected(
        self, lease: Lease, request: Request, response: Response, *, sent: _Sent
    ) -> Done:
        """Record the page once, under the URL where it really is.

        That URL is a task like any other. Where this process can claim it, the
        response in hand is parsed as its page; where it is known and taken,
        it is somebody else's. Either way the task that led here is finished.
        """
        info = _info(response)
        # Of another origin that is no secret: it may be asked again.
        headers = portable_headers(request, url=response.url)
        home_request = request.elsewhere(response.url, headers=headers)
        home_request.changed = _like(lease.task)
        target = home_request.task(
            now=self.ledger.now(), depth=lease.task.depth, parent=lease.task.id
        )
        if target.id == lease.task.id or lease.task.id != request.identity()[1]:
            # The same resource by another spelling, or a `dont_filter` request.
            return await self._parsed(lease, request, response)
        visit, revisit = self.revisits.of_alias(lease.task, now=self.ledger.now())
        alias = self._settle(lease, Succeeded(response=info, visit=visit, revisit=revisit))
        home = await self._claim(target)
        if home is None:
            await self._kept(self.recorder.keep_redirects(request))
            return Done(aliases=(alias,))
        # Its origin may be another one than that of the task which led here.
        self._answered(home, response, sent=sent)
        try:
            parsed = await self._parsed(home, Request.of(home.task), response)
        except BaseException:
            # Only the lease of the task that led here is known to be lost.
            self.held.orphan(home)
            raise
        return replace(parsed, aliases=(alias,))

    async def _claim(self, task: Task) -> Lease | None:
        """Add a task and lease it, if nobody has it or has done it."""
        # A cancelled claim would leave a lease that nobody knows of.
        with anyio.CancelScope(shield=True):
            await self.adder.add([task])
            self.seen.add([task.id])
            record = await self.ledger.tasks.get(task.id)
            if record is None or record.task.status not in WAITING:
                return None
            if is_suspect(record.task):
                return None  # to be worked on by itself
            # Sent again by itself: what the first one got looks taken to everybody else.
            claimed = await self.ledger.leases.claim(
                [record.task],
                worker=self.worker,
                lease=self.settings.lease,
                max_lost=self.suspects.max_lost,
            )
            self.held.add(claimed.leases)
        return next(iter(claimed.leases), None)

    async def _parsed(self, lease: Lease, request: Request, response: Response) -> Done:
        response.request = request
        if self.identified is not None:
            response.session = self.identified.page_session()
        if self.revisits.is_same(lease.task, response):
            return await self._unchanged(lease, request, response)
        callback = request.callback
        if self.errors.is_broken(callback):
            raise NotTriedError
        stored = await self._kept(self.recorder.keep(request))
        try:
            produced = await self.runner.run(callback, response, task=lease.task)
        except SpiderError as missing:
            produced = callbacks.missing(missing)
        if isinstance(produced, Produced) and produced.retired is not None:
            produced = await self._retired(lease, produced.retired)
        self._note_callback(callback, produced, lease)
        info = _info(response)
        if isinstance(produced, Failed):
            error = FetchError(produced.reason, produced.message)
            error.response = response
            failed = replace(produced, response=info, stored=stored)
            return await self._failed(lease, request, failed, error)
        self._finished(lease, response)
        visit, revisit = self.revisits.changed(lease.task, response, now=self.ledger.now())
        outcome = Succeeded(
            response=info,
            items=tuple(produced.items),
            visit=visit,
            revisit=revisit,
            kept_versions=self.settings.keep_versions,
            stored=stored,
        )
        return _done(produced, self._settle(lease, outcome))

    async def _unchanged(self, lease: Lease, request: Request, response: Response) -> Done:
        """Record that a page is what it was: its callback has nothing new to read."""
        stored = None
        if lease.task.stored is None and response.status != NOT_MODIFIED:
            stored = await self._kept(self.recorder.keep(request))
        else:
            await self._kept(self.recorder.keep_unchanged(request))
        self._finished(lease, response)
        outcome = self.revisits.unchanged(lease.task, response, now=self.ledger.now())
        return Done(settlements=(self._settle(lease, replace(outcome, stored=stored)),))

    async def _kept(self, keeping: Awaitable[T]) -> T:
        """Return what comes of keeping a page; where no disk takes it, the crawl ends."""
        try:
            return await keeping
        except FetchError as refusal:
            self.end(FinishReason.FILES_UNWRITABLE, refusal.message)
            raise NotTriedError from refusal

    async def _retired(self, lease: Lease, why: str) -> Produced | Failed:
        """Have a session logged in anew that the callback has retired, the page put back."""
        if self.identified is None:
            # It is no session's, so the callback has changed nothing.
            return Failed(reason=Reason.LOGGED_OUT, message=f"no session to retire: {why}")
        if not await self.identities.refused(self.identified, lease.task, why, told=True):
            raise NotTriedError
        return Failed(reason=Reason.LOGGED_OUT, message=why)

    async def _failed(
        self, lease: Lease, request: Request, failed: Failed, error: FetchError
    ) -> Done:
        """Settle a failure; where it is final, the spider is told and may still yield."""
        again = self.revisits.after_failure(lease.task, now=self.ledger.now())
        settlement = self._settle(lease, replace(failed, revisit=again))
        if settlement.change.status is not Status.IGNORED:
            return Done(settlements=(settlement,))
        errback = request.errback or "on_error"
        try:
            produced = await self.runner.run(errback, request, error, task=lease.task)
        except SpiderError as missing:
            logger.warning("%s", printable(missing))
            return Done(settlements=(settlement,))
        if isinstance(produced, Failed):
            self.errors.tell(errback, produced, url=lease.task.url)
            return Done(settlements=(settlement,))
        self._stop_for(produced)
        # A page that was there once keeps what it gave, unless there is something instead.
        # Nothing of the task tells of that: what is done anew has no visit any more.
        change = replace(settlement.change, items=tuple(produced.items) or None)
        return _done(produced, replace(settlement, change=change))

    def _note_callback(self, callback: str, produced: Produced | Failed, lease: Lease) -> None:
        if isinstance(produced, Produced):
            self.errors.succeeded(callback)
            self._stop_for(produced)
        elif produced.reason is Reason.PARSE_ERROR:
            if self.errors.is_broken(callback):
                # It waited for its turn meanwhile, and is for the mended callback as well.
                raise NotTriedError
            broken = self.errors.raised(callback, produced, url=lease.task.url)
            if broken is not None:
                self.end(FinishReason.CALLBACK_BROKEN, broken)

    def _stop_for(self, produced: Produced) -> None:
        if produced.stop is not None:
            self.end(FinishReason.STOPPED_BY_SPIDER, produced.stop)

    def _answered(self, lease: Lease, response: Response, *, sent: _Sent) -> None:
        self.blame.answered_well(
            lease.task, latency=sent.latency(response.elapsed.total_seconds()), sent=sent.at
        )

    def _finished(self, lease: Lease, response: Response) -> None:
        task = lease.task
        # A page that anybody may ask for again, and that nothing comes of.
        plain = _is_plain(task, response)
        if self.identified is not None:
            witness = response.url if plain else None
            self.identities.answered_well(self.identified, task, witness=witness)
        plain = plain and response.status < 300
        self.blame.finished(task, witness=task.url if plain else None, size=response.size)

    def _note(self, lease: Lease, failed: Failed, error: FetchError, *, sent: _Sent) -> None:
        """Tell of a page that failed: of the host it says little, but not nothing."""
        if failed.status is not None and failed.status == 429:
            return  # it was refused by itself, neither a sign of load nor of health
        answered = error.hop > 1 or failed.reason in _BEHIND_AN_ANSWER
        status = failed.response.status if failed.response else failed.status
        if answered or (status is not None and status < 500):
            elapsed = failed.response.elapsed if failed.response else 0.0
            self.blame.answered_well(lease.task, latency=sent.latency(elapsed), sent=sent.at)
        elif failed.reason in FAILURE_REASONS:
            self.frontier.evidence.page_failed(lease.task.host, now=time.monotonic())

    def _failure(self, error: FetchError) -> Failed:
        # What a page asks for is no longer than what its host may ask for.
        longest = self.settings.host_backoff_max.total_seconds()
        asked = error.retry_after
        return Failed(
            reason=error.reason,
            message=error.message,
            status=error.status,
            retry_after=None if asked is None else min(asked, longest),
        )

    def _settle(self, lease: Lease, outcome: Outcome) -> Settlement:
        settlement = settle(
            lease,
            outcome,
            now=self.ledger.now(),
            policy=self.settings.retry_policy.with_own(lease.task.options),
            chance=random.random(),
        )
        _log(lease, settlement)
        return settlement


def _is_unmodified(request: Request, response: Response) -> bool:
    """Return whether an answer is the 304 that was asked for, and no redirect's target's."""
    asked = response.request is not request and response.url == request.url
    return asked and response.status == NOT_MODIFIED


def _like(task: Task) -> datetime | None:
    """Return when the page behind a redirect is to have changed: one done again leads to one.

    Where this one is only visited again, so is that one, when its own time has come.
    """
    return EACH_RUN if task.settled and task.visit is None else None


def _is_plain(task: Task, response: Response) -> bool:
    return task.method == "GET" and not task.headers and response.url == task.url


def _done(produced: Produced, settlement: Settlement) -> Done:
    return Done(
        tasks=tuple(produced.tasks),
        too_deep=tuple(produced.too_deep),
        settlements=(settlement,),
        dropped=produced.dropped,
        items_dropped=produced.items_dropped,
    )


def _with_advice(refusal: FetchError, task: Task) -> FetchError:
    """Return *refusal*, and how to crawl the host all the same where its spider starts there."""
    refused = (Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT)
    if refusal.reason not in refused or refusal.hop > 1 or task.parent is not None:
        return refusal
    advice = f'to crawl it, set allow_private=["{task.host}"]'
    return FetchError(refusal.reason, f"{refusal.message}; {advice}")


def _not_tried(lease: Lease, fault: Fault) -> Lease:
    return lease if fault.due is None else put_off(lease, until=fault.due)


def _info(response: Response) -> ResponseInfo:
    headers = response.headers
    return ResponseInfo(
        status=response.status,
        final_url=response.url,
        content_type=_short(headers.get("content-type")),
        bytes=response.size,
        elapsed=round(response.elapsed.total_seconds(), 4),
        etag=_short(headers.get("etag")),
        last_modified=_short(headers.get("last-modified")),
        truncated=response.truncated,
    )


def _short(value: str | None) -> str | None:
    return None if value is None else printable(value)


def _log(lease: Lease, settlement: Settlement) -> None:
    error = settlement.change.error
    if error is None:
        if logger.isEnabledFor(logging.DEBUG):
            told = _told(lease, settlement)
            logger.debug(
                "%s %s%s",
                settlement.change.event,
                printable(lease.task.url),
                _in_words(told),
                extra={"event": "finished", "url": lease.task.url, **told},
            )
        return
    told = _told(lease, settlement)
    logger.log(
        logging.INFO if settlement.change.status is Status.IGNORED else logging.DEBUG,
        "%s %s: %s %s%s",
        settlement.change.event,
        printable(lease.task.url),
        error.kind,
        error.message,
        _in_words(told) if logger.isEnabledFor(logging.DEBUG) else "",
        extra={
            "event": str(settlement.change.event),
            "url": lease.task.url,
            "reason": error.kind,
            **told,
        },
    )


def _told(lease: Lease, settlement: Settlement) -> dict[str, int | str]:
    """Return what a line of the log tells of the answer to a task, by name."""
    callback = {"callback": lease.task.callback}
    response = settlement.change.response
    if response is None:
        return {**callback}
    return {
        "status": response.status,
        "bytes": response.bytes,
        "milliseconds": round(1000 * response.elapsed),
        **callback,
    }


def _in_words(told: Mapping[str, int | str]) -> str:
    callback = printable(told["callback"])
    if "status" not in told:
        return f" ({callback})"
    answer = f"{told['status']}, {told['bytes']:,} bytes, {told['milliseconds']:,} ms"
    return f" ({answer}, {callback})"
