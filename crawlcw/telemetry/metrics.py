"""Define all metrics, and the values that workers send and the supervisor adds up.

Metric names and units follow https://prometheus.io/docs/practices/naming/. crawlcw defines all
values of a label, so that a label never contains a URL, a host or other crawled text.
"""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType

import anyio

from crawlcw.engine.stats import Stats
from crawlcw.errors import LedgerError
from crawlcw.model.counters import Counts, sum_of
from crawlcw.model.transitions import Event


class Kind(StrEnum):
    """The type of a metric in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    name: str  #: metric name; a counter's name has the suffix `_total` in the output
    kind: Kind
    help: str
    label: str | None = None
    has_name_label: bool = False  #: whether a label `name` names the spider or use case

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels."""
        return (
            *(("name",) if self.has_name_label else ()),
            *(() if self.label is None else (self.label,)),
        )

    @property
    def query_name(self) -> str:
        """The metric's name in a query, without the suffixes of a histogram's series."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


def _metric(
    kind: Kind,
    name: str,
    description: str,
    label: str | None = None,
    *,
    has_name_label: bool = False,
) -> Metric:
    return Metric(
        name=f"crawlcw_{name}",
        kind=kind,
        help=description,
        label=label,
        has_name_label=has_name_label,
    )


_counter = partial(_metric, Kind.COUNTER)
_gauge = partial(_metric, Kind.GAUGE)
_histogram = partial(_metric, Kind.HISTOGRAM)
_ledger_gauge = partial(_gauge, has_name_label=True)

PAGES = _counter(
    "pages",
    "Outcomes of pages that the ledger has recorded: finished, unchanged, redirected to another "
    "task, failed (another attempt follows), or given-up.",
    "outcome",
)
ITEMS = _counter("items", "Items recorded.")
ITEMS_DROPPED = _counter("items_dropped", "Items that the spider dropped.")
RESPONSES = _counter("responses", "Responses by the class of their status: 2xx, 4xx.", "code")
RESPONSE_BYTES = _counter("response_bytes", "Bytes of decoded bodies.")
TRUNCATED = _counter("bodies_truncated", "Bodies cut by crawlcw at max_body, or by the server.")
FAILURES = _counter("failures", "Failed attempts that counted, by reason.", "reason")
HOST_FAILURES = _counter(
    "host_failures", "Failures of hosts by reason. A page counts no attempt for them.", "reason"
)
HOSTS_GIVEN_UP = _counter("hosts_given_up", "Hosts given up.")
LINKS_ADDED = _counter("links_added", "Tasks added from links.")
LINKS_DROPPED = _counter("links_dropped", "Links that were not followed, by reason.", "reason")
CLAIMS = _counter("claims", "Tasks claimed.")
CLAIMS_MISSED = _counter("claims_missed", "Claims that failed because another worker was faster.")
LEASES_LOST = _counter("leases_lost", "Results dropped because another worker had the lease.")
LEDGER_OPERATIONS = _counter(
    "ledger_operations", "Operations on the ledger, including repeated ones.", "operation"
)
LOOP_STALLS = _counter("loop_stalls", "Stalls of an event loop for 1 s or more.")
CPU = _counter("worker_cpu_seconds", "CPU time of the workers, user and system.")
FETCH = _histogram(
    "fetch_duration_seconds", "Duration of an attempt at a page, with its redirects."
)
PARSE = _histogram(
    "parse_duration_seconds", "Duration of a callback, with its waits for the event loop."
)
COMMIT = _histogram(
    "commit_duration_seconds", "Duration of a write of outcomes and links to the ledger."
)
LOOP_LAG = _histogram("loop_lag_seconds", "Lateness of an event loop, measured ten times a second.")
IN_FLIGHT = _gauge("requests_in_flight", "Pages being fetched.", "worker")
TASKS_LEASED = _gauge("tasks_leased", "Tasks leased.", "worker")
HOSTS_RESTING = _gauge("hosts_resting", "Hosts that rest after failures.", "worker")
MEMORY = _gauge("worker_resident_memory_bytes", "Resident memory.", "worker")
WORKERS = _gauge("workers", "Worker processes that run on this machine.")
CRASHES = _counter("worker_crashes", "Worker processes that ended without a report.")
IDLE = _gauge("idle", "1 while no worker on this machine makes progress, else 0.")
TASKS = _gauge("tasks", "All tasks of the ledger by status, at the last count.", "status")
INFO = _gauge("info", "Always 1; the label is the spider's or use case's name.", "name")
HTTP_REQUESTS = _counter("http_requests", "Requests that the server has answered.", "operation")
HTTP_REFUSED = _counter(
    "http_requests_refused", "Requests that the server has refused, by status.", "code"
)
HTTP_DURATION = _histogram(
    "http_request_duration_seconds", "Duration from a request to its response."
)

LEDGER_READ = _ledger_gauge(
    "ledger_read", "1 if the last read of the ledger's numbers succeeded, else 0."
)
LEDGER_TASKS = _ledger_gauge("ledger_tasks", "Tasks by status, at the last count.", "status")
LEDGER_WORKERS = _ledger_gauge("ledger_workers", "Live workers, on all machines.")
LEDGER_RATE = _ledger_gauge(
    "ledger_tasks_per_second", "Tasks finished a second, over the last minute."
)
LEDGER_PROCESSING = _ledger_gauge("ledger_tasks_processing", "Tasks that workers are processing.")
LEDGER_PAUSED = _ledger_gauge("ledger_paused", "1 while the crawls of a spider are paused, else 0.")

#: The metrics of a crawl, in the order of the output.
CRAWL_METRICS = (
    *(INFO, PAGES, ITEMS, ITEMS_DROPPED, RESPONSES, RESPONSE_BYTES, TRUNCATED, FAILURES),
    *(HOST_FAILURES, HOSTS_GIVEN_UP, LINKS_ADDED, LINKS_DROPPED, CLAIMS, CLAIMS_MISSED),
    *(LEASES_LOST, LEDGER_OPERATIONS, LOOP_STALLS, CPU, FETCH, PARSE, COMMIT, LOOP_LAG),
    *(IN_FLIGHT, TASKS_LEASED, HOSTS_RESTING, MEMORY, WORKERS, CRASHES, IDLE, TASKS),
)
#: The metrics of `crawlcw serve`.
SERVER_METRICS = (INFO, TASKS, HTTP_REQUESTS, HTTP_REFUSED, HTTP_DURATION)
#: The metrics of `crawlcw dashboard`, which have the label `name`.
LEDGER_METRICS = (
    *(LEDGER_READ, LEDGER_TASKS, LEDGER_WORKERS, LEDGER_RATE, LEDGER_PROCESSING, LEDGER_PAUSED),
)
METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in (*CRAWL_METRICS, *SERVER_METRICS, *LEDGER_METRICS)}
)

#: The form of a label's value; a spider may raise a `FetchError` with any text as its reason.
_LABEL_VALUE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,40}\Z")
_MAX_LABEL_VALUES = 80
OTHER = "other"
#: Seconds after which a reply to Prometheus shows the previous count instead of a new count.
_COUNT_TIMEOUT_S = 2.0
#: The pause after a count is 20 times as long as counting took. So counts take 5 % of the time.
_COUNT_COST = 20
#: Maps each value of a metric's label to a number. If a metric has no label, the only key is "".
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measured values of one process since its start, by metric name."""

    counters: Mapping[str, Values] = field(default_factory=dict)
    histograms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Numbers of the histograms."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Current values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The values of all metrics at one moment."""

    totals: Measures  #: counters and histograms, summed over all processes
    gauges: Mapping[str, Values] = field(default_factory=dict)
    """Gauges by the metrics' names."""
    crawls: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    """Maps each value of the label `name` to a mapping from metric names to gauges."""


