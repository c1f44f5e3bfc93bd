"""Workers, their vitals over time, and the rates from them. No I/O.

A worker writes its `Vitals` with every heartbeat, and one `Point` of them a minute. Points
count from the worker's start on: if one is missing or was deleted with age, the next step is
longer, and no count is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from crawlcw.model.counters import Counters
from crawlcw.model.loans import Loan, LoanReport

#: A worker leaves a point in as many minutes as this.
EVERY = timedelta(minutes=1)
#: Of points that are older than a day, one in as long remains.
COARSE = timedelta(minutes=10)
#: In days, how long a point is kept, and how long one that others may stand for.
KEPT_DAYS, FINE_DAYS = 7, 1
#: A worker that leaves no point for longer was not at work, or its ledger was away.
_LONGEST_STEP = COARSE + 5 * EVERY
#: The numbers of `Vitals` that grow from a worker's start on.
_COUNTERS = ("finished", "failed", "ignored", "items", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The state of a worker at one moment."""

    finished: int = 0  #: tasks since its start, those of no page of their own left out
    failed: int = 0  #: attempts since its start that are to be followed by another one
    ignored: int = 0  #: tasks since its start, for whatever reason
    items: int = 0  #: recorded since its start
    bytes: int = 0  #: of decoded bodies since its start
    rate: float = 0.0  #: tasks finished a second, over the last minute
    processing: int = 0  #: tasks that it holds
    memory: int = 0  #: of its process, resident, in bytes; 0: not known
    lag: float = 0.0  #: by how many seconds its event loop was late at most, of late


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that works on the ledger."""

    name: str  #: its leases' tokens are `name:n`
    machine: str  #: what machine it runs on; the same text for all processes there
    pid: int
    birth: str  #: tells the process from a later one with its pid
    started: datetime
    heartbeat: datetime  #: when it last said that it lives
    host: str = ""  #: the machine's name, for people
    idle: bool = False  #: whether it has no host to ask, though there is work
    counters: Counters = field(default_factory=Counters)
    vitals: Vitals | None = None  #: its state as it was shown last; None: not yet
    loan: Loan | None = None  #: the last one that it was offered
    report: LoanReport | None = None  #: on a loan that it has used

    @property
    def has_returned(self) -> bool:
        """Whether it has returned its loan."""
        loan, report = self.loan, self.report
        return (
            loan is not None
            and report is not None
            and report == replace(report, loan=loan.id, returned=True)
        )

    def borrows(self, now: datetime) -> bool:
        """Return whether the slots of its loan count as in use."""
        return self.loan is not None and self.loan.expires > now and not self.has_returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The counters and the state of a worker at one moment."""

    worker: str  #: its name
    started: datetime  #: when it began to count
    time: datetime
    vitals: Vitals
    last: bool = False  #: whether the worker leaves no other one

    @property
    def kept_days(self) -> int:
        """For how many days it is kept."""
        whole = minute_of(self.time).minute % (COARSE // EVERY) == 0
        return KEPT_DAYS if whole or self.last else FINE_DAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one worker did from one point to the next."""

    worker: str
    since: datetime
    until: datetime
    vitals: Vitals  #: the state at its end, and the counts since its beginning

    @property
    def seconds(self) -> float:
        """How long it is; more than 0."""
        return (self.until - self.since).total_seconds()


@dataclass(slots=True, kw_only=True)
class Slot:
    """What all workers did in one stretch of a chart."""

    since: datetime
    until: datetime
    finished: float = 0.0  #: spans that reach beyond the stretch count in part
    failed: float = 0.0
    ignored: float = 0.0
    workers: int = 0  #: those at work in it
    processing: int = 0  #: tasks that they held, by the last that each showed
    memory: int = 0  #: bytes of all of them
    lag: float = 0.0  #: the worst one of all

    def add(self, span: Span) -> None:
        """Count the part of a span that lies in the stretch."""
        common = min(self.until, span.until) - max(self.since, span.since)
        part, vitals = common.total_seconds() / span.seconds, span.vitals
        self.finished += part * vitals.finished
        self.failed += part * vitals.failed
        self.ignored += part * vitals.ignored
        self.lag = max(self.lag, vitals.lag)


def minute_of(moment: datetime) -> datetime:
    """Return the minute that a moment is in."""
    return moment.replace(second=0, microsecond=0)


def first_read(since: datetime) -> datetime:
    """Return from when on points are needed for the spans since then."""
    return since - _LONGEST_STEP


def spans(points: Iterable[Point], *, since: datetime, until: datetime) -> list[Span]:
    """Return what each worker did from point to point, as far as it ended in [since, until).

    The points are those from `first_read` on, in any order. The spans are ordered by their
    ends. A worker's first one begins with the worker, unless that was before those points.
    """
    found: list[Span] = []
    ordered = sorted(points, key=lambda point: (point.worker, point.time, point.last))
    for _, of_worker in groupby(ordered, key=lambda point: point.worker):
        own = [*of_worker]
        began = own[0].started
        if began >= first_read(since):
            start = Point(worker=own[0].worker, started=began, time=began, vitals=Vitals())
            own.insert(0, start)
        found += [
            _span(before, after)
            for before, after in pairwise(own)
            if since <= after.time < until and after.time > before.time
        ]
    return sorted(found, key=lambda span: (span.until, span.worker))


def _span(before: Point, after: Point) -> Span:
    first, last = before.vitals, after.vitals
    counted = {name: max(getattr(last, name) - getattr(first, name), 0) for name in _COUNTERS}
    vitals = replace(last, **counted)
    return Span(worker=after.worker, since=before.time, until=after.time, vitals=vitals)


def slots(
    found: Iterable[Span], *, since: datetime, until: datetime, step: timedelta
) -> list[Slot]:
    """Return what all workers did in each *step* of [since, until), for a chart.

    Every step is there, also one without any page; the last one may be shorter.
    """
    number = -((since - until) // step)
    row = [
        Slot(since=since + n * step, until=min(since + (n + 1) * step, until))
        for n in range(number)
    ]
    latest: list[dict[str, Span]] = [{} for _ in row]
    for span in found:
        first = max((span.since - since) // step, 0)
        # What ends where a stretch begins has no part in that one.
        last = min(-((since - span.until) // step), number)
        for n in range(first, last):
            row[n].add(span)
            held = latest[n].get(span.worker)
            if held is None or held.until < span.until:
                latest[n][span.worker] = span
    for slot, workers in zip(row, latest, strict=True):
        slot.workers = len(workers)
        slot.processing = sum(span.vitals.processing for span in workers.values())
        slot.memory = sum(span.vitals.memory for span in workers.values())
    return row
