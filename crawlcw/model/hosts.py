"""A host in the ledger, and the updates of the host after each response.

Every large crawler schedules hosts, not URLs. A worker leases a host like a task. At any time only
one owner sends requests to the host, so a rate limit holds for all processes together. This module
and `health` decide without I/O; the ledgers store the decisions.

The delay and the pause after failures belong to the host. Each origin has a circuit breaker,
because a host whose port 443 is closed may serve every page on port 80. A host has at most two
origins, http and https, because a port that is not the scheme's default is part of the host's name.
"""

from collections import defaultdict
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

from crawlcw.errors import FetchError, Reason
from crawlcw.model.health import Marks, Origin, Policy

#: Number of failed pages in a row after which the delay of the host doubles.
_PAGE_FAILURES = 10
#: Longest adaptive delay, and the delay after the first failure, in seconds.
LONGEST_DELAY = 60.0
_FIRST_DELAY = 0.5
#: Delay in seconds below which the delay becomes 0.
_SHORTEST_DELAY = _FIRST_DELAY / 8
#: Factor by which each success multiplies the delay. With this factor, about 140 successes halve
#: the delay. So a host with a rate limit throttles about one of 140 requests.
_RECOVERY = 0.995
#: Maximum delay in seconds that failures of pages alone may cause.
_LONGEST_FOR_PAGES = 2.0
#: Latency in seconds above which a response means that the host is overloaded.
SLOW_RESPONSE = 5.0
_PAGES_A_STEP = 10
#: Maximum number of concurrent requests to a host, until `FIRST_PAGES` pages are finished.
_FIRST_WINDOW = 3
FIRST_PAGES = 24
#: Latency in seconds below which a response always counts as fast.
_ALWAYS_FAST = 0.1
#: Two upper bounds of a fast latency: a multiple of the fastest latency, and a number of seconds.
_FAST_FACTOR = 2.0
_LONGEST_FAST = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsRecord:
    """A fetched robots.txt, which the ledger stores for all processes."""

    origin: str  #: origin of the robots.txt, such as `https://example.com`
    body: str = ""  #: text of at most 512 KiB; empty if the server has no robots.txt
    sitemaps: tuple[str, ...] = ()  #: URLs of the sitemaps that the robots.txt names
    expires: datetime


@dataclass(slots=True, kw_only=True)
class Host:
    """A host in the ledger; the host's owner changes this object, and saves a copy."""

    name: str  #: host name, by which tasks share delays and limits
    ready_at: datetime | None = None
    """Time from which a coordinator may lease the host, or None if the host has no tasks."""
    owner: str | None = None  #: token of the current lease, `worker:n`
    epoch: int = 0  #: number of leases so far; a write of an older lease is refused
    not_before: datetime | None = None  #: earliest time of the next request
    delay: float = 0.0  #: current adaptive delay in seconds
    failures: int = 0  #: number of failures of the host in a row
    page_failures: int = 0  #: number of failed pages in a row
    given_up: Reason | None = None
    """Why the crawl ignored all waiting tasks of the host; each origin has its own reason."""
    origins: dict[str, Origin] = field(default_factory=dict)
    """Requested origins by scheme; a read of a missing scheme adds an origin."""
    robots: RobotsRecord | None = None
    finished: int = 0  #: number of pages that all processes have finished

    def __post_init__(self) -> None:
        """Make `origins` a mapping that creates a missing origin when it is read."""
        self.origins = defaultdict(Origin, self.origins)

    def copy(self) -> "Host":
        """Return a copy of the host that later changes do not affect."""
        host_copy = copy(self)
        copies = {scheme: copy(origin) for scheme, origin in self.origins.items()}
        host_copy.origins = defaultdict(Origin, copies)
        return host_copy

    @property
    def lost_origins(self) -> dict[str, Reason]:
        """Given-up origins by URL, each with the reason."""
        return {
            f"{scheme}://{self.name}": origin.given_up
            for scheme, origin in self.origins.items()
            if origin.given_up is not None
        }

    @property
    def is_silent(self) -> bool:
        """Whether the host has failed and has never sent a good response in this crawl."""
        return self.failures > 0 and all(origin.good_at is None for origin in self.origins.values())

    def resting_until(self, scheme: str, *, now: datetime) -> datetime | None:
        """Return the end of the origin's own pause (not the host's), or None without a pause."""
        seconds = self.origins[scheme].rest_end
        if seconds is None:
            return None
        rest_end = datetime.fromtimestamp(seconds, UTC)
        host_rests = self.not_before is not None and self.not_before >= rest_end
        return None if rest_end <= now or host_rests else rest_end

    def probe_url(self, *, now: datetime) -> str | None:
        """Return the URL of the probe page to fetch first after the host's pause, or None.

        The page belongs to an origin that will be half-open at the end of the host's pause.
        """
        for scheme, origin in self.origins.items():
            is_failing = origin.given_up is None and (origin.failures or origin.probe)
            if is_failing and origin.probe_page and self.resting_until(scheme, now=now) is None:
                return origin.probe_page
        return None

    def origin_answered(
        self, scheme: str, *, latency: float, sent: datetime, marks: Marks, policy: Policy
    ) -> bool:
        """Record a good response of an origin; return whether it ended a series of failures.

        *latency* is the time until the response headers arrived, in seconds.
        """
        origin = self.origins[scheme]
        failures = origin.failures
        if origin.answered(marks, sent=sent.timestamp(), delay=self.delay):
            self._slow(policy, longest=_LONGEST_FOR_PAGES)
        if policy.auto_throttle and latency > max(SLOW_RESPONSE, self.delay):
            # The delay must not exceed the latency. A host that is only slow then gets one request
            # at a time, and this is slow enough.
            self.delay = min(max(self.delay * 2, _FIRST_DELAY), latency, LONGEST_DELAY)
        elif policy.auto_throttle:
            # Shorten the delay only a little. If each good response cancelled the effect of a 429
            # response, the delay would never grow.
            recovered = self.delay * _RECOVERY
            self.delay = recovered if recovered >= _SHORTEST_DELAY else 0.0
        self.page_failures = 0
        if not origin.failures:
            self.failures = 0
        return failures > 0 and not origin.failures

    def page_throttled(self, policy: Policy) -> None:
        """Record a throttled page that lost an attempt; double the host's delay unless it is 0."""
        if self.delay:
            self._slow(policy, longest=_LONGEST_FOR_PAGES)

    def page_failed(self, policy: Policy) -> None:
        """Record a page that caused a failure; ten such pages in a row double the host's delay."""
        self.page_failures += 1
        if self.page_failures % _PAGE_FAILURES == 0:
            self._slow(policy, longest=_LONGEST_FOR_PAGES)

    def origin_failed(
        self,
        scheme: str,
        error: FetchError,
        *,
        now: datetime,
        sent: datetime,
        policy: Policy,
        chance: float = 0.0,
    ) -> None:
        """Record a fault of an origin; each fault causes a pause, and too many give up the origin.

        Only this origin pauses if the host's origin with the other scheme answers and the fault is
        not a throttled request. Otherwise the whole host pauses. *chance*, from 0 to 1, makes the
        pause up to a tenth longer.
        """
        origin, is_throttled = self.origins[scheme], error.underlying is Reason.HTTP_STATUS
        other_origins = [
            candidate for candidate in self.origins.values() if candidate is not origin
        ]
        other_responds = not is_throttled and any(
            other.good_at and not other.failures for other in other_origins
        )
        fault_count = origin.fault(
            error,
            sent=sent.timestamp(),
            now=now.timestamp(),
            policy=policy,
            chance=chance,
            # Both origins have the same host name, so DNS has found an address for both or none.
            named=any(other.resolved for other in other_origins),
            other_responds=other_responds,
        )
        if not other_responds:
            self.failures += fault_count
        if not other_responds and origin.rest_end is not None and origin.given_up is None:
            rest_end = datetime.fromtimestamp(origin.rest_end, UTC)
            # Keep the present pause of the host if it is longer. A given-up origin causes no pause
            # of the host, because the origin's tasks send no requests.
            self.not_before = (
                rest_end if self.not_before is None else max(self.not_before, rest_end)
            )
        if is_throttled:
            max_delay = LONGEST_DELAY
            if error.status not in policy.throttle_statuses and error.retry_after:
                # A 503 may have other causes than our requests. A longer delay does not help a
                # server that is sometimes down for a few seconds.
                max_delay = min(max(2 * error.retry_after, _FIRST_DELAY), LONGEST_DELAY)
            for _ in range(fault_count):
                self._slow(policy, longest=max_delay)

    def _slow(self, policy: Policy, *, longest: float) -> None:
        """Double the adaptive delay, because the host gets too many requests.

        The delay is never longer than `backoff_max`, the longest pause after failures.
        """
        longest = min(longest, policy.backoff_max.total_seconds())
        if policy.auto_throttle and self.delay < longest:
            self.delay = min(self.delay * 2 or _FIRST_DELAY, longest)


