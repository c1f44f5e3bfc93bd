"""Turn the response or the failure of an attempt into the outcome of its task.

If an attempt counts, the result is `Done`, which holds the writes for the task. If an attempt does
not count, `Defer` is raised. `Causes` first notes how the host answered. The host's slot is freed
before the callback or errback runs, so the next request may start while the page is parsed.
"""

import logging
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import NoReturn

from crawlcw.api.attempt import replaced
from crawlcw.api.response import Response
from crawlcw.api.sessions import condition
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named
from crawlcw.api.user_code import Raised
from crawlcw.archive.bodies import Bodies
from crawlcw.crawl.callbacks import Produced, Runner
from crawlcw.crawl.causes import Causes, PageAttempt
from crawlcw.crawl.sessions import Sessions
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.stats import NO_STEP
from crawlcw.errors import (
    FAILURE_REASONS,
    Defer,
    FetchError,
    ProxiesAwayError,
    Reason,
    SpiderError,
    StopCrawl,
)
from crawlcw.fetch.redirects import status_error, throttles
from crawlcw.fetch.user_layers import SpiderFaultError
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.counters import FinishReason
from crawlcw.model.durations import format_duration
from crawlcw.model.retry import backoff
from crawlcw.model.sanitize import describe_error, printable, text_of
from crawlcw.model.task import NO_OPTIONS, WAITING, Lease, ResponseInfo, Status, StoredPage, Task
from crawlcw.model.transitions import Failed, Outcome, Settlement, Succeeded, Unchanged, settle
from crawlcw.model.visits import RevisitPolicy, Visit

logger = logging.getLogger(__name__)

