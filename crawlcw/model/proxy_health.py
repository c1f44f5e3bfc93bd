"""How a proxy is doing: what its successes and failures make of it. No I/O.

A proxy that cannot be reached rests, each time twice as long; one that has failed so
often in a row that a host would be given up counts as dead until it works again.
Times are seconds of the monotonic clock.
"""

from dataclasses import dataclass, replace

from crawlcw.model.hosts import HostPolicy
from crawlcw.model.network import LONGEST_OUTAGE
from crawlcw.model.retry import backoff

#: So many failures in a row, which another proxy has not, are no chance.
_TOLERATED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyHealth:
    """What is known of one proxy."""

    failures: int = 0  #: in a row
    ready_at: float = 0.0  #: when its rest is over
    why: str = ""  #: what was wrong the last time
    has_worked: bool = False  #: once in this process
    failing_since: float = 0.0  #: when the row of failures began


def worked(health: ProxyHealth) -> ProxyHealth:
    """Return a proxy by which a server was reached."""
    if health.has_worked and not health.failures:
        return health
    return ProxyHealth(has_worked=True)


def failed(health: ProxyHealth, why: str, *, now: float, policy: HostPolicy) -> ProxyHealth:
    """Return a proxy that has failed by itself; failures during its rest count once."""
    if now < health.ready_at:
        return health
    failures = health.failures + 1
    rest = backoff(failures, base=policy.backoff_base, ceiling=policy.backoff_max)
    return replace(
        health,
        failures=failures,
        ready_at=now + rest.total_seconds(),
        why=why,
        failing_since=health.failing_since if health.failures else now,
    )


def overruled(health: ProxyHealth, why: str, *, now: float, policy: HostPolicy) -> ProxyHealth:
    """Return a proxy through which a request failed that another one got through.

    That may be chance: it rests for the third of them in a row.
    """
    after = failed(health, why, now=now, policy=policy)
    if after.failures < _TOLERATED:
        return replace(after, ready_at=health.ready_at)
    return after


def refused(health: ProxyHealth, why: str, *, now: float, policy: HostPolicy) -> ProxyHealth:
    """Return a proxy that refuses us: no waiting will change its mind, so it is dead at once."""
    dead = max(policy.max_failures, health.failures + 1)
    rest = backoff(dead, base=policy.backoff_base, ceiling=policy.backoff_max).total_seconds()
    return ProxyHealth(failures=dead, ready_at=now + rest, why=why, failing_since=now)


def is_dead(health: ProxyHealth, *, policy: HostPolicy) -> bool:
    """Return whether nobody should wait for a proxy any more."""
    return health.failures >= policy.max_failures


def is_lost(health: ProxyHealth, *, now: float, policy: HostPolicy) -> bool:
    """Return whether a crawl that has only such proxies is to end.

    One that has worked may be away because our own network is: as hosts then do,
    it has an hour.
    """
    if not is_dead(health, policy=policy):
        return False
    return not health.has_worked or now - health.failing_since >= LONGEST_OUTAGE
