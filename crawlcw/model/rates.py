"""Workers, their state and counts over time (`Vitals`), and the rates from these. No I/O.

A worker writes its `Vitals` with every heartbeat, and a `Point` with them once a minute. Points
count from the worker's start. So if one is missing or was deleted because of its age, the next
step is longer, and no count is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from crawlcw.model.counters import Counters
from crawlcw.model.loans import Loan, LoanReport

#: The time between two points of a worker.
EVERY = timedelta(minutes=1)
#: The time between two points that are older than a day.
COARSE = timedelta(minutes=10)
#: Lifetimes in days: that of a point at a multiple of `COARSE` or at a worker's end, and that of
#: other points.
KEPT_DAYS, FINE_DAYS = 7, 1
#: If a worker has no point for longer, it was not running, or its ledger was unavailable.
_LONGEST_STEP = COARSE + 5 * EVERY
#: The fields of `Vitals` that count from a worker's start.
_COUNTERS = ("finished", "failed", "ignored", "items", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The state of a worker at one moment."""

    finished: int = 0  #: tasks that it finished since its start, without redirects
    failed: int = 0  #: attempts since its start that another attempt must follow
    ignored: int = 0  #: tasks that became ignored since its start
    items: int = 0  #: items recorded since its start
    bytes: int = 0  #: bytes of decoded bodies since its start
    rate: float = 0.0  #: finished tasks per second, over the last minute
    processing: int = 0  #: tasks that it has leased
    memory: int = 0  #: resident bytes of its process; 0: unknown
    lag: float = 0.0  #: the recent maximum of its event loop's lag in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that works on the ledger."""

    name: str  #: its leases' tokens are `name:n`
    machine: str  #: an id of its machine, the same for all processes on it
    pid: int
    birth: str  #: distinguishes it from a later process with the same pid
    started: datetime
    heartbeat: datetime  #: the time of its last heartbeat
    host: str = ""  #: the machine's name, for people
    idle: bool = False  #: whether it has no host to ask although there is work
    counters: Counters = field(default_factory=Counters)
    vitals: Vitals | None = None  #: its last written state; None: it has written none
    loan: Loan | None = None  #: the last loan that it was offered
    report: LoanReport | None = None  #: its report about a loan that it has used

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
    last: bool = False  #: whether it is the worker's last point

    @property
    def kept_days(self) -> int:
        """Its lifetime in days."""
        is_coarse = minute_of(self.time).minute % (COARSE // EVERY) == 0
        return KEPT_DAYS if is_coarse or self.last else FINE_DAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The work of one worker between two points."""

    worker: str
    start: datetime
    end: datetime
    vitals: Vitals  #: the state at the end of the span, and the counts within it

    @property
    def seconds(self) -> float:
        """Its length in seconds; more than 0."""
        return (self.end - self.start).total_seconds()


@dataclass(slots=True, kw_only=True)
class Slot:
    """The work of all workers in one slot of a chart."""

    start: datetime
    end: datetime
    finished: float = 0.0  #: a span that extends beyond the slot counts in part
    failed: float = 0.0
    ignored: float = 0.0
    workers: int = 0  #: number of workers that ran in the slot
    processing: int = 0  #: tasks that they had leased, by the last span of each
    memory: int = 0  #: the sum of their bytes
    lag: float = 0.0  #: the maximum of all

    def add(self, span: Span) -> None:
        """Count the part of a span that is within the slot."""
        overlap = min(self.end, span.end) - max(self.start, span.start)
        overlap_share, vitals = overlap.total_seconds() / span.seconds, span.vitals
        self.finished += overlap_share * vitals.finished
        self.failed += overlap_share * vitals.failed
        self.ignored += overlap_share * vitals.ignored
        self.lag = max(self.lag, vitals.lag)


def minute_of(moment: datetime) -> datetime:
    """Return the start of a moment's minute."""
    return moment.replace(second=0, microsecond=0)


def first_read(start: datetime) -> datetime:
    """Return the time of the first point that `spans` needs for *start*."""
    return start - _LONGEST_STEP


def spans(points: Iterable[Point], *, start: datetime, end: datetime) -> list[Span]:
    """Return the spans between the points of each worker that end in [since, until).

    The points are those from `first_read` on, in any order. The spans are sorted by their
    ends. A worker's first span begins at its start, unless that was before `first_read`.
    """
    span_list: list[Span] = []
    ordered = sorted(points, key=lambda point: (point.worker, point.time, point.last))
    for _, points_of_worker in groupby(ordered, key=lambda point: point.worker):
        worker_points = [*points_of_worker]
        started_at = worker_points[0].started
        if started_at >= first_read(start):
            first_point = Point(
                worker=worker_points[0].worker, started=started_at, time=started_at, vitals=Vitals()
            )
            worker_points.insert(0, first_point)
        span_list += [
            _span(previous_point, next_point)
            for previous_point, next_point in pairwise(worker_points)
            if start <= next_point.time < end and next_point.time > previous_point.time
        ]
    return sorted(span_list, key=lambda span: (span.end, span.worker))


def _span(previous_point: Point, next_point: Point) -> Span:
    old_vitals, new_vitals = previous_point.vitals, next_point.vitals
    differences = {
        name: max(getattr(new_vitals, name) - getattr(old_vitals, name), 0) for name in _COUNTERS
    }
    vitals = replace(new_vitals, **differences)
    return Span(
        worker=next_point.worker, start=previous_point.time, end=next_point.time, vitals=vitals
    )


def slots(
    all_spans: Iterable[Span], *, start: datetime, end: datetime, step: timedelta
) -> list[Slot]:
    """Return the work of all workers in each *step* of [since, until), for a chart.

    The result has every step, even one without any page; the last one may be shorter.
    """
    slot_count = -((start - end) // step)
    slots_in_order = [
        Slot(start=start + n * step, end=min(start + (n + 1) * step, end))
        for n in range(slot_count)
    ]
    latest: list[dict[str, Span]] = [{} for _ in slots_in_order]
    for span in all_spans:
        first_slot = max((span.start - start) // step, 0)
        # A span that ends exactly at the start of a slot does not count in it.
        end_slot = min(-((start - span.end) // step), slot_count)
        for n in range(first_slot, end_slot):
            slots_in_order[n].add(span)
            latest_span = latest[n].get(span.worker)
            if latest_span is None or latest_span.end < span.end:
                latest[n][span.worker] = span
    for slot, workers in zip(slots_in_order, latest, strict=True):
        slot.workers = len(workers)
        slot.processing = sum(span.vitals.processing for span in workers.values())
        slot.memory = sum(span.vitals.memory for span in workers.values())
    return slots_in_order
