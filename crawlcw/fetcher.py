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
from typing import Protocol

import anyio

from crawlcw import callbacks, urls
from crawlcw.attempt import REDIRECTS, attempt, onward
from crawlcw.callback_errors import CallbackErrors
from crawlcw.callbacks import Produced, Scope
from crawlcw.downloader.protocol import Downloader
from crawlcw.dropped import DroppedLinks
from crawlcw.errors import FAILURE_REASONS, FetchError, LedgerError, Reason, SpiderError
from crawlcw.frontier import Frontier
from crawlcw.hosts import HOST_FAILURES
from crawlcw.known import KnownTasks
from crawlcw.leases import HeldLeases
from crawlcw.ledger.protocol import Ledger
from crawlcw.patience import Patience
from crawlcw.printable import printable
from crawlcw.quarantine import Quarantine
from crawlcw.request import Request
from crawlcw.response import Response
from crawlcw.retry import retry_after
from crawlcw.robots import Robots
from crawlcw.runner import Runner
from crawlcw.settings import Settings
from crawlcw.stats import Stats
from crawlcw.task import Lease, ResponseInfo, Status, Task, task_id
from crawlcw.transitions import Failed, Outcome, Settlement, Succeeded, settle

logger = logging.getLogger(__name__)

#: Where links and redirects lead to.
_NOTHING_OF_THE_HOST = frozenset(
    {Reason.URL_INVALID, Reason.REDIRECT_INVALID, Reason.REDIRECT_LIMIT, Reason.REDIRECT_LOOP}
)


class HostFailedError(FetchError):
    """The host failed, and not the page."""

    @classmethod
    def of(cls, error: FetchError) -> "HostFailedError":
        """Return *error* as such; where robots.txt was not to be had, for the reason of that."""
        return cls(
            error.underlying, error.message, status=error.status, retry_after=error.retry_after
        )


class NotTriedError(Exception):
    """Nothing of an attempt counts, neither for the page nor for its host: it is put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A task that was worked on: what to write, in this order."""

    tasks: tuple[Task, ...] = ()  #: its links
    settlements: tuple[Settlement, ...] = ()
    aliases: tuple[Settlement, ...] = ()  #: tasks whose redirect led to it: no pages of their own
    dropped: DroppedLinks = field(default_factory=DroppedLinks)


