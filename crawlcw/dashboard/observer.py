"""Poll the state of a crawl from its ledger, often and at little cost; say why a host waits.

Workers, hosts and control are four indexed reads a poll. Counts are repeated so rarely that
the ledger spends at most a twentieth of its time on them.
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

#: Wait until the next count, in durations of the last one: 5 % of the time.
_COUNT_COST = 20
#: Period of the average, and interval of its reads.
_AVERAGE_OVER = timedelta(hours=1)
_AVERAGE_EVERY = timedelta(seconds=30)
#: Number of held hosts, and of waiting hosts, to examine.
_HOSTS = 100
#: A worker counts as not at work after this silence.
_SILENT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """A host that is slow, waits or fails, with the reason."""

    host: Host
    why: str
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlState:
    """State of a crawl at one moment."""

    name: str
    kind: LedgerKind
    now: datetime
    counts: Counts
    counted: datetime | None  #: time of the counts; None: the first count is running
    reasons: Mapping[str, int]  #: of failed and ignored tasks, the most frequent first
    workers: tuple[Worker, ...]
    average: float | None  #: tasks finished a second over the last hour; None: unknown yet
    hosts: tuple[HostLine, ...]  #: failing or waiting ones first, then the slowest
    paused: str | None = None  #: start of a pause, as recorded
    settings: Mapping[str, str] = field(default_factory=dict)  #: changes of the crawls' settings
    stages: tuple[Group, ...] = ()  #: of a use case, the largest first
    trouble: str = ""  #: why this state is outdated, if it is

    @property
    def backlog(self) -> int:
        """Number of unfinished tasks, those in processing included."""
        return unfinished_of(self.counts)

    @property
    def rate(self) -> float:
        """Tasks finished a second by all live workers, over the last minute."""
        live_workers = [worker for worker in self.workers if not is_silent(worker, now=self.now)]
        return sum(worker.vitals.rate for worker in live_workers if worker.vitals is not None)

    @property
    def eta(self) -> timedelta | None:
        """Estimated time for the known tasks at this rate; None: unknown."""
        if self.counted is None:
            return None
        if not self.backlog:
            return timedelta(0)
        if self.rate <= 0:
            return None
        return timedelta(seconds=round(self.backlog / self.rate))


def is_silent(worker: Worker, *, now: datetime) -> bool:
    """Return whether a worker has been silent too long for its numbers to be current."""
    return now - worker.heartbeat > _SILENT


@dataclass(frozen=True, slots=True)
class _Counted:
    counts: Counts = field(default_factory=Counts)
    reasons: Mapping[str, int] = field(default_factory=dict)
    stages: tuple[Group, ...] = ()
    at: datetime | None = None
    next: float = 0.0  #: time of the next count, in seconds of the clock


class Observer:
    """Polls one ledger, and counts in the background, within the block."""

    def __init__(
        self, ledger: Ledger, name: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._name = name
        self._clock = clock
        self._counted = _Counted()
        self._counting: asyncio.Task[_Counted] | None = None
        self._average: float | None = None
        self._averaged: datetime | None = None

    async def __aenter__(self) -> Self:
        """Start."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop counting."""
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait([self._counting])

    async def poll(self, *, patience: float | None = None) -> CrawlState:
        """Return the state of the crawl; raises `LedgerError`.

        Waits up to *patience* seconds for a due count; None: until it is done.
        """
        if self._counting is None and self._clock() >= self._counted.next:
            self._counting = asyncio.create_task(self._count())
        if self._counting is not None:
            await asyncio.wait([self._counting], timeout=patience)
            if self._counting.done():
                count_task, self._counting = self._counting, None
                self._counted = count_task.result()
        now = self._ledger.now()
        if self._averaged is None or now - self._averaged >= _AVERAGE_EVERY:
            spans = await self._ledger.rates.between(now - _AVERAGE_OVER, now)
            self._average, self._averaged = average(spans, since=now - _AVERAGE_OVER), now
        workers = [worker for worker in await self._ledger.workers.all() if not is_dead(worker)]
        leased_hosts, waiting_hosts = await self._ledger.hosts.busiest(limit=_HOSTS)
        is_tracked = self._ledger.kind.tracked
        orders = {} if is_tracked else await self._ledger.notes.control()
        return CrawlState(
            name=self._name,
            kind=self._ledger.kind,
            now=now,
            counts=self._counted.counts,
            counted=self._counted.at,
            reasons=self._counted.reasons,
            stages=self._counted.stages,
            workers=tuple(sorted(workers, key=lambda worker: (worker.started, worker.name))),
            average=self._average,
            hosts=notable([*leased_hosts, *waiting_hosts], now=now),
            paused=orders.get("paused"),
            settings={name: str(orders[name]) for name in ADJUSTABLE if name in orders},
        )

    def changed(self) -> None:
        """Count again at the next poll, after a user has changed tasks."""
        self._counted = replace(self._counted, next=0.0)

    async def _count(self) -> _Counted:
        started_at = self._clock()
        counts = await self._ledger.queries.counts()
        reasons = await self._ledger.queries.reasons()
        # A tracked task stores its stage in the field `host`.
        is_tracked = self._ledger.kind.tracked
        stages = await self._ledger.groups.by(Dimension.HOST) if is_tracked else []
        ended_at = self._clock()
        return _Counted(
            counts=counts,
            reasons=reasons,
            stages=tuple(stages),
            at=self._ledger.now(),
            next=ended_at + _COUNT_COST * (ended_at - started_at),
        )


