"""Circuit breaker for an origin, a proxy, or this machine's own uplink (Nygard, "Release It!").

The fields of a breaker determine its state; the guide on politeness has a diagram.

    state      allowed requests         event: next state
    closed     all, at its pace         fault: open; last fault: dead; a page gets 429 while there
                                        is a probe page: half-open; no responses (only uplink):
                                        checking
    checking   probe pages              good response: closed; no good response: open
    open       none                     pause ends: half-open; good response: closed; last fault:
                                        dead
    half-open  a probe, else next page  good response: closed; fault or 429: open; last fault: dead
    dead       an origin gets none      good response: closed; `retry-failed` of an origin: closed

Synchronous and without I/O. Times are seconds of a clock that never runs backwards. Breakers of
origins use the ledger's clock, because an origin gets requests from one process after another.
Breakers of proxies and of the uplink use the monotonic clock.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from crawlcw.errors import FetchError, Reason
from crawlcw.model.retry import backoff


class Cause(StrEnum):
    """The cause of a failed attempt; only PAGE costs the page an attempt."""

    PAGE = "page"
    ORIGIN = "origin"
    PROXY = "proxy"
    UPLINK = "uplink"


#: Failures on the way to the server; a single page cannot cause such a failure.
CONNECTION_FAILURES = frozenset(
    {Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN, Reason.CONNECT, Reason.TIMEOUT_CONNECT}
)
#: Failures that the origin causes, never the page. Throttling (429, or 503 with Retry-After) is not
#: in this set, because a page can cause it.
HOST_FAILURES = CONNECTION_FAILURES | {Reason.TLS, Reason.ROBOTS_UNAVAILABLE}
#: Failures that occur only after the host's name was resolved to an address.
PAST_THE_NAME = frozenset({Reason.CONNECT, Reason.TIMEOUT_CONNECT, Reason.TLS})
_DNS_FAILURES = frozenset({Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN})
#: Failures that the uplink may cause if it goes down before a request or during a request.
_UPLINK_FAILURES = CONNECTION_FAILURES | {
    Reason.TIMEOUT_READ,
    Reason.TIMEOUT_TOTAL,
    Reason.DISCONNECTED,
    Reason.PAYLOAD_TRUNCATED,
}
#: If no host answers for these seconds, crawlcw decides that the hosts have failed, not the uplink.
#: After this time crawlcw also gives up a host whose name DNS has found before and finds no longer.
LONGEST_OUTAGE = 3600.0
#: Default maximum number of entries that the function `remember` keeps in a map.
_MAX_ENTRIES = 10_000
#: Number by which `Policy.with_short_rests` divides the pauses. If a port refuses connections,
#: crawlcw by default gives it up after 7.5 s instead of 150 s. A server that restarts is usually
#: back within 7.5 s.
_SHORT_REST_DIVISOR = 20
#: Largest random extension of a pause, as a fraction of the pause, so that crawls continue at
#: different times.
_JITTER = 0.1


def remember(
    latest: OrderedDict[Any, Any], key: object, value: object, *, limit: int = _MAX_ENTRIES
) -> None:
    """Add an entry to a map as the latest entry; if the map exceeds *limit*, drop the oldest."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > limit:
        latest.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The pauses of a breaker after faults, and the number of faults that make the breaker dead."""

    backoff_base: timedelta = timedelta(seconds=10)
    backoff_max: timedelta = timedelta(hours=1)
    max_failures: int = 5
    auto_throttle: bool = True
    throttle_statuses: frozenset[int] = frozenset({429})  #: HTTP statuses that mean: slow down

    def with_short_rests(self) -> Self:
        """Return the policy with short pauses after failures, for a crawl without other work."""
        return replace(self, backoff_base=self.backoff_base / _SHORT_REST_DIVISOR)

    def rest(
        self, failures: int, *, retry_after: float | None = None, chance: float = 0.0
    ) -> float:
        """Return the length in seconds of the pause after *failures* failures in a row.

        *retry_after* is the pause in seconds that the host asked for. Every further failure in a
        row doubles the pause, with or without *retry_after*. *chance* is a random number in [0, 1).
        """
        # A Retry-After of zero seconds, or of a date in the past, asks for no pause.
        base = timedelta(seconds=retry_after) if retry_after else self.backoff_base
        max_rest = self.backoff_max
        rest = backoff(failures, base=min(base, max_rest), ceiling=max_rest)
        return min(rest * (1 + _JITTER * chance), max_rest).total_seconds()


@dataclass(slots=True, kw_only=True)
class Breaker:
    """A circuit breaker; a fault opens the breaker for a pause, and a good response closes it.

    After the pause the breaker is half-open, so one request may test the origin, proxy or uplink.
    """

    failures: int = 0  #: number of faults since the breaker was last closed
    failing_since: float | None = None  #: time of the first of these faults
    rest_end: float | None = None  #: end of the pause after the last fault
    opened_at: float = float("-inf")

    def open(self, *, now: float, rest: float, faults: int = 1) -> None:
        """Open the breaker because of one fault, or of several faults together."""
        self.failures += faults
        self.opened_at = now
        if self.failing_since is None:
            self.failing_since = now
        self.rest_end = max(self.rest_end or now, now + rest)

    def close(self) -> None:
        """Close the breaker, because a good response ends a series of failures."""
        self.failures = 0
        self.failing_since = self.rest_end = None


# --- origins

#: Number of faults after which an origin is given up if its name never had an address. The number
#: also holds if the origin's port never answered, but the host's other port answers. The second
#: fault rules out a short disturbance.
_FEW_FAILURES = 2
#: Maximum number of characters in the URL of a probe page.
_LONGEST_PROBE_PAGE = 500
#: Maximum size of a probe page in bytes; a larger page is used only if there is no other page.
_LARGEST_PROBE_PAGE = 64 * 1024
#: Maximum number of probe pages of an origin.
_PROBE_PAGES = 8
#: The host has a rate limit if this number of pages is newly throttled before a probe ends.
_LIMIT_EVIDENCE = 3
#: Longest pause in seconds before the first probe.
_SHORT_REST = 5.0


@dataclass(slots=True)
class _Mark:
    """A note that a page was throttled (429, or 503 with Retry-After)."""

    marked_at: float
    costs_attempt: bool = (
        False  #: whether the next throttling costs an attempt, because other pages succeeded
    )


Marks = OrderedDict[bytes, _Mark]
"""Map from task ids to throttled pages of a process; the map outlives the host's lease."""