def counters_of(stats: Stats) -> dict[str, Values]:
    """Return the counters of *stats* by metric name."""
    outcomes = stats.outcomes
    finished = stats.pages - stats.unchanged
    values_by_metric: dict[Metric, Values] = {
        PAGES: {
            "finished": finished,
            "unchanged": stats.unchanged,
            "redirected": outcomes[Event.FINISH] - finished,
            "failed": outcomes[Event.FAIL],
            "given-up": outcomes[Event.GIVE_UP] + outcomes[Event.ABANDON],
        },
        RESPONSES: _by_status_class(stats.statuses),
        FAILURES: by_label(stats.failures),
        HOST_FAILURES: by_label(stats.host_failures),
        LINKS_DROPPED: by_label(stats.links_dropped),
        LEDGER_OPERATIONS: by_label(stats.ledger_operations),
    }
    unlabelled = {
        ITEMS: stats.items,
        ITEMS_DROPPED: sum(stats.items_dropped.values()),
        RESPONSE_BYTES: stats.bytes,
        TRUNCATED: stats.truncated,
        HOSTS_GIVEN_UP: len(stats.hosts_given_up) + stats.more_hosts_given_up,
        LINKS_ADDED: stats.links_added,
        CLAIMS: stats.claims,
        CLAIMS_MISSED: stats.claims_missed,
        LEASES_LOST: stats.leases_lost,
        LOOP_STALLS: stats.stalls,
    }
    values_by_metric |= {metric: {"": number} for metric, number in unlabelled.items()}
    return {metric.name: values for metric, values in values_by_metric.items()}