#: Reasons of failures that happen only after the host has sent a correct response.
_AFTER_RESPONSE = frozenset(
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

NOT_MODIFIED = 304

#: Type of the function that ends the crawl, see `Ending.end`.
End = Callable[[FinishReason, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of an attempt: the outcomes and links to write to the ledger."""

    settlements: tuple[Settlement, ...]
    produced: Produced = field(default_factory=Produced)  #: links and items of the callback


@dataclass
class Outcomes:
    """Turns attempts into results, and runs the spider's callbacks and errbacks."""

    session: InitVar[WorkerSession]
    settings: Settings
    _: KW_ONLY
    runner: Runner
    causes: Causes
    sessions: Sessions
    bodies: Bodies | None  #: stores pages; None if the crawl stores no pages
    end: End

    def __post_init__(self, session: WorkerSession) -> None:
        settings = self.settings
        self.instruments = session.instruments
        self.revisits = Revisits(settings.revisit_policy)
        self.errors = CallbackErrors(self.runner.spider, self.end)
        self.state = self.runner.state
        self.now = session.ledger.now
        self.watchdog = session.watchdog
        self.banned_when = condition(self.runner.spider, "banned_when")
        self._stats = session.stats
        # Build the retry policy once, because the settings build a new policy at each access.
        self._retries = settings.retry_policy
        self._throttles = partial(throttles, statuses=settings.throttle_statuses)
        self._max_probe_s = min(settings.timeout, settings.read_timeout)

    def settled(self, lease: Lease, outcome: Outcome) -> Settlement:
        """Return the change that *outcome* makes to a task, and log the outcome."""
        options, policy = lease.task.options, self._retries
        settlement = settle(
            lease,
            outcome,
            now=self.now(),
            policy=policy if options is NO_OPTIONS else policy.with_options(options),
            chance=random.random(),
        )
        final = settlement.change.status is Status.IGNORED
        if logger.isEnabledFor(logging.INFO if final else logging.DEBUG):
            _log(lease, settlement)
        return settlement

    # Pages.

    def answered(self, attempt: PageAttempt, response: Response) -> None:
        """Record that the host of a page has given a good response."""
        task = attempt.lease.task
        # If another proxy failed for this page before, that proxy must have been the cause.
        self.causes.proxies.note_fetched(task.url, response.proxy)
        self.causes.answered_well(task.host, task.url, latency=attempt.latency, sent=attempt.sent)

    async def parsed(self, attempt: PageAttempt, response: Response) -> Done:
        """Run the callback of a page."""
        lease, task, callback = attempt.lease, attempt.lease.task, attempt.request.callback
        if attempt.session is not None:
            response = replaced(response, session=attempt.session.page_session())
        if task.visit is not None and self.revisits.is_same(task.visit, response):
            return await self.unchanged(attempt, response)
        # Store the page before the callback, because the callback may fail.
        stored_page = await self.keep(attempt) if attempt.exchanges else None
        instruments = self.instruments
        with NO_STEP if instruments is None else instruments.parse(lease, callback) as step:
            produced = await self.runner.run(callback, response, task=task, attempt=attempt)
            if step is not None and isinstance(produced, Failed):
                step.record_failure(produced.reason)
        if isinstance(produced, Produced) and produced.retired is not None:
            produced = await self._retired(attempt, produced.retired)
        if isinstance(produced, Failed):
            if produced.reason is Reason.FILES_UNWRITABLE:
                self._end_unwritable(produced.message)
            self.errors.raised(callback, produced, url=task.url)
            error = FetchError(produced.reason, produced.message)
            error.response = response
            return await self.failed(attempt, error, replace(produced, stored=stored_page))
        self.errors.good.add(callback)
        if produced.stop is not None:
            self.end(FinishReason.STOPPED_BY_SPIDER, produced.stop)
        self._finished(attempt, response)
        visit, revisit = self.revisits.changed(task, response, now=self.now())
        outcome = Succeeded(
            response=info_of(response),
            items=tuple(produced.items),
            visit=visit,
            revisit=revisit,
            kept_versions=self.settings.keep_versions,
            stored=stored_page,
        )
        return Done(settlements=(self.settled(lease, outcome),), produced=produced)

    def _end_unwritable(self, message: str) -> NoReturn:
        """End the crawl without counting the attempt, because no file can be saved."""
        self.end(FinishReason.FILES_UNWRITABLE, message)
        raise Defer(message)

    async def unchanged(self, attempt: PageAttempt, response: Response) -> Done:
        """Record that a page is unchanged, and do not call its callback."""
        task, stored = attempt.lease.task, None
        if task.stored is None:  # the request was unconditional, so the response has a body
            stored = await self.keep(attempt)
        elif self.bodies is not None:
            await self.bodies.keep(attempt, is_revisit=True)
        self._finished(attempt, response)
        visit, revisit = self.revisits.unchanged(task, response, now=self.now())
        outcome = Unchanged(visit=visit, revisit=revisit, stored=stored)
        return Done(settlements=(self.settled(attempt.lease, outcome),))

    async def keep(self, attempt: PageAttempt) -> StoredPage | None:
        """Store the page of an attempt if the crawl stores pages."""
        return None if self.bodies is None else await self.bodies.keep(attempt)

    def _finished(self, attempt: PageAttempt, response: Response) -> None:
        """Record that a page is finished, and whether it may become a probe page."""
        task, session = attempt.lease.task, attempt.session
        has_headers = bool(task.headers) and self._has_own_headers(task)
        plain = task.method == "GET" and not has_headers and response.url == task.url
        if session is not None:
            probe = response.url if plain else None
            self.sessions.answered_well(session, task, probe=probe)
        # A probe has the general timeout, so a probe page must be faster than this timeout.
        plain = plain and response.status < 300 and response.elapsed < self._max_probe_s
        self.causes.finished(task, probe_page=task.url if plain else None, size=response.size)

    def _has_own_headers(self, task: Task) -> bool:
        """Return whether a task has headers of the spider, beside the Referer of the crawl."""
        crawl_headers = () if self.settings.referer == "off" else ("Referer",)
        return any(name not in crawl_headers for name, _ in task.headers)

    async def _retired(self, attempt: PageAttempt, reason: str) -> Failed:
        """Return the failure of a page whose callback retired its session, or raise `Defer`."""
        attempt.free()
        session = attempt.session
        if session is None:
            # The callback has tried to retire the session of a page without a session.
            return Failed(
                reason=Reason.LOGGED_OUT, message=f"the page has no session to retire: {reason}"
            )
        if not await self.sessions.logged_out(
            session, attempt.lease.task, reason, by_callback=True
        ):
            raise Defer("its session is retired")
        return Failed(reason=Reason.LOGGED_OUT, message=reason)

    # Attempts that got no page:

    async def no_page(self, attempt: PageAttempt, response: Response) -> Done:
        """Record an error response; raises `Defer` if the page is not the cause of the error."""
        error = status_error(response, now=self.now())
        # A throttled response after a redirect does not show that this page is throttled.
        if self._throttles(response) and response.url == attempt.request.url:
            self.causes.throttled(attempt, error)
        else:
            await self.causes.failed(attempt, error)
        return await self._page_failure(attempt, error)

    async def denied(self, attempt: PageAttempt, response: Response) -> Done:
        """Record a banned or logged-out page; raises `Defer` to try another session or proxy."""
        attempt.free()  # free the slot, because a login probe may need a slot of the host
        task, reason, session = attempt.lease.task, attempt.denial, attempt.session
        assert reason is not None
        detail = f"HTTP {response.status} for {response.url}"
        if reason is Reason.BANNED:
            asker = "with every proxy or session"
            is_final = self.causes.banned(task, response.proxy if session is None else None)
            if session is not None:
                await self.sessions.banned(session, f"banned: {detail}")
        else:
            assert session is not None
            asker = "with a session that is logged in"
            is_final = await self.sessions.logged_out(session, task, detail, by_callback=False)
        if not is_final:
            raise Defer(f"{reason}: another session or proxy tries it")
        error = status_error(response, now=self.now())
        if response.status < 400:
            error = FetchError(reason, f"{detail}, {asker}", status=response.status)
            error.response = response
        return await self._page_failure(attempt, error)

    async def unanswered(self, attempt: PageAttempt, refusal: FetchError | StopCrawl) -> Done:
        """Record a failure without a response; raises `Defer` if the page is not the cause."""
        task = attempt.lease.task
        match refusal:
            case StopCrawl():
                self.end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(refusal)))
                raise Defer("the crawl ends") from refusal
            case SpiderFaultError(name=method, raised=raised):
                if self._stats.fetched:
                    # Another page was fetched before, so `method` has succeeded for that page.
                    self.errors.good.add(method)
                self.errors.raised(method, raised, url=task.url)
                # Free the host's slot now, because the errback may take long.
                attempt.free()
                return await self.failed(attempt, refusal, replace(raised, message=refusal.message))
            case ProxiesAwayError():
                raise Defer(refusal.message, due=timedelta(seconds=refusal.wait)) from refusal
            case FetchError(reason=Reason.FILES_UNWRITABLE):
                self._end_unwritable(refusal.message)
            case FetchError(reason=Reason.INTERNAL):
                raise refusal.__cause__ or refusal
        if self.watchdog.explains(refusal, attempt.started_at):
            raise Defer("the event loop stalled") from refusal
        await self.causes.failed(attempt, refusal)
        is_refused = refusal.reason in (Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT)
        # Give no advice if a redirect or a script of a rendered page led to the host.
        is_first = refusal.hop <= 1 and not isinstance(refusal.__cause__, FetchError)
        if is_refused and is_first and task.parent is None:
            advice = f'to crawl it, set allow_private=["{task.host}"]'
            refusal = FetchError(refusal.reason, f"{refusal.message}; {advice}")
        return await self._page_failure(attempt, refusal)

    async def given_up(self, attempt: PageAttempt, reason: Reason) -> Done:
        """Record a page whose origin the crawl has given up; the page's errback runs."""
        attempt.free()
        origin = attempt.request.url.partition("://")[0] + "://" + attempt.lease.task.host
        error = FetchError(reason, f"the crawl has given up {origin}")
        failed = Failed(reason=reason, message=error.message, last=True, tried=False)
        return await self.failed(attempt, error, failed)

    async def _page_failure(self, attempt: PageAttempt, error: FetchError) -> Done:
        """Record a failure that the page itself caused, and free the page's slot at its host."""
        task, response, status = attempt.lease.task, error.response, error.status
        # If only this page is throttled, do not count the response for or against the host's
        # health.
        if not (isinstance(response, Response) and self._throttles(response)):
            has_answered = attempt.redirects or error.hop > 1 or error.reason in _AFTER_RESPONSE
            if has_answered or (status is not None and status < 500):
                # A response that was cut off has a latency of 0, and this latency does not count.
                self.causes.answered_well(
                    task.host, task.url, latency=attempt.latency, sent=attempt.sent
                )
            elif error.reason in FAILURE_REASONS:
                self.causes.page_failed(task.host)
        # Free the slot first, because the errback may take long.
        attempt.free()
        return await self.failed(attempt, error)

    async def failed(
        self, attempt: PageAttempt, error: FetchError, failed: Failed | None = None
    ) -> Done:
        """Record *failed*, or *error* if *failed* is None; run the errback of a final failure."""
        lease, task, request = attempt.lease, attempt.lease.task, attempt.request
        if failed is None:
            # A page never waits longer than the maximum rest of a host.
            longest = self.settings.host_backoff_max.total_seconds()
            retry_after = error.retry_after
            failed = Failed(
                reason=error.reason,
                message=error.message,
                status=error.status,
                retry_after=None if retry_after is None else min(retry_after, longest),
            )
        if isinstance(error.response, Response):
            failed = replace(failed, response=info_of(error.response))
        if task.visit is not None:
            # The page existed at an earlier visit, so plan another visit even after this failure.
            failed = replace(failed, revisit=self.revisits.unchanged(task, now=self.now())[1])
        # Settle first, because only the settlement tells whether the failure is final.
        settlement = self.settled(lease, failed)
        if settlement.change.status is not Status.IGNORED:
            return Done(settlements=(settlement,))
        errback = request.errback or "on_error"
        produced = await self.runner.run(errback, request, error, task=task, attempt=attempt)
        if isinstance(produced, Failed):
            if produced.reason is Reason.FILES_UNWRITABLE:
                self._end_unwritable(produced.message)
            self.errors.log_error(errback, produced, url=task.url)
            return Done(settlements=(settlement,))
        if produced.stop is not None:
            self.end(FinishReason.STOPPED_BY_SPIDER, produced.stop)
        # A page that was finished before keeps its items, unless the errback returned new items.
        change = replace(settlement.change, items=tuple(produced.items) or None)
        return Done(settlements=(replace(settlement, change=change),), produced=produced)


#: Values of ETag and Last-Modified that a conditional request can send back unchanged.
_VALIDATOR = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class Revisits:
    """Decides whether a page has changed since its last visit, and when the next visit is due."""

    policy: RevisitPolicy

    def is_same(self, last: Visit, response: Response) -> bool:
        """Return whether the body of *response* equals the body at the *last* visit."""
        return last.digest is not None and last.digest == _digest(response)

    def changed(
        self, task: Task, response: Response, *, now: datetime
    ) -> tuple[Visit, datetime | None]:
        """Return the visit of a new or changed page, and the date of the next visit."""
        visit = Visit(
            time=now,
            changed=now,
            digest=_digest(response),
            etag=_validator(task, response, "etag"),
            last_modified=_validator(task, response, "last-modified"),
        )
        return self._dated(task, visit, changed=True)

    def of_alias(self, task: Task, *, now: datetime) -> tuple[Visit, datetime | None]:
        """Return the visit of a task that redirects to another task, and the next visit's date."""
        last_visit = task.visit
        visit = Visit(time=now, changed=now if last_visit is None else last_visit.changed)
        return self._dated(task, visit, changed=False)

    def unchanged(
        self, task: Task, response: Response | None = None, *, now: datetime
    ) -> tuple[Visit, datetime | None]:
        """Return the visit of an unchanged page, or of a failed page if *response* is None.

        The second value is the date of the next visit.
        """
        last_visit = task.visit
        assert last_visit is not None
        visit = replace(last_visit, time=now)
        if response is not None:
            # A 304 may omit unchanged headers, so use the last visit's headers in their place.
            etag = _validator(task, response, "etag") or last_visit.etag
            modified = _validator(task, response, "last-modified") or last_visit.last_modified
            visit = replace(visit, etag=etag, last_modified=modified)
        return self._dated(task, visit, changed=False)

    def _dated(self, task: Task, visit: Visit, *, changed: bool) -> tuple[Visit, datetime | None]:
        interval = self.policy.interval(task.options.revisit, task.visit, changed=changed)
        if interval is None:
            return visit if visit.interval is None else replace(visit, interval=None), None
        return replace(visit, interval=interval.total_seconds()), visit.time + interval


def _validator(task: Task, response: Response, name: str) -> str | None:
    """Return a header that a conditional request for the task's URL can send back, or None."""
    value = response.headers.get(name)
    if value is None or response.url != task.url or not _VALIDATOR.fullmatch(value):
        return None
    return value


def _digest(response: Response) -> str | None:
    """Return a digest of the response's body; None if the body was cut off."""
    if response.file is not None:
        return response.file.sha256
    if response.truncated is not None:
        return None
    # SHA-256 takes half the time of BLAKE2, because OpenSSL uses the processor's instructions.
    return sha256(response.body, usedforsecurity=False).hexdigest()


def info_of(response: Response) -> ResponseInfo:
    """Return the fields of a response that the ledger records."""
    content_type, etag, modified = map(
        response.headers.get, ("content-type", "etag", "last-modified")
    )
    return ResponseInfo(
        status=response.status,
        final_url=response.url,
        content_type=content_type and printable(content_type),
        bytes=response.size,
        elapsed=round(response.elapsed.total_seconds(), 4),
        etag=etag and printable(etag),
        last_modified=modified and printable(modified),
        truncated=response.truncated,
        file=None if response.file is None else response.file.path,
        sha256=None if response.file is None else response.file.sha256,
    )


def _log(lease: Lease, settlement: Settlement) -> None:
    """Log the outcome of a task; at debug level, also log the response."""
    change, url, callback = settlement.change, lease.task.url, lease.task.callback
    summary, log_fields = printable(callback), dict[str, int | str]()
    if (response := change.response) is not None:
        milliseconds = round(1000 * response.elapsed)
        summary = f"{response.status}, {response.bytes:,} bytes, {milliseconds:,} ms, {summary}"
        log_fields = {
            "status": response.status,
            "bytes": response.bytes,
            "milliseconds": milliseconds,
        }
    event, suffix = "finished", ""
    if (error := change.error) is not None:
        event = "given_up" if change.status is Status.IGNORED else "failed"
        suffix = f": {error.kind} {error.message}".rstrip()
        log_fields["reason"] = error.kind
    logger.log(
        logging.INFO if change.status is Status.IGNORED else logging.DEBUG,
        "%s %s%s%s",
        change.event,
        printable(url),
        suffix,
        f" ({summary})" if logger.isEnabledFor(logging.DEBUG) else "",
        extra={"event": event, "url": url, "callback": callback, **log_fields},
    )


#: A callback is broken if it never succeeded, and raised errors on this number of pages.
BROKEN_FROM = 20
#: Maximum number of different errors in the log; the ledger has the error of each page.
_MAX_LOGGED_ERRORS = 100


class CallbackErrors:
    """Logs an error of a spider's method once, and ends the crawl if the method is broken."""

    def __init__(self, spider: Spider, end: End) -> None:
        #: Names of callbacks that the spider has, and None, which stands for a missing errback.
        self.callbacks: set[str | None] = {None}
        self.good: set[str] = set()  #: names of methods that have succeeded on a page
        self._pages: Counter[str] = Counter()  #: number of pages on which a method raised
        self._logged_errors: set[tuple[str, str, str]] = set()
        self._spider = spider
        self._end = end

    def check(self, task: Task) -> None:
        """End the crawl and raise `Defer` if the spider lacks a callback of a page."""
        for callback in filter(None, (task.callback, task.errback)):
            try:
                callback_named(self._spider, callback)
            except SpiderError as error:
                message = (
                    f"{error}, but a page in the ledger needs it: if you renamed it, keep the old "
                    f"name in the class: `{callback} = parse_new`"
                )
                self._end(FinishReason.CALLBACK_BROKEN, printable(message, limit=400))
                raise Defer(str(error)) from error
            self.callbacks.add(callback)

    def raised(self, method: str, failed: Failed, *, url: str) -> None:
        """Note an error of a spider's *method*; raises `Defer` if the method is broken."""
        if failed.reason is not Reason.PARSE_ERROR:
            return
        # Defer the page, because it can be parsed after the user has repaired the method.
        if self._is_broken(method):
            raise Defer(f"{method} is broken")
        error_text = self.log_error(method, failed, url=url)
        self._pages[method] += 1
        if self._is_broken(method):
            failed_pages = self._pages[method]
            message = (
                f"a callback is broken: {method} raised on each of its first {failed_pages} pages, "
                f"most recently {error_text}"
            )
            self._end(FinishReason.CALLBACK_BROKEN, printable(message))

    def _is_broken(self, method: str) -> bool:
        return self._pages[method] >= BROKEN_FROM and method not in self.good

    def log_error(self, method: str, failed: Failed, *, url: str) -> str:
        """Log an error of a method at its first occurrence, with traceback; return it as a text."""
        error_text = failed.message or str(failed.reason)
        kind, where = failed.message, ""
        if isinstance(failed, Raised):
            kind, where = failed.error, failed.where
        if where:
            error_text += f" at {where}"
        key = (method, kind, where)
        if key not in self._logged_errors and len(self._logged_errors) < _MAX_LOGGED_ERRORS:
            self._logged_errors.add(key)
            logger.warning(
                "%s raised %s on %s",
                printable(method),
                printable(error_text),
                printable(url),
                extra={"event": "callback_failed", "url": url, "traceback": failed.traceback or ""},
            )
        return error_text


#: The crawl ends if each remaining page has met this number of internal errors in this process.
_MIN_TIMES = 3
_FIRST_WAIT = timedelta(seconds=1)
#: Longest wait between two tries of a page with internal errors.
_LONGEST_WAIT = timedelta(days=1)
_PACKAGE = __name__.partition(".")[0]


class InternalErrors:
    """Defers the pages that failed because of a bug in crawlcw itself.

    A page that fails by a bug is tried again, as long as other pages remain. The wait between two
    tries of a page doubles, and no try counts as an attempt.
    """

    def __init__(self, session: WorkerSession, *, end: End) -> None:
        self._times: Counter[bytes] = Counter()  #: number of attempts that met a bug, by task id
        self._ledger = session.ledger
        self._stats = session.stats
        self._end = end
        self._last = ""

    def deferred(self, lease: Lease, error: Exception) -> Defer:
        """Log an internal error; return the exception that defers its page."""
        self._stats.internal_errors += 1
        self._times[lease.task.id] += 1
        wait = backoff(self._times[lease.task.id], base=_FIRST_WAIT, ceiling=_LONGEST_WAIT)
        locations = [
            f"{frame.f_globals.get('__name__')}:{line}"
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        location = next(
            candidate for candidate in reversed(locations) if candidate.startswith(f"{_PACKAGE}.")
        )
        self._last = printable(f"{describe_error(error)} at {location}")
        logger.error(
            "a bug in crawlcw failed %s: %s; crawlcw tries the page again in %s",
            printable(lease.task.url),
            self._last,
            format_duration(wait),
            exc_info=error,
            extra={"event": "internal", "url": lease.task.url, "reason": location},
        )
        return Defer(self._last, due=wait)

    async def end_if_only_these_remain(self) -> None:
        """End the crawl if each remaining page has met at least `_MIN_TIMES` internal errors."""
        if not self._times:
            return
        unfinished = TaskFilter(statuses=(*WAITING, Status.PROCESSING))
        records = await self._ledger.queries.find(unfinished, limit=len(self._times) + 1)
        if records and all(self._times[record.task.id] >= _MIN_TIMES for record in records):
            pages = "1 page" if len(records) == 1 else f"{len(records):,} pages"
            self._end(
                FinishReason.INTERNAL_ERROR,
                f"a bug in crawlcw keeps {pages} unfinished: {self._last}",
            )
