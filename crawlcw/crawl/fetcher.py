"""From a lease to an outcome: fetch the page, run its callback, hand on what came of it.

N of these drain the queue. Nothing that happens to a page ends one: every
failure becomes an outcome of that page alone.
"""

import asyncio
import logging
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

import anyio

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl import callbacks
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.callback_errors import CallbackErrors
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.frontier import Frontier
from crawlcw.crawl.host_evidence import Fault
from crawlcw.crawl.redirects import REDIRECTS, attempt, onward, status_error, throttles
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.seen import SeenFilter
from crawlcw.crawl.suspects import ChildDiedError, Children, NoChildError, Suspects
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.poison import PoisonGuard
from crawlcw.engine.pool import Pool
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.errors import FAILURE_REASONS, FetchError, LedgerError, Reason, SpiderError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.dropped import DroppedLinks
from crawlcw.model.sanitize import printable
from crawlcw.model.stalls import Excuses
from crawlcw.model.task import WAITING, Lease, ResponseInfo, Status, Task, task_id
from crawlcw.model.transitions import (
    Failed,
    Outcome,
    Settlement,
    Succeeded,
    is_suspect,
    put_off,
    settle,
)

logger = logging.getLogger(__name__)

#: What goes wrong after the host has answered as it should.
_BEHIND_AN_ANSWER = frozenset(
    {
        Reason.PARSE_ERROR,
        Reason.REDIRECT_INVALID,
        Reason.REDIRECT_LIMIT,
        Reason.REDIRECT_LOOP,
        Reason.URL_INVALID,
    }
)


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


