"""Host as the ledger keeps it, and its updates after each answer.

Every large crawler schedules hosts, not URLs. A host is leased like a task: one
owner at a time, who alone asks it for pages, so a limit holds over all
processes. This file and `health` decide, synchronously; the ledgers apply.

Politeness (delay, rest) belongs to the host, and each origin has a circuit breaker: a host
whose port 443 is closed may serve every page on port 80. A host has at most two
origins, for its name says the port where that is not the scheme's own, so an
origin is named by its scheme here.
"""

from collections import defaultdict
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

from crawlcw.errors import FetchError, Reason
from crawlcw.model.health import Marks, Origin, Policy

#: So many pages that fail in a row slow their host down.
_PAGE_FAILURES = 10
#: The adaptive delay: never more than this, and no less than the first step when it begins.
LONGEST_DELAY = 60.0
_FIRST_DELAY = 0.5
#: A delay under this is none.
_SHORTEST_DELAY = _FIRST_DELAY / 8
#: The part of a delay that is left after a success. A host that allows so many
#: requests in a time is over its limit once in some 140 requests that way.
_RECOVERY = 0.995
#: Pages that fail by themselves do not slow a host down further than this.
_LONGEST_FOR_PAGES = 2.0
#: Seconds. A response slower than this means that the host is overloaded.
SLOW_ANSWER = 5.0
_PAGES_A_STEP = 10
#: The most requests at once, however fast the answers are, until these pages are finished.
_FEW = 3
FIRST_PAGES = 24
#: Seconds. Such an answer is fast, however much faster others were.
_FAST = 0.1
#: A slower one may take this multiple of the fastest one's time, and no longer than this.
_AS_FAST = 2.0
_LONGEST_FAST = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsRecord:
    """A robots.txt as it was fetched, kept for every process."""

    origin: str  #: whose it is: `https://example.com`
    body: str = ""  #: at most 512 KiB; empty where the server has none
    sitemaps: tuple[str, ...] = ()  #: those it names
    expires: datetime


@dataclass(slots=True, kw_only=True)
class Host:
    """A host as the ledger keeps it; its owner changes it in place, and saves a copy."""

    name: str  #: the politeness key of its tasks
    ready_at: datetime | None = None
    """When a coordinator may lease it: the end of a lease, or when a task is due; None: no work."""
    owner: str | None = None  #: the token of the lease, `worker:n`
    epoch: int = 0  #: the number of leases so far: the fence of the owner's writes
    not_before: datetime | None = None  #: no request starts earlier: politeness, or a backoff
    delay: float = 0.0  #: the adaptive delay in seconds
    failures: int = 0  #: of the host, in a row
    page_failures: int = 0  #: of pages, in a row
    given_up: Reason | None = None
    """Why all its waiting tasks were ignored, if they were; single origins have their own."""
    origins: dict[str, Origin] = field(default_factory=dict)
    """By scheme: those asked so far; one that is looked up is made."""
    robots: RobotsRecord | None = None
    finished: int = 0  #: pages, by all processes

    def __post_init__(self) -> None:
        """Make origins as they are looked up."""
        self.origins = defaultdict(Origin, self.origins)

    def copy(self) -> "Host":
        """Return a copy; later changes do not reach it."""
        found = copy(self)
        copies = {scheme: copy(origin) for scheme, origin in self.origins.items()}
        found.origins = defaultdict(Origin, copies)
        return found

    @property
    def lost_origins(self) -> dict[str, Reason]:
        """The origins that were given up, by URL, and why."""
        return {
            f"{scheme}://{self.name}": origin.given_up
            for scheme, origin in self.origins.items()
            if origin.given_up is not None
        }

    @property
    def is_silent(self) -> bool:
        """Whether it has failed, and never answered well in this crawl."""
        return self.failures > 0 and all(each.good_at is None for each in self.origins.values())

    def resting_until(self, scheme: str, *, now: datetime) -> datetime | None:
        """Return the end of the rest of one origin that rests by itself; None: it does not."""
        seconds = self.origins[scheme].until
        if seconds is None:
            return None
        until = datetime.fromtimestamp(seconds, UTC)
        host_rests = self.not_before is not None and self.not_before >= until
        return None if until <= now or host_rests else until

    def probe_url(self, *, now: datetime) -> str | None:
        """Return the good page to ask before any other, after the host's rest, if there is one.

        It is that of an origin that is half-open, or will be when the whole host has rested.
        """
        for scheme, origin in self.origins.items():
            fails = origin.given_up is None and (origin.failures or origin.probe)
            if fails and origin.probe_page and self.resting_until(scheme, now=now) is None:
                return origin.probe_page
        return None

    def origin_answered(
        self, scheme: str, *, latency: float, sent: datetime, marks: Marks, policy: Policy
    ) -> bool:
        """Note a good answer of an origin; return whether that ended a row of failures.

        *latency* is the time to the answer's head in seconds.
        """
        origin = self.origins[scheme]
        failures = origin.failures
        if origin.answered(marks, sent=sent.timestamp(), delay=self.delay):
            self._slow(policy, longest=_LONGEST_FOR_PAGES)
        if policy.auto_throttle and latency > max(SLOW_ANSWER, self.delay):
            # Up to one request a latency, which is one at a time, and no further:
            # there may be nothing wrong with the host but that it is slow.
            self.delay = min(max(self.delay * 2, _FIRST_DELAY), latency, LONGEST_DELAY)
        elif policy.auto_throttle:
            # Not faster for a host that answers slower than its delay: it would forget
            # each 429 at the first success, and its delay would never grow.
            recovered = self.delay * _RECOVERY
            self.delay = recovered if recovered >= _SHORTEST_DELAY else 0.0
        self.page_failures = 0
        if not origin.failures:
            self.failures = 0
        return failures > 0 and not origin.failures

    def page_refused(self, policy: Policy) -> None:
        """Note a page that paid for a refusal (429): an adaptive delay may be too short still."""
        if self.delay:
            self._slow(policy, longest=_LONGEST_FOR_PAGES)

    def page_failed(self, policy: Policy) -> None:
        """Note a page that failed by itself; ten in a row slow the host down."""
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
        """Note a fault of an origin: it rests, and is given up after too many strikes.

        The host rests, or the origin alone where the other one answers and the fault is none of
        load. *chance* in [0, 1) adds up to a tenth to the rest.
        """
        origin, is_load = self.origins[scheme], error.underlying is Reason.HTTP_STATUS
        others = [other for other in self.origins.values() if other is not origin]
        alone = not is_load and any(each.good_at and not each.failures for each in others)
        faults = origin.fault(
            error,
            sent=sent.timestamp(),
            now=now.timestamp(),
            policy=policy,
            chance=chance,
            # Names are the host's, whichever of its origins was asked.
            named=any(each.resolved for each in others),
            other_answers=alone,
        )
        if not alone:
            self.failures += faults
        if not alone and origin.until is not None and origin.given_up is None:
            until = datetime.fromtimestamp(origin.until, UTC)
            # Whatever else the host rests for goes on. The tasks of an origin that was given up
            # ask nothing, so any process may have the host next.
            self.not_before = until if self.not_before is None else max(self.not_before, until)
        if is_load:
            longest = LONGEST_DELAY
            if error.status not in policy.throttle_statuses and error.retry_after:
                # Unlike 429, 503 may have nothing to do with us: a server that is away for some
                # seconds now and then, however slowly asked, asks for no longer delay.
                longest = min(max(2 * error.retry_after, _FIRST_DELAY), LONGEST_DELAY)
            for _ in range(faults):
                self._slow(policy, longest=longest)

    def _slow(self, policy: Policy, *, longest: float) -> None:
        """Double the delay of a host that is asked too much.

        A delay is a short rest, so none is longer than the policy's longest rest.
        """
        longest = min(longest, policy.backoff_max.total_seconds())
        if policy.auto_throttle and self.delay < longest:
            self.delay = min(self.delay * 2 or _FIRST_DELAY, longest)


