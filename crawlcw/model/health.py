"""Circuit breaker for an origin, a proxy, or this machine's own uplink (Nygard, "Release It!").

Its state follows from its fields; the guide on politeness has the diagram.

    state      allowed requests         event: next state
    closed     all, at its pace         fault: open; last strike: dead; a page gets 429 while there
                                        is a probe page: half-open; silence (only uplink): checking
    checking   probe pages              good response: closed; no good response: open
    open       none                     rest ends: half-open; good response: closed; last strike:
                                        dead
    half-open  a probe, else next page  good response: closed; fault or 429: open; last strike: dead
    dead       an origin gets none      good response: closed; `retry-failed` of an origin: closed

Synchronous and without I/O. Times are seconds of one clock that runs forward. It is the ledger's
clock for origins, because several processes ask them one after another, and the monotonic clock
for proxies and the uplink.
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


#: Failures on the way to the server: a single page cannot be their cause.
CONNECTION_FAILURES = frozenset(
    {Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN, Reason.CONNECT, Reason.TIMEOUT_CONNECT}
)
#: Failures caused by the origin, never by the page. A throttled request (429, or 503 with
#: Retry-After) is not among them: its cause is the page if other pages get good responses.
HOST_FAILURES = CONNECTION_FAILURES | {Reason.TLS, Reason.ROBOTS_UNAVAILABLE}
#: Failures of a connection to an address, so the name had an address.
PAST_THE_NAME = frozenset({Reason.CONNECT, Reason.TIMEOUT_CONNECT, Reason.TLS})
_DNS_FAILURES = frozenset({Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN})
#: Failures of requests, sent or not yet sent, when the uplink goes down.
_UPLINK_FAILURES = CONNECTION_FAILURES | {
    Reason.TIMEOUT_READ,
    Reason.TIMEOUT_TOTAL,
    Reason.DISCONNECTED,
    Reason.PAYLOAD_TRUNCATED,
}
#: Seconds. If failures last longer, the uplink counts as working and the hosts as gone. A known
#: name also counts as gone only after this time, because resolvers make mistakes for minutes.
LONGEST_OUTAGE = 3600.0
#: The number of last entries in each map that `remember` bounds.
_MAX_ENTRIES = 10_000
#: With short rests a port that refuses has 7.5 s by default until it is given up, otherwise 150 s.
#: A server that restarts is back by then.
_SHORT_REST_DIVISOR = 20
#: Random extra rest as a part of the rest, so that many crawls do not return at the same time.
_JITTER = 0.1


def remember(
    latest: OrderedDict[Any, Any], key: object, value: object, *, limit: int = _MAX_ENTRIES
) -> None:
    """Add a value as the latest one of a map; over the limit, drop the oldest."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > limit:
        latest.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long breakers stay open, and after how many strikes in a row they are dead."""

    backoff_base: timedelta = timedelta(seconds=10)
    backoff_max: timedelta = timedelta(hours=1)
    max_failures: int = 5
    auto_throttle: bool = True
    throttle_statuses: frozenset[int] = frozenset({429})  #: they ask to slow down

    def with_short_rests(self) -> Self:
        """Return the policy with short rests, for a host when the crawl has no other work."""
        return replace(self, backoff_base=self.backoff_base / _SHORT_REST_DIVISOR)

    def rest(
        self, failures: int, *, retry_after: float | None = None, chance: float = 0.0
    ) -> float:
        """Return the seconds of rest after that many failures in a row.

        *retry_after* is the rest that the host asked for, in seconds; it also doubles if the host
        fails again after it. *chance* is in [0, 1).
        """
        # Zero seconds, or a date in the past, is not a request for a rest.
        base = timedelta(seconds=retry_after) if retry_after else self.backoff_base
        max_rest = self.backoff_max
        rest = backoff(failures, base=min(base, max_rest), ceiling=max_rest)
        return min(rest * (1 + _JITTER * chance), max_rest).total_seconds()


@dataclass(slots=True, kw_only=True)
class Breaker:
    """The breaker itself: a fault opens it for a rest, and a good response closes it.

    After the rest it is half-open, so that one request can test the other side.
    """

    failures: int = 0  #: faults in a row that have opened it; 0: it is closed
    failing_since: float | None = None  #: the time of the first of them
    rest_end: float | None = None  #: the end of its rest
    opened_at: float = float("-inf")

    def open(self, *, now: float, rest: float, faults: int = 1) -> None:
        """Open because of a fault, or of several together."""
        self.failures += faults
        self.opened_at = now
        if self.failing_since is None:
            self.failing_since = now
        self.rest_end = max(self.rest_end or now, now + rest)

    def close(self) -> None:
        """Close after a good response: the row of failures has ended."""
        self.failures = 0
        self.failing_since = self.rest_end = None


# --- origins

#: Strikes for a name that never had an address, and for a port that never answered while the
#: other port does. A second attempt excludes a temporary mistake; more attempts show nothing new.
_FEW_FAILURES = 2
#: Characters: a longer URL is not stored with its host.
_LONGEST_PROBE_PAGE = 500
#: Bytes: a larger page becomes a probe page only if there is no other.
_LARGEST_PROBE_PAGE = 64 * 1024
#: The maximum number of probe pages of an origin.
_PROBE_PAGES = 8
#: If this many pages are throttled for the first time before the probe, the host has a limit.
_LIMIT_EVIDENCE = 3
#: Seconds: the longest rest before the first probe.
_SHORT_REST = 5.0


@dataclass(slots=True)
class _Mark:
    """A page that was throttled (429, or 503 with Retry-After)."""

    marked_at: float
    costs_attempt: bool = (
        False  #: another page got a good response since: the next time costs an attempt
    )


Marks = OrderedDict[bytes, _Mark]
"""The throttled pages of one process, by task; they outlive the lease of their host."""


@dataclass(slots=True)
class _Probe:
    """An origin that seemed healthy has throttled pages: a probe must find the cause."""

    started_at: float
    rested: bool  #: whether the host rests before the probe
    pages: dict[bytes, bool] = field(default_factory=dict)  #: whether throttled for the first time
    retry_after: float = 0.0  #: the longest Retry-After of these pages, in seconds

    def shows_a_limit(self, delay: float) -> bool:
        """Return whether a limit of the host is likely, even if the probe got a good response.

        A host over its limit throttles every request, and may answer well a moment later. Only
        pages that are throttled for the first time count: otherwise some pages would never cost
        an attempt. One is enough if the host has a *delay*, because it has already shown a limit.
        """
        first_throttled = sum(self.pages.values())
        # After a rest one page fewer is enough, because the probe gets a good response in any case.
        return first_throttled >= (1 if delay else _LIMIT_EVIDENCE - self.rested)


@dataclass(slots=True, kw_only=True)
class Origin(Breaker):
    """The breaker of one scheme of a host: `https://example.com` beside `http://example.com`.

    The ledger stores it with its host, except the fields that only the current owner needs.
    """

    unresolved: int = 0  #: failures to resolve its name although the name had an address
    good_at: float | None = None  #: when the last request with a good response was sent
    resolved: bool = False  #: whether its name had an address in this crawl
    #: Probe pages: pages with good responses, the latest last, with the number of their probes.
    probes: dict[str, int] = field(default_factory=dict)
    given_up: Reason | None = None  #: why its waiting tasks were ignored: it is dead; None: alive
    probe: _Probe | None = None
    cleared: bool = False  #: whether a probe for throttled pages got a good response
    has_responded: bool = False  #: whether it has responded, even if only by throttling

    def __post_init__(self) -> None:
        """Restore `opened_at` from the stored fields."""
        if self.failing_since is not None:
            self.opened_at = self.failing_since

    @property
    def is_closed(self) -> bool:
        """Whether requests for all its pages are allowed."""
        return not (self.failures or self.given_up or self.probe or self.rest_end)

    def sent_before_opening(self, sent: float) -> bool:
        """Return whether a failed request was sent before the breaker opened.

        Requests that run at the same time fail together, and count as one fault.
        """
        return sent <= self.opened_at

    def learned(self, url: str, *, size: int) -> None:
        """Record a page of *size* bytes with a good response, which is safe to fetch again."""
        if len(url) <= _LONGEST_PROBE_PAGE and (size <= _LARGEST_PROBE_PAGE or not self.probes):
            self.probes[url] = 0
            if len(self.probes) > _PROBE_PAGES:
                del self.probes[next(iter(self.probes))]

    @property
    def probe_page(self) -> str | None:
        """The page for the next probe: the page with the fewest probes."""
        return min(reversed(self.probes), key=self.probes.__getitem__, default=None)

    def answered(self, marks: Marks, *, sent: float, delay: float) -> bool:
        """Record a good response; return whether a limit of the host is likely.

        *delay* is that of the host. The response does not close the breaker if the request was
        sent before the breaker opened.
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
        """Return the cause of a throttled page (429, or 503 with Retry-After); None: probe first.

        The page is the cause if another page got a good response since it was last throttled.
        For `Cause.ORIGIN` the caller must call `fault`. If the host *is_new*, it gets the short
        rest that it asks for before the probe: a host with a limit would throttle the probe, too.
        """
        self.resolved = True
        previous, mark = marks.get(page), _Mark(now)
        remember(marks, page, mark)
        # A mark from before the origin opened does not count.
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
        """Open; return the number of faults: 0 if another request of that time has already counted.

        *chance* is that of `Policy.rest`. *named* says that the host's name had an address,
        *other_responds* that its other origin answers.
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
            # The throttled pages have asked for a rest, too. If the host still throttles after
            # that rest, they count as one more fault.
            self.probe, requested_rest = None, max(probe.retry_after, requested_rest or 0.0)
            faults += probe.rested and reason is Reason.HTTP_STATUS
        failures, max_failures = self.failures + faults, policy.max_failures
        if reason in _DNS_FAILURES and (named or self.resolved):
            # Count these separately: a resolver's mistakes must not add to other failures of the
            # origin.
            self.unresolved += 1
            failing_since = now if self.failing_since is None else self.failing_since
            is_final = failures >= max_failures and now - failing_since >= LONGEST_OUTAGE
        else:
            is_closed = reason is Reason.DNS_NXDOMAIN or (
                other_responds and reason in PAST_THE_NAME
            )
            # A port that throttles pages (429) is not closed.
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
    """The breaker of one proxy; a dead proxy also rests, and is tried again after the rest."""

    cause: str = ""  #: the last failure
    has_worked: bool = False  #: whether it has worked in this process
    is_dead: bool = False  #: whether requests stop waiting for it

    @property
    def ready_at(self) -> float:
        """The end of its rest."""
        return float("-inf") if self.rest_end is None else self.rest_end

    @property
    def is_proven(self) -> bool:
        """Whether it has worked and has not failed since."""
        return self.has_worked and not self.failures

    def answered(self) -> None:
        """Record that it has reached a server."""
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
        """Record a failure; return whether the breaker has opened: in a rest failures do not count.

        Only the *tolerated*-th failure in a row opens the breaker. If a failure is *is_permanent*
        (407), waiting does not help: the proxy is dead immediately.
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
        """Return whether a crawl must end if all its proxies are in this state.

        If the proxy has worked, our own uplink may be down, so the proxy gets an hour, as a host
        does.
        """
        if not self.is_dead or self.failing_since is None:
            return False
        return not self.has_worked or now - self.failing_since >= LONGEST_OUTAGE