def average(spans: list[Span], *, since: datetime) -> float | None:
    """Return the tasks finished a second since *since*, idle times included."""
    if not spans:
        return None
    finished_tasks = 0.0
    for span in spans:
        # A span that began earlier counts in part.
        share = (span.end - max(span.start, since)).total_seconds() / span.seconds
        finished_tasks += share * span.vitals.finished
    start = max(min(span.start for span in spans), since)
    return finished_tasks / max((spans[-1].end - start).total_seconds(), 1.0)


def notable(hosts: list[Host], *, now: datetime) -> tuple[HostLine, ...]:
    """Return the failing hosts, the waiting ones, and then those with the longest delays."""
    hosts_by_name = {
        host.name: host
        for host in hosts
        if host.failures > 0 or host.delay > 0 or _rests(host, now=now)
    }
    ranked_hosts = sorted(hosts_by_name.values(), key=lambda host: _rank(host, now=now))
    return tuple(
        HostLine(host=host, why=why(host, unfinished=True, now=now), owner=owner_of(host, now=now))
        for host in ranked_hosts
    )


def _rests(host: Host, *, now: datetime) -> bool:
    return host.not_before is not None and host.not_before > now


def _rank(host: Host, *, now: datetime) -> tuple[int, bool, float, str]:
    return -host.failures, not _rests(host, now=now), -host.delay, host.name


def why(host: Host, *, unfinished: bool, now: datetime, paused: bool = False) -> str:
    """Return the first reason that applies.

    *unfinished*: the host has tasks to do; *paused*: its crawl is paused.
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
    """Return the reason why the host, or some of its origins, were given up; None: not given up."""
    if host.given_up is not None:
        return str(host.given_up)
    reasons = [f"{origin}: {reason}" for origin, reason in host.lost_origins.items()]
    return ", ".join(reasons) or None


def owner_of(host: Host, *, now: datetime) -> str | None:
    """Return the name of the worker that holds the host, if its lease has not expired."""
    if host.owner is None or host.ready_at is None or host.ready_at <= now:
        return None
    return host.owner.rpartition(":")[0]


def waiting_of(counts: Counts) -> int:
    """Return the number of waiting tasks."""
    return sum(counts[status] for status in WAITING)


def unfinished_of(counts: Counts) -> int:
    """Return the number of tasks that wait or are in processing."""
    return waiting_of(counts) + counts[Status.PROCESSING]