@dataclass(slots=True)
class _Probe:
    """A probe to find out why an origin throttles pages although it had no failures."""

    started_at: float
    rested: bool  #: whether the host pauses before the probe
    #: Throttled pages by task id; True means that a page was throttled for the first time.
    pages: dict[bytes, bool] = field(default_factory=dict)
    retry_after: float = 0.0  #: longest Retry-After of the throttled pages, in seconds

    def shows_a_limit(self, delay: float) -> bool:
        """Return whether the host probably has a rate limit, although a probe got a good response.

        A host over its limit throttles every request, but may answer a probe a moment later. The
        evidence is the number of pages that were throttled for the first time. If other pages
        counted too, some pages would be throttled for ever without the loss of an attempt. If the
        host has a *delay*, which is a sign of a limit, one page is enough evidence.
        """
        first_throttled = sum(self.pages.values())
        # After a pause of the host any probe succeeds, so one page fewer is enough evidence.
        return first_throttled >= (1 if delay else _LIMIT_EVIDENCE - self.rested)


@dataclass(slots=True, kw_only=True)
class Origin(Breaker):
    """The breaker of an origin, such as `https://example.com` or `http://example.com`.

    The ledger stores an origin in its host's document, without the fields that only the host's
    owner needs.
    """

    unresolved: int = 0  #: number of DNS failures of a name that had an address
    good_at: float | None = None  #: time when the last request with a good response was sent
    resolved: bool = False  #: whether the host's name had an address in this crawl
    #: Number of probes by URL, for pages that sent good responses; the latest page is last.
    probes: dict[str, int] = field(default_factory=dict)
    given_up: Reason | None = None  #: why the origin was given up and its tasks ignored, or None
    probe: _Probe | None = None
    cleared: bool = False  #: whether a probe got a good response after pages were throttled
    has_responded: bool = False  #: whether the origin has responded, even if only by throttling

    def __post_init__(self) -> None:
        """Restore `opened_at`, which the ledger does not store."""
        if self.failing_since is not None:
            self.opened_at = self.failing_since

    @property
    def is_closed(self) -> bool:
        """Whether requests for all pages of the origin are allowed."""
        return not (self.failures or self.given_up or self.probe or self.rest_end)

    def sent_before_opening(self, sent: float) -> bool:
        """Return whether a failed request was sent before the breaker opened.

        Such a failure is part of the fault that opened the breaker, not another fault.
        """
        return sent <= self.opened_at

    def learned(self, url: str, *, size: int) -> None:
        """Keep *url* for probes; its page has *size* bytes, and the response was good."""
        if len(url) <= _LONGEST_PROBE_PAGE and (size <= _LARGEST_PROBE_PAGE or not self.probes):
            self.probes[url] = 0
            if len(self.probes) > _PROBE_PAGES:
                del self.probes[next(iter(self.probes))]

    @property
    def probe_page(self) -> str | None:
        """URL for the next probe, which is the probe page with the fewest probes so far."""
        return min(reversed(self.probes), key=self.probes.__getitem__, default=None)

    def answered(self, marks: Marks, *, sent: float, delay: float) -> bool:
        """Record a good response; return whether a rate limit of the host is likely.

        *delay* is the adaptive delay of the host. The response does not close the breaker if the
        request was sent before the breaker opened.
        """
        self.resolved = True
        self.good_at = sent if self.good_at is None else max(self.good_at, sent)
        probe, limited = self.probe, False
        if probe is not None:
            if sent < probe.started_at:
                return False
            self.probe, self.cleared, limited = None, True, probe.shows_a_limit(delay)
            for page in () if limited else probe.pages:
                if page in marks:
                    marks[page].costs_attempt = True
        elif self.given_up is None and (not self.failures or self.sent_before_opening(sent)):
            return False
        self.close()
        self.unresolved, self.given_up = 0, None
        return limited

    def throttled(
        self,
        marks: Marks,
        page: bytes,
        error: FetchError,
        *,
        url: str,
        sent: float,
        now: float,
        may_probe: bool,
        is_new: bool = False,
    ) -> Cause | None:
        """Return why a page was throttled, or None if a probe must show the cause.

        The page is the cause if another page got a good response after this page was throttled. If
        the cause is `Cause.ORIGIN`, the caller must call `fault`. If the host *is_new* and asks for
        a short pause, probe only after the pause. A host over its limit throttles every request
        until the pause ends.
        """
        self.resolved = True
        previous, mark = marks.get(page), _Mark(now)
        remember(marks, page, mark)
        # Use the previous mark only if the page was throttled after the breaker had opened.
        valid_mark = (
            previous if previous is not None and previous.marked_at >= self.opened_at else None
        )
        if valid_mark is not None and valid_mark.costs_attempt:
            mark.costs_attempt = True
            return Cause.PAGE
        if self.given_up is not None or self.sent_before_opening(sent):
            return Cause.ORIGIN
        if may_probe and not self.failures and self.probe_page not in (None, url):
            if self.probe is None:
                is_short = 0 < (error.retry_after or 0) <= _SHORT_REST
                self.probe = _Probe(now, rested=is_new and is_short and not self.cleared)
            self.probe.pages.setdefault(page, previous is None)
            self.probe.retry_after = max(self.probe.retry_after, error.retry_after or 0.0)
            return None
        if (
            valid_mark is not None
            and self.good_at is not None
            and self.good_at > valid_mark.marked_at
        ):
            mark.costs_attempt = True
            return Cause.PAGE
        return Cause.ORIGIN

    def fault(
        self,
        error: FetchError,
        *,
        sent: float,
        now: float,
        policy: Policy,
        chance: float = 0.0,
        named: bool = False,
        other_responds: bool = False,
    ) -> int:
        """Open the breaker, or keep it open; return the number of new faults, which may be 0.

        *chance* is the argument of `Policy.rest`. *named* says that DNS once found an address of
        the host. *other_responds* says that the host's origin with the other scheme answers.
        """
        reason, requested_rest, faults = error.underlying, error.retry_after, 1
        self.has_responded = self.has_responded or reason is Reason.HTTP_STATUS
        if self.sent_before_opening(sent):
            extra_rest = (
                policy.rest(self.failures, retry_after=requested_rest, chance=chance)
                if requested_rest
                else 0.0
            )
            self.rest_end = max(self.rest_end or now, now + extra_rest)
            return 0
        if (probe := self.probe) is not None:
            # The throttled responses during the probe may have asked for a longer pause. If the
            # host still throttles after this pause, the throttled pages count as one more fault.
            self.probe, requested_rest = None, max(probe.retry_after, requested_rest or 0.0)
            faults += probe.rested and reason is Reason.HTTP_STATUS
        failures, max_failures = self.failures + faults, policy.max_failures
        if reason in _DNS_FAILURES and (named or self.resolved):
            # Count DNS failures separately, because a resolver's mistakes must not increase the
            # number of the origin's other failures.
            self.unresolved += 1
            failing_since = now if self.failing_since is None else self.failing_since
            is_final = failures >= max_failures and now - failing_since >= LONGEST_OUTAGE
        else:
            is_closed = reason is Reason.DNS_NXDOMAIN or (
                other_responds and reason in PAST_THE_NAME
            )
            # A port that throttles pages (429) is reachable: do not give it up after two faults.
            if is_closed and self.good_at is None and not self.has_responded:
                max_failures = min(max_failures, _FEW_FAILURES)
            is_final = failures - self.unresolved >= max_failures
        self.resolved = self.resolved or reason not in _DNS_FAILURES
        rest = policy.rest(failures, retry_after=requested_rest, chance=chance)
        self.open(now=now, rest=rest, faults=faults)
        if is_final and self.given_up is None:
            is_nxdomain = reason is Reason.DNS_NXDOMAIN
            self.given_up = reason if is_nxdomain else Reason.HOST_UNREACHABLE
        return faults


