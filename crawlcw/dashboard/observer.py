"""Poll the state of a crawl from its ledger, and find out why a host waits.

A poll reads workers, hosts and orders with four indexed queries. Tasks are counted rarely, so that
the counts take at most a twentieth of the ledger's time.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from crawlcw.crawl.control import ADJUSTABLE
from crawlcw.engine.workers import is_dead
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Counts, Dimension, Group, Ledger, Worker
from crawlcw.model.durations import format_duration
from crawlcw.model.hosts import Host
from crawlcw.model.rates import Span
from crawlcw.model.task import WAITING, Status

#: Time between two counts of the tasks, as a multiple of the time that one count takes.
_COUNT_COST = 20
_AVERAGE_PERIOD = timedelta(hours=1)  #: period over which the average rate is computed
_AVERAGE_INTERVAL = timedelta(seconds=30)  #: time after which the average rate is computed again
#: Maximum number of leased hosts to read, and maximum number of waiting hosts to read.
_MAX_HOSTS = 100
#: A worker counts as silent if its last heartbeat is older than this period.
_MAX_SILENCE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """A host that is slow, waits or fails; `why` has the reason."""

    host: Host
    why: str
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlState:
    """The state of a crawl at one moment."""

    name: str
    kind: LedgerKind
    now: datetime
    counts: Counts
    counted_at: datetime | None  #: time of the last count; None before the first count
    reasons: Mapping[str, int]  #: number of failed or ignored tasks by reason
    workers: tuple[Worker, ...]
    average_rate: float | None  #: finished tasks per second in the last hour; None if unknown
    hosts: tuple[HostLine, ...]  #: failing hosts, then waiting hosts, then slow hosts
    paused: str | None = None  #: when the user paused the crawl
    settings: Mapping[str, str] = field(default_factory=dict)  #: settings ordered by the user
    stages: tuple[Group, ...] = ()  #: stages of a use case, sorted by number of tasks
    error: str = ""  #: why the last read of the ledger failed; "" if it succeeded

    @property
    def backlog(self) -> int:
        """The number of unfinished tasks, including tasks in progress."""
        return unfinished_of(self.counts)

    @property
    def rate(self) -> float:
        """The rate of all live workers in the last minute, in finished tasks per second."""
        live_workers = [worker for worker in self.workers if not is_silent(worker, now=self.now)]
        return sum(worker.vitals.rate for worker in live_workers if worker.vitals is not None)

    @property
    def eta(self) -> timedelta | None:
        """The estimated time until all known tasks are done at `rate`; None if unknown."""
        if self.counted_at is None:
            return None
        if not self.backlog:
            return timedelta(0)
        if self.rate <= 0:
            return None
        return timedelta(seconds=round(self.backlog / self.rate))


def is_silent(worker: Worker, *, now: datetime) -> bool:
    """Return whether a worker's last heartbeat is too old to trust its numbers."""
    return now - worker.heartbeat > _MAX_SILENCE


@dataclass(frozen=True, slots=True)
class _CountResult:
    counts: Counts = field(default_factory=Counts)
    reasons: Mapping[str, int] = field(default_factory=dict)
    stages: tuple[Group, ...] = ()
    counted_at: datetime | None = None
    next_count_at: float = 0.0  #: monotonic time of the next count


