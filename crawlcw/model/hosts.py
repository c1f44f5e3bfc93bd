"""What is known of one host, and what its successes and failures make of that.

Every large crawler schedules hosts, not URLs. A host is leased like a task: one
owner at a time, who alone asks it for pages, so a limit holds over all
processes. This file decides, synchronously; the ledgers apply.

Politeness (delay, rest) belongs to the host, and evidence to the origin: a host
whose port 443 is closed may serve every page on port 80. A host has at most two
origins, for its name says the port where that is not the scheme's own, so an
origin is named by its scheme here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from crawlcw.errors import Reason
from crawlcw.model.retry import backoff

#: Failures of the way to the server: no page of its own can be to blame.
CONNECTION_FAILURES = frozenset(
    {Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN, Reason.CONNECT, Reason.TIMEOUT_CONNECT}
)
#: Failures that say something of the origin and nothing of the page. A throttling
#: answer (429, or 503 with Retry-After) is the page's own where others are answered.
HOST_FAILURES = CONNECTION_FAILURES | {Reason.TLS, Reason.ROBOTS_UNAVAILABLE}
_DNS_FAILURES = frozenset({Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN})
#: Failures of a connection to an address: the name had one, no matter who is to blame.
PAST_THE_NAME = frozenset({Reason.CONNECT, Reason.TIMEOUT_CONNECT, Reason.TLS})
_JITTER = 0.1
#: A name that never had an address, or a port that never answered beside one that
#: does: another attempt tells a passing mistake, and waiting for longer tells no more.
_FEW_FAILURES = 2
#: A name that was there is not gone because a resolver says so for some minutes.
_LONGEST_DNS_OUTAGE = timedelta(hours=1)
#: By the default the four rests of a port that refuses take 7.5 s then, and 150 s else: a
#: server that is being started again is there by then.
_HASTE = 20
#: After so many failures in a row a page is asked that was answered well before.
_DOUBTED_FROM = 2
#: A longer URL is not worth keeping with its host.
_LONGEST_WITNESS = 500
#: Bytes. A larger page is asked for once more only where no other is known.
_LARGEST_WITNESS = 64 * 1024
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
SLOW_ANSWER = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsRecord:
    """A robots.txt as it was fetched, kept for every process."""

    origin: str  #: whose it is: `https://example.com`
    body: str = ""  #: at most 512 KiB; empty where everything is allowed
    sitemaps: tuple[str, ...] = ()  #: those it names
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is known of one scheme of a host: `https://example.com` beside `http://example.com`."""

    failures: int = 0  #: in a row
    nameless: int = 0  #: how many of them said that its name, which had an address, has none
    failing_since: datetime | None = None  #: when the first of them was
    not_before: datetime | None = None
    """The end of its own rest, where the host's other origin answers and need not rest."""
    good_at: datetime | None = None
    """When the last request was sent that was answered well; None: none was, in this crawl."""
    resolved: bool = False  #: whether its name had an address, in this crawl
    witness: str | None = None  #: the URL of a page that was answered well
    given_up: Reason | None = None  #: why its waiting tasks were ignored, if they were


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
    given_up: Reason | None = None
    """Why all its waiting tasks were ignored, if they were; single origins have their own."""
    origins: Mapping[str, Origin] = field(default_factory=dict)  #: by scheme: those asked so far
    robots: RobotsRecord | None = None
    finished: int = 0  #: pages, by all processes
    failed: int = 0  #: attempts that failed, by all processes
    failed_at: datetime | None = None
    """When a failure of the host was counted last; known to the owner who saw it, not stored."""

    def origin(self, scheme: str) -> Origin:
        """Return what is known of one of its origins."""
        return self.origins.get(scheme, _UNKNOWN)

    @property
    def lost_origins(self) -> dict[str, Reason]:
        """The origins that were given up, by URL, and why."""
        return {
            f"{scheme}://{self.name}": origin.given_up
            for scheme, origin in self.origins.items()
            if origin.given_up is not None
        }


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """The settings about hosts, as the decisions take them."""

    backoff_base: timedelta = timedelta(seconds=10)
    backoff_max: timedelta = timedelta(hours=1)
    max_failures: int = 5
    auto_throttle: bool = True
    calls: Calls = Calls.ERRBACK  #: no setting: the spider's methods tell

    def in_haste(self) -> "HostPolicy":
        """Return the policy for a host that nothing else of the crawl waits for: short rests."""
        return replace(self, backoff_base=self.backoff_base / _HASTE)


