"""Measure durations, counters and gauges of a crawl or of a use case's worker in one process."""

import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from crawlcw.engine.stats import Instruments, Stats, Step
from crawlcw.engine.workers import resident_memory
from crawlcw.errors import UsageError
from crawlcw.model.counters import Histogram
from crawlcw.model.task import Lease
from crawlcw.telemetry import metrics
from crawlcw.telemetry.metrics import Measures, Metric, counters_of

#: The names of the counters of a use case's worker, which fetches no pages.
_WORKER_COUNTERS = tuple(
    metric.name
    for metric in (
        *(metrics.PAGES, metrics.FAILURES, metrics.CLAIMS, metrics.CLAIMS_MISSED),
        *(metrics.LEASES_LOST, metrics.LEDGER_OPERATIONS, metrics.LOOP_STALLS, metrics.CPU),
    )
)


class Meter:
    """Measures the duration of each fetch, callback and commit in a histogram."""

    def __init__(self) -> None:
        self._fetch = _Step()
        self._parse = _Step()
        self._commit = _Step()

    def fetch(self, _lease: Lease) -> AbstractContextManager[Step]:
        """See `Instruments.fetch`."""
        return _Timed(self._fetch)

    def parse(self, _lease: Lease, _callback: str) -> AbstractContextManager[Step]:
        """See `Instruments.parse`."""
        return _Timed(self._parse)

    def commit(self, _leases: Sequence[Lease]) -> AbstractContextManager[Step]:
        """See `Instruments.commit`."""
        return _Timed(self._commit)

    def measures(self, stats: Stats, *, leased_tasks: int, resting_hosts: int) -> Measures:
        """Return all measured values, with *leased_tasks* and *resting_hosts* as gauges."""
        histograms = {
            metrics.FETCH: self._fetch,
            metrics.PARSE: self._parse,
            metrics.COMMIT: self._commit,
        }
        gauges = {metrics.IN_FLIGHT: self._fetch.open_blocks, metrics.HOSTS_RESTING: resting_hosts}
        return _measures(stats, histograms, gauges, leased_tasks=leased_tasks)


def worker_measures(stats: Stats, *, in_flight: int, leased_tasks: int) -> Measures:
    """Return the measured values of a use case's worker."""
    measures = _measures(stats, {}, {metrics.IN_FLIGHT: in_flight}, leased_tasks=leased_tasks)
    return replace(measures, counters={name: measures.counters[name] for name in _WORKER_COUNTERS})


def _measures(
    stats: Stats,
    histograms: Mapping[Metric, Histogram],
    gauges: Mapping[Metric, float],
    *,
    leased_tasks: int,
) -> Measures:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    histograms = {**histograms, metrics.LOOP_LAG: stats.loop_lag}
    gauges = {**gauges, metrics.TASKS_LEASED: leased_tasks, metrics.MEMORY: resident_memory()}
    return Measures(
        counters={**counters_of(stats), metrics.CPU.name: {"": usage.ru_utime + usage.ru_stime}},
        histograms={metric.name: histogram.numbers() for metric, histogram in histograms.items()},
        gauges={metric.name: number for metric, number in gauges.items()},
    )


class _Step(Histogram):
    """The histogram of one kind of step, with the number of steps that are running now."""

    open_blocks = 0


class _Timed:
    __slots__ = ("_started_at", "_step")

    def __init__(self, step: _Step) -> None:
        self._step = step

    def __enter__(self) -> "_Timed":
        self._step.open_blocks += 1
        self._started_at = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._step.observe(time.perf_counter() - self._started_at)
        self._step.open_blocks -= 1

    def record_response(self, *, status: int, size: int) -> None:
        """Do nothing, because the crawl's `Stats` count responses."""

    def record_failure(self, reason: str) -> None:
        """Do nothing, because the crawl's `Stats` count failures."""


def instruments(meter: Meter | None, *, trace: bool) -> Instruments | None:
    """Return *meter*; if *trace* is true, wrap *meter* in an object that also makes spans.

    Raises `UsageError` if *trace* is true and OpenTelemetry is not installed.
    """
    if not trace:
        return meter
    try:
        from crawlcw.telemetry.spans import Tracing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise UsageError(
            "trace needs OpenTelemetry: install it with `pip install 'crawlcw[otel]'`"
        ) from None
    return Tracing(meter or Meter())