# --- proxies


@dataclass(slots=True, kw_only=True)
class ProxyBreaker(Breaker):
    """The breaker of one proxy; even a dead proxy is tried again after a pause."""

    cause: str = ""  #: text of the last failure
    has_worked: bool = False  #: whether the proxy has worked in this process
    is_dead: bool = False  #: whether requests no longer wait until the proxy works again

    @property
    def ready_at(self) -> float:
        """End of the proxy's pause after a fault."""
        return float("-inf") if self.rest_end is None else self.rest_end

    @property
    def is_proven(self) -> bool:
        """Whether the proxy has worked and has not failed since."""
        return self.has_worked and not self.failures

    def answered(self) -> None:
        """Record that the proxy has reached a server."""
        self.close()
        self.has_worked, self.is_dead = True, False

    def fault(
        self,
        cause: str,
        *,
        now: float,
        policy: Policy,
        tolerated: int = 1,
        is_permanent: bool = False,
    ) -> bool:
        """Record a failure of the proxy; return whether the failure has opened the breaker.

        Failures during a pause do not count. The breaker opens only after *tolerated* failures in a
        row. If a failure *is_permanent* (407), the proxy is dead immediately.
        """
        if now < self.ready_at:
            return False
        self.cause = cause
        if is_permanent:
            self.has_worked, self.failures = False, max(self.failures, policy.max_failures - 1)
        elif self.failures + 1 < tolerated:
            self.failures += 1
            return False
        self.open(now=now, rest=policy.rest(self.failures + 1))
        self.is_dead = self.failures >= policy.max_failures
        return True

    def is_lost(self, *, now: float) -> bool:
        """Return whether the proxy is lost; a crawl must end if all its proxies are lost.

        If the proxy has worked before, our own uplink may be down, so the crawl waits an hour.
        """
        if not self.is_dead or self.failing_since is None:
            return False
        return not self.has_worked or now - self.failing_since >= LONGEST_OUTAGE


