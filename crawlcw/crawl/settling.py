"""Settling an attempt: what becomes of an answer, a refusal or a failure.

The fetcher asks, and hands on here what came of it. Nothing here asks for the page or
writes the task: a method returns what to write (`Done`), the lease of a page that is to be
tried later, or raises `NotTriedError` where nothing counts. A crash before the committer
has written leaves the lease, which runs out, and the page is worked on again.

What an answer shows of its host (`Blame`) is noted before the host's slot is freed, and
that before the callback or the errback runs: the next request may leave while the page is
parsed, and is to find the host's delay and rest as this answer left them.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl import callbacks
from crawlcw.crawl.bans import BannedError, Bans
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.callback_errors import CallbackErrors
from crawlcw.crawl.callbacks import Produced
from crawlcw.crawl.frontier import Frontier
from crawlcw.crawl.host_evidence import Fault
from crawlcw.crawl.identities import Identified, Identities, LoggedOutError
from crawlcw.crawl.recording import Recorder
from crawlcw.crawl.redirects import status_error, throttles
from crawlcw.crawl.revisits import NOT_MODIFIED, Revisits
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.slot import Slot
from crawlcw.crawl.spider_fault import SpiderFaultError
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.instruments import Instruments
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.errors import FAILURE_REASONS, FetchError, ProxiesAwayError, Reason, SpiderError
from crawlcw.model.dropped import DroppedLinks
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.sanitize import printable
from crawlcw.model.stalls import Excuses
from crawlcw.model.task import Lease, ResponseInfo, Status, Task
from crawlcw.model.transitions import Failed, Outcome, Settlement, Succeeded, put_off, settle

T = TypeVar("T")

logger = logging.getLogger(__name__)

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
    """A task that was worked on: what to write, in this order.

    Links come before the settlement that ends their page: a crash between the two has the
    page done again, where the other order would lose them.
    """

    tasks: tuple[Task, ...] = ()  #: its links
    too_deep: tuple[Task, ...] = ()  #: those that are only kept
    settlements: tuple[Settlement, ...] = ()
    dropped: DroppedLinks = field(default_factory=DroppedLinks)
    items_dropped: Mapping[str, int] = field(default_factory=dict)  #: by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """By what an attempt is made."""

    downloader: Downloader
    runner: Runner  #: of callbacks
    identified: Identified | None = None  #: as whom the page is asked for


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at a page: by what it is made, and since when."""

    lease: Lease
    request: Request
    slot: Slot
    means: Means
    at: datetime  #: when it began, by the ledger's clock
    began: float  #: the same by the monotonic clock
    stood: float = 0.0  #: for how many seconds the loop stood still until the answer

    @property
    def has_own_proxy(self) -> bool:
        """Whether it goes through the proxy of its session alone."""
        identified = self.means.identified
        return identified is not None and identified.proxy is not None

    def latency(self, elapsed: float) -> float:
        """Return how much of the seconds *elapsed* the host took."""
        return max(0.0, elapsed - self.stood)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """What every fetcher of a process settles its attempts by."""

    settings: Settings
    retries: RetryPolicy  #: theirs: each page would make it of them again
    now: Callable[[], datetime]  #: the ledger's
    blame: Blame
    frontier: Frontier
    excuses: Excuses
    identities: Identities
    bans: Bans
    stats: Stats
    revisits: Revisits
    recorder: Recorder
    errors: CallbackErrors
    instruments: Instruments
    end: Callable[[FinishReason, str], None]  #: ends the crawl softly, see `Ending.end`

    def answered(self, attempt: Attempt, response: Response) -> None:
        """Note that the host of a page answered it well."""
        self.blame.got(attempt.lease.task, response)
        self.blame.answered_well(
            attempt.lease.task,
            latency=attempt.latency(response.elapsed.total_seconds()),
            sent=attempt.at,
        )

    async def parsed(self, attempt: Attempt, response: Response) -> Done:
        """Run the callback of a page, and settle what comes of it."""
        lease, request, means = attempt.lease, attempt.request, attempt.means
        response.request = request
        if means.identified is not None:
            response.session = means.identified.page_session()
        if self.revisits.is_same(lease.task, response):
            return await self.unchanged(attempt, response)
        callback = request.callback
        if self.errors.is_broken(callback):
            raise NotTriedError
        # Before the callback: a page that it fails on is kept as well.
        stored = await self.kept(self.recorder.keep(request))
        with self.instruments.parse(lease, callback) as seen:
            try:
                produced = await means.runner.run(callback, response, task=lease.task)
            except SpiderError as missing:
                produced = callbacks.missing(missing)
            if isinstance(produced, Failed):
                seen.failed(produced.reason)
        if isinstance(produced, Produced) and produced.retired is not None:
            produced = await self._retired(attempt, produced.retired)
        self._note_callback(callback, produced, lease)
        info = info_of(response)
        if isinstance(produced, Failed):
            error = FetchError(produced.reason, produced.message)
            error.response = response
            failed = replace(produced, response=info, stored=stored)
            return await self.failed(attempt, failed, error)
        self._finished(attempt, response)
        visit, revisit = self.revisits.changed(lease.task, response, now=self.now())
        outcome = Succeeded(
            response=info,
            items=tuple(produced.items),
            visit=visit,
            revisit=revisit,
            kept_versions=self.settings.keep_versions,
            stored=stored,
        )
        return _done(produced, self.settle(lease, outcome))

    async def unchanged(self, attempt: Attempt, response: Response) -> Done:
        """Record that a page is what it was: its callback has nothing new to read."""
        lease = attempt.lease
        stored = None
        if lease.task.stored is None and response.status != NOT_MODIFIED:
            stored = await self.kept(self.recorder.keep(attempt.request))
        else:
            await self.kept(self.recorder.keep_unchanged(attempt.request))
        self._finished(attempt, response)
        outcome = self.revisits.unchanged(lease.task, response, now=self.now())
        return Done(settlements=(self.settle(lease, replace(outcome, stored=stored)),))

    async def no_page(self, attempt: Attempt, response: Response) -> Done | Lease:
        """Settle an answer that is no page by its status, or return the lease."""
        error = status_error(response, now=self.now())
        # Behind a redirect it is another page that is refused.
        if throttles(response) and response.url == attempt.request.url:
            fault = self.blame.throttled(attempt.lease.task, error, sent=attempt.at)
            if not fault.own:
                return _not_tried(attempt.lease, fault)
        elif proxys := self.blame.of_proxy(
            attempt.lease.task,
            error,
            sent=attempt.at,
            began=attempt.began,
            has_own_proxy=attempt.has_own_proxy,
        ):
            return _not_tried(attempt.lease, proxys)
        return await self._own_failure(attempt, error, info_of(response))

    async def denied(self, attempt: Attempt, refused: LoggedOutError | BannedError) -> Done:
        """Have a page asked for as somebody else; or settle what is refused to all."""
        attempt.stood = self.excuses.seconds(attempt.began)
        response, identified = refused.response, attempt.means.identified
        # Before the session is looked after, which takes a while: the host has answered now.
        self.blame.answered(attempt.lease.task)
        why = f"HTTP {response.status} for {response.url}"
        if isinstance(refused, BannedError):
            reason, own = Reason.BANNED, await self._is_banned_alone(attempt, response, why)
        else:
            assert identified is not None
            self.stats.fetched += 1
            self.stats.statuses[response.status] += 1
            task = attempt.lease.task
            reason = Reason.LOGGED_OUT
            own = await self.identities.refused(identified, task, why, told=False)
        if not own:
            raise NotTriedError
        if response.status >= 400:
            error = status_error(response, now=self.now())
        else:
            error = FetchError(reason, f"{why}, {_DENIED[reason]}")
        return await self._own_failure(attempt, error, info_of(response))

    async def _is_banned_alone(self, attempt: Attempt, response: Response, why: str) -> bool:
        """Note a ban of a proxy or a session; return whether it is the page's own after all."""
        identified, task = attempt.means.identified, attempt.lease.task
        if identified is None:
            return self.bans.note(task, response.proxy)
        own = self.bans.note(task, None)
        await self.identities.banned(identified, f"banned: {why}")
        return own

    async def unanswered(self, attempt: Attempt, refusal: FetchError) -> Done | Lease:
        """Settle a page that no answer came of, or put it back where that is not its fault.

        Who may be to blame is asked in the order of how many pages it concerns: crawlcw itself,
        the disk, all proxies, this process's loop, the host or the network; the page comes last.
        """
        lease, began = attempt.lease, attempt.began
        if refusal.reason is Reason.INTERNAL:
            raise refusal.__cause__ or refusal
        if refusal.reason is Reason.FILES_UNWRITABLE:
            # Nor would any other file be saved: no attempt is spent until somebody mends it.
            self.end(FinishReason.FILES_UNWRITABLE, refusal.message)
            raise NotTriedError from refusal
        if isinstance(refusal, ProxiesAwayError):
            return put_off(lease, until=self.now() + timedelta(seconds=refusal.wait))
        if self.excuses.failure(refusal, began):
            raise NotTriedError from refusal
        fault = await self.blame.failed(
            lease.task,
            refusal,
            sent=attempt.at,
            began=began,
            has_own_proxy=attempt.has_own_proxy,
        )
        if not fault.own:
            return _not_tried(lease, fault)
        attempt.stood = self.excuses.seconds(began)
        return await self._own_failure(attempt, _with_advice(refusal, lease.task))

    async def given_up(self, attempt: Attempt, reason: Reason) -> Done:
        """Settle a page whose origin was given up: the spider is told, and the host not asked."""
        attempt.slot.free()
        origin = attempt.request.url.partition("://")[0] + "://" + attempt.lease.task.host
        error = FetchError(reason, f"{origin} was given up")
        failed = Failed(reason=reason, message=error.message, last=True, tried=False)
        return await self.failed(attempt, failed, error)

    async def faulty(self, attempt: Attempt, fault: SpiderFaultError) -> Done:
        """Settle a page on whose way a hook or the spider's own downloader raised."""
        if self.errors.is_broken(fault.name):
            raise NotTriedError
        self._note_callback(fault.name, fault.raised, attempt.lease)
        # Of the host it says nothing.
        failed = replace(fault.raised, message=fault.message)
        return await self.failed(attempt, failed, fault)

    async def _own_failure(
        self, attempt: Attempt, error: FetchError, response: ResponseInfo | None = None
    ) -> Done:
        """Settle what is the page's own failure, and nobody else's."""
        failed = self.failure(error, response)
        self._note(attempt, failed, error)
        # The errback may take its time: the host need not wait for it.
        attempt.slot.free()
        return await self.failed(attempt, failed, error)

    def failure(self, error: FetchError, response: ResponseInfo | None = None) -> Failed:
        """Return the outcome that an error is; *response* is what was answered, if anything."""
        # What a page asks for is no longer than what its host may ask for.
        longest = self.settings.host_backoff_max.total_seconds()
        asked = error.retry_after
        return Failed(
            reason=error.reason,
            message=error.message,
            status=error.status,
            retry_after=None if asked is None else min(asked, longest),
            response=response,
        )

    async def failed(self, attempt: Attempt, failed: Failed, error: FetchError) -> Done:
        """Settle a failure; where it is final, the spider is told and may still yield."""
        lease, request = attempt.lease, attempt.request
        again = self.revisits.after_failure(lease.task, now=self.now())
        # Before the errback: only what is settled tells whether the failure is final.
        settlement = self.settle(lease, replace(failed, revisit=again))
        if settlement.change.status is not Status.IGNORED:
            return Done(settlements=(settlement,))
        errback = request.errback or "on_error"
        try:
            produced = await attempt.means.runner.run(errback, request, error, task=lease.task)
        except SpiderError as missing:
            logger.warning(
                "%s", printable(missing), extra={"event": "errback_missing", "url": lease.task.url}
            )
            return Done(settlements=(settlement,))
        if isinstance(produced, Failed):
            self.errors.tell(errback, produced, url=lease.task.url)
            return Done(settlements=(settlement,))
        self._stop_for(produced)
        # A page that was there once keeps what it gave, unless there is something instead.
        # Nothing of the task tells of that: what is done anew has no visit any more.
        change = replace(settlement.change, items=tuple(produced.items) or None)
        return _done(produced, replace(settlement, change=change))

    async def kept(self, keeping: Awaitable[T]) -> T:
        """Return what comes of keeping a page; where no disk takes it, the crawl ends."""
        try:
            return await keeping
        except FetchError as refusal:
            self.end(FinishReason.FILES_UNWRITABLE, refusal.message)
            raise NotTriedError from refusal

    def settle(self, lease: Lease, outcome: Outcome) -> Settlement:
        """Return what is to be written of a task, and log it."""
        settlement = settle(
            lease,
            outcome,
            now=self.now(),
            policy=self.retries.with_own(lease.task.options),
            chance=random.random(),
        )
        _log(lease, settlement)
        return settlement

    async def _retired(self, attempt: Attempt, why: str) -> Produced | Failed:
        """Have a session logged in anew that the callback has retired, the page put back."""
        identified = attempt.means.identified
        if identified is None:
            # It is no session's, so the callback has changed nothing.
            return Failed(reason=Reason.LOGGED_OUT, message=f"no session to retire: {why}")
        if not await self.identities.refused(identified, attempt.lease.task, why, told=True):
            raise NotTriedError
        return Failed(reason=Reason.LOGGED_OUT, message=why)

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

    def _finished(self, attempt: Attempt, response: Response) -> None:
        task, identified = attempt.lease.task, attempt.means.identified
        # A page that anybody may ask for again, and that nothing comes of.
        plain = _is_plain(task, response)
        if identified is not None:
            witness = response.url if plain else None
            self.identities.answered_well(identified, task, witness=witness)
        plain = plain and response.status < 300
        self.blame.finished(task, witness=task.url if plain else None, size=response.size)

    def _note(self, attempt: Attempt, failed: Failed, error: FetchError) -> None:
        """Tell of a page that failed: of the host it says little, but not nothing."""
        if failed.status is not None and failed.status == 429:
            return  # it was refused by itself, neither a sign of load nor of health
        task = attempt.lease.task
        answered = error.hop > 1 or failed.reason in _BEHIND_AN_ANSWER
        status = failed.response.status if failed.response else failed.status
        if answered or (status is not None and status < 500):
            elapsed = failed.response.elapsed if failed.response else 0.0
            self.blame.answered_well(task, latency=attempt.latency(elapsed), sent=attempt.at)
        elif failed.reason in FAILURE_REASONS:
            self.frontier.evidence.page_failed(task.host, now=time.monotonic())


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


def info_of(response: Response) -> ResponseInfo:
    """Return what is recorded of an answer."""
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
