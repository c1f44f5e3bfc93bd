"""From the result of an attempt to its transition.

The fetcher asks for a page, and calls here with the answer or the error. What comes of it is one of
four results: `Finished`, `Failed`, `Moved` (the page is another task's), or `Deferred`, by raising
`Defer`: the attempt does not count. `Outcomes.done` is the one place where a result becomes what
the committer writes.

A 429, or a 503 with Retry-After: `Failures.no_page`. Where the cause is the host, it rests and the
page is deferred behind the others, no attempt spent; where it is the page, the attempt has failed.

Nothing here writes the task. A process that dies before the committer has written leaves the
lease, which runs out, and the page is worked on again; see `committer` for the order of writes.
What an answer shows of its host (`Causes`) is noted before the host's slot is freed, and that
before the callback or the errback runs: the next request may leave while the page is parsed, and is
to find the host's delay and rest as this answer left them.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from crawlcw.api.attempt import Attempt, LoggedOutError, replaced
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.user_code import Raised
from crawlcw.crawl import callbacks
from crawlcw.crawl.bans import BannedError, Bans
from crawlcw.crawl.callbacks import Produced
from crawlcw.crawl.causes import Causes
from crawlcw.crawl.revisits import NOT_MODIFIED, Revisits
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.sessions import Sessions
from crawlcw.engine.instruments import UNSEEN, Instruments
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FAILURE_REASONS, Defer, FetchError, ProxiesAwayError, Reason, SpiderError
from crawlcw.fetch.recording import Recorder
from crawlcw.fetch.redirects import (
    status_error,
    throttles,
)
from crawlcw.fetch.user_layers import SpiderFaultError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model import transitions
from crawlcw.model.dropped import DroppedLinks
from crawlcw.model.durations import format_duration
from crawlcw.model.retry import backoff
from crawlcw.model.sanitize import printable
from crawlcw.model.task import WAITING, Lease, ResponseInfo, Status, Task
from crawlcw.model.tracebacks import describe_error
from crawlcw.model.transitions import (
    Outcome,
    Settlement,
    Succeeded,
    Unchanged,
    settle,
)

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
class Finished:
    """A page was got: its callback has run, or it is as at its last visit."""

    outcome: Succeeded | Unchanged
    produced: Produced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An attempt failed by the page's own fault; *produced* is its errback's, where that is final.

    It is settled already: before the errback runs, nothing else tells that the failure is final.
    """

    settlement: Settlement
    produced: Produced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A task whose page is another one's: a task's that is to be added, or one in hand."""

    outcome: transitions.Moved
    target: Task | None = None
    in_hand: tuple[Lease, Finished | Failed] | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """Nothing of an attempt counts, neither for the page nor for its host: the only "not tried"."""

    until: datetime | None  #: None: as soon as its host may be asked
    cause: str


#: What comes of an attempt that counts.
Result = Finished | Failed | Moved


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

    def succeeded(self, *methods: str) -> None:
        """Note that *methods* went through a page to their end."""
        if len(self._good) < _MOST_KNOWN:
            self._good.update(methods)

    def raised(self, callback: str, failed: transitions.Failed, *, url: str) -> str | None:
        """Note that *callback* raised on a page; return the sentence for a broken one."""
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

    def tell(self, callback: str, failed: transitions.Failed, *, url: str) -> None:
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


def _error(failed: transitions.Failed) -> str:
    return failed.message or str(failed.reason)


def _where(failed: transitions.Failed) -> str:
    return f" at {failed.where}" if isinstance(failed, Raised) and failed.where else ""


class Outcomes:
    """The outcomes of attempts, and the spider's errback where a failure is final."""

    def __init__(
        self,
        settings: Settings,
        runner: Runner,
        *,
        now: Callable[[], datetime],
        revisits: Revisits,
        errors: CallbackErrors,
        end: Callable[[FinishReason, str], None],
    ) -> None:
        """*now* is the ledger's; *end* ends the crawl softly, see `Ending.end`."""
        self.settings = settings
        self.runner = runner
        self.now = now
        self.revisits = revisits
        self.errors = errors
        self.end = end
        # Each page would make it of the settings again.
        self._retries = settings.retry_policy

    def done(self, lease: Lease, result: Result) -> Done:
        """Return the writes that end a task, by the result of its attempt."""
        match result:
            case Finished(outcome=outcome, produced=produced):
                return _done(produced, self.settle(lease, outcome))
            case Failed(settlement=settlement, produced=produced):
                return _done(produced, settlement)
            case Moved(outcome=outcome, target=target, in_hand=in_hand):
                page = Done(tasks=() if target is None else (target,))
                if in_hand is not None:
                    page = self.done(*in_hand)
                return replace(page, settlements=(*page.settlements, self.settle(lease, outcome)))
            case _:
                assert_never(result)

    def settle(self, lease: Lease, outcome: Outcome) -> Settlement:
        """Return the settlement of a task, and log it."""
        settlement = settle(
            lease,
            outcome,
            now=self.now(),
            policy=self._retries.with_own(lease.task.options),
            chance=random.random(),
        )
        _log(lease, settlement)
        return settlement

    def failure(
        self, error: FetchError, response: ResponseInfo | None = None
    ) -> transitions.Failed:
        """Return the outcome that an error is; *response* is what was answered, if anything."""
        # What a page asks for is no longer than what its host may ask for.
        longest = self.settings.host_backoff_max.total_seconds()
        asked = error.retry_after
        return transitions.Failed(
            reason=error.reason,
            message=error.message,
            status=error.status,
            retry_after=None if asked is None else min(asked, longest),
            response=response,
        )

    async def failed(
        self, attempt: PageAttempt, failed: transitions.Failed, error: FetchError
    ) -> Failed:
        """Settle a failure; where it is final, the spider is told and may still yield."""
        lease, request = attempt.lease, attempt.request
        again = self.revisits.after_failure(lease.task, now=self.now())
        # Before the errback: only what is settled tells whether the failure is final.
        settlement = self.settle(lease, replace(failed, revisit=again))
        if settlement.change.status is not Status.IGNORED:
            return Failed(settlement=settlement)
        errback = request.errback or "on_error"
        try:
            produced = await self.runner.run(errback, request, error, task=lease.task)
        except SpiderError as missing:
            logger.warning(
                "%s", printable(missing), extra={"event": "errback_missing", "url": lease.task.url}
            )
            return Failed(settlement=settlement)
        if isinstance(produced, transitions.Failed):
            self.errors.tell(errback, produced, url=lease.task.url)
            return Failed(settlement=settlement)
        self._stop_for(produced)
        # A page that was there once keeps what it gave, unless there is something instead.
        # Nothing of the task tells of that: what is done anew has no visit any more.
        change = replace(settlement.change, items=tuple(produced.items) or None)
        return Failed(settlement=replace(settlement, change=change), produced=produced)

    def note_callback(
        self, callback: str, produced: Produced | transitions.Failed, lease: Lease
    ) -> None:
        """Note how one of the spider's methods ended; raises `Defer` where it is broken."""
        if isinstance(produced, Produced):
            self.errors.succeeded(callback)
            self._stop_for(produced)
        elif produced.reason is Reason.PARSE_ERROR:
            if self.errors.is_broken(callback):
                # It waited for its turn meanwhile, and is for the mended callback as well.
                raise Defer(f"{callback} is broken")
            broken = self.errors.raised(callback, produced, url=lease.task.url)
            if broken is not None:
                self.end(FinishReason.CALLBACK_BROKEN, broken)

    def _stop_for(self, produced: Produced) -> None:
        if produced.stop is not None:
            self.end(FinishReason.STOPPED_BY_SPIDER, produced.stop)


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

    def deferred(self, lease: Lease, error: Exception) -> Deferred:
        """Log an error; return when its page is to be tried again."""
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
        return Deferred(self._ledger.now() + wait, self._last)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Answers that are pages: their callbacks, and what they show of host and session."""

    outcomes: Outcomes
    causes: Causes
    sessions: Sessions
    recorder: Recorder
    instruments: Instruments | None

    def answered(self, attempt: PageAttempt, response: Response) -> None:
        """Note that the host of a page answered it well."""
        task = attempt.lease.task
        # A proxy that failed it before is to blame for that.
        self.causes.proxies.got(task.url, response.proxy)
        self.causes.answered_well(
            task.host,
            task.url,
            latency=attempt.latency(response.elapsed.total_seconds()),
            sent=attempt.at,
        )

    async def parsed(self, attempt: PageAttempt, response: Response) -> Finished | Failed:
        """Run the callback of a page."""
        lease, callback = attempt.lease, attempt.request.callback
        if attempt.session is not None:
            response = replaced(response, session=attempt.session.page_session())
        if self.outcomes.revisits.is_same(lease.task, response):
            return await self.unchanged(attempt, response)
        if self.outcomes.errors.is_broken(callback):
            raise Defer(f"{callback} is broken")
        # Before the callback: a page that it fails on is kept as well.
        stored = await self.recorder.keep(attempt)
        watched = self.instruments
        with UNSEEN if watched is None else watched.parse(lease, callback) as seen:
            try:
                produced = await self.outcomes.runner.run(callback, response, task=lease.task)
            except SpiderError as missing:
                produced = callbacks.missing(missing)
            if seen is not None and isinstance(produced, transitions.Failed):
                seen.failed(produced.reason)
        if isinstance(produced, Produced) and produced.retired is not None:
            produced = await self._retired(attempt, produced.retired)
        self.outcomes.note_callback(callback, produced, lease)
        info = info_of(response)
        if isinstance(produced, transitions.Failed):
            error = FetchError(produced.reason, produced.message)
            error.response = response
            failed = replace(produced, response=info, stored=stored)
            return await self.outcomes.failed(attempt, failed, error)
        self._finished(attempt, response)
        visit, revisit = self.outcomes.revisits.changed(
            lease.task, response, now=self.outcomes.now()
        )
        outcome = Succeeded(
            response=info,
            items=tuple(produced.items),
            visit=visit,
            revisit=revisit,
            kept_versions=self.outcomes.settings.keep_versions,
            stored=stored,
        )
        return Finished(outcome=outcome, produced=produced)

    async def unchanged(self, attempt: PageAttempt, response: Response) -> Finished:
        """Record that a page is what it was: its callback has nothing new to read."""
        lease = attempt.lease
        stored = None
        if lease.task.stored is None and response.status != NOT_MODIFIED:
            stored = await self.recorder.keep(attempt)
        else:
            await self.recorder.keep_unchanged(attempt)
        self._finished(attempt, response)
        outcome = self.outcomes.revisits.unchanged(lease.task, response, now=self.outcomes.now())
        return Finished(outcome=replace(outcome, stored=stored))

    async def _retired(self, attempt: PageAttempt, why: str) -> Produced | transitions.Failed:
        """Have a session logged in anew that the callback has retired, the page put back."""
        session = attempt.session
        if session is None:
            # It is no session's, so the callback has changed nothing.
            return transitions.Failed(
                reason=Reason.LOGGED_OUT, message=f"no session to retire: {why}"
            )
        if not await self.sessions.refused(session, attempt.lease.task, why, told=True):
            raise Defer("its session is retired")
        return transitions.Failed(reason=Reason.LOGGED_OUT, message=why)

    def _finished(self, attempt: PageAttempt, response: Response) -> None:
        task, session = attempt.lease.task, attempt.session
        # A page that anybody may ask for again, and that nothing comes of.
        plain = _is_plain(task, response)
        if session is not None:
            probe = response.url if plain else None
            self.sessions.answered_well(session, task, probe=probe)
        plain = plain and response.status < 300
        self.causes.finished(task, good_url=task.url if plain else None, size=response.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Attempts that gave no page: the cause decides whether the page has failed, or is deferred."""

    outcomes: Outcomes
    causes: Causes
    sessions: Sessions
    bans: Bans
    watchdog: Watchdog
    stats: Stats
    internal: InternalErrors

    async def no_page(self, attempt: PageAttempt, response: Response) -> Failed:
        """Return the failure that an answer is which is no page; raises `Defer`."""
        error = status_error(response, now=self.outcomes.now())
        # Behind a redirect it is another page that is refused.
        if throttles(response) and response.url == attempt.request.url:
            deferred = self.causes.throttled(attempt.lease.task, error, sent=attempt.at)
        else:
            deferred = self.causes.of_proxy(
                attempt.lease.task,
                error,
                sent=attempt.at,
                began=attempt.began,
                has_own_proxy=attempt.has_own_proxy,
            )
        if deferred is not None:
            raise deferred
        return await self._own_failure(attempt, error, info_of(response))

    async def denied(self, attempt: PageAttempt, refused: LoggedOutError | BannedError) -> Failed:
        """Return the failure of a page that is refused to all; raises `Defer` to ask otherwise."""
        attempt.stood = self.watchdog.stalled(attempt.began)
        response, session = refused.response, attempt.session
        # Before the session is looked after, which takes a while: the host has answered now.
        self.causes.answered()
        why = f"HTTP {response.status} for {response.url}"
        if isinstance(refused, BannedError):
            reason, own = Reason.BANNED, await self._is_banned_alone(attempt, response, why)
        else:
            assert session is not None
            self.stats.fetched += 1
            self.stats.statuses[response.status] += 1
            task = attempt.lease.task
            reason = Reason.LOGGED_OUT
            own = await self.sessions.refused(session, task, why, told=False)
        if not own:
            raise Defer(f"{reason}: it is asked for with another session or proxy")
        if response.status >= 400:
            error = status_error(response, now=self.outcomes.now())
        else:
            error = FetchError(reason, f"{why}, {_DENIED[reason]}")
        return await self._own_failure(attempt, error, info_of(response))

    async def _is_banned_alone(self, attempt: PageAttempt, response: Response, why: str) -> bool:
        """Note a ban of a proxy or a session; return whether it is the page's own after all."""
        session, task = attempt.session, attempt.lease.task
        if session is None:
            return self.bans.note(task, response.proxy)
        own = self.bans.note(task, None)
        await self.sessions.banned(session, f"banned: {why}")
        return own

    async def unanswered(self, attempt: PageAttempt, refusal: FetchError) -> Failed:
        """Return the failure of a page that was not answered; raises `Defer` where it is another's.

        What may be the cause is asked in the order of how many pages it concerns: crawlcw itself,
        the disk, all proxies, this process's loop, the host or the network; the page comes last.
        """
        lease, began = attempt.lease, attempt.began
        if refusal.reason is Reason.INTERNAL:
            raise refusal.__cause__ or refusal
        if refusal.reason is Reason.FILES_UNWRITABLE:
            # No other file could be saved either: no attempt is spent before the disk is mended.
            self.outcomes.end(FinishReason.FILES_UNWRITABLE, refusal.message)
            raise Defer(refusal.message) from refusal
        if isinstance(refusal, ProxiesAwayError):
            until = self.outcomes.now() + timedelta(seconds=refusal.wait)
            raise Defer(refusal.message, until=until) from refusal
        if self.watchdog.explains(refusal, began):
            raise Defer("the event loop stood still") from refusal
        deferred = await self.causes.failed(
            lease.task,
            refusal,
            sent=attempt.at,
            began=began,
            has_own_proxy=attempt.has_own_proxy,
        )
        if deferred is not None:
            raise deferred
        attempt.stood = self.watchdog.stalled(began)
        return await self._own_failure(attempt, _with_advice(refusal, lease.task))

    async def given_up(self, attempt: PageAttempt, reason: Reason) -> Failed:
        """Return the failure of a page whose origin was given up: only the spider is told."""
        attempt.slot.free()
        origin = attempt.request.url.partition("://")[0] + "://" + attempt.lease.task.host
        error = FetchError(reason, f"{origin} was given up")
        failed = transitions.Failed(reason=reason, message=error.message, last=True, tried=False)
        return await self.outcomes.failed(attempt, failed, error)

    async def faulty(self, attempt: PageAttempt, fault: SpiderFaultError) -> Failed:
        """Return the failure of a page for which a hook or the spider's downloader raised."""
        if self.outcomes.errors.is_broken(fault.name):
            raise Defer(f"{fault.name} is broken")
        self.outcomes.note_callback(fault.name, fault.raised, attempt.lease)
        # Of the host it says nothing.
        failed = replace(fault.raised, message=fault.message)
        return await self.outcomes.failed(attempt, failed, fault)

    async def _own_failure(
        self, attempt: PageAttempt, error: FetchError, response: ResponseInfo | None = None
    ) -> Failed:
        """Return a failure of the page's own, and free its host's slot."""
        failed = self.outcomes.failure(error, response)
        self._note(attempt, failed, error)
        # The errback may take its time: the host need not wait for it.
        attempt.slot.free()
        return await self.outcomes.failed(attempt, failed, error)

    def _note(self, attempt: PageAttempt, failed: transitions.Failed, error: FetchError) -> None:
        """Tell of a page that failed: of the host it says little, but not nothing."""
        if isinstance(error.response, Response) and throttles(error.response):
            return  # it was refused by itself, neither a sign of load nor of health
        task = attempt.lease.task
        answered = error.hop > 1 or failed.reason in _BEHIND_AN_ANSWER
        status = failed.response.status if failed.response else failed.status
        if answered or (status is not None and status < 500):
            elapsed = failed.response.elapsed if failed.response else 0.0
            latency = attempt.latency(elapsed)
            self.causes.answered_well(task.host, task.url, latency=latency, sent=attempt.at)
        elif failed.reason in FAILURE_REASONS:
            self.causes.page_failed(task.host)


def _is_plain(task: Task, response: Response) -> bool:
    return task.method == "GET" and not task.headers and response.url == task.url


def _done(produced: Produced | None, settlement: Settlement) -> Done:
    if produced is None:
        return Done(settlements=(settlement,))
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


def info_of(response: Response) -> ResponseInfo:
    """Return the recorded part of an answer."""
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
