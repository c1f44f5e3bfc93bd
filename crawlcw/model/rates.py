"""Define workers and their counts over time, and compute rates from the counts. No I/O.

A worker writes its `Vitals` (counts and state) with every heartbeat, and once a minute also as a
`Point`. A point contains all counts since the worker's start. So if a point is missing, the span
between its neighbours is longer, and no count is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from crawlcw.model.counters import Counters
from crawlcw.model.loans import Loan, LoanReport

#: The time between two points in a worker's chart.
EVERY = timedelta(minutes=1)
#: The time between two points in a worker's chart, if these points are older than a day.
COARSE = timedelta(minutes=10)
#: The ledger keeps a worker's last point, and points at multiples of `COARSE`, for `KEPT_DAYS`
#: days. It keeps all other points for `FINE_DAYS`.
KEPT_DAYS, FINE_DAYS = 7, 1
#: The longest time between two points of a worker, if the worker can write to its ledger.
_LONGEST_STEP = COARSE + 5 * EVERY
#: The fields of `Vitals` that are counts since the worker's start.
_COUNTERS = ("finished", "failed", "ignored", "items", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The counts and the state of a worker at one moment."""

    finished: int = 0  #: tasks finished since the worker's start; redirects do not count
    failed: int = 0  #: failed attempts since the worker's start that are followed by a retry
    ignored: int = 0  #: tasks that became ignored since the worker's start
    items: int = 0  #: items recorded since the worker's start
    bytes: int = 0  #: bytes of decoded bodies since the worker's start
    rate: float = 0.0  #: finished tasks per second, over the last minute
    processing: int = 0  #: number of tasks leased by the worker
    memory: int = 0  #: resident memory of the process in bytes; 0: unknown
    lag: float = 0.0  #: recent maximum of the event loop's lag in seconds
    keeps_running: bool = False  #: whether the worker waits for new pages when no page is due


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker, which is a process that works on tasks of the ledger."""

    name: str  #: the worker's name; the tokens of its leases are `name:n`
    machine: str  #: id of the machine, equal for all processes on the machine
    pid: int
    birth: str  #: start of the process; a later process with this pid has another start
    started: datetime
    heartbeat: datetime  #: time of the last heartbeat
    host: str = ""  #: the machine's name, for people
    idle: bool = False  #: whether the worker has no host although other workers have work
    counters: Counters = field(default_factory=Counters)
    vitals: Vitals | None = None  #: the last counts and state that the worker wrote
    loan: Loan | None = None  #: the last loan that an owner offered to the worker
    report: LoanReport | None = None  #: the worker's report about a loan that it used

    @property
    def keeps_running(self) -> bool:
        """Whether the worker waits for new pages when no page is due."""
        return self.vitals is not None and self.vitals.keeps_running

    @property
    def has_returned(self) -> bool:
        """Whether the worker has returned its loan."""
        loan, report = self.loan, self.report
        return (
            loan is not None
            and report is not None
            and report == replace(report, loan=loan.id, returned=True)
        )

    def borrows(self, now: datetime) -> bool:
        """Return whether the worker's borrowed slots count as being in use at *now*."""
        return self.loan is not None and self.loan.expires > now and not self.has_returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A stored point in the chart of a worker: the worker's `Vitals` at one moment."""

    worker: str  #: its name
    started: datetime  #: start of the worker; `vitals` has the counts since this time
    time: datetime
    vitals: Vitals
    last: bool = False  #: whether this is the worker's last point

    @property
    def kept_days(self) -> int:
        """Number of days for which the ledger keeps the point."""
        is_coarse = minute_of(self.time).minute % (COARSE // EVERY) == 0
        return KEPT_DAYS if is_coarse or self.last else FINE_DAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The work of one worker between two consecutive points of its chart."""

    worker: str
    start: datetime
    end: datetime
    vitals: Vitals  #: the counts within the span, and the state at the span's end

    @property
    def seconds(self) -> float:
        """The length of the span in seconds, more than 0."""
        return (self.end - self.start).total_seconds()


@dataclass(slots=True, kw_only=True)
class Slot:
    """The work of all workers in one slot, which is the time that one column of a chart shows."""

    start: datetime
    end: datetime
    finished: float = 0.0  #: estimated number of finished tasks
    failed: float = 0.0
    ignored: float = 0.0
    workers: int = 0  #: number of workers that ran in the slot
    processing: int = 0  #: number of tasks that the workers leased at the end of their last spans
    memory: int = 0  #: memory of all workers in bytes
    lag: float = 0.0  #: maximum lag in seconds

    def add(self, span: Span) -> None:
        """Add the counts of the part of *span* that is within the slot."""
        overlap = min(self.end, span.end) - max(self.start, span.start)
        overlap_share, vitals = overlap.total_seconds() / span.seconds, span.vitals
        self.finished += overlap_share * vitals.finished
        self.failed += overlap_share * vitals.failed
        self.ignored += overlap_share * vitals.ignored
        self.lag = max(self.lag, vitals.lag)


def minute_of(moment: datetime) -> datetime:
    """Return *moment* without its seconds."""
    return moment.replace(second=0, microsecond=0)


def first_read(start: datetime) -> datetime:
    """Return the time of the first point that `spans` needs for a result that begins at *start*."""
    return start - _LONGEST_STEP


def spans(points: Iterable[Point], *, start: datetime, end: datetime) -> list[Span]:
    """Return the spans that end in [start, end); a span lies between two points of a worker.

    The caller passes all points since `first_read(start)`, in any order. The result is sorted by
    the ends of the spans. If a worker started after `first_read(start)`, its first span begins when
    the worker started.
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
    """Return the slots of a chart from *start* to *end*, each as long as *step*.

    The result also contains slots in which no page ended. The last slot may be shorter than *step*.
    """
    slot_count = -((start - end) // step)
    slots_in_order = [
        Slot(start=start + n * step, end=min(start + (n + 1) * step, end))
        for n in range(slot_count)
    ]
    latest: list[dict[str, Span]] = [{} for _ in slots_in_order]
    for span in all_spans:
        first_slot = max((span.start - start) // step, 0)
        # A span that ends exactly at the start of a slot does not count in that slot.
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
