"""Find the cause of a failed attempt: the page, its origin, a proxy, or this machine's uplink.

`Causes` reports the end of each request to the circuit breakers of `model.health`. The circuit
breakers decide whether a host pauses (rests), slows down or is given up. A response or failure
counts for the task's origin only if no redirect led to it. A failure after a redirect counts as a
failure of the page that redirects.
"""

import logging
import random
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta

import anyio

from crawlcw.api.attempt import Attempt, Next, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.crawl.host_queues import CLAIM_AHEAD_S
from crawlcw.crawl.hosts import Frontier, FrontierHost, Phase
from crawlcw.engine.stats import Stats
from crawlcw.errors import Defer, FetchError, Reason, StopCrawl
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.fetch.redirects import status_error, throttles
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import health, hosts, urls
from crawlcw.model.durations import format_duration
from crawlcw.model.health import HOST_FAILURES, PAST_THE_NAME, Cause, Marks, remember
from crawlcw.model.idle_reason import Rests, failure_text
from crawlcw.model.loans import Fault
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable, text_of
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import deferred_lease
from crawlcw.model.urls import scheme_of

logger = logging.getLogger(__name__)

#: A throttled page waits for twice the delay of its host, and for at least 1 s. Meanwhile the
#: host's other pages are requested, even pages of lower priority.
_DELAYS_BEHIND = 2
_MIN_BEHIND_S = 1.0
#: A page fails after this number of bans of different proxies or sessions.
_MAX_BANS = 4
#: If this number of hosts remains besides the failed host, we assume that one of them answers.
_FEW_HOSTS = 100
#: Seconds to wait after the request for the newest probe page before requesting the other pages.
_FIRST_PROBE_S = 0.5


def deferral(cause: Cause, due: datetime | None = None) -> Defer:
    """Return the deferral of a page that is not the cause of its failure; it ends at *due*."""
    return Defer(f"the cause is the {cause}, not the page", due=due)


@dataclass(slots=True, kw_only=True, eq=False)
class PageAttempt(Attempt):
    """One attempt to fetch the page of a task."""

    lease: Lease
    sent: datetime  #: start of the attempt by the ledger's clock
    started_at: float  #: start of the attempt by the monotonic clock
    latency: float = 0.0  #: seconds until the response, excluding stalls of the event loop
    denial: Reason | None = None  #: ban or logout that the response shows, or None

    @property
    def number(self) -> int:
        """See `Attempt.number`."""
        return self.lease.task.retry + 1


