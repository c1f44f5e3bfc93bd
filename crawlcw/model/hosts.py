"""A host in the ledger, and its updates after each response.

Every large crawler schedules hosts, not URLs. A worker leases a host like a task. At any time
only one owner requests its pages, so a limit holds over all processes. This file and `health`
decide, synchronously; the ledgers apply the decisions.

Politeness (delay, rest) belongs to the host, and each origin has a circuit breaker: a host
whose port 443 is closed may serve every page on port 80. A host has at most two origins,
because its name contains any port that is not the scheme's default. So the scheme names the origin
within a host.
"""

from collections import defaultdict
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

from crawlcw.errors import FetchError, Reason
from crawlcw.model.health import Marks, Origin, Policy

#: This number of failed pages in a row slows their host down.
_PAGE_FAILURES = 10
#: Seconds: the maximum and the first step of the adaptive delay.
LONGEST_DELAY = 60.0
_FIRST_DELAY = 0.5
#: Seconds: a shorter delay becomes 0.
_SHORTEST_DELAY = _FIRST_DELAY / 8
#: The part of a delay that remains after a success. With it, a host with a limit of requests in a
#: period gets one request too many in about 140 requests.
_RECOVERY = 0.995
#: Seconds: the maximum delay that failures of pages alone may cause.
_LONGEST_FOR_PAGES = 2.0
#: Seconds: a slower response means that the host is overloaded.
SLOW_RESPONSE = 5.0
_PAGES_A_STEP = 10
#: The maximum number of requests at the same time until these pages are finished.
_FIRST_WINDOW = 3
FIRST_PAGES = 24
#: Seconds: a faster response always counts as fast.
_ALWAYS_FAST = 0.1
#: A slower response counts as fast within this multiple of the fastest time, and these seconds.
_FAST_FACTOR = 2.0
_LONGEST_FAST = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsRecord:
    """A fetched robots.txt, stored for all processes."""

    origin: str  #: its origin: `https://example.com`
    body: str = ""  #: its text, at most 512 KiB; empty if the server has no robots.txt
    sitemaps: tuple[str, ...] = ()  #: the sitemaps that it names
    expires: datetime


