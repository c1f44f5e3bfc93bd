"""Measure a crawl's counts and rate, and make the tables at the crawl's end.

`live` draws counts and rate on a terminal; without a terminal they are logged every ten seconds. To
count all tasks may take long, so the process spends at most 5 % of its time on counts.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from crawlcw.api.spider import Spider
from crawlcw.cli.loop import background_tasks
from crawlcw.cli.options import command_line
from crawlcw.cli.terminal import tables
from crawlcw.errors import LedgerError
from crawlcw.ledger.protocol import Counts, Ledger
from crawlcw.model.counters import Counters, Report
from crawlcw.model.durations import format_duration
from crawlcw.model.idle_reason import IdleReason
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status

logger = logging.getLogger(__name__)

_LINE_EVERY = 10.0
#: The pause between two counts of tasks is as long as the last count took, times this number.
_COUNT_COST = 20
_RATE_OVER = 60.0
_MAX_ROWS = 8
#: Attributes of a `Report` that its JSON object contains.
_FIELDS = (
    *("finish_reason", "detail", "elapsed", "pages", "items", "items_by_callback"),
    *("items_dropped", "unchanged", "released", "counts", "redirects", "taskless", "given_up"),
    *("failed_before", "over_full", "failures", "host_failures", "hosts_given_up"),
    *("more_hosts_given_up", "links_dropped", "leases_lost", "stalls", "longest_stall"),
    *("forgiven", "truncated", "internal_errors"),
)


class RunningCrawl(Protocol):
    """A crawl that runs in this process or in worker processes."""

    @property
    def spider(self) -> Spider:
        """The spider of the crawl."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of the crawl."""

    @property
    def stats(self) -> Counters:
        """The counters of this crawl; they do not count other crawls of the same ledger."""

    @property
    def idle_reason(self) -> IdleReason | None:
        """Why the crawl waits, or None if the crawl progresses."""


class Rate:
    """Measures how fast a number grew during the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, value: int, *, now: float) -> None:
        """Record that the measured number is *value* at the time *now*, in seconds."""
        self._samples.append((now, value))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_OVER:
            self._samples.popleft()

    @property
    def per_minute(self) -> float:
        """The growth of the number in a minute, or 0 if it is unknown."""
        if len(self._samples) < 2:
            return 0.0
        (start, first_value), (end, last_value) = self._samples[0], self._samples[-1]
        return 60 * (last_value - first_value) / (end - start) if end > start else 0.0


class Progress:
    """The progress of a running crawl: counts of the ledger's tasks, and the crawl's rate."""

    def __init__(self, crawl: RunningCrawl, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.crawl = crawl
        self._clock = clock
        self.counts = Counts()
        self._done_rate = Rate()
        self._page_rate = Rate()
        self._started_at = clock()
        self._page_rate.add(0, now=self._started_at)
        self._next_count = 0.0

    async def poll(self) -> None:
        """Count the ledger's tasks again, but spend at most 5 % of the crawl's time on counts."""
        started_at = self._clock()
        if started_at >= self._next_count:
            try:
                self.counts = await self.crawl.ledger.queries.counts()
            except LedgerError as error:
                # Keep the last counts. The crawl itself logs that the ledger does not answer.
                logger.debug("no counts: %s", printable(error), extra={"event": "not_counted"})
            else:
                self._done_rate.add(self.done_count, now=self._clock())
            self._next_count = self._clock() + _COUNT_COST * (self._clock() - started_at)
        self._page_rate.add(self.crawl.stats.pages, now=self._clock())

    @property
    def done_count(self) -> int:
        """Number of tasks that are finished or ignored."""
        return self.counts[Status.FINISHED] + self.counts[Status.IGNORED]

    @property
    def elapsed(self) -> timedelta:
        """Time since the start of the crawl."""
        return timedelta(seconds=self._clock() - self._started_at)

    @property
    def pages_per_minute(self) -> float:
        """Number of pages that this crawl finished in the last minute."""
        return self._page_rate.per_minute

    @property
    def eta(self) -> timedelta | None:
        """Estimated time until all processes have finished the known tasks; None if unknown."""
        remaining = self.counts.total - self.done_count
        rate = self._done_rate.per_minute
        return timedelta(minutes=remaining / rate) if rate > 0 else None

    def line(self) -> str:
        """Return the crawl's progress as a summary in one line."""
        parts = [f"{name} {number:,}" for name, number in self.counts.for_display().items()]
        parts += [f"{self.pages_per_minute:,.0f} pages/min", f"items {self.crawl.stats.items:,}"]
        line = ", ".join([*parts, f"eta {format_eta(self.eta)}"])
        return f"{line}; {reason}" if (reason := self.idle_reason) else line

    @property
    def idle_reason(self) -> str:
        """A sentence that says why the crawl waits; empty if the crawl progresses."""
        idle_reason = self.crawl.idle_reason
        return "" if idle_reason is None else printable(idle_reason.sentence())

    def fields(self) -> dict[str, object]:
        """Return the crawl's progress as fields for JSON."""
        return {
            **self.counts.by_name(),
            "redirects": self.counts.redirects,
            "event": "progress",
            "pages_per_minute": round(self.pages_per_minute, 1),
            "items": self.crawl.stats.items,
            "eta": None if self.eta is None else round(self.eta.total_seconds()),
            "idle_reason": idle_reason.fields()
            if (idle_reason := self.crawl.idle_reason)
            else None,
        }


