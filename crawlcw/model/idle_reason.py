"""Find the reason why a crawl waits, and show the reason in the progress line. No I/O.

A healthy crawl may wait for minutes, because its hosts rest after failures, the network is down, or
other workers have the due tasks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from crawlcw.model.durations import iso_time

#: The maximum number of hosts in a `Rests` object; above it, the object forgets half of the hosts.
MAX_RESTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleReason:
    """Why the crawl waits without any running request; the times are by the ledger's clock."""

    paused_since: datetime | None = None  #: time at which the user paused the crawl
    down_since: datetime | None = None  #: since when this machine's network is down
    hosts: int = 0  #: number of hosts that rest after failures
    ends_at: datetime | None = None  #: end of the first rest (of a host or a proxy), or a due time
    cause: str = ""  #: why the first host rests, such as `429, Retry-After`
    proxies: str = ""  #: why no proxy is usable before `ends_at`; empty if a proxy is usable
    others_have_tasks: bool = False  #: whether other workers probably lease the due tasks
    start: bool = False  #: whether the crawl waits only for the spider's `start`
    new_pages: bool = False  #: whether the crawl waits only for new pages (`keep_running`)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "IdleReason":
        """Return the idle reason that another process sent, with its times in ISO 8601."""
        datetimes = {
            name: datetime.fromisoformat(fields[name])
            for name in ("paused_since", "down_since", "ends_at")
            if fields[name] is not None
        }
        return cls(**{**fields, **datetimes})

    def sentence(self) -> str:
        """Return the idle reason as a sentence for people, with local times of day."""
        if self.paused_since is not None:
            return f"paused since {_time_of_day(self.paused_since)}, until `crawlcw resume NAME`"
        if self.down_since is not None:
            return f"the network has been down since {_time_of_day(self.down_since)}; trying again"
        if self.proxies and self.ends_at is not None:
            return f"no proxy is usable until {_time_of_day(self.ends_at)}: {self.proxies}"
        if self.hosts and self.ends_at is not None:
            hosts = "1 host rests" if self.hosts == 1 else f"{self.hosts:,} hosts rest, the first"
            suffix = f": {self.cause}" if self.cause else ""
            return f"{hosts} until {_time_of_day(self.ends_at)}{suffix}"
        if self.others_have_tasks:
            return "waiting for other workers"
        if self.start:
            return "waiting for the next request of start()"
        if self.new_pages:
            return "waiting for new pages (`crawlcw add`)"
        if self.ends_at is not None:
            return f"nothing is due before {_time_of_day(self.ends_at)}"
        return ""

    def fields(self) -> dict[str, object]:
        """Return the idle reason as JSON fields for programs, with times in ISO 8601."""
        fields: dict[str, object] = {"sentence": self.sentence()}
        if self.paused_since is not None:
            return fields | {"paused_since": iso_time(self.paused_since)}
        if self.down_since is not None:
            return fields | {"network_down_since": iso_time(self.down_since)}
        if self.proxies:
            fields |= {"proxies": self.proxies}
        elif self.hosts:
            fields |= {"hosts_resting": self.hosts, "cause": self.cause}
        if self.ends_at is not None:
            fields |= {"ends_at": iso_time(self.ends_at)}
        return fields


def merged(workers: Iterable[IdleReason | None]) -> IdleReason | None:
    """Return why a crawl of several workers waits; None if at least one worker makes progress.

    A reason such as a resting host has precedence over "waiting for other workers". Each worker
    counts only its own hosts, so the result has the sum of the workers' numbers.
    """
    total: IdleReason | None = None
    for idle_reason in workers:
        if idle_reason is None:
            return None
        total = idle_reason if total is None else _both(total, idle_reason)
    return total


def _both(first: IdleReason, second: IdleReason) -> IdleReason:
    network_failures = [
        idle_reason.down_since
        for idle_reason in (first, second)
        if idle_reason.down_since is not None
    ]
    # Choose the rest that ends first. If no host rests, choose the next due time.
    waits_by_end = [
        (idle_reason.ends_at, idle_reason)
        for idle_reason in (first, second)
        if idle_reason.ends_at is not None
    ]
    rests = [
        (rest_end, idle_reason) for rest_end, idle_reason in waits_by_end if idle_reason.hosts
    ] or waits_by_end
    _, earliest = min(
        rests, key=lambda end_and_reason: end_and_reason[0], default=(None, IdleReason())
    )
    pauses = [
        idle_reason.paused_since
        for idle_reason in (first, second)
        if idle_reason.paused_since is not None
    ]
    return replace(
        earliest,
        paused_since=min(pauses, default=None),
        down_since=min(network_failures, default=None),
        hosts=first.hosts + second.hosts,
        others_have_tasks=first.others_have_tasks or second.others_have_tasks,
        start=first.start or second.start,
        new_pages=first.new_pages and second.new_pages,
    )


class Rests:
    """The hosts that rest after failures, and whether this machine's network is down."""

    def __init__(self) -> None:
        self.network_down_since: datetime | None = None
        #: Returns None if a proxy is usable, else the seconds until one is usable, and the cause.
        self.proxies_away: Callable[[], tuple[float, str] | None] = lambda: None
        self._rest_by_host: dict[str, tuple[datetime, str]] = {}

    def note(self, host: str, *, rest_end: datetime, cause: str) -> None:
        """Record that *host* rests until *rest_end* because of *cause*, a short text."""
        current_rest = self._rest_by_host.get(host)
        if current_rest is None or current_rest[0] < rest_end:
            self._rest_by_host[host] = (rest_end, cause)
        if len(self._rest_by_host) > MAX_RESTS:
            latest = sorted(self._rest_by_host.items(), key=lambda pair: pair[1][0])
            self._rest_by_host = dict(latest[-(MAX_RESTS // 2) :])

    def number(self, now: datetime) -> int:
        """Return how many hosts rest at *now*."""
        resting = {host: rest for host, rest in self._rest_by_host.items() if rest[0] > now}
        self._rest_by_host = resting
        return len(self._rest_by_host)

    def idle_reason(self, now: datetime) -> IdleReason:
        """Return the reason why a crawl without running requests waits at *now*."""
        down_since = self.network_down_since
        if down_since is None and (proxy_failure := self.proxies_away()) is not None:
            wait, cause = proxy_failure
            return IdleReason(ends_at=now + timedelta(seconds=wait), proxies=cause)
        if not (number := self.number(now)):
            return IdleReason(down_since=down_since)
        rest_end, cause = min(self._rest_by_host.values())
        return IdleReason(down_since=down_since, hosts=number, ends_at=rest_end, cause=cause)


def failure_text(
    reason: str, *, status: int | None = None, retry_after: float | None = None
) -> str:
    """Return a short text that says why a host rests, such as `429, Retry-After` or `connect`."""
    label = reason if status is None else str(status)
    return f"{label}, Retry-After" if retry_after else label


def _time_of_day(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M}"