# --- the uplink

#: Seconds without any response: the uplink may then be the cause of a failed request.
_SILENCE = 2.0
#: The number of other hosts with probe pages that a check needs.
_MIN_PROBED_HOSTS = 2
#: The number of probe pages in memory, one for each of the hosts that answered last.
_GOOD_PAGES = 5
#: Seconds after a check without another check. They are less than a rest: otherwise an uplink that
#: fails right then would count as several failures. Only rests of `Policy.with_short_rests` may be
#: shorter.
_CHECK_VALID_FOR = 1.0
#: Seconds between two checks while it is open: they double from the first to the longest.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0


@dataclass(slots=True, kw_only=True)
class Uplink(Breaker):
    """The breaker of our own network, as one process sees it: dead if it fails without a block.

    If a request fails while no host answers, the cause is either the uplink or the host. The
    failure does not show which. So the process sends probes to other hosts. If one answers, the
    cause is the origin or the page; otherwise no failure counts until a host answers.
    """

    is_blocked: bool = False  #: whether no task may begin, because probes run
    good_pages: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """A URL of each host that has sent a response, in the order of the last response."""
    answered_at: float = float("-inf")  #: when a host last answered
    silent_until: float = float("-inf")  #: when the last silence ended
    back_at: float = float("-inf")  #: when the last outage ended
    checked_until: float = float("-inf")
    deferred: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Pages that were deferred during an outage."""

    def learned(self, host: str, url: str) -> None:
        """Record a page with a good response in this crawl, possibly to another process."""
        remember(self.good_pages, host, url, limit=_GOOD_PAGES)

    def answered(self, *, now: float) -> bool:
        """Record any response of any host; return whether tasks waited for it."""
        if now - self.answered_at > _SILENCE:
            self.silent_until = now
        self.answered_at = now
        was_blocked, self.is_blocked = self.is_blocked, False
        if was_blocked and self.failures:
            self.back_at = now  # not if the breaker was dead, because failures then counted
        if was_blocked or self.failures:
            self.close()
            self.checked_until = now + _CHECK_VALID_FOR
        return was_blocked

    def failed(
        self, host: str, reason: Reason, *, started_at: float, now: float, page: bytes | None = None
    ) -> Cause | None:
        """Return whether a failure counts (ORIGIN) or not (UPLINK); None: ask again after a check.

        With None the breaker is blocked, and the caller must send the probes.

        - A failure counts if any host answered while the request ran, and if no other host
          has ever answered in this crawl.
        - It does not count if the request was sent before the end of an outage.
        - A *page* that failed in a silence that has ended without a check is deferred once.
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

        None: there are no more probes after an hour.
        """
        failing_since = now if self.failing_since is None else self.failing_since
        pause = min(_FIRST_PAUSE * (1 << min(self.failures, 10)), _LONGEST_PAUSE)
        self.open(now=now, rest=pause)
        self.is_blocked = now - failing_since < LONGEST_OUTAGE
        return pause if self.is_blocked else None