@dataclass(slots=True)
class SlowStart:
    """A limit of concurrent requests to a new host; it begins at one, as in TCP's slow start.

    Each fast response raises the limit by one. At a slow host, ten finished pages raise the limit
    by one. Until `FIRST_PAGES` pages are finished, at most three concurrent requests are allowed,
    because a host over its limit throttles all current requests.
    """

    fastest: float = float("inf")  #: latency of the fastest response in seconds
    steps: int = 0  #: number of fast responses since the last failure of the host
    quick_at: datetime | None = None
    """Time when the last request with a fast response was sent."""

    def answered(self, *, latency: float, sent: datetime) -> float:
        """Record a response after *latency* seconds; return the latency by which to judge the host.

        If the response was cut off or the event loop stalled, the latency is unknown and *latency*
        is 0. The result is 0 for a slow page if the host meanwhile answered another page quickly.
        """
        if latency > 0:
            self.fastest = min(self.fastest, latency)
        if latency <= max(_ALWAYS_FAST, min(_FAST_FACTOR * self.fastest, _LONGEST_FAST)):
            self.steps += 1
        is_first = self.quick_at is None or sent >= self.quick_at
        if latency > SLOW_RESPONSE:
            return latency if is_first else 0.0
        if is_first:
            self.quick_at = sent
        return latency

    def window(self, *, finished: int) -> int:
        """Return the maximum number of concurrent requests after *finished* finished pages."""
        window = 1 + finished // _PAGES_A_STEP + self.steps
        return min(window, _FIRST_WINDOW) if finished < FIRST_PAGES else window


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """The right to request pages of one host until `expires`."""

    host: Host
    """State of the host when the lease began; the owner sets the host's `ready_at` later."""
    token: str
    epoch: int
    expires: datetime
    clean: bool = True  #: whether the previous owner, if any, has released the host


class FailureCalls(Enum):
    """The waiting tasks of a given-up origin for which the crawl calls a spider's method."""

    NONE = auto()
    ERRBACK = auto()  #: only tasks with an errback
    ALL = auto()  #: all tasks, because the spider has an `on_error`

    def include(self, errback: str | None) -> bool:
        """Return whether the crawl calls a method of the spider for a task with this *errback*."""
        return self is FailureCalls.ALL or (self is FailureCalls.ERRBACK and errback is not None)