@dataclass(slots=True)
class SlowStart:
    """The requests at once that a new host gets: one, and more as it answers (as TCP's slow start).

    Each fast answer brings one more; where the host is slow, ten pages do. Until some pages are
    finished they are few all the same: a host that limits its requests refuses all that are under
    way.
    """

    fastest: float = float("inf")  #: the seconds that its fastest answer took
    steps: int = 0  #: answers that were fast; 0 after a failure: its capacity is found out anew
    quick_at: datetime | None = None
    """When the last request was sent that was answered in good time."""

    def answered(self, *, latency: float, sent: datetime) -> float:
        """Note an answer that came after *latency* seconds; return the latency of the host.

        0 where it is not known: the answer was cut off, or the loop stood still. A page that is
        slow while the host answers others in good time says nothing of the host.
        """
        if latency > 0:
            self.fastest = min(self.fastest, latency)
        if latency <= max(_FAST, min(_AS_FAST * self.fastest, _LONGEST_FAST)):
            self.steps += 1
        is_first = self.quick_at is None or sent >= self.quick_at
        if latency > SLOW_ANSWER:
            return latency if is_first else 0.0
        if is_first:
            self.quick_at = sent
        return latency

    def window(self, *, finished: int) -> int:
        """Return how many requests at once are allowed after *finished* pages."""
        window = 1 + finished // _PAGES_A_STEP + self.steps
        return min(window, _FEW) if finished < FIRST_PAGES else window


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """The right to ask one host for pages until `expires`."""

    host: Host
    """As it was when it was leased, but for its `ready_at`, which its owner is to find out."""
    token: str
    epoch: int
    expires: datetime
    clean: bool = True  #: whether the owner before, if any, has released it


class Calls(Enum):
    """The waiting tasks of an origin given up for which a method of the spider is called."""

    NONE = auto()
    ERRBACK = auto()  #: those with an errback of their own
    ALL = auto()  #: the spider has an `on_error`

    def include(self, errback: str | None) -> bool:
        """Return whether a method is called for a task with this *errback*, if it has one."""
        return self is Calls.ALL or (self is Calls.ERRBACK and errback is not None)