class Feeding(Protocol):
    """Who gives the fetchers their work."""

    def fetched(self, lease: Lease) -> None:
        """The request of a lease has ended, whatever came of it: its host may be asked again."""

    def put_back(self, lease: Lease) -> None:
        """A task was not tried, by no fault of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """What every fetcher of a process shares."""

    settings: Settings
    ledger: Ledger
    downloader: Downloader
    runner: Runner
    robots: Robots
    frontier: Frontier
    scope: Scope
    held: HeldLeases
    known: KnownTasks
    stats: Stats
    patience: Patience
    quarantine: Quarantine
    worker: str
    end: Callable[[str, str], None]  #: ends the crawl softly, for a reason and what it is due to
    errors: CallbackErrors = field(default_factory=CallbackErrors)

    async def run(
        self, queue: asyncio.Queue[Lease], done: asyncio.Queue[Done], feeding: Feeding
    ) -> None:
        """Work on what the queue gives until cancelled."""
        while True:
            # One scope for many pages: it ends with the first lease that is lost.
            with anyio.CancelScope() as lost:
                while not lost.cancel_called:
                    lease = await queue.get()
                    self.held.working(lease, lost)
                    try:
                        try:
                            result = await self._work(lease)
                        finally:
                            self.held.idle(lease)
                            feeding.fetched(lease)
                        if result is None:
                            feeding.put_back(lease)
                        else:
                            await done.put(result)
                            await self.quarantine.recorded(lease)
                    finally:
                        self.quarantine.leave(lease)
            self.stats.leases_lost += 1

    async def _work(self, lease: Lease) -> Done | None:
        """Return what came of one task, or None where nothing did.

        Whatever is raised belongs to that task alone.
        """
        if not await self.quarantine.enter(lease):
            return None
        host = lease.task.host
        # A loop that stood still must not ask a host that has a new owner.
        if not self.frontier.may_ask(host, now=time.monotonic()):
            return None
        sent = self.ledger.now()
        try:
            return await self._page(lease)
        except HostFailedError as failure:
            logger.info(
                "host %s failed: %s",
                printable(host),
                printable(failure),
                extra={"event": "host_failed", "host": host, "reason": str(failure.reason)},
            )
            self.frontier.host_failed(
                host,
                failure.reason,
                sent=sent,
                status=failure.status,
                retry_after=failure.retry_after,
                now=time.monotonic(),
            )
            return None
        except NotTriedError:
            return None
        except LedgerError:
            raise
        except Exception as error:
            logger.exception("an error of crawlcw itself", extra={"event": "internal"})
            failed = Failed(
                reason=Reason.INTERNAL,
                message=f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
            )
            return Done(settlements=(self._settle(lease, failed),))

    async def _page(self, lease: Lease) -> Done:
        request = Request.of(lease.task)
        try:
            response = await self._fetch(request, lease)
        except FetchError as refusal:
            if refusal.reason in HOST_FAILURES:
                raise HostFailedError.of(refusal) from refusal
            return await self._failed(lease, request, _failed(refusal), refusal)
        if response.status in REDIRECTS:
            return await self._moved(lease, request, response)
        if not 200 <= response.status < 300 or response.status == 206:
            error = FetchError(
                Reason.HTTP_STATUS,
                f"HTTP {response.status}",
                status=response.status,
                retry_after=retry_after(response.headers.get("retry-after"), now=self.ledger.now()),
            )
            if _asks_to_wait(response):
                raise HostFailedError.of(error)
            failed = replace(_failed(error), response=_info(response))
            return await self._failed(lease, request, failed, error)
        if response.url != request.url and request.method == "GET":
            return await self._redirected(lease, request, response)
        return await self._parsed(lease, request, response)

    async def _fetch(self, request: Request, lease: Lease) -> Response:
        """Make one attempt, with robots.txt and scope asked at every hop."""
        if self.settings.obey_robots:
            await self.robots.admit(request.url)
        host = lease.task.host
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
        # Later than its turn came, where connecting took long or the loop was busy.
        hops = response.url != request.url
        elapsed = 0.0 if hops else response.elapsed.total_seconds()
        self.frontier.sent(host, at=time.monotonic() - elapsed)
        self.stats.fetched += 1
        self.stats.bytes += len(response.body)
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

    async def _moved(self, lease: Lease, request: Request, response: Response) -> Done:
        """Hand on a page that is to be fetched by the owner of its host, or later."""
        home = onward(request, response)
        try:
            self.scope.admit_url(home.url)
            if self.settings.max_depth is not None and lease.task.depth >= self.settings.max_depth:
                # Or hosts that lead to one another would never end.
                raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        except FetchError as refusal:
            return await self._failed(lease, request, _failed(refusal), refusal)
        self._answered(lease, response, page=False)
        task = home.task(now=self.ledger.now(), depth=lease.task.depth + 1, parent=lease.task.id)
        alias = self._settle(lease, Succeeded(response=_info(response)))
        return Done(tasks=(task,), aliases=(alias,))

    async def _redirected(self, lease: Lease, request: Request, response: Response) -> Done:
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
            return await self._parsed(lease, request, response)
        alias = self._settle(lease, Succeeded(response=info))
        home = await self._claim(target)
        if home is None:
            return Done(aliases=(alias,))
        try:
            parsed = await self._parsed(home, Request.of(home.task), response)
        except BaseException:
            # Only the lease of the task that led here is known to be lost.
            self.held.stray(home)
            raise
        return replace(parsed, aliases=(alias,))

    async def _claim(self, task: Task) -> Lease | None:
        """Add a task and lease it, if nobody has it or has done it."""
        # A cancelled claim would leave a lease that nobody knows of.
        with anyio.CancelScope(shield=True):
            await self.patience.insist(lambda: self.ledger.add([task]))
            self.known.add([task.id])
            record = await self.patience.insist(lambda: self.ledger.get(task.id))
            if record is None or record.task.status not in (Status.TODO, Status.FAILED):
                return None
            # Sent again by itself: what the first one got looks taken to everybody else.
            claimed = await self.patience.insist(
                lambda: self.ledger.claim(
                    [record.task],
                    worker=self.worker,
                    lease=self.settings.lease,
                    max_lost=self.settings.max_lost,
                )
            )
            self.held.add(claimed.leases)
        return next(iter(claimed.leases), None)

    async def _parsed(self, lease: Lease, request: Request, response: Response) -> Done:
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
            return await self._failed(lease, request, replace(produced, response=info), error)
        self._answered(lease, response, page=True)
        outcome = Succeeded(response=info, items=tuple(produced.items))
        return _done(produced, self._settle(lease, outcome))

    async def _failed(
        self, lease: Lease, request: Request, failed: Failed, error: FetchError
    ) -> Done:
        """Settle a failure; where it is final, the spider is told and may still yield."""
        self._note(lease, failed)
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
                self.end("callback-broken", broken)

    def _stop_for(self, produced: Produced) -> None:
        if produced.stop is not None:
            self.end("stopped-by-spider", produced.stop)

    def _answered(self, lease: Lease, response: Response, *, page: bool) -> None:
        self.frontier.answered(
            lease.task.host,
            latency=response.elapsed.total_seconds(),
            page=page,
            now=time.monotonic(),
        )

    def _note(self, lease: Lease, failed: Failed) -> None:
        """Tell of a page that failed: of the host it says little, but not nothing."""
        host, now = lease.task.host, time.monotonic()
        status = failed.response.status if failed.response else failed.status
        if status is not None and status < 500:
            # A page that its callback raised on included: the host has answered well.
            elapsed = failed.response.elapsed if failed.response else 0.0
            self.frontier.answered(host, latency=elapsed, page=False, now=now)
        elif failed.reason in FAILURE_REASONS - _NOTHING_OF_THE_HOST:
            self.frontier.page_failed(host, now=now)

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
    return Done(tasks=tuple(produced.tasks), settlements=(settlement,), dropped=produced.dropped)


def _asks_to_wait(response: Response) -> bool:
    """Say whether an answer is about the host's load, and not about the page."""
    return response.status == 429 or (response.status == 503 and "retry-after" in response.headers)


def _failed(error: FetchError) -> Failed:
    return Failed(
        reason=error.reason,
        message=error.message,
        status=error.status,
        retry_after=error.retry_after,
    )


def _info(response: Response) -> ResponseInfo:
    headers = response.headers
    return ResponseInfo(
        status=response.status,
        final_url=response.url,
        content_type=_short(headers.get("content-type")),
        bytes=len(response.body),
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