@dataclass
class Causes:
    """Notes how requests end, and defers a page that did not cause its failure.

    A request's start is *sent* by the ledger's clock, and *started_at* by the monotonic clock.
    """

    frontier: Frontier
    proxies: ProxyPool
    call_next: Next  #: requests probe pages
    _: KW_ONLY
    ledger: Ledger
    stats: Stats  #: counters of host failures and given-up origins
    rests: Rests  #: which hosts pause after failures, and whether the uplink is down
    #: Ends the crawl if a layer raises `StopCrawl` for a probe page.
    stop: Callable[[str], None]
    _marks: Marks = field(init=False, default_factory=OrderedDict)
    #: Number of bans of each page, by the id of its task.
    _bans: OrderedDict[bytes, int] = field(init=False, default_factory=OrderedDict)
    _check_wanted: anyio.Event = field(init=False, default_factory=anyio.Event)
    _check_done: anyio.Event = field(init=False, default_factory=anyio.Event)
    _check_scope: anyio.CancelScope | None = None  #: cancelled by a response

    def __post_init__(self) -> None:
        self._policy = self.frontier.policy
        self._uplink = self.frontier.uplink
        self._now = self.frontier.ledger_now

    # --- responses

    def answered(self) -> None:
        """Record that some host has sent a response; its status may be an error."""
        if self._uplink.answered(now=self.frontier.clock()) and self._check_scope is not None:
            # End the uplink check, because a probe of a silent host would prolong the check.
            self._check_scope.cancel()

    def answered_well(self, host_name: str, url: str, *, latency: float, sent: datetime) -> None:
        """Note a good response after *latency* seconds; it ends the host's series of failures."""
        host, scheme = self.frontier.hosts.get(host_name), scheme_of(url)
        if host is None:
            return
        host.slice_responses += 1
        closed = host.state.origin_answered(
            scheme,
            latency=host.slow_start.answered(latency=latency, sent=sent),
            sent=sent,
            marks=self._marks,
            policy=self._policy,
        )
        if closed:
            # Save the host now, because the response ends a series of failures. Other changes of
            # the host are saved when the host is released.
            self.frontier.pending.save(host)
            self.stats.hosts_given_up.pop(f"{scheme}://{host_name}", None)
        host.pace()

    def finished(self, task: Task, *, probe_page: str | None, size: int) -> None:
        """Record that a task's page of *size* bytes is finished.

        *probe_page* is the page's URL, or None if the page is no suitable probe page.
        """
        host = self.frontier.hosts.get(task.host)
        # Do not count a revisit, because it is not a new page of the host.
        if host is not None and task.visit is None:
            host.state.finished += 1
            host.pages += 1
            if probe_page is not None:
                host.origin(task).learned(probe_page, size=size)
            if self.frontier.page_limit.is_reached(host.state):
                self.frontier.mark_full(host)
            host.pace()
        if probe_page is not None:
            self._uplink.learned(task.host, probe_page)

    def page_failed(self, host_name: str) -> None:
        """Note a failure that the page itself caused; it says little about the page's host."""
        if host := self.frontier.hosts.get(host_name):
            host.slice_responses += 1
            host.state.page_failed(self._policy)
            host.pace()

    # --- throttling

    def throttled(self, attempt: PageAttempt, error: FetchError) -> None:
        """Note a response that asks to slow down; raises `Defer` unless the page must fail.

        A throttled response has the status 503 and Retry-After, or a status of `throttle_statuses`
        (by default 429). If the cause is unknown, the response does not count yet, and
        `Opening.probe` requests a probe page. After a good response to the probe, `answered_well`
        lets the host continue. Without a good response, `unanswered` lets the host rest.
        """
        task = attempt.lease.task
        self._throttled(task.id, task.host, task.url, error, sent=attempt.sent)

    def _throttled(
        self, page: bytes, host_name: str, url: str, error: FetchError, *, sent: datetime
    ) -> None:
        now, host = self._now(), self.frontier.hosts.get(host_name)
        if host is not None:
            origin = host.state.origins[scheme_of(url)]
            cause = origin.throttled(
                self._marks,
                page,
                error,
                url=url,
                sent=sent.timestamp(),
                now=now.timestamp(),
                may_probe=host.lease is not None and host.phase is not Phase.LEAVING,
                is_new=host.state.finished < hosts.FIRST_PAGES,
            )
            if cause is Cause.PAGE:
                host.slice_responses += 1
                host.state.page_throttled(self._policy)
                host.pace()
                return
            if cause is None:
                rest_s = self._policy.rest(1, retry_after=error.retry_after)
                if origin.probe is not None and origin.probe.rested:
                    host.rest(seconds=rest_s)
                host.enter(Phase.OPENING)
                raise _defer_behind_others(host, now + timedelta(seconds=rest_s))
        self._log(host_name, error)
        raise self.origin_failed(host_name, url, error, sent=sent, refused=page)

    def reported(self, host_name: str, fault: Fault) -> None:
        """Note a failure that the borrower of a host's slots, another worker, has reported."""
        error = FetchError(Reason(fault.reason), status=fault.status, retry_after=fault.retry_after)
        # Ignore the `Defer` of the page, because the borrower itself defers the page.
        with suppress(Defer):
            if fault.throttled is None:
                self.origin_failed(host_name, fault.url, error, sent=fault.sent)
            else:
                self._throttled(fault.throttled, host_name, fault.url, error, sent=fault.sent)

    def banned(self, task: Task, proxy: Proxy | None) -> bool:
        """Record that a site banned *proxy* for *task*'s page; return whether the page must fail.

        If the page does not fail, another proxy or session must request the page.
        """
        pool, max_bans = set(self.proxies.proxies), _MAX_BANS
        if proxy is not None:
            if proxy not in pool:
                # the request or the environment sets this proxy, so no other proxy may be tried
                return True
            max_bans = min(max_bans, len(pool))
        count, host = self._bans.get(task.id, 0) + 1, urls.parse(task.url).raw_host or ""
        if count >= max_bans:
            # If all proxies are banned at one page, the page is the cause, not the proxies.
            self._bans.pop(task.id, None)
            self.proxies.unban(host)
            return True
        remember(self._bans, task.id, count)
        if proxy is not None:
            self.proxies.ban(proxy, host)
        return False

    # --- failures

    async def failed(self, attempt: PageAttempt, error: FetchError) -> None:
        """Note a failed request or error response; raises `Defer` if the page is not the cause."""
        if error.hop > 1:
            self.answered()
        task = attempt.lease.task
        # If a proxy may be the cause, defer the page so that another proxy requests it. A session
        # keeps its proxy, so another proxy needs another session of the session's pool.
        session = attempt.session
        is_fixed = session is not None and (
            not session.identity.is_pooled or session.proxy in self.proxies.tried(task.url)
        )
        wait = self.proxies.another_in(error, task.url, is_fixed=is_fixed)
        if wait is not None:
            raise deferral(Cause.PROXY, self._now() + timedelta(seconds=wait) if wait else None)
        if error.hop > 1 or error.reason is Reason.HTTP_STATUS:
            return
        # If a page's failure is no failure of its host, an outage may defer the page one time.
        page = None if error.reason in HOST_FAILURES else task.id
        deferred = await self.unanswered(
            task.host, task.url, error, sent=attempt.sent, started_at=attempt.started_at, page=page
        )
        if deferred is not None:
            raise deferred

    async def unanswered(
        self,
        host_name: str,
        url: str,
        error: FetchError,
        *,
        sent: datetime,
        started_at: float,
        page: bytes | None = None,
    ) -> Defer | None:
        """Note a failed request to an origin; return a deferral, or None if the page must fail."""
        if await self.blames_uplink(
            host_name, url, error.underlying, started_at=started_at, page=page
        ):
            return deferral(Cause.UPLINK)
        if page is not None:
            return None
        self._log(host_name, error)
        in_haste = await self._nothing_else_waits(host_name, url, error)
        return self.origin_failed(host_name, url, error, sent=sent, in_haste=in_haste)

    async def blames_uplink(
        self,
        host_name: str,
        url: str,
        reason: Reason,
        *,
        started_at: float,
        page: bytes | None = None,
    ) -> bool:
        """Note a failed request to an origin; return whether our own uplink is the cause.

        Waits for a check of the uplink if no host answers. If an outage may defer the page one
        time, *page* is the id of the task, otherwise None.
        """
        while True:
            now = self.frontier.clock()
            cause = self._uplink.failed(
                host_name, reason, started_at=started_at, now=now, page=page
            )
            if cause is not None:
                break
            self._check_wanted.set()
            await self._check_done.wait()
        if cause is not Cause.UPLINK:
            return False
        if reason in PAST_THE_NAME:
            self.resolved(host_name, url)
        return True

    def resolved(self, host_name: str, url: str) -> None:
        """Record that DNS has resolved a host's name to an address."""
        if host := self.frontier.hosts.get(host_name):
            host.state.origins[scheme_of(url)].resolved = True

    async def _nothing_else_waits(self, host_name: str, url: str, error: FetchError) -> bool:
        """Return whether the request met a closed port, and no origin of the crawl answered."""
        host = self.frontier.hosts.get(host_name)
        if not error.port_closed or host is None or not self.frontier.is_seeded:
            return False
        if host.state.origins[scheme_of(url)].good_at is not None:
            return False
        leased_hosts, waiting_hosts = await self.ledger.hosts.busiest(limit=_FEW_HOSTS)
        others_by_name = {other.name: other for other in (*leased_hosts, *waiting_hosts)}
        others_by_name |= {other.name: other.state for other in self.frontier.hosts.values()}
        others_by_name.pop(host_name, None)
        return len(others_by_name) < _FEW_HOSTS and all(
            other.is_silent for other in others_by_name.values()
        )

    def origin_failed(
        self,
        host_name: str,
        url: str,
        error: FetchError,
        *,
        sent: datetime,
        in_haste: bool = False,
        refused: bytes | None = None,
    ) -> Defer:
        """Note a failure of an origin, and return the deferral of the page that failed.

        *refused* is the id of the page if it was throttled, or None. If *in_haste*, the host's rest
        after the failure is short.
        """
        reason, scheme = error.underlying, scheme_of(url)
        host = self.frontier.hosts.get(host_name)
        if host is not None and host.borrowed_loan is not None:
            return self._report_to_owner(host, url, error, sent=sent, refused=refused)
        self.stats.host_failures[reason] += 1
        if host is None:
            return deferral(Cause.ORIGIN)
        now, origin = self._now(), host.state.origins[scheme]
        host.state.origin_failed(
            scheme,
            error,
            now=now,
            sent=sent,
            policy=self._policy.with_short_rests() if in_haste else self._policy,
            chance=random.random(),
        )
        host.slow_start.steps = 0
        self.frontier.pending.save(host)
        host.pace()
        if origin.given_up is not None and host.lease is not None:
            self.stats.host_given_up(f"{scheme}://{host_name}", str(origin.given_up))
            self._defer_origin(host, scheme, due=now)
            self.frontier.pending.ignore(host)
            return deferral(Cause.ORIGIN)
        description = failure_text(reason, status=error.status, retry_after=error.retry_after)
        rests_until = host.state.resting_until(scheme, now=now)
        if rests_until is not None and origin.given_up is None:
            # Only the failed origin's tasks leave the queue; the host's other origin continues.
            self._defer_origin(host, scheme, due=rests_until)
            self.rests.note(f"{scheme}://{host_name}", rest_end=rests_until, cause=description)
            return _defer_behind_others(host, rests_until)
        rests_until = rests_until or host.state.not_before or now
        self.rests.note(host_name, rest_end=rests_until, cause=description)
        rest_s = (rests_until - now).total_seconds()
        host.rest(seconds=rest_s)
        if host.lease is None or rest_s > CLAIM_AHEAD_S:
            host.enter(Phase.LEAVING)
        elif host.phase is Phase.SERVING and host.probe_url() is not None:
            # After the rest, request the probe page before any other page.
            host.enter(Phase.OPENING)
        return _defer_behind_others(host, rests_until)

    def _report_to_owner(
        self,
        host: FrontierHost,
        url: str,
        error: FetchError,
        *,
        sent: datetime,
        refused: bytes | None,
    ) -> Defer:
        """Send no more requests to a borrowed host, whose owner decides about the host's rest."""
        host.faults.append(
            Fault(
                url=url,
                reason=str(error.underlying),
                status=error.status,
                retry_after=error.retry_after,
                sent=sent,
                throttled=refused,
            )
        )
        host.enter(Phase.LEAVING)
        rest_s = self._policy.rest(1, retry_after=error.retry_after)
        return _defer_behind_others(host, self._now() + timedelta(seconds=rest_s))

    def _defer_origin(self, host: FrontierHost, scheme: str, *, due: datetime) -> None:
        """Remove the leased tasks of an origin from the queue, and defer the tasks until *due*."""
        prefix = f"{scheme}://"
        leases = self.frontier.queues.withdraw(
            host=host.name, is_unwanted=lambda lease: lease.task.url.startswith(prefix)
        )
        self.frontier.pending.release(deferred_lease(lease, due=due) for lease in leases)

    def _log(self, host_name: str, error: FetchError) -> None:
        logger.info(
            "host %s failed: %s",
            printable(host_name),
            printable(error),
            extra={"event": "host_failed", "host": host_name, "reason": str(error.reason)},
        )

    # --- our own uplink

    async def watch_uplink(self) -> None:
        """Request probe pages when requests fail and no host answers; run until cancelled."""
        while True:
            await self._check_wanted.wait()
            self._check_wanted = anyio.Event()
            while self._uplink.is_blocked and not await self._probe_uplink():
                pause = self._uplink.unanswered(now=self.frontier.clock())
                if pause is None:
                    logger.warning(
                        "the network has been down for %s: from now on, failures count for their "
                        "hosts",
                        format_duration(timedelta(seconds=health.LONGEST_OUTAGE)),
                        extra={"event": "network_given_up"},
                    )
                    break
                if self.rests.network_down_since is None:
                    self.rests.network_down_since = self._now()
                    logger.warning(
                        "no host answers, not even those that answered before: the network seems "
                        "to be down; no failure counts until a host answers",
                        extra={"event": "network_down"},
                    )
                    self._notify_check_done()
                # The wait until the next probe ends at once if any request gets a response.
                with anyio.CancelScope() as self._check_scope:
                    await anyio.sleep(pause)
            else:
                if self.rests.network_down_since is not None:
                    logger.warning("the network is up again", extra={"event": "network_back"})
            self.rests.network_down_since = None
            self._notify_check_done()

    async def uplink_known(self) -> None:
        """Wait until the uplink works, or until failures count again because of a long outage."""
        while self._uplink.is_blocked:
            await self._check_done.wait()

    async def request_probe(self, url: str) -> Response:
        """Return the response of *url* without following redirects.

        Raises `FetchError` if no response comes in time, or the response is throttled.
        """
        request = Request(url)
        async with Attempt(request=request, purpose=Purpose.PROBE, may_wait=False) as attempt:
            response = await self.call_next(attempt, request)
        if throttles(response, self._policy.throttle_statuses):
            raise status_error(response, now=self._now())
        return response

    async def _probe_uplink(self) -> bool:
        """Request the newest probe page, then all probe pages; return whether any host answers."""
        async with anyio.create_task_group() as probe_requests:
            self._check_scope = probe_requests.cancel_scope

            async def ask(host_name: str, url: str) -> None:
                # Note the probe: the host's next request must come one delay after the probe.
                self.frontier.note_request(host_name, sent_at=self.frontier.clock())
                try:
                    await self.request_probe(url)
                except FetchError as error:
                    if error.status is None:
                        return
                except StopCrawl as stop:
                    self.stop(printable(text_of(stop)))
                    return
                self.answered()

            for number, (host_name, url) in enumerate([*reversed(self._uplink.good_pages.items())]):
                probe_requests.start_soon(ask, host_name, url)
                if number == 0:
                    # Wait for the first host, because any response shows that the uplink works.
                    await anyio.sleep(_FIRST_PROBE_S)
        return not self._uplink.is_blocked

    def _notify_check_done(self) -> None:
        self._check_done.set()
        self._check_done = anyio.Event()
        self.frontier.poll_wanted.set()


def _defer_behind_others(host: FrontierHost, rests_until: datetime) -> Defer:
    """Defer a page until after *rests_until*, so that the host's other pages go first."""
    extra_s = max(_MIN_BEHIND_S, _DELAYS_BEHIND * host.queue.delay)
    return deferral(Cause.ORIGIN, rests_until + timedelta(seconds=extra_s))
