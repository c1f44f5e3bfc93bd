"""Measure a crawl or a worker in one process: durations of steps, counters, gauges."""

import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from crawlcw.engine.stats import Instruments, Seen, Stats
from crawlcw.engine.workers import resident_memory
from crawlcw.errors import UsageError
from crawlcw.model.counters import Histogram
from crawlcw.model.task import Lease
from crawlcw.telemetry import metrics
from crawlcw.telemetry.metrics import Measures, Metric, counted

#: Counters of a use case's worker, which fetches no pages and records no items.
_OF_WORK = tuple(
    metric.name
    for metric in (
        *(metrics.PAGES, metrics.FAILURES, metrics.CLAIMS, metrics.CLAIMS_MISSED),
        *(metrics.LEASES_LOST, metrics.LEDGER_OPERATIONS, metrics.LOOP_STALLS, metrics.CPU),
    )
)


class Meter:
    """Instruments with a histogram of each step; cost: two clock reads and some additions."""

    def __init__(self) -> None:
        self._fetch = _Step()
        self._parse = _Step()
        self._commit = _Step()

    def fetch(self, _lease: Lease) -> AbstractContextManager[Seen]:
        """See `Instruments.fetch`."""
        return _Timed(self._fetch)

    def parse(self, _lease: Lease, _callback: str) -> AbstractContextManager[Seen]:
        """See `Instruments.parse`."""
        return _Timed(self._parse)

    def commit(self, _leases: Sequence[Lease]) -> AbstractContextManager[Seen]:
        """See `Instruments.commit`."""
        return _Timed(self._commit)

    def measures(self, stats: Stats, *, held: int, resting: int) -> Measures:
        """Return all values so far; *held* tasks and *resting* hosts are the current numbers."""
        histograms = {
            metrics.FETCH: self._fetch,
            metrics.PARSE: self._parse,
            metrics.COMMIT: self._commit,
        }
        gauges = {metrics.IN_FLIGHT: self._fetch.under_way, metrics.HOSTS_RESTING: resting}
        return _measures(stats, histograms, gauges, held=held)


def worked(stats: Stats, *, in_flight: int, held: int) -> Measures:
    """Return the values of a use case's worker."""
    measures = _measures(stats, {}, {metrics.IN_FLIGHT: in_flight}, held=held)
    return replace(measures, counters={name: measures.counters[name] for name in _OF_WORK})


def _measures(
    stats: Stats,
    histograms: Mapping[Metric, Histogram],
    gauges: Mapping[Metric, float],
    *,
    held: int,
) -> Measures:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    histograms = {**histograms, metrics.LOOP_LAG: stats.loop_lag}
    gauges = {**gauges, metrics.TASKS_HELD: held, metrics.MEMORY: resident_memory()}
    return Measures(
        counters={**counted(stats), metrics.CPU.name: {"": usage.ru_utime + usage.ru_stime}},
        histograms={metric.name: histogram.numbers() for metric, histogram in histograms.items()},
        gauges={metric.name: number for metric, number in gauges.items()},
    )


class _Step(Histogram):
    """Durations of one step, and the number of its open blocks."""

    under_way = 0


class _Timed:
    __slots__ = ("_began", "_step")

    def __init__(self, step: _Step) -> None:
        self._step = step

    def __enter__(self) -> "_Timed":
        self._step.under_way += 1
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._step.observe(time.perf_counter() - self._began)
        self._step.under_way -= 1

    def answered(self, *, status: int, size: int) -> None:
        """Do nothing: the crawl's counters have it."""

    def failed(self, reason: str) -> None:
        """Do nothing, as above."""


def instruments(meter: Meter | None, *, trace: bool) -> Instruments | None:
    """Return a crawl's instruments: its *meter*, if not None, and with *trace* also spans.

    Raises `UsageError` for *trace* without OpenTelemetry.
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
    return Tracing(beside=meter or Meter())