class Observer:
    """Polls one ledger, and counts its tasks in the background, until the `with` block ends."""

    def __init__(
        self, ledger: Ledger, name: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._name = name
        self._clock = clock
        self._last_count = _CountResult()
        self._count_task: asyncio.Task[_CountResult] | None = None
        self._average_rate: float | None = None
        self._averaged_at: datetime | None = None

    async def __aenter__(self) -> Self:
        """Start."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop counting."""
        if self._count_task is not None:
            self._count_task.cancel()
            await asyncio.wait([self._count_task])

    async def poll(self, *, count_timeout: float | None = None) -> CrawlState:
        """Return the state of the crawl; raises `LedgerError`.

        If a count of the tasks is due, `poll` waits up to *count_timeout* seconds for the count. If
        *count_timeout* is None, `poll` waits without limit.
        """
        if self._count_task is None and self._clock() >= self._last_count.next_count_at:
            self._count_task = asyncio.create_task(self._count())
        if self._count_task is not None:
            await asyncio.wait([self._count_task], timeout=count_timeout)
            if self._count_task.done():
                ended_task, self._count_task = self._count_task, None
                self._last_count = ended_task.result()
        now = self._ledger.now()
        if self._averaged_at is None or now - self._averaged_at >= _AVERAGE_INTERVAL:
            start = now - _AVERAGE_PERIOD
            spans = await self._ledger.rates.between(start, now)
            self._average_rate, self._averaged_at = average_rate(spans, start=start), now
        workers = [worker for worker in await self._ledger.workers.all() if not is_dead(worker)]
        leased_hosts, waiting_hosts = await self._ledger.hosts.busiest(limit=_MAX_HOSTS)
        is_tracked = self._ledger.kind.tracked
        orders = {} if is_tracked else await self._ledger.notes.control()
        return CrawlState(
            name=self._name,
            kind=self._ledger.kind,
            now=now,
            counts=self._last_count.counts,
            counted_at=self._last_count.counted_at,
            reasons=self._last_count.reasons,
            stages=self._last_count.stages,
            workers=tuple(sorted(workers, key=lambda worker: (worker.started, worker.name))),
            average_rate=self._average_rate,
            hosts=notable_hosts([*leased_hosts, *waiting_hosts], now=now),
            paused=orders.get("paused"),
            settings={name: str(orders[name]) for name in ADJUSTABLE if name in orders},
        )

    def expire(self) -> None:
        """Count the tasks at the next poll, because a user has changed tasks."""
        self._last_count = replace(self._last_count, next_count_at=0.0)

    async def _count(self) -> _CountResult:
        started_at = self._clock()
        counts = await self._ledger.queries.counts()
        reasons = await self._ledger.queries.reasons()
        # A tracked task stores its stage in the field `host`.
        is_tracked = self._ledger.kind.tracked
        stages = await self._ledger.groups.by(Dimension.HOST) if is_tracked else []
        ended_at = self._clock()
        return _CountResult(
            counts=counts,
            reasons=reasons,
            stages=tuple(stages),
            counted_at=self._ledger.now(),
            next_count_at=ended_at + _COUNT_COST * (ended_at - started_at),
        )


def average_rate(spans: list[Span], *, start: datetime) -> float | None:
    """Return the average number of finished tasks per second since *start*, idle times included."""
    if not spans:
        return None
    finished_tasks = 0.0
    for span in spans:
        # If a span began before *start*, only the part of the span after *start* counts.
        share = (span.end - max(span.start, start)).total_seconds() / span.seconds
        finished_tasks += share * span.vitals.finished
    first_start = max(min(span.start for span in spans), start)
    return finished_tasks / max((spans[-1].end - first_start).total_seconds(), 1.0)


def notable_hosts(hosts: list[Host], *, now: datetime) -> tuple[HostLine, ...]:
    """Return the failing hosts, then the waiting hosts, then the hosts with the longest delays."""
    hosts_by_name = {
        host.name: host
        for host in hosts
        if host.failures > 0 or host.delay > 0 or _is_resting(host, now=now)
    }
    ranked_hosts = sorted(hosts_by_name.values(), key=lambda host: _rank(host, now=now))
    return tuple(
        HostLine(host=host, why=why(host, unfinished=True, now=now), owner=owner_of(host, now=now))
        for host in ranked_hosts
    )


def _is_resting(host: Host, *, now: datetime) -> bool:
    return host.not_before is not None and host.not_before > now


def _rank(host: Host, *, now: datetime) -> tuple[int, bool, float, str]:
    return -host.failures, not _is_resting(host, now=now), -host.delay, host.name


def why(host: Host, *, unfinished: bool, now: datetime, paused: bool = False) -> str:
    """Return the state of a host in words, such as the reason why the host waits.

    *unfinished* is true if the host has unfinished tasks; *paused* is true if its crawl is paused.
    """
    owner = owner_of(host, now=now)
    rest_left = (host.not_before or now) - now
    wait_left = (host.ready_at or now) - now
    give_up_reason = given_up_for(host)
    if give_up_reason is not None and (host.given_up is not None or not unfinished):
        return f"given up: {give_up_reason}"
    if not unfinished:
        return "done"
    if paused:
        return "the crawl is paused"
    if owner is not None:
        return f"owned by {owner}"
    if rest_left > timedelta(0) and host.failures:
        failures = "1 failure" if host.failures == 1 else f"{host.failures:,} failures"
        return f"resting for {format_duration(rest_left)}: {failures}"
    if rest_left > timedelta(0):
        return f"waiting its turn in {format_duration(rest_left)}"
    if wait_left > timedelta(0):
        return f"next task due in {format_duration(wait_left)}"
    return "ready"


def given_up_for(host: Host) -> str | None:
    """Return why crawlcw gave up *host* or some of its origins; None if it gave up nothing."""
    if host.given_up is not None:
        return str(host.given_up)
    reasons = [f"{origin}: {reason}" for origin, reason in host.lost_origins.items()]
    return ", ".join(reasons) or None


def owner_of(host: Host, *, now: datetime) -> str | None:
    """Return the name of the worker that has a valid lease of the host, or None."""
    if host.owner is None or host.ready_at is None or host.ready_at <= now:
        return None
    return host.owner.rpartition(":")[0]


def waiting_of(counts: Counts) -> int:
    """Return the number of waiting tasks."""
    return sum(counts[status] for status in WAITING)


def unfinished_of(counts: Counts) -> int:
    """Return the number of tasks that wait or are in progress."""
    return waiting_of(counts) + counts[Status.PROCESSING]
