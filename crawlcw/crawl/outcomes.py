"""From the result of an attempt to its transition: answers, refusals, redirects and failures.

The fetcher asks for a page and hands on here the answer or the error. Nothing here asks for the
page or writes the task: a method returns what to write (`Done`), the lease of a page that is to
be tried later, or raises `NotTriedError` where nothing counts. A crash before the committer
has written leaves the lease, which runs out, and the page is worked on again.

What an answer shows of its host (`Blame`) is noted before the host's slot is freed, and
that before the callback or the errback runs: the next request may leave while the page is
parsed, and is to find the host's delay and rest as this answer left them.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

import anyio

from crawlcw.api.attempt import Attempt, LoggedOutError
from crawlcw.api.request import EACH_RUN, Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.user_code import Raised
from crawlcw.crawl import callbacks
from crawlcw.crawl.adding import TaskAdder
from crawlcw.crawl.bans import BannedError, Bans
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.host_health import Fault
from crawlcw.crawl.hosts import Frontier
from crawlcw.crawl.identities import Identities
from crawlcw.crawl.revisits import NOT_MODIFIED, Revisits
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.seen import SeenFilter
from crawlcw.downloader.proxy_pool import ProxyPool
from crawlcw.downloader.recording import Recorder
from crawlcw.downloader.redirects import (
    loop_message,
    onward,
    portable_headers,
    status_error,
    throttles,
)
from crawlcw.downloader.user_layers import SpiderFaultError
from crawlcw.engine.instruments import Instruments
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FAILURE_REASONS, FetchError, ProxiesAwayError, Reason, SpiderError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model import urls
from crawlcw.model.dropped import DroppedLinks
from crawlcw.model.durations import format_duration
from crawlcw.model.health import Cause
from crawlcw.model.retry import RetryPolicy, backoff
from crawlcw.model.sanitize import printable
from crawlcw.model.task import WAITING, Lease, Record, ResponseInfo, Status, Task, task_id
from crawlcw.model.tracebacks import describe_error
from crawlcw.model.transitions import (
    Failed,
    Moved,
    Outcome,
    Settlement,
    Succeeded,
    is_quarantined,
    put_off,
    settle,
)

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


class Slot:
    """A page's place among the requests that its host is asked at once; it is freed once.

    It is held from the page's turn until its answer is there and has been judged. What is
    done with the answer, parsing above all, keeps a fetcher and not the host's place.
    """

    def __init__(self, on_free: Callable[[], None]) -> None:
        """*on_free* is called when the host may be asked for another page."""
        self._on_free = on_free
        self._freed = False

    def free(self) -> None:
        """Let the host's next request begin, if this place is still held."""
        if not self._freed:
            self._freed = True
            self._on_free()


@dataclass(slots=True, kw_only=True, eq=False)
class PageAttempt(Attempt):
    """One attempt at the page of a task."""

    lease: Lease
    slot: Slot
    at: datetime  #: when it began, by the ledger's clock
    began: float  #: the same by the monotonic clock
    stood: float = 0.0  #: for how many seconds the loop stood still until the answer

    @property
    def has_own_proxy(self) -> bool:
        """Whether it goes through the proxy of its session alone."""
        return self.session is not None and self.session.proxy is not None

    def latency(self, elapsed: float) -> float:
        """Return how much of the seconds *elapsed* the host took."""
        return max(0.0, elapsed - self.stood)


#: A callback that raises on so many pages, and on all so far, is broken.
BROKEN_FROM = 20
#: So many different errors are told, and callbacks known: the rest is in the ledger.
_MOST_TOLD = 100
_MOST_KNOWN = 1_000