@dataclass(slots=True, kw_only=True)
class Host:
    """A host in the ledger; its owner changes it in place, and saves a copy."""

    name: str  #: the politeness key of its tasks
    ready_at: datetime | None = None
    """When a coordinator may lease it: when a lease ends or a task is due; None: it has no task."""
    owner: str | None = None  #: the token of the lease, `worker:n`
    epoch: int = 0  #: the number of leases so far: the fence of the owner's writes
    not_before: datetime | None = None  #: no request may start earlier: politeness, or a rest
    delay: float = 0.0  #: the adaptive delay in seconds
    failures: int = 0  #: failures of the host in a row
    page_failures: int = 0  #: failures of pages in a row
    given_up: Reason | None = None
    """Why the crawl ignored all its waiting tasks; None: it did not. Each origin has its own."""
    origins: dict[str, Origin] = field(default_factory=dict)
    """The requested origins by their scheme; reading a missing one adds it."""
    robots: RobotsRecord | None = None
    finished: int = 0  #: pages that all processes have finished

    def __post_init__(self) -> None:
        """Make each origin at its first access."""
        self.origins = defaultdict(Origin, self.origins)

    def copy(self) -> "Host":
        """Return a copy that later changes do not affect."""
        host_copy = copy(self)
        copies = {scheme: copy(origin) for scheme, origin in self.origins.items()}
        host_copy.origins = defaultdict(Origin, copies)
        return host_copy

    @property
    def lost_origins(self) -> dict[str, Reason]:
        """The given-up origins by URL, with their reasons."""
        return {
            f"{scheme}://{self.name}": origin.given_up
            for scheme, origin in self.origins.items()
            if origin.given_up is not None
        }

    @property
    def is_silent(self) -> bool:
        """Whether it has failed and has never sent a good response in this crawl."""
        return self.failures > 0 and all(origin.good_at is None for origin in self.origins.values())

    def resting_until(self, scheme: str, *, now: datetime) -> datetime | None:
        """Return the end of an origin's rest; None: it does not rest, or the whole host does."""
        seconds = self.origins[scheme].rest_end
        if seconds is None:
            return None
        rest_end = datetime.fromtimestamp(seconds, UTC)
        host_rests = self.not_before is not None and self.not_before >= rest_end
        return None if rest_end <= now or host_rests else rest_end

    def probe_url(self, *, now: datetime) -> str | None:
        """Return the probe page to fetch first after the host's rest, if there is one.

        It belongs to an origin that is half-open, or will be after the rest of the whole host.
        """
        for scheme, origin in self.origins.items():
            is_failing = origin.given_up is None and (origin.failures or origin.probe)
            if is_failing and origin.probe_page and self.resting_until(scheme, now=now) is None:
                return origin.probe_page
        return None

    def origin_answered(
        self, scheme: str, *, latency: float, sent: datetime, marks: Marks, policy: Policy
    ) -> bool:
        """Record a good response of an origin; return whether it ended a row of failures.

        *latency* is the time to the response's head in seconds.
        """
        origin = self.origins[scheme]
        failures = origin.failures
        if origin.answered(marks, sent=sent.timestamp(), delay=self.delay):
            self._slow(policy, longest=_LONGEST_FOR_PAGES)
        if policy.auto_throttle and latency > max(SLOW_RESPONSE, self.delay):
            # The delay does not exceed the latency: one request at a time is slow enough, because
            # slowness may be the host's only problem.
            self.delay = min(max(self.delay * 2, _FIRST_DELAY), latency, LONGEST_DELAY)
        elif policy.auto_throttle:
            # The recovery is the same for a host that is slower than its delay: otherwise each
            # success would undo a 429, and the delay would never grow.
            recovered = self.delay * _RECOVERY
            self.delay = recovered if recovered >= _SHORTEST_DELAY else 0.0
        self.page_failures = 0
        if not origin.failures:
            self.failures = 0
        return failures > 0 and not origin.failures

    def page_throttled(self, policy: Policy) -> None:
        """Record a throttled page that lost an attempt: the adaptive delay may be too short."""
        if self.delay:
            self._slow(policy, longest=_LONGEST_FOR_PAGES)

    def page_failed(self, policy: Policy) -> None:
        """Record a page that was itself the cause of a failure; ten in a row slow the host down."""
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
        """Record a fault of an origin: it rests, and too many strikes give it up.

        The whole host rests. Only the origin rests if the other one answers and the fault is not
        throttling. *chance* in [0, 1) adds up to a tenth to the rest.
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
            # Both origins share the host's name, so an address for one counts for the other.
            named=any(other.resolved for other in other_origins),
            other_responds=other_responds,
        )
        if not other_responds:
            self.failures += fault_count
        if not other_responds and origin.rest_end is not None and origin.given_up is None:
            rest_end = datetime.fromtimestamp(origin.rest_end, UTC)
            # If the host already rests for longer, it keeps that time. A given-up origin adds no
            # rest, because its tasks send no requests: any process may lease the host next.
            self.not_before = (
                rest_end if self.not_before is None else max(self.not_before, rest_end)
            )
        if is_throttled:
            max_delay = LONGEST_DELAY
            if error.status not in policy.throttle_statuses and error.retry_after:
                # Unlike 429, 503 may not depend on our requests: if a server is down for some
                # seconds now and then, a longer delay does not help.
                max_delay = min(max(2 * error.retry_after, _FIRST_DELAY), LONGEST_DELAY)
            for _ in range(fault_count):
                self._slow(policy, longest=max_delay)

    def _slow(self, policy: Policy, *, longest: float) -> None:
        """Double the delay of a host that gets too many requests.

        A delay is a short rest, so it is never longer than the policy's longest rest.
        """
        longest = min(longest, policy.backoff_max.total_seconds())
        if policy.auto_throttle and self.delay < longest:
            self.delay = min(self.delay * 2 or _FIRST_DELAY, longest)


@dataclass(slots=True)
class SlowStart:
    """The number of requests at the same time to a new host: from one up, like TCP's slow start.

    Each fast response adds one request; a slow host needs ten pages for that. Until some pages are
    finished, the number stays low in any case, because a host over its limit throttles all current
    requests.
    """

    fastest: float = float("inf")  #: the seconds of its fastest response
    steps: int = 0  #: fast responses; 0 after a failure: its capacity is measured again
    quick_at: datetime | None = None
    """When the last request with a fast response was sent."""

    def answered(self, *, latency: float, sent: datetime) -> float:
        """Record a response after *latency* seconds; return the latency of the host.

        *latency* is 0 if it is unknown: the response was cut off, or the loop had a stall. The
        result is 0 for a slow page if the host answers other pages quickly at the same time.
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
        """Return how many requests at the same time are allowed after *finished* pages."""
        window = 1 + finished // _PAGES_A_STEP + self.steps
        return min(window, _FIRST_WINDOW) if finished < FIRST_PAGES else window


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """The right to request pages of one host until `expires`."""

    host: Host
    """Its state when the lease began, without `ready_at`, which its owner sets later."""
    token: str
    epoch: int
    expires: datetime
    clean: bool = True  #: whether the previous owner, if any, has released it


class FailureCalls(Enum):
    """The waiting tasks of a given-up origin for which the crawl calls a method of the spider."""

    NONE = auto()
    ERRBACK = auto()  #: the tasks with an errback
    ALL = auto()  #: the spider has an `on_error`

    def include(self, errback: str | None) -> bool:
        """Return whether the crawl calls a method for a task with this *errback* or None."""
        return self is FailureCalls.ALL or (self is FailureCalls.ERRBACK and errback is not None)
