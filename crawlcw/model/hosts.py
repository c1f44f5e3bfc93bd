"""Host as the ledger keeps it, and its updates after each answer.

Every large crawler schedules hosts, not URLs. A host is leased like a task: one
owner at a time, who alone asks it for pages, so a limit holds over all
processes. This file and `health` decide, synchronously; the ledgers apply.

Politeness (delay, rest) belongs to the host, and each origin has a circuit breaker: a host
whose port 443 is closed may serve every page on port 80. A host has at most two
origins, for its name says the port where that is not the scheme's own, so an
origin is named by its scheme here.
"""

from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

from crawlcw.errors import Reason
from crawlcw.model import health
from crawlcw.model.health import Marks, Origin, Policy, State

_JITTER = 0.1
#: So many pages that fail in a row slow their host down.
_PAGE_FAILURES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsRecord:
    """A robots.txt as it was fetched, kept for every process."""

    origin: str  #: whose it is: `https://example.com`
    body: str = ""  #: at most 512 KiB; empty where everything is allowed
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
    origins: dict[str, Origin] = field(default_factory=dict)  #: by scheme: those asked so far
    robots: RobotsRecord | None = None
    finished: int = 0  #: pages, by all processes
    failed: int = 0  #: attempts that failed, by all processes

    def copy(self) -> "Host":
        """Return a copy; later changes do not reach it."""
        found = copy(self)
        found.origins = {scheme: copy(origin) for scheme, origin in self.origins.items()}
        return found

    def origin(self, scheme: str) -> Origin:
        """Return the breaker of one of its origins."""
        origin = self.origins.get(scheme)
        if origin is None:
            origin = self.origins[scheme] = Origin()
        return origin

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
        origin = self.origins.get(scheme)
        if origin is None or origin.until is None:
            return None
        until = datetime.fromtimestamp(origin.until, UTC)
        host_rests = self.not_before is not None and self.not_before >= until
        return None if until <= now or host_rests else until

    def probe_url(self, *, now: datetime) -> str | None:
        """Return the good page to ask before any other, after the host's rest, if there is one.

        It is that of an origin that is half-open, or will be when the whole host has rested.
        """
        for scheme, origin in self.origins.items():
            if origin.state in (State.CLOSED, State.DEAD):
                continue
            origin.at(now.timestamp())
            if origin.good_url is not None and self.resting_until(scheme, now=now) is None:
                return origin.good_url
        return None

    def origin_answered(
        self, scheme: str, *, latency: float, sent: datetime, marks: Marks, policy: Policy
    ) -> bool:
        """Note a good answer of an origin; return whether that ended a row of failures.

        *latency* is the time to the answer's head in seconds.
        """
        origin = self.origin(scheme)
        failures = origin.failures
        if origin.answered(marks, sent=sent.timestamp(), delay=self.delay):
            self._slow(policy, longest=health.LONGEST_FOR_PAGES)
        if policy.auto_throttle and (self.delay or latency > health.SLOW_ANSWER):
            self.delay = health.followed(self.delay, latency)
        self.page_failures = 0
        if not origin.failures:
            self.failures, self.given_up = 0, None
        return failures > 0 and not origin.failures

    def page_refused(self, policy: Policy) -> None:
        """Note a page that paid for a refusal (429): an adaptive delay may be too short still."""
        if self.delay:
            self._slow(policy, longest=health.LONGEST_FOR_PAGES)

    def page_failed(self, policy: Policy) -> None:
        """Note a page that failed by itself; ten in a row slow the host down."""
        self.failed += 1
        self.page_failures += 1
        if self.page_failures % _PAGE_FAILURES == 0:
            self._slow(policy, longest=health.LONGEST_FOR_PAGES)

    def origin_failed(
        self,
        scheme: str,
        reason: Reason,
        *,
        now: datetime,
        sent: datetime,
        policy: Policy,
        chance: float = 0.0,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Note a fault of an origin: it rests, and is given up after too many strikes.

        The host rests, or the origin alone where the other one answers and the fault is none of
        load. *status* is that of its answer, if it gave one, *retry_after* is in seconds, and
        *chance* in [0, 1) adds up to a tenth to the rest.
        """
        origin = self.origin(scheme)
        alone = reason is not Reason.HTTP_STATUS and self._another_answers(scheme)
        # Names are the host's, whichever of its origins was asked.
        named = any(each.resolved for each in self.origins.values())
        faults = origin.fault(
            reason,
            sent=sent.timestamp(),
            now=now.timestamp(),
            policy=policy,
            jitter=_JITTER * chance,
            retry_after=retry_after,
            named=named,
            beside=alone,
        )
        self.failed += 1
        self.failures += 0 if alone else faults
        if not alone and origin.until is not None:
            until = datetime.fromtimestamp(origin.until, UTC)
            # Whatever else the host rests for goes on.
            self.not_before = until if self.not_before is None else max(self.not_before, until)
        for _ in range(faults if reason is Reason.HTTP_STATUS else 0):
            self._slow(policy, longest=health.longest_delay(status, retry_after))

    def _slow(self, policy: Policy, *, longest: float) -> None:
        self.delay = health.slowed(self.delay, policy=policy, longest=longest)

    def _another_answers(self, scheme: str) -> bool:
        return any(
            each.good_at is not None and not each.failures
            for name, each in self.origins.items()
            if name != scheme
        )


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