class CallbackErrors:
    """The errors of a spider's methods in one process: told once each, then counted only."""

    def __init__(self) -> None:
        self._good: set[str] = set()
        self._pages: Counter[str] = Counter()
        self._told: set[tuple[str, str, str]] = set()

    def succeeded(self, callback: str) -> None:
        """Note that *callback* went through a page to its end."""
        if len(self._good) < _MOST_KNOWN:
            self._good.add(callback)

    def raised(self, callback: str, failed: Failed, *, url: str) -> str | None:
        """Note that *callback* raised on a page; return what is to be said where it is broken."""
        self.tell(callback, failed, url=url)
        if callback in self._good:
            return None
        if callback in self._pages or len(self._pages) < _MOST_KNOWN:
            self._pages[callback] += 1
        if not self.is_broken(callback):
            return None
        where = _where(failed)
        return printable(
            f"{callback} raised on each of its first {self._pages[callback]} pages, the last "
            f"time {_error(failed)}{where}"
        )

    def is_broken(self, callback: str) -> bool:
        """Return whether *callback* raised on its first pages, all of them."""
        return callback not in self._good and self._pages[callback] >= BROKEN_FROM

    def tell(self, callback: str, failed: Failed, *, url: str) -> None:
        """Log an error of *callback* with its traceback, the first time that it is raised."""
        kind = failed.error if isinstance(failed, Raised) else failed.message
        key = (callback, kind, _where(failed))
        if key in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(key)
        logger.warning(
            "%s raised %s%s on %s",
            printable(callback),
            printable(_error(failed)),
            printable(_where(failed)),
            printable(url),
            extra={"event": "callback_failed", "url": url, "traceback": failed.traceback or ""},
        )


def _error(failed: Failed) -> str:
    return failed.message or str(failed.reason)


