"""All exposed metrics: names, types, labels and help texts.

Names and units follow https://prometheus.io/docs/practices/naming/. A label has a closed set of
values, defined by crawlcw: no URLs, no hosts and no other crawled text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType


class Kind(StrEnum):
    """Type of a metric in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    name: str  #: without the suffix `_total` of counters, which is added at exposition
    kind: Kind
    help: str
    label: str | None = None
    named: bool = False  #: whether it has the label `name` too, for several crawls at one address

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels."""
        return (*(("name",) if self.named else ()), *(() if self.label is None else (self.label,)))

    @property
    def exposed(self) -> str:
        """The name in a query; a histogram's has a further `_bucket`, `_sum` or `_count`."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


def _metric(
    kind: Kind, name: str, about: str, label: str | None = None, *, named: bool = False
) -> Metric:
    return Metric(name=f"crawlcw_{name}", kind=kind, help=about, label=label, named=named)


_counter = partial(_metric, Kind.COUNTER)
_gauge = partial(_metric, Kind.GAUGE)
_histogram = partial(_metric, Kind.HISTOGRAM)
_of_ledger = partial(_gauge, named=True)

PAGES = _counter(
    "pages",
    "Outcomes that the ledger has recorded: finished, unchanged, redirected (to a task of its "
    "own), failed (to be tried again), given-up.",
    "outcome",
)
ITEMS = _counter("items", "Items recorded.")
ITEMS_DROPPED = _counter("items_dropped", "Items that the spider dropped.")
RESPONSES = _counter("responses", "Responses by the class of their status: 2xx, 4xx.", "code")
RESPONSE_BYTES = _counter("response_bytes", "Bytes of decoded bodies.")
TRUNCATED = _counter("bodies_truncated", "Bodies cut at max_body, or by their server.")
FAILURES = _counter("failures", "Failed attempts that counted, by reason.", "reason")
HOST_FAILURES = _counter(
    "host_failures", "Failures that were hosts', and cost no page an attempt, by reason.", "reason"
)
HOSTS_GIVEN_UP = _counter("hosts_given_up", "Hosts given up.")
LINKS_ADDED = _counter("links_added", "New tasks that links became.")
LINKS_DROPPED = _counter("links_dropped", "Links that were not followed, by reason.", "reason")
CLAIMS = _counter("claims", "Tasks claimed.")
CLAIMS_MISSED = _counter("claims_missed", "Claims that another worker was first at.")
LEASES_LOST = _counter("leases_lost", "Results dropped because another worker had the task.")
LEDGER_OPERATIONS = _counter(
    "ledger_operations", "Operations asked of the ledger, repeated ones included.", "operation"
)
LOOP_STALLS = _counter("loop_stalls", "Times that an event loop stood still for 1 s or more.")
CPU = _counter("worker_cpu_seconds", "CPU time of the workers, of user and system.")
FETCH = _histogram("fetch_duration_seconds", "An attempt at a page, with redirects in place.")
PARSE = _histogram("parse_duration_seconds", "A callback, and the turns that it waited for.")
COMMIT = _histogram("commit_duration_seconds", "Writing the links and outcomes of a group.")
LOOP_LAG = _histogram("loop_lag_seconds", "By how much an event loop ran late, ten times a second.")
IN_FLIGHT = _gauge("requests_in_flight", "Pages being fetched.", "worker")
TASKS_HELD = _gauge("tasks_held", "Tasks leased.", "worker")
HOSTS_RESTING = _gauge("hosts_resting", "Hosts that are not asked for a time.", "worker")
MEMORY = _gauge("worker_resident_memory_bytes", "Resident memory.", "worker")
WORKERS = _gauge("workers", "Worker processes that run here.")
CRASHES = _counter("worker_crashes", "Worker processes that ended without a last word.")
STANDSTILL = _gauge("standstill", "1 while nothing moves in any worker here, else 0.")
TASKS = _gauge("tasks", "Tasks of the whole ledger by status, as last counted.", "status")
INFO = _gauge("info", "1; the label names the spider or use case.", "name")
HTTP_REQUESTS = _counter("http_requests", "Requests that the server has answered.", "operation")
HTTP_REFUSED = _counter("http_requests_refused", "Of these, those refused, by status.", "code")
HTTP_DURATION = _histogram("http_request_duration_seconds", "From a request to its answer.")

LEDGER_READ = _of_ledger(
    "ledger_read", "1 where the ledger could be read for these numbers, else 0."
)
LEDGER_TASKS = _of_ledger("ledger_tasks", "Tasks by status, as last counted.", "status")
LEDGER_WORKERS = _of_ledger("ledger_workers", "Workers at work, on all machines.")
LEDGER_RATE = _of_ledger(
    "ledger_tasks_per_second", "Tasks finished a second, over the last minute."
)
LEDGER_IN_FLIGHT = _of_ledger("ledger_tasks_in_flight", "Tasks that workers said they are doing.")
LEDGER_PAUSED = _of_ledger("ledger_paused", "1 while the crawls of a spider are paused, else 0.")

#: Metrics of a crawl, in the order of exposition.
OF_CRAWLS = (
    *(INFO, PAGES, ITEMS, ITEMS_DROPPED, RESPONSES, RESPONSE_BYTES, TRUNCATED, FAILURES),
    *(HOST_FAILURES, HOSTS_GIVEN_UP, LINKS_ADDED, LINKS_DROPPED, CLAIMS, CLAIMS_MISSED),
    *(LEASES_LOST, LEDGER_OPERATIONS, LOOP_STALLS, CPU, FETCH, PARSE, COMMIT, LOOP_LAG),
    *(IN_FLIGHT, TASKS_HELD, HOSTS_RESTING, MEMORY, WORKERS, CRASHES, STANDSTILL, TASKS),
)
#: Metrics of `crawlcw serve`.
OF_SERVERS = (INFO, TASKS, HTTP_REQUESTS, HTTP_REFUSED, HTTP_DURATION)
#: Metrics of `crawlcw dashboard`, with the label `name`.
OF_LEDGERS = (
    *(LEDGER_READ, LEDGER_TASKS, LEDGER_WORKERS, LEDGER_RATE, LEDGER_IN_FLIGHT, LEDGER_PAUSED),
)
METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in (*OF_CRAWLS, *OF_SERVERS, *OF_LEDGERS)}
)