# --- the uplink

#: If no response came for these seconds, the uplink may be the cause of a failed request.
_SILENCE = 2.0
#: Minimum number of hosts with probe pages, besides the failing host, for a check of the uplink.
_MIN_PROBED_HOSTS = 2
#: Maximum number of probe pages in memory; each of the last hosts that answered has one page.
_GOOD_PAGES = 5
#: No check of the uplink begins for this number of seconds after the last check. The time must be
#: shorter than a pause after a failure, because one outage must not count as several failures. Only
#: the pauses of `Policy.with_short_rests` may be shorter than this time.
_CHECK_VALID_FOR = 1.0
#: First and longest pause in seconds between two checks; each pause doubles the previous pause.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0


@dataclass(slots=True, kw_only=True)
class Uplink(Breaker):
    """The breaker of our own network connection, the uplink, in one process.

    If a request fails while no host answers, the failure does not show whether the uplink or the
    host is the cause. So the process sends probes (test requests) to other hosts. If a host answers
    a probe, the cause is the origin or the page. If no host answers, failures count only after a
    host responds, or after an hour.
    """

    is_blocked: bool = False  #: whether no task may begin until a probe gets a response
    good_pages: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """URL of one page for each host that has responded, in the order of the last responses."""
    answered_at: float = float("-inf")  #: time of the last response of any host
    silent_until: float = float("-inf")  #: end of the last period without any response
    back_at: float = float("-inf")  #: end of the last outage of the uplink
    checked_until: float = float("-inf")
    deferred: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Ids of tasks that were deferred once because of an outage."""

    def learned(self, host: str, url: str) -> None:
        """Keep the URL of a page for probes; some process has got a good response for this page."""
        remember(self.good_pages, host, url, limit=_GOOD_PAGES)

    def answered(self, *, now: float) -> bool:
        """Record a response of any host; return whether tasks were blocked until this response."""
        if now - self.answered_at > _SILENCE:
            self.silent_until = now
        self.answered_at = now
        was_blocked, self.is_blocked = self.is_blocked, False
        if was_blocked and self.failures:
            self.back_at = now  # a dead breaker keeps its `back_at`, because failures then count
        if was_blocked or self.failures:
            self.close()
            self.checked_until = now + _CHECK_VALID_FOR
        return was_blocked

    def failed(
        self, host: str, reason: Reason, *, started_at: float, now: float, page: bytes | None = None
    ) -> Cause | None:
        """Return the cause of a failure, or None if only probes can show the cause.

        If the result is None, the caller must send probes and then ask again. If the result is
        ORIGIN, the failure counts against the origin; if UPLINK, it does not count.

        - A failure counts if any host answered while the request ran, or if no other host has ever
          answered in this crawl.
        - A failure does not count if the request was sent before the end of an outage.
        - The first failure of *page* does not count if the request was sent while no host answered.
        """
        is_dead = self.failures > 0 and not self.is_blocked
        if reason not in _UPLINK_FAILURES or is_dead:
            return Cause.ORIGIN
        if started_at < self.back_at or self.failures:
            return Cause.UPLINK
        if self.is_blocked:
            return None
        has_several_hosts = len(self.good_pages.keys() - {host}) >= _MIN_PROBED_HOSTS
        has_answered = started_at < self.answered_at and now - self.answered_at < _SILENCE
        if has_several_hosts and not has_answered and now >= self.checked_until:
            self.is_blocked = True
            return None
        is_in_silence = has_several_hosts and started_at < self.silent_until
        if page is None or not is_in_silence or page in self.deferred:
            return Cause.ORIGIN
        remember(self.deferred, page, None)
        return Cause.UPLINK

    def unanswered(self, *, now: float) -> float | None:
        """Record that no probe got a response; return the seconds until the next probes.

        None means that an hour has passed since the first failure; then send no more probes.
        """
        failing_since = now if self.failing_since is None else self.failing_since
        pause = min(_FIRST_PAUSE * (1 << min(self.failures, 10)), _LONGEST_PAUSE)
        self.open(now=now, rest=pause)
        self.is_blocked = now - failing_since < LONGEST_OUTAGE
        return pause if self.is_blocked else None