def _where(failed: Failed) -> str:
    return f" at {failed.where}" if isinstance(failed, Raised) and failed.where else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """What every fetcher of a process settles its attempts by."""

    settings: Settings
    runner: Runner  #: of callbacks
    retries: RetryPolicy  #: theirs: each page would make it of them again
    now: Callable[[], datetime]  #: the ledger's
    blame: Blame
    frontier: Frontier
    watchdog: Watchdog
    identities: Identities
    bans: Bans
    stats: Stats
    revisits: Revisits
    recorder: Recorder
    errors: CallbackErrors
    instruments: Instruments
    end: Callable[[FinishReason, str], None]  #: ends the crawl softly, see `Ending.end`

    def answered(self, attempt: PageAttempt, response: Response) -> None:
        """Note that the host of a page answered it well."""
        self.blame.got(attempt.lease.task, response)
        self.blame.answered_well(
            attempt.lease.task,
            latency=attempt.latency(response.elapsed.total_seconds()),
            sent=attempt.at,
        )

    async def parsed(self, attempt: PageAttempt, response: Response) -> Done:
        """Run the callback of a page, and settle what comes of it."""
        lease, request = attempt.lease, attempt.request
        response.request = request
        if attempt.session is not None:
            response.session = attempt.session.page_session()
        if self.revisits.is_same(lease.task, response):
            return await self.unchanged(attempt, response)
        callback = request.callback
        if self.errors.is_broken(callback):
            raise NotTriedError
        # Before the callback: a page that it fails on is kept as well.
        stored = await self.kept(self.recorder.keep(attempt))
        with self.instruments.parse(lease, callback) as seen:
            try:
                produced = await self.runner.run(callback, response, task=lease.task)
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

    async def unchanged(self, attempt: PageAttempt, response: Response) -> Done:
        """Record that a page is what it was: its callback has nothing new to read."""
        lease = attempt.lease
        stored = None
        if lease.task.stored is None and response.status != NOT_MODIFIED:
            stored = await self.kept(self.recorder.keep(attempt))
        else:
            await self.kept(self.recorder.keep_unchanged(attempt))
        self._finished(attempt, response)
        outcome = self.revisits.unchanged(lease.task, response, now=self.now())
        return Done(settlements=(self.settle(lease, replace(outcome, stored=stored)),))

    async def no_page(self, attempt: PageAttempt, response: Response) -> Done | Lease:
        """Settle an answer that is no page by its status, or return the lease."""
        error = status_error(response, now=self.now())
        # Behind a redirect it is another page that is refused.
        if throttles(response) and response.url == attempt.request.url:
            fault = self.blame.throttled(attempt.lease.task, error, sent=attempt.at)
            if fault.cause is not Cause.PAGE:
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

    async def denied(self, attempt: PageAttempt, refused: LoggedOutError | BannedError) -> Done:
        """Have a page asked for as somebody else; or settle what is refused to all."""
        attempt.stood = self.watchdog.stalled(attempt.began)
        response, session = refused.response, attempt.session
        # Before the session is looked after, which takes a while: the host has answered now.
        self.blame.answered()
        why = f"HTTP {response.status} for {response.url}"
        if isinstance(refused, BannedError):
            reason, own = Reason.BANNED, await self._is_banned_alone(attempt, response, why)
        else:
            assert session is not None
            self.stats.fetched += 1
            self.stats.statuses[response.status] += 1
            task = attempt.lease.task
            reason = Reason.LOGGED_OUT
            own = await self.identities.refused(session, task, why, told=False)
        if not own:
            raise NotTriedError
        if response.status >= 400:
            error = status_error(response, now=self.now())
        else:
            error = FetchError(reason, f"{why}, {_DENIED[reason]}")
        return await self._own_failure(attempt, error, info_of(response))

    async def _is_banned_alone(self, attempt: PageAttempt, response: Response, why: str) -> bool:
        """Note a ban of a proxy or a session; return whether it is the page's own after all."""
        session, task = attempt.session, attempt.lease.task
        if session is None:
            return self.bans.note(task, response.proxy)
        own = self.bans.note(task, None)
        await self.identities.banned(session, f"banned: {why}")
        return own

    async def unanswered(self, attempt: PageAttempt, refusal: FetchError) -> Done | Lease:
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
        if self.watchdog.explains(refusal, began):
            raise NotTriedError from refusal
        fault = await self.blame.failed(
            lease.task,
            refusal,
            sent=attempt.at,
            began=began,
            has_own_proxy=attempt.has_own_proxy,
        )
        if fault.cause is not Cause.PAGE:
            return _not_tried(lease, fault)
        attempt.stood = self.watchdog.stalled(began)
        return await self._own_failure(attempt, _with_advice(refusal, lease.task))

    async def given_up(self, attempt: PageAttempt, reason: Reason) -> Done:
        """Settle a page whose origin was given up: the spider is told, and the host not asked."""
        attempt.slot.free()
        origin = attempt.request.url.partition("://")[0] + "://" + attempt.lease.task.host
        error = FetchError(reason, f"{origin} was given up")
        failed = Failed(reason=reason, message=error.message, last=True, tried=False)
        return await self.failed(attempt, failed, error)

    async def faulty(self, attempt: PageAttempt, fault: SpiderFaultError) -> Done:
        """Settle a page on whose way a hook or the spider's own downloader raised."""
        if self.errors.is_broken(fault.name):
            raise NotTriedError
        self._note_callback(fault.name, fault.raised, attempt.lease)
        # Of the host it says nothing.
        failed = replace(fault.raised, message=fault.message)
        return await self.failed(attempt, failed, fault)

    async def _own_failure(
        self, attempt: PageAttempt, error: FetchError, response: ResponseInfo | None = None
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

    async def failed(self, attempt: PageAttempt, failed: Failed, error: FetchError) -> Done:
        """Settle a failure; where it is final, the spider is told and may still yield."""
        lease, request = attempt.lease, attempt.request
        again = self.revisits.after_failure(lease.task, now=self.now())
        # Before the errback: only what is settled tells whether the failure is final.
        settlement = self.settle(lease, replace(failed, revisit=again))
        if settlement.change.status is not Status.IGNORED:
            return Done(settlements=(settlement,))
        errback = request.errback or "on_error"
        try:
            produced = await self.runner.run(errback, request, error, task=lease.task)
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

    async def _retired(self, attempt: PageAttempt, why: str) -> Produced | Failed:
        """Have a session logged in anew that the callback has retired, the page put back."""
        session = attempt.session
        if session is None:
            # It is no session's, so the callback has changed nothing.
            return Failed(reason=Reason.LOGGED_OUT, message=f"no session to retire: {why}")
        if not await self.identities.refused(session, attempt.lease.task, why, told=True):
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

    def _finished(self, attempt: PageAttempt, response: Response) -> None:
        task, session = attempt.lease.task, attempt.session
        # A page that anybody may ask for again, and that nothing comes of.
        plain = _is_plain(task, response)
        if session is not None:
            probe = response.url if plain else None
            self.identities.answered_well(session, task, probe=probe)
        plain = plain and response.status < 300
        self.blame.finished(task, good_url=task.url if plain else None, size=response.size)

    def _note(self, attempt: PageAttempt, failed: Failed, error: FetchError) -> None:
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
            self.frontier.health.page_failed(task.host, now=time.monotonic())


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


#: A page that sends its reader on within this time is a redirect by other means.
_REDIRECTING = timedelta(seconds=5)
#: So many redirects to known tasks are remembered before those are forgotten that have ended.
_REMEMBERED = 10_000
#: Pages that lead to one another are looked for among so many.
_LONGEST_LOOP = 100
#: So often a redirect is put off, twice as long each time, while its target is another process's.
_MOST_WAITED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPages:
    """Redirects, and the tasks of the pages where they lead.

    A redirect ends its task, and its target is a task of its own, one of the same depth. Tasks
    that redirect to one another have no page: the one whose redirect closes the circle fails.
    Redirects that are followed in place (see `follows`) end at a page in hand, which is recorded
    once, under the URL where it really is.
    """

    settings: Settings
    ledger: Ledger
    robots: Robots
    scope: Scope
    proxies: ProxyPool
    held: HeldLeases
    seen: SeenFilter
    revisits: Revisits
    recorder: Recorder
    adder: TaskAdder
    settling: Settling
    worker: str
    #: The leases of tasks that redirect, and where they lead, until their outcome is recorded.
    led: dict[bytes, tuple[Lease, bytes]] = field(default_factory=dict)
    #: How often a task was put off because another process worked on its target.
    waited: Counter[bytes] = field(default_factory=Counter)

    def follows(self, attempt: PageAttempt) -> Callable[[str], bool] | None:
        """Return a test for targets that the attempt itself asks for, or None where it asks all.

        Another spelling of its own URL cannot be another task. With a session the way to a page
        may be what matters, and the target shows a session that is logged out; a form, or a
        request that is to be repeated, is not a page. Through a pool of proxies one proxy asks
        for all hops within a host: two that are sent to different places lead in a circle.
        """
        task, request = attempt.lease.task, attempt.request
        plain = request.method == "GET" and task.id == request.identity()[1]
        if attempt.session is not None or not plain:
            return None
        in_place = self.proxies.asks_for(request.url)

        def follows(url: str) -> bool:
            location = urls.locate(url)
            return task_id(location) == task.id or (in_place and location.host == task.host)

        return follows

    async def redirected(self, attempt: PageAttempt, response: Response) -> Done | Lease:
        """End a task whose page is elsewhere; the target is asked for by the owner of its host."""
        lease, refusal = attempt.lease, None
        try:
            target, known = await self._target(lease, onward(attempt.request, response))
            if known is not None and await self._leads_back(lease.task, known):
                raise FetchError(Reason.REDIRECT_LOOP, loop_message(lease.task.url))
        except _ElsewhereError:
            # Two processes that wait for each other are not to come back together.
            wait = random.uniform(0.5, 1.5) * 2 ** self.waited[lease.task.id]
            return put_off(lease, until=self.ledger.now() + timedelta(seconds=wait))
        except FetchError as error:
            refusal = error
        await self.settling.kept(self.recorder.keep(attempt))
        if refusal is None:
            return self._handed_on(lease, target, response)
        refusal.response = response
        failed = self.settling.failure(refusal, info_of(response))
        return await self.settling.failed(attempt, failed, refusal)

    async def refreshed(self, attempt: PageAttempt, response: Response) -> Done | None:
        """Hand on a page that sends its reader on at once; None where it is a page itself.

        Unlike a redirect it has content of its own, so it is one wherever its
        target may not be asked for, or is known by another way: two pages that
        lead to each other are two pages.
        """
        refresh = response.refresh
        if refresh is None or refresh.after > _REDIRECTING:
            return None
        lease, request = attempt.lease, attempt.request
        if request.method != "GET" or lease.task.id != request.identity()[1]:
            return None
        try:
            home = onward(request, response, refresh=refresh.url)
            target, known = await self._target(lease, home)
        except FetchError:
            return None
        # Its own child is what an earlier attempt handed on, and crashed before it ended.
        if known is not None and known.task.parent != lease.task.id:
            return None
        await self.settling.kept(self.recorder.keep(attempt))
        return self._handed_on(lease, target, response)

    async def parsed(self, attempt: PageAttempt, response: Response) -> Done:
        """Record a page that redirects followed in place led to, under the URL where it is.

        That URL is a task like any other. Where this process can claim it, the
        response in hand is parsed as its page; where it is known and taken,
        it is somebody else's. Either way the task that led here is finished.
        """
        lease, request = attempt.lease, attempt.request
        # Of another origin that is no secret: it may be asked again.
        headers = portable_headers(request, url=response.url)
        target = self._at(lease.task, request.elsewhere(response.url, headers=headers), hops=0)
        if target.id == lease.task.id or lease.task.id != request.identity()[1]:
            # The same resource by another spelling, or a `dont_filter` request.
            return await self.settling.parsed(attempt, response)
        alias = self._alias(lease, response, final_url=response.url)
        home = await self._claim(target)
        if home is None:
            await self.settling.kept(self.recorder.keep_redirects(attempt))
            return Done(settlements=(alias,))
        at_home = replace(attempt, lease=home, request=Request.of(home.task))
        # Its origin may be another one than that of the task which led here.
        self.settling.answered(at_home, response)
        try:
            parsed = await self.settling.parsed(at_home, response)
        except BaseException:
            # Only the lease of the task that led here is known to be lost.
            self.held.orphan(home)
            raise
        return replace(parsed, settlements=(*parsed.settlements, alias))

    async def _target(self, lease: Lease, home: Request) -> tuple[Task, Record | None]:
        """Return the task of a redirect's target, and its record where it is known already.

        Raises `FetchError` where the target may not be asked for.
        """
        self.scope.admit_url(home.url)
        rules = self.robots.known(home.url)
        if rules is not None and not rules.allows(home.url):
            raise FetchError(Reason.REFUSED_ROBOTS, f"robots.txt disallows {home.url}")
        hops = lease.task.hops + 1
        target = self._at(lease.task, home, hops=hops)
        deepest = lease.task.options.max_depth
        if deepest is None:
            deepest = self.settings.max_depth
        if deepest is not None and target.depth > max(deepest, lease.task.depth):
            raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        # Before the ledger is asked: of two that lead to each other the later one finds this.
        self.led.pop(lease.task.id, None)
        self.led[lease.task.id] = (lease, target.id)
        if len(self.led) > _REMEMBERED:
            del self.led[next(iter(self.led))]
        known = await self.ledger.tasks.get(target.id)
        # Pages that lead to one another for ever have no other end than this number.
        if known is None and hops > self.settings.max_redirects:
            message = f"more than {self.settings.max_redirects} redirects, the last one to "
            raise FetchError(Reason.REDIRECT_LIMIT, message + home.url)
        return target, known

    def _at(self, task: Task, home: Request, *, hops: int) -> Task:
        """Return the task of the page that *task* leads to, due in its place.

        Within a host it is as deep as *task*, for a redirect is no link. On another host it is one
        link deeper.
        """
        home.changed = _like(task)
        now = self.ledger.now()
        target = home.task(now=now, depth=task.depth, parent=task.id, hops=hops)
        due = now if task.due is None else min(now, task.due)
        return replace(target, due=due, depth=task.depth + (target.host != task.host))

    async def _leads_back(self, task: Task, known: Record) -> bool:
        """Return whether a known task, where *task* leads, leads to *task* again.

        The chain ends at a task that has not ended: its own redirect will see this one. Raises
        `_ElsewhereError` where another process works on that one, and may just have seen as little:
        *task* is to be tried again. A few times are enough, for each try is a request.
        """
        # What ended before this task was brought back, to be visited again, has been then.
        since = task.update_time if task.settled and not task.retry else None
        record: Record | None = known
        target = known.task.id
        for _ in range(_LONGEST_LOOP):
            lease, following = self.led.get(target, (None, None))
            if lease is None or not self.held.holds(lease):
                if record is None or record.task.id != target:
                    record = await self.ledger.tasks.get(target)
                if record is None or (since is not None and record.task.update_time < since):
                    return False
                self._check_elsewhere(record.task, task)
                following = record.leads_to
            if following is None:
                return False
            if following == task.id:
                del self.led[task.id]
                return True
            target = following
        return False

    def _check_elsewhere(self, target: Task, task: Task) -> None:
        """Raise `_ElsewhereError` where another process works on *target*, a few times a task."""
        lock = target.lock or ""
        if target.status is not Status.PROCESSING or lock.partition(":")[0] == self.worker:
            return
        if len(self.waited) > _REMEMBERED:
            self.waited.clear()
        self.waited[task.id] += 1
        if self.waited[task.id] <= _MOST_WAITED:
            raise _ElsewhereError
        del self.waited[task.id]

    def _handed_on(self, lease: Lease, target: Task, response: Response) -> Done:
        alias = self._alias(lease, response, final_url=target.url)
        return Done(tasks=(target,), settlements=(alias,))

    def _alias(self, lease: Lease, response: Response, *, final_url: str) -> Settlement:
        """Return the end of a task whose page is another one's."""
        visit, revisit = self.revisits.of_alias(lease.task, now=self.ledger.now())
        info = replace(info_of(response), final_url=final_url)
        return self.settling.settle(lease, Moved(response=info, visit=visit, revisit=revisit))

    async def _claim(self, task: Task) -> Lease | None:
        """Add a task and lease it, if nobody has it or has done it."""
        # A cancelled claim would leave a lease that nobody knows of.
        with anyio.CancelScope(shield=True):
            await self.adder.add([task])
            self.seen.add([task.id])
            record = await self.ledger.tasks.get(task.id)
            if record is None or record.task.status not in WAITING:
                return None
            if is_quarantined(record.task):
                return None  # to be worked on by itself
            # Sent again by itself: what the first one got looks taken to everybody else.
            claimed = await self.ledger.leases.claim(
                [record.task],
                worker=self.worker,
                lease=self.settings.lease,
                max_lost=self.settings.max_lost,
            )
            self.held.add(claimed.leases)
        return next(iter(claimed.leases), None)


class _ElsewhereError(Exception):
    """Another process works on the target of a redirect."""


def _like(task: Task) -> datetime | None:
    """Return when the page behind a redirect is to have changed: one done again leads to one.

    Where this one is only visited again, so is that one, when its own time has come.
    """
    return EACH_RUN if task.settled and task.visit is None else None


#: A crawl ends without a page that so many attempts in this process have come to nothing with.
_ENOUGH = 3
_FIRST_WAIT = timedelta(seconds=1)
#: So long that even a large crawl is through with all such pages before the first is due again.
_LONGEST_WAIT = timedelta(days=1)
_PACKAGE = __name__.partition(".")[0]


class InternalErrors:
    """The errors of crawlcw's own in one process, and the pages that met them.

    Such an error is no outcome of a page, and costs it no attempt. The page is tried again
    after a wait that doubles each time, so that a crawl cannot spin on it. When nothing else
    is left the crawl ends, and the pages stay in the ledger for the next run.
    """

    def __init__(
        self, ledger: Ledger, stats: Stats, *, end: Callable[[FinishReason, str], None]
    ) -> None:
        """*end* ends the crawl softly, see `Ending.end`."""
        self._ledger = ledger
        self._stats = stats
        self._end = end
        self._times: Counter[bytes] = Counter()  #: task id -> attempts in a row
        self._last = ""

    def put_off(self, lease: Lease, error: Exception) -> Lease:
        """Log an error; return the lease such that its release leaves the page due later."""
        self._stats.internal_errors += 1
        self._times[lease.task.id] += 1
        times = self._times[lease.task.id]
        wait = backoff(times, base=_FIRST_WAIT, ceiling=_LONGEST_WAIT)
        place = _place(error)
        self._last = f"{describe_error(error)} at {place}"
        logger.error(
            "an error of crawlcw itself at %s on %s: %s; the page is tried again in %s",
            place,
            printable(lease.task.url),
            printable(describe_error(error)),
            format_duration(wait),
            exc_info=error,
            extra={"event": "internal", "url": lease.task.url, "reason": place},
        )
        return put_off(lease, until=self._ledger.now() + wait)

    def settled(self, lease: Lease) -> None:
        """Note that something has come of a page."""
        if self._times:
            self._times.pop(lease.task.id, None)

    async def end_where_nothing_else_is_left(self) -> None:
        """End the crawl where only pages are left that were tried often enough."""
        if not self._times:
            return
        unfinished = TaskFilter(statuses=(*WAITING, Status.PROCESSING))
        left = await self._ledger.queries.find(unfinished, limit=len(self._times) + 1)
        if left and all(self._times[record.task.id] >= _ENOUGH for record in left):
            pages = "1 page" if len(left) == 1 else f"{len(left):,} pages"
            self._end(
                FinishReason.INTERNAL_ERROR,
                f"an error of crawlcw itself keeps {pages} from being done: {self._last}",
            )


def _place(error: BaseException) -> str:
    """Return the module and the line of crawlcw's own that an error was last in."""
    place, frame = "", error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if not place or module.partition(".")[0] == _PACKAGE:
            place = f"{module}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place or "a place that is not known"