def by_label(counts: Mapping[str, int]) -> dict[str, float]:
    """Return *counts* by label value; `other` sums up invalid values and values over the limit."""
    totals: dict[str, float] = {}
    for name, number in counts.items():
        is_label = _LABEL_VALUE.match(name) is not None and (
            name in totals or len(totals) < _MAX_LABEL_VALUES
        )
        label = name if is_label else OTHER
        totals[label] = totals.get(label, 0) + number
    return totals


def _by_status_class(statuses: Mapping[int, int]) -> dict[str, float]:
    count_by_class: dict[str, float] = {}
    for status, number in statuses.items():
        name = f"{status // 100}xx" if 100 <= status < 600 else OTHER
        count_by_class[name] = count_by_class.get(name, 0) + number
    return count_by_class


def sum_measures(measures: Iterable[Measures]) -> Measures:
    """Return the sums of the processes' counters and histograms, without gauges."""
    counters: dict[str, dict[str, float]] = {}
    histograms: dict[str, list[Sequence[float]]] = {}
    for entry in measures:
        for name, values in entry.counters.items():
            total = counters.setdefault(name, {})
            for label, number in values.items():
                total[label] = total.get(label, 0) + number
        for name, numbers in entry.histograms.items():
            histograms.setdefault(name, []).append(numbers)
    return Measures(
        counters=counters,
        histograms={name: sum_of(entry) for name, entry in histograms.items()},
    )


class TaskCounts:
    """Counts the ledger's tasks by status, with pauses between counts to limit the load."""

    def __init__(self, count: Callable[[], Awaitable[Counts]]) -> None:
        """*count* may raise `LedgerError`."""
        self._count = count
        self._counts: Counts | None = None
        self._next_count_at = 0.0
        self._count_lock = anyio.Lock()

    async def latest(self) -> Values | None:
        """Return the number of tasks by status name; None if the ledger is unavailable."""
        async with self._count_lock:
            started_at = time.monotonic()
            if started_at >= self._next_count_at:
                try:
                    with anyio.move_on_after(_COUNT_TIMEOUT_S):
                        self._counts = await self._count()
                except LedgerError:
                    # Drop the old counts, because they would look current. Other code logs errors.
                    self._counts = None
                ended_at = time.monotonic()
                self._next_count_at = ended_at + _COUNT_COST * (ended_at - started_at)
        counts = self._counts
        if counts is None:
            return None
        redirects = {"redirect": counts.redirects} if counts.redirects else {}
        return {**counts.by_name(), **redirects}