class WorkSource(Protocol):
    """Who gives the fetchers their work."""

    def fetched(self, lease: Lease) -> None:
        """The request of a lease has ended, whatever came of it: its host may be asked again."""

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
    errors: CallbackErrors = field(default_factory=CallbackErrors)

    async def run(self, pool: Pool, done: asyncio.Queue[Done], source: WorkSource) -> None:
        """Work on what the pool gives until cancelled."""
        while True:
            # One scope for many pages: it ends with the first lease that is lost.
            with anyio.CancelScope() as lost:
                while not lost.cancel_called:
                    lease = await pool.get()
                    self.held.working(lease, lost)
                    try:
                        try:
                            result = await self._work(lease)
                        finally:
                            self.held.idle(lease)
                            source.fetched(lease)
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

    async def _work(self, lease: Lease) -> Done | Lease:
        """Return what came of one task, or its lease where nothing did.

        Whatever is raised belongs to that task alone.
        """
        if children := self.suspects.children_for(lease):
            return await self._work_by(children, lease)
        if not await self.poison_guard.enter(lease):
            return lease
        return await self.tried(lease)

    async def _work_by(self, children: Children, lease: Lease) -> Done | Lease:
        """Do the same for a suspect, by a child."""
        if not children.free:
            self.suspects.wait(lease)
            return lease
        try:
            async with children.one() as child:
                runner = child.runner(scope=self.scope, seen=self.seen, now=self.ledger.now)
                # Cookies are in one jar for the whole crawl, which the child has not.
                downloader = self.downloader if self.settings.cookies else child.downloader
                inside = replace(self, downloader=downloader, runner=runner)
                done = await inside.tried(lease)
        except NoChildError as error:
            logger.debug("no child: %s", printable(error))
            return lease
        except ChildDiedError as death:
            verdict = self.suspects.died(lease, death)
            return lease if verdict is None else Done(settlements=(self._settle(lease, verdict),))
        self.suspects.lived(lease)
        return done

    async def tried(self, lease: Lease) -> Done | Lease:
        """Return what comes of an attempt, or the lease where nothing does."""
        if not self.blame.may_begin(lease.task):
            return lease
        try:
            return await self._page(lease)
        except NotTriedError:
            return lease
        except (LedgerError, ChildDiedError):
            raise
        except Exception as error:
            logger.exception("an error of crawlcw itself", extra={"event": "internal"})
            failed = Failed(
                reason=Reason.INTERNAL,
                message=f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
            )
            return Done(settlements=(self._settle(lease, failed),))

    async def _page(self, lease: Lease) -> Done | Lease:
        request = Request.of(lease.task)
        at, began = self.ledger.now(), time.monotonic()
        try:
            response = await self._fetch(request, lease)
        except FetchError as refusal:
            if self.excuses.failure(refusal, began):
                raise NotTriedError from refusal
            fault = self.blame.failed(lease.task, refusal, sent=at, began=began)
            if not fault.own:
                return _not_tried(lease, fault)
            sent = _Sent(at, self.excuses.seconds(began))
            return await self._failed(lease, request, self._failure(refusal), refusal, sent=sent)
        # Before the page is parsed: that takes time as well, and is not its host's.
        sent = _Sent(at, self.excuses.seconds(began))
        self.blame.answered(lease.task)
        if response.status in REDIRECTS:
            return await self._moved(lease, request, response, sent=sent)
        if not 200 <= response.status < 300 or response.status == 206:
            error = status_error(response, now=self.ledger.now())
            # Behind a redirect it is another page that is refused.
            if throttles(response) and response.url == request.url:
                fault = self.blame.throttled(lease.task, error, sent=at)
                if not fault.own:
                    return _not_tried(lease, fault)
            failed = replace(self._failure(error), response=_info(response))
            return await self._failed(lease, request, failed, error, sent=sent)
        if response.url != request.url and request.method == "GET":
            return await self._redirected(lease, request, response, sent=sent)
        return await self._parsed(lease, request, response, sent=sent)

    async def _fetch(self, request: Request, lease: Lease) -> Response:
        """Make one attempt, with robots.txt and scope asked at every hop."""
        if self.settings.obey_robots:
            await self.robots.admit(request.url)
        host = lease.task.host
        # Its turn came before it waited in the queue, and for the loop.
        self.frontier.sent(host, at=time.monotonic())
        try:
            response = await attempt(
                request,
                downloader=self.downloader,
                settings=self.settings,
                admit=self._admit_hop,
                stays=self._stays(request, lease.task),
            )
        except FetchError:
            # When the last request was sent is not known.
            self.frontier.sent(host, at=time.monotonic())
            raise
        # Later still, where connecting took long.
        hops = response.url != request.url
        elapsed = 0.0 if hops else response.elapsed.total_seconds()
        self.frontier.sent(host, at=time.monotonic() - elapsed)
        self.stats.fetched += 1
        self.stats.bytes += response.size
        self.stats.statuses[response.status] += 1
        return response

    async def _admit_hop(self, url: str) -> None:
        self.scope.admit_url(url)
        await self.robots.admit(url)

    def _stays(self, request: Request, task: Task) -> Callable[[str], bool] | None:
        """Return what says whether a redirect is followed here, or None where all are.

        Another host has another owner, so what it is asked for is a task of
        its own; and so it is on a host that is served with a delay, for which
        it has to wait. But with cookies the way through it may be what
        matters, and a form, or a request that is to be repeated, is not a page.
        """
        plain = request.method == "GET" and task.id == request.identity()[1]
        if self.settings.cookies or not plain:
            return None

        def stays(url: str) -> bool:
            location = urls.locate(url)
            if location.host != task.host:
                return False
            # Another spelling of its own URL cannot be another task.
            return not self.frontier.delay(task.host) or task_id(location) == task.id

        return stays

    async def _moved(
        self, lease: Lease, request: Request, response: Response, *, sent: _Sent
    ) -> Done:
        """Hand on a page that is to be fetched by the owner of its host, or later."""
        home = onward(request, response)
        try:
            self.scope.admit_url(home.url)
            if self.settings.max_depth is not None and lease.task.depth >= self.settings.max_depth:
                raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
            hops = lease.task.hops + 1
            if hops > self.settings.max_redirects:
                message = f"more than {self.settings.max_redirects} redirects, the last one to "
                raise FetchError(Reason.REDIRECT_LIMIT, message + home.url)
        except FetchError as refusal:
            return await self._failed(lease, request, self._failure(refusal), refusal, sent=sent)
        self._answered(lease, response, page=False, sent=sent)
        # Hosts that lead to one another for ever have no other end than this number.
        task = home.task(
            now=self.ledger.now(), depth=lease.task.depth + 1, parent=lease.task.id, hops=hops
        )
        alias = self._settle(lease, Succeeded(response=_info(response)))
        return Done(tasks=(task,), aliases=(alias,))

    async def _redirected(
        self, lease: Lease, request: Request, response: Response, *, sent: _Sent
    ) -> Done:
        """Record the page once, under the URL where it really is.

        That URL is a task like any other. Where this process can claim it, the
        response in hand is parsed as its page; where it is known and taken,
        it is somebody else's. Either way the task that led here is finished.
        """
        info = _info(response)
        target = Request(
            response.url,
            request.callback,
            headers=request.headers,
            context=request.context,
            priority=request.priority,
            errback=request.errback,
        ).task(now=self.ledger.now(), depth=lease.task.depth, parent=lease.task.id)
        if target.id == lease.task.id or lease.task.id != request.identity()[1]:
            # The same resource by another spelling, or a `dont_filter` request.
            return await self._parsed(lease, request, response, sent=sent)
        alias = self._settle(lease, Succeeded(response=info))
        home = await self._claim(target)
        if home is None:
            return Done(aliases=(alias,))
        try:
            parsed = await self._parsed(home, Request.of(home.task), response, sent=sent)
        except BaseException:
            # Only the lease of the task that led here is known to be lost.
            self.held.orphan(home)
            raise
        return replace(parsed, aliases=(alias,))

    async def _claim(self, task: Task) -> Lease | None:
        """Add a task and lease it, if nobody has it or has done it."""
        # A cancelled claim would leave a lease that nobody knows of.
        with anyio.CancelScope(shield=True):
            added = await self.ledger.tasks.add([task])
            if self.settings.max_depth is not None and added.known:
                await self.ledger.tasks.admit_nearer([task])
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

    async def _parsed(
        self, lease: Lease, request: Request, response: Response, *, sent: _Sent
    ) -> Done:
        response.request = request
        callback = request.callback
        if self.errors.is_broken(callback):
            raise NotTriedError
        try:
            produced = await self.runner.run(callback, response, task=lease.task)
        except SpiderError as missing:
            produced = callbacks.missing(missing)
        self._note_callback(callback, produced, lease)
        info = _info(response)
        if isinstance(produced, Failed):
            error = FetchError(produced.reason, produced.message)
            failed = replace(produced, response=info)
            return await self._failed(lease, request, failed, error, sent=sent)
        self._answered(lease, response, page=True, sent=sent)
        outcome = Succeeded(response=info, items=tuple(produced.items))
        return _done(produced, self._settle(lease, outcome))

    async def _failed(
        self,
        lease: Lease,
        request: Request,
        failed: Failed,
        error: FetchError,
        *,
        sent: _Sent,
    ) -> Done:
        """Settle a failure; where it is final, the spider is told and may still yield."""
        self._note(lease, failed, error, sent=sent)
        settlement = self._settle(lease, failed)
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
        change = replace(settlement.change, items=tuple(produced.items))
        return _done(produced, replace(settlement, change=change))

    def _note_callback(self, callback: str, produced: Produced | Failed, lease: Lease) -> None:
        if isinstance(produced, Produced):
            self.errors.succeeded(callback)
            self._stop_for(produced)
        elif produced.reason is Reason.PARSE_ERROR:
            broken = self.errors.raised(callback, produced, url=lease.task.url)
            if broken is not None:
                self.end(FinishReason.CALLBACK_BROKEN, broken)

    def _stop_for(self, produced: Produced) -> None:
        if produced.stop is not None:
            self.end(FinishReason.STOPPED_BY_SPIDER, produced.stop)

    def _answered(self, lease: Lease, response: Response, *, page: bool, sent: _Sent) -> None:
        task = lease.task
        # A page that anybody may ask for again, and that nothing comes of.
        plain = task.method == "GET" and not task.headers and response.url == task.url
        self.blame.answered_well(
            task,
            latency=sent.latency(response.elapsed.total_seconds()),
            page=page,
            sent=sent.at,
            witness=task.url if page and plain else None,
        )

    def _note(self, lease: Lease, failed: Failed, error: FetchError, *, sent: _Sent) -> None:
        """Tell of a page that failed: of the host it says little, but not nothing."""
        if failed.status is not None and failed.status == 429:
            return  # it was refused by itself, neither a sign of load nor of health
        answered = error.hop > 1 or failed.reason in _BEHIND_AN_ANSWER
        status = failed.response.status if failed.response else failed.status
        if answered or (status is not None and status < 500):
            elapsed = failed.response.elapsed if failed.response else 0.0
            self.blame.answered_well(
                lease.task, latency=sent.latency(elapsed), page=False, sent=sent.at
            )
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
            policy=self.settings.retry_policy,
            chance=random.random(),
        )
        _log(lease, settlement)
        return settlement


def _done(produced: Produced, settlement: Settlement) -> Done:
    return Done(
        tasks=tuple(produced.tasks),
        too_deep=tuple(produced.too_deep),
        settlements=(settlement,),
        dropped=produced.dropped,
    )


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
            logger.debug(
                "%s %s",
                settlement.change.event,
                printable(lease.task.url),
                extra={"event": "finished", "url": lease.task.url},
            )
        return
    logger.log(
        logging.INFO if settlement.change.status is Status.IGNORED else logging.DEBUG,
        "%s %s: %s %s",
        settlement.change.event,
        printable(lease.task.url),
        error.kind,
        error.message,
        extra={"event": str(settlement.change.event), "url": lease.task.url, "reason": error.kind},
    )
