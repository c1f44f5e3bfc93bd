"""Fetch the page of a leased task, and pass the result to the committer.

A failure of a page never ends a fetcher, because `Outcomes` turns the failure into an outcome of
that page. A page that meets a bug in crawlcw is requeued, see `InternalErrors`.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from functools import partial

import anyio

from crawlcw.api.attempt import LoggedOutError, Next, Purpose, user_attempt
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.crawl.causes import PageAttempt
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.moved import MovedPages
from crawlcw.crawl.outcomes import NOT_MODIFIED, Done, Outcomes
from crawlcw.crawl.robots import Robots
from crawlcw.engine.pool import Quarantine
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.stats import NO_STEP
from crawlcw.errors import Defer, FetchError, LedgerError, Reason, StopCrawl, UsageError
from crawlcw.fetch.pipeline import RENDERED
from crawlcw.fetch.redirects import REDIRECTS, is_page
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease
from crawlcw.model.transitions import deferred_lease
from crawlcw.model.visits import Visit

logger = logging.getLogger(__name__)

#: Maximum seconds that a quarantined page, which must run alone, waits for other pages to end.
_QUARANTINE_WAIT_S = 5.0
#: If the spider sends one of these headers, the fetcher does not add a conditional header.
_PRECONDITIONS = frozenset(
    ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range"]
)


@dataclass
class Fetcher:
    """Does the work of all fetchers of a process."""

    session: WorkerSession
    _: KW_ONLY
    next_by_purpose: Mapping[str, Next]  #: the layers for each purpose of a request
    robots: Robots
    coordinator: Coordinator  #: dispatches tasks
    outcomes: Outcomes
    moved: MovedPages

    def __post_init__(self) -> None:
        task_leases = self.session.leases
        self._quarantine = Quarantine(
            self.session.ledger, task_leases, max_wait_s=_QUARANTINE_WAIT_S
        )
        self._keeps_pages = self.outcomes.bodies is not None

    async def run(self, results: asyncio.Queue[Done]) -> None:
        """Fetch one task after another until cancelled."""
        task_leases, quarantine = self.session.leases, self._quarantine
        while True:
            # Use one cancel scope for many pages, until the loss of a lease cancels the scope.
            with anyio.CancelScope() as lease_scope:
                while not lease_scope.cancel_called:
                    lease = await self.coordinator.pool.get()
                    task_leases.cancel_scopes[lease.task.id] = lease_scope
                    result = None
                    try:
                        try:
                            result = await self._work(lease)
                            if result is not None:
                                # Wait for room in the queue before `note_done`, because `note_done`
                                # lets the coordinator send the next page to a fetcher.
                                await results.put(result)
                                self.session.stats.count_unwritten(result.settlements)
                        except BaseException:
                            settlements = () if result is None else result.settlements
                            leases = [entry.lease for entry in settlements]
                            # The session releases the leases in `orphans` and renews all others.
                            task_leases.orphans += filter(task_leases.is_current, leases)
                            for entry in (lease, *leases):
                                self.outcomes.state.undo(entry)
                            raise
                        finally:
                            task_leases.cancel_scopes.pop(lease.task.id, None)
                            self.coordinator.note_done(lease)
                        # The committer owns the outcome and the state changes from now on.
                        if quarantine.quarantined_lease is lease:
                            # Wait for the commit before other pages start. Before the commit, a
                            # crash by another page would count as a crash by the quarantined page.
                            await task_leases.wait_for_end(lease)
                    finally:
                        quarantine.leave(lease)
            self.session.stats.leases_lost += 1

    async def _work(self, lease: Lease) -> Done | None:
        """Return the result of one task; None if the task is requeued and no attempt counts.

        Only this method and `MovedPages.redirected` turn exceptions into results.
        """
        task, outcomes, frontier = lease.task, self.outcomes, self.coordinator.frontier
        try:
            if not {task.callback, task.errback} <= outcomes.errors.callbacks:
                outcomes.errors.check(task)
            session, has_slot = None, True

            def free() -> None:
                nonlocal has_slot
                has_slot = False
                self.coordinator.free_slot(lease)

            sessions, session_name = outcomes.sessions, task.options.session
            if (session_name or sessions.by_default) and frontier.given_up_reason(task) is None:
                session = await sessions.admit(task, free=free)
            # The spider's code in a running page may need the slot for a request of its own.
            if not await self._quarantine.enter(lease, before_wait=free):
                raise Defer("another page ran alone")
            attempt = PageAttempt(
                lease=lease,
                request=Request.of(task),
                slot=partial(self.coordinator.free_slot, lease) if has_slot else None,
                slot_host=task.host,
                session=session,
                exchanges=[] if self._keeps_pages else None,
                sent=outcomes.now(),
                started_at=time.monotonic(),
            )
            if not frontier.may_ask(task, now=attempt.started_at):
                if (given_up := frontier.given_up_reason(task)) is None:
                    raise Defer("its host must not get requests now")
                return await outcomes.given_up(attempt, given_up)
            async with attempt:
                if not has_slot:  # the session's login or another page has used the task's slot
                    await sessions.admission.enter(attempt, task.url)
                try:
                    return await self._page(attempt)
                except (FetchError, StopCrawl) as refusal:
                    return await outcomes.unanswered(attempt, refusal)
        except Defer as deferred:
            self._requeue(lease, deferred)
        except (LedgerError, UsageError):
            # A `UsageError`, such as a missing package, concerns every page.
            raise
        except Exception as error:
            self._requeue(lease, self.coordinator.internal_errors.deferred(lease, error))
        return None

    def _requeue(self, lease: Lease, deferred: Defer) -> None:
        logger.debug(
            "%s is deferred: %s",
            printable(lease.task.url),
            printable(deferred.cause),
            extra={"event": "deferred", "url": lease.task.url, "reason": deferred.cause},
        )
        self.outcomes.state.undo(lease)
        retry_at, to_ledger = deferred.due, self._quarantine.quarantined_lease is lease
        if isinstance(retry_at, timedelta):
            retry_at = self.outcomes.now() + retry_at
        if retry_at is not None:
            lease = deferred_lease(lease, due=retry_at)
        self.coordinator.requeue(lease, to_ledger=to_ledger)

    async def _page(self, attempt: PageAttempt) -> Done:
        """Return the result of a page's response; raises the failure if there is no response."""
        request, outcomes = attempt.request, self.outcomes
        response = await self._answer(attempt)
        # Measure the latency before parsing, because the host causes no stalls of the parser.
        stalled_s = outcomes.watchdog.stall_since(attempt.started_at)
        first_response = attempt.redirects[0] if attempt.redirects else response
        attempt.latency = first_response.elapsed.total_seconds() - stalled_s
        outcomes.causes.answered()
        if attempt.denial is not None:
            return await outcomes.denied(attempt, response)
        is_unchanged = (
            attempt.is_conditional and response.status == NOT_MODIFIED and not attempt.redirects
        )
        has_page = is_unchanged or is_page(response, request, self.outcomes.settings)
        is_redirect = response.status in REDIRECTS and not has_page
        if not (is_redirect or has_page):
            return await outcomes.no_page(attempt, response)
        outcomes.answered(attempt, response)
        # A page that stays open in a browser keeps its slot, because it sends more requests.
        if response.page is None:
            attempt.free()
        else:
            user_attempt.set(attempt)
        if is_redirect:
            return await self.moved.redirected(attempt, response)
        if is_unchanged:
            return await outcomes.unchanged(attempt, response)
        if (refresh := response.refresh) is not None:
            redirect_result = await self.moved.refreshed(attempt, response, refresh)
            if redirect_result is not None:
                return redirect_result
        if self.moved.scope.uses_canonical:
            alias_result = await self.moved.canonical(attempt, response)
            if alias_result is not None:
                return alias_result
        if response.url != request.url:
            return await self.moved.parsed(attempt, response)
        return await outcomes.parsed(attempt, response)

    async def _answer(self, attempt: PageAttempt) -> Response:
        """Request a page if robots.txt allows the URL; `Admission` checks redirects of the page."""
        task, request, stats = attempt.lease.task, attempt.request, self.session.stats
        frontier, session = self.coordinator.frontier, attempt.session
        if (rules := self.robots.known_rules(request.url)) is None:
            await self.robots.rules(request.url)
            raise Defer("its origin's robots.txt was fetched first")
        rules.check(request.url)
        if session is None:
            # An attempt with a session follows all redirects itself.
            attempt.follows = partial(self.moved.follows, attempt)
        ask, is_rendered = self.next_by_purpose[Purpose.PAGE], request.options.browser
        if self.outcomes.settings.browser if is_rendered is None else is_rendered:
            ask = self.next_by_purpose[RENDERED]
        elif (
            (visit := task.visit) is not None
            and self.outcomes.settings.cache == "off"
            and (task.stored is not None or not self._keeps_pages)
        ):
            # A 304 has no body. So ask for a 304 only if the page is not rendered and its body need
            # not be stored.
            request = conditional(request, visit)
            attempt.is_conditional = request is not attempt.request
        # The host's delay begins at the attempt's start, because a busy loop may delay this code.
        frontier.note_request(task.host, sent_at=attempt.started_at)
        instruments = self.outcomes.instruments
        try:
            with NO_STEP if instruments is None else instruments.fetch(attempt.lease) as step:
                try:
                    response = await ask(attempt, request)
                except LoggedOutError as login_error:
                    response, attempt.denial = login_error.response, Reason.LOGGED_OUT
                if step is not None:
                    step.record_response(status=response.status, size=response.size)
        except FetchError:
            # The time of the attempt's last request is unknown, so the delay counts from now.
            frontier.note_request(task.host, sent_at=time.monotonic())
            raise
        # Correct the time when the request was sent, because a slow connection may have delayed it.
        was_redirected = response.url != request.url
        elapsed = 0.0 if was_redirected else response.elapsed.total_seconds()
        frontier.note_request(task.host, sent_at=time.monotonic() - elapsed)
        stats.fetched += 1
        stats.bytes += response.size
        stats.truncated += response.truncated is not None
        stats.statuses[response.status] += 1
        may_be_banned = attempt.proxy is not None if session is None else session.may_be_banned
        if may_be_banned and attempt.denial is None:
            statuses = self.outcomes.settings.proxy_ban_statuses
            if response.status in statuses or self.outcomes.banned_when(response):
                attempt.denial = Reason.BANNED
        return response


def conditional(request: Request, visit: Visit) -> Request:
    """Return *request* with headers that ask for a 304 if the page is unchanged since *visit*."""
    if request.method != "GET" or request.body is not None:
        return request
    conditions = {"If-None-Match": visit.etag, "If-Modified-Since": visit.last_modified}
    added = tuple((name, value) for name, value in conditions.items() if value is not None)
    header_names = {name.lower() for name, _ in request.headers}
    if not added or header_names & _PRECONDITIONS:
        return request
    return request.retargeted(request.url, headers=(*request.headers, *added))