def succeeded(
    host: Host,
    *,
    latency: float,
    policy: HostPolicy,
    scheme: str = "http",
    sent: datetime | None = None,
) -> Host:
    """Return *host* after an origin answered well: it is forgiven all, but the delay only slowly.

    *latency* is the time to the answer's head in seconds, and *sent* is when the
    request was sent.
    """
    before = host.origin(scheme)
    good_at = before.good_at
    if sent is not None:
        good_at = sent if good_at is None else max(good_at, sent)
    after = Origin(good_at=good_at, resolved=True, witness=before.witness)
    return replace(
        host,
        delay=_followed(host.delay, latency) if policy.auto_throttle else host.delay,
        failures=0,
        page_failures=0,
        given_up=None,
        origins={**host.origins, scheme: after},
    )


def page_finished(
    host: Host, *, scheme: str = "http", witness: str | None = None, size: int = 0
) -> Host:
    """Return *host* after a page of *size* bytes that an origin answered was finished.

    *witness* is the page's URL, where asking for it again proves that the origin answers.
    """
    finished = host.finished + 1
    origin = host.origin(scheme)
    too_long = witness is None or len(witness) > _LONGEST_WITNESS
    if too_long or (size > _LARGEST_WITNESS and origin.witness is not None):
        return replace(host, finished=finished)
    origins = {**host.origins, scheme: replace(origin, witness=witness)}
    return replace(host, finished=finished, origins=origins)


def _followed(delay: float, latency: float) -> float:
    if latency > max(SLOW_ANSWER, delay):
        # Up to one request a latency, which is one at a time, and no further:
        # there may be nothing wrong with the host but that it is slow.
        return min(max(delay * 2, _FIRST_DELAY), latency, LONGEST_DELAY)
    # Not faster for a host that answers slower than its delay: it would forget
    # each 429 at the first success, and its delay would never grow.
    recovered = delay * _RECOVERY
    return recovered if recovered >= _SHORTEST_DELAY else 0.0


def slowed(host: Host, *, policy: HostPolicy, longest: float = LONGEST_DELAY) -> Host:
    """Return *host* after it showed that it is asked too much: its delay doubles.

    A delay is a short rest, so none is longer than the policy's longest rest.
    """
    longest = min(longest, policy.backoff_max.total_seconds())
    if not policy.auto_throttle or host.delay >= longest:
        return host
    return replace(host, delay=min(host.delay * 2 or _FIRST_DELAY, longest))


def page_failed(host: Host, *, policy: HostPolicy) -> Host:
    """Return *host* after a page failed by itself; ten in a row slow the host down."""
    failures = host.page_failures + 1
    host = replace(host, page_failures=failures, failed=host.failed + 1)
    if failures % _PAGE_FAILURES:
        return host
    return slowed_by_pages(host, policy=policy)


def slowed_by_pages(host: Host, *, policy: HostPolicy) -> Host:
    """Return *host* after its pages made it likely, and not certain, that it is asked too much."""
    return slowed(host, policy=policy, longest=_LONGEST_FOR_PAGES)


def is_the_pages_own(host: Host, *, scheme: str, throttled: datetime | None) -> bool:
    """Return whether a throttling answer is to be blamed on the page that got it.

    *throttled* is when the page got one before, None for never. An origin that
    has answered another page well since then is innocent: only requests sent
    after it count, for those under way were let in before the limit was reached.
    """
    good_at = host.origin(scheme).good_at
    return throttled is not None and good_at is not None and good_at > throttled


def is_silent(host: Host) -> bool:
    """Return whether a host has failed, and never answered well in this crawl."""
    return host.failures > 0 and all(each.good_at is None for each in host.origins.values())


def resolved(host: Host, *, scheme: str) -> Host:
    """Return *host* after its name was found to have an address, if no more than that."""
    return _with_origin(host, scheme, replace(host.origin(scheme), resolved=True))


def doubted(host: Host, *, now: datetime) -> str | None:
    """Return a page to ask before any other, where an origin fails again and again; else None.

    It was answered well before. Whether it is now tells an origin that is away, or
    has had enough of us, from pages that are refused for good.
    """
    for origin in host.origins.values():
        rests = origin.not_before is not None and origin.not_before > now
        failing = origin.failures >= _DOUBTED_FROM and origin.given_up is None
        if failing and not rests and origin.witness is not None:
            return origin.witness
    return None


