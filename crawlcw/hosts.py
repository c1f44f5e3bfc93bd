"""What is known of one host, and what its successes and failures make of that.

Every large crawler schedules hosts, not URLs. A host is leased like a task: one
owner at a time, who alone asks it for pages, so a limit holds over all
processes. This file decides, synchronously; the ledgers apply.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crawlcw.errors import Reason
from crawlcw.retry import LONGEST_RETRY_AFTER, backoff

#: Failures that say something of the host and nothing of the page.
HOST_FAILURES = frozenset(
    {
        Reason.DNS_TEMPORARY,
        Reason.DNS_NXDOMAIN,
        Reason.CONNECT,
        Reason.TIMEOUT_CONNECT,
        Reason.TLS,
        Reason.ROBOTS_UNAVAILABLE,
    }
)
_JITTER = 0.1
_NXDOMAIN_FAILURES = 2
_PAGE_FAILURES = 10
#: The adaptive delay: never more than this, and no less than the first step when it begins.
LONGEST_DELAY = 60.0
_FIRST_DELAY = 0.5
#: A delay under this is none.
_SHORTEST_DELAY = _FIRST_DELAY / 8
#: How much of a delay is left after a success. A host that allows so many
#: requests in a time is over its limit once in some 140 requests that way.
_RECOVERY = 0.995
#: Pages that fail by themselves do not slow a host down further than this.
_LONGEST_FOR_PAGES = 2.0
#: Seconds. Who takes longer for an answer is asked too much.
_SLOW_ANSWER = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsRecord:
    """A robots.txt as it was fetched, kept for every process."""

    origin: str  #: whose it is: `https://example.com`
    body: str = ""  #: at most 512 KiB; empty where everything is allowed
    sitemaps: tuple[str, ...] = ()  #: those it names
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host as the ledger keeps it."""

    name: str  #: the politeness key of its tasks
    ready_at: datetime | None = None
    """When a coordinator may lease it: the end of a lease, or when a task is due; None: no work."""
    owner: str | None = None  #: the token of the lease, `worker:n`
    epoch: int = 0  #: the number of leases so far: the fence of the owner's writes
    not_before: datetime | None = None  #: no request starts earlier: politeness, or a backoff
    delay: float = 0.0  #: the adaptive delay in seconds
    failures: int = 0  #: of the host, in a row
    page_failures: int = 0  #: of pages, in a row
    given_up: Reason | None = None  #: why its waiting tasks were ignored, if they were
    robots: RobotsRecord | None = None
    finished: int = 0  #: pages, by all processes
    failed: int = 0  #: attempts that failed, by all processes
    failed_at: datetime | None = None
    """When a failure of the host was counted last; known to the owner who saw it, not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """The right to ask one host for pages until `expires`."""

    host: Host
    """As it was when it was leased, but for its `ready_at`, which its owner is to find out."""
    token: str
    epoch: int
    expires: datetime
    clean: bool = True  #: whether the owner before, if any, has released it


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """The settings about hosts, as the decisions take them."""

    backoff_base: timedelta = timedelta(seconds=10)
    backoff_max: timedelta = timedelta(hours=1)
    max_failures: int = 5
    auto_throttle: bool = True


def succeeded(host: Host, *, latency: float, policy: HostPolicy, page: bool = True) -> Host:
    """Return *host* after it answered well: all is forgiven, but the delay only slowly.

    *latency* is the time to the answer's head in seconds; *page* says that the
    answer counts as a page, and not as the news that there is none.
    """
    return replace(
        host,
        delay=_followed(host.delay, latency) if policy.auto_throttle else host.delay,
        failures=0,
        page_failures=0,
        given_up=None,
        finished=host.finished + page,
    )


def _followed(delay: float, latency: float) -> float:
    if latency > max(_SLOW_ANSWER, delay):
        # Up to one request a latency, which is one at a time, and no further:
        # there may be nothing wrong with the host but that it is slow.
        return min(max(delay * 2, _FIRST_DELAY), latency, LONGEST_DELAY)
    # Not faster for a host that answers slower than its delay: it would forget
    # each 429 at the first success, and its delay would never grow.
    recovered = delay * _RECOVERY
    return recovered if recovered >= _SHORTEST_DELAY else 0.0


def slowed(host: Host, *, policy: HostPolicy, longest: float = LONGEST_DELAY) -> Host:
    """Return *host* after it showed that it is asked too much: its delay doubles."""
    if not policy.auto_throttle or host.delay >= longest:
        return host
    return replace(host, delay=min(host.delay * 2 or _FIRST_DELAY, longest))


def page_failed(host: Host, *, policy: HostPolicy) -> Host:
    """Return *host* after a page failed by itself; ten in a row slow the host down."""
    failures = host.page_failures + 1
    host = replace(host, page_failures=failures, failed=host.failed + 1)
    if failures % _PAGE_FAILURES:
        return host
    return slowed(host, policy=policy, longest=_LONGEST_FOR_PAGES)


def host_failed(
    host: Host,
    reason: Reason,
    *,
    now: datetime,
    policy: HostPolicy,
    chance: float,
    status: int | None = None,
    retry_after: float | None = None,
    sent: datetime | None = None,
) -> Host:
    """Return *host* after it failed: it rests, and is given up after too many in a row.

    *status* is that of its answer, if it gave one, and
    *retry_after* is what the host asked for, in seconds; it doubles too where
    the host fails again after it, for it was not enough. *chance* in [0, 1)
    adds up to a tenth, so that the processes of many crawls do not come back at
    once. *sent* is when the request was sent, if known: requests that were
    under way together fail together, and that is one failure of the host.
    """
    together = sent is not None and host.failed_at is not None and sent <= host.failed_at
    failures = host.failures + (not together)
    # Zero seconds, or a date that has passed, asks for nothing.
    if retry_after:
        asked = timedelta(seconds=retry_after)
        rest = backoff(max(failures, 1), base=asked, ceiling=LONGEST_RETRY_AFTER)
    elif together:
        rest = timedelta(0)
    else:
        rest = backoff(failures, base=policy.backoff_base, ceiling=policy.backoff_max)
    not_before = now + rest * (1 + _JITTER * chance)
    host = replace(
        host,
        failures=failures,
        failed=host.failed + 1,
        # Whatever else the host rests for goes on.
        not_before=max(not_before, host.not_before or not_before),
    )
    if together:
        return host
    most = _NXDOMAIN_FAILURES if reason is Reason.DNS_NXDOMAIN else policy.max_failures
    # Only a success takes it back: a host that is full, or whose name does not
    # exist, is not to be asked again because of one more failure of another kind.
    given_up = host.given_up
    if failures >= most:
        given_up = reason if reason is Reason.DNS_NXDOMAIN else Reason.HOST_UNREACHABLE
    host = replace(host, failed_at=now, given_up=given_up)
    if reason is not Reason.HTTP_STATUS:
        return host
    if status == 429 or not retry_after:
        return slowed(host, policy=policy)
    # Unlike 429, this may have nothing to do with us: who is away for some
    # seconds now and then, however slowly asked, asks for no longer delay.
    longest = min(max(2 * retry_after, _FIRST_DELAY), LONGEST_DELAY)
    return slowed(host, policy=policy, longest=longest)