@asynccontextmanager
async def log_progress(crawl: RunningCrawl) -> AsyncIterator[None]:
    """Log the progress of *crawl* within the block."""
    async with background_tasks(_log(Progress(crawl))):
        yield


async def _log(progress: Progress) -> None:
    while True:
        await asyncio.sleep(_LINE_EVERY)
        await progress.poll()
        logger.info("%s", progress.line(), extra=progress.fields())


def summary(report: Report) -> str:
    """Return the tables at the end of a crawl."""
    minutes = report.elapsed / 60
    run = {
        "pages": f"{report.pages:,}",
        "items": f"{report.items:,}",
        "elapsed": format_duration(timedelta(seconds=report.elapsed)),
        "pages/min": f"{report.pages / minutes:,.0f}" if minutes else "-",
    }
    if report.redirects:
        run["redirects"] = f"{report.redirects:,}"
    if report.taskless:
        run["responses without a task"] = f"{report.taskless:,}"
    if report.unchanged:
        run["unchanged since the last visit"] = f"{report.unchanged:,}"
    run |= tables.stalls(report)
    if report.truncated:
        run["bodies cut"] = f"{report.truncated:,}"
    if report.over_full:
        run["pages ignored by max_pages_per_host"] = f"{report.over_full:,}"
    by_callback = report.items_by_callback if len(report.items_by_callback) > 1 else {}
    parts = {
        f"{report.spider}: the ledger": _counts_part(report),
        "this run": run,
        "items by callback": _numbers(by_callback),
        "items not recorded by reason": _numbers(report.items_dropped),
        "failed attempts by reason": _numbers(report.failures),
        "failures of hosts by reason": _numbers(report.host_failures),
        "hosts given up": _names_part(report),
        "links not followed by reason": _numbers(report.links_dropped),
    }
    return "\n".join(tables.two_columns(title, rows) for title, rows in parts.items() if rows)


def summary_fields(report: Report) -> dict[str, object]:
    """Return the report of a crawl as fields for JSON."""
    fields: dict[str, object] = {"event": "report"}
    for name in _FIELDS:
        value = getattr(report, name)
        if isinstance(value, float):
            value = round(value, 3)
        fields[name] = dict(value) if isinstance(value, Mapping) else value
    return fields | {"counts": report.counts and report.counts.by_name()}


def _counts_part(report: Report) -> dict[str, str]:
    if report.counts is None:
        return {"not counted in time": f"{command_line('stats', report.spider)} counts"}
    numbers = report.counts.for_display()
    redirects = {"redirects": numbers.pop("redirects")} if report.counts.redirects else {}
    return _numbers(numbers | {"total": report.counts.without_redirects} | redirects)


def _names_part(report: Report) -> dict[str, str]:
    """Return the first given-up hosts with their reasons, and the number of further hosts."""
    hosts = list(report.hosts_given_up.items())
    rows = {printable(origin): printable(reason) for origin, reason in hosts[:_MAX_ROWS]}
    if further_count := len(hosts) - len(rows) + report.more_hosts_given_up:
        rows[f"{further_count:,} more"] = ""
    return rows


def _numbers(numbers: Mapping[str, int]) -> dict[str, str]:
    """Return the first `_MAX_ROWS` counts as texts, and the sum of all further counts."""
    entries = list(numbers.items())
    rows = {printable(name): f"{number:,}" for name, number in entries[:_MAX_ROWS]}
    if remainder := entries[_MAX_ROWS:]:
        rows[f"{len(remainder)} more"] = f"{sum(number for _, number in remainder):,}"
    return rows


def format_eta(eta: timedelta | None) -> str:
    """Return the estimated remaining time as a text, or `-` if it is unknown."""
    return "-" if eta is None else format_duration(eta)