def host_failed(
    host: Host,
    reason: Reason,
    *,
    now: datetime,
    policy: HostPolicy,
    chance: float,
    scheme: str = "http",
    status: int | None = None,
    retry_after: float | None = None,
    sent: datetime | None = None,
) -> Host:
    """Return *host* after an origin failed: it rests, and is given up after too many in a row.

    The host rests, or the origin alone where the other one answers and the failure
    is none of load. *status* is that of its answer, if it gave one, and
    *retry_after* is what the host asked for, in seconds; it doubles too where
    the host fails again after it, for it was not enough. *chance* in [0, 1)
    adds up to a tenth, so that the processes of many crawls do not come back at
    once. No rest is longer than the policy's longest. *sent* is when the request
    was sent, if known: requests that were under way together fail together, and
    that is one failure of the host.
    """
    origin = host.origin(scheme)
    together = sent is not None and host.failed_at is not None and sent <= host.failed_at
    failures = origin.failures + (not together)
    rest = rest_after(failures, together=together, retry_after=retry_after, policy=policy)
    not_before = now + min(rest * (1 + _JITTER * chance), policy.backoff_max)
    origin = replace(origin, failures=failures)
    alone = reason is not Reason.HTTP_STATUS and _another_answers(host, scheme)
    if alone:
        origin = replace(origin, not_before=_later(origin.not_before, not_before))
    else:
        # Whatever else the host rests for goes on.
        host = replace(host, not_before=_later(host.not_before, not_before))
    host = replace(host, failed=host.failed + 1)
    if together:
        return _with_origin(host, scheme, origin)
    origin = replace(
        origin,
        nameless=origin.nameless + _lost_its_name(host, reason),
        failing_since=origin.failing_since or now,
        resolved=origin.resolved or reason not in _DNS_FAILURES,
    )
    if _is_lost(host, origin, reason, alone=alone, now=now, policy=policy):
        lost = reason if reason is Reason.DNS_NXDOMAIN else Reason.HOST_UNREACHABLE
        origin = replace(origin, given_up=origin.given_up or lost)
    host = _with_origin(host, scheme, origin)
    host = replace(host, failed_at=now, failures=host.failures + (not alone))
    if reason is not Reason.HTTP_STATUS:
        return host
    if status == 429 or not retry_after:
        return slowed(host, policy=policy)
    # Unlike 429, this may have nothing to do with us: who is away for some
    # seconds now and then, however slowly asked, asks for no longer delay.
    longest = min(max(2 * retry_after, _FIRST_DELAY), LONGEST_DELAY)
    return slowed(host, policy=policy, longest=longest)


def is_last_failure(
    host: Host,
    reason: Reason,
    *,
    now: datetime,
    policy: HostPolicy,
    scheme: str,
    sent: datetime,
) -> bool:
    """Return whether an origin is to be given up if it has failed; the rest is `host_failed`'s."""
    if host.origin(scheme).given_up is not None:
        return False
    after = host_failed(host, reason, now=now, policy=policy, chance=0.0, scheme=scheme, sent=sent)
    return after.origin(scheme).given_up is not None


def rest_after(
    failures: int, *, retry_after: float | None, policy: HostPolicy, together: bool = False
) -> timedelta:
    """Return how long the failure of that number is followed by no request.

    *together* says that it was under way together with another one that counts.
    """
    # Zero seconds, or a date that has passed, asks for nothing.
    if retry_after:
        asked = min(timedelta(seconds=retry_after), policy.backoff_max)
        return backoff(max(failures, 1), base=asked, ceiling=policy.backoff_max)
    if together:
        return timedelta(0)
    return backoff(failures, base=policy.backoff_base, ceiling=policy.backoff_max)


def _is_lost(
    host: Host, origin: Origin, reason: Reason, *, alone: bool, now: datetime, policy: HostPolicy
) -> bool:
    """Return whether an origin that has just failed again is to be given up.

    *alone* says that the host's other origin answers.
    """
    if _lost_its_name(host, reason):
        since = origin.failing_since or now
        return origin.failures >= policy.max_failures and now - since >= _LONGEST_DNS_OUTAGE
    most = policy.max_failures
    closed = reason is Reason.DNS_NXDOMAIN or (alone and reason in PAST_THE_NAME)
    if closed and origin.good_at is None:
        most = min(most, _FEW_FAILURES)
    # A resolver's mistakes need their hour, and do not shorten the way of other failures.
    return origin.failures - origin.nameless >= most


def _lost_its_name(host: Host, reason: Reason) -> bool:
    """Return whether a failure says that a name has no address which had one before."""
    # Names are the host's, whichever of its origins was asked.
    return reason in _DNS_FAILURES and any(each.resolved for each in host.origins.values())


def _another_answers(host: Host, scheme: str) -> bool:
    return any(
        each.good_at is not None and not each.failures
        for name, each in host.origins.items()
        if name != scheme
    )


def _with_origin(host: Host, scheme: str, origin: Origin) -> Host:
    return replace(host, origins={**host.origins, scheme: origin})


def _later(one: datetime | None, other: datetime) -> datetime:
    return other if one is None else max(one, other)


_UNKNOWN = Origin()
