"""Open the ledgers of the shown spiders and use cases on demand, and read their overviews.

All viewers share the data that the dashboard reads from a ledger.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from crawlcw.dashboard.observer import CrawlState, HostLine, Observer, is_silent
from crawlcw.dashboard.task_views import fields, task_row
from crawlcw.errors import FAILURE_REASONS, LedgerError, LedgerUnavailableError, UsageError
from crawlcw.ledger.protocol import Counters, Ledger, TaskFilter, Worker
from crawlcw.model.rates import Vitals
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status
from crawlcw.server.access import RefusedError

T = TypeVar("T")

#: Seconds between two reads of the names of spiders and use cases.
_NAMES_INTERVAL = 10.0
#: Seconds for which an overview is cached, and seconds for which its slow parts are cached.
_OVERVIEW_INTERVAL, _PART_INTERVAL = 1.0, 3.0
#: Minimum time between two reads from a ledger, as a multiple of the duration of a read.
_COST_FACTOR = 20
#: Maximum seconds that an update waits for the count of all tasks, if a new count is due.
_COUNT_TIMEOUT = 0.2
#: Fields of a crawl's overview that the list of crawls shows.
_SUMMARY = (
    *("name", "kind", "paused", "counted_at", "counts", "total", "backlog"),
    *("rate", "eta", "items"),
)
_MAX_FAILURES = 12
_MAX_HOSTS = 12
#: Maximum number of tasks that a search for failures examines, because there may be millions.
_SCAN_LIMIT = 2_000


class Crawls:
    """The spiders and use cases on the dashboard; the `with` block closes their ledgers."""

    def __init__(
        self,
        *,
        open_ledger: Callable[[str], Awaitable[Ledger]],
        read_names: Callable[[], Awaitable[Sequence[str]]],
        shown_names: Sequence[str] = (),
    ) -> None:
        """Show *shown_names*; if it is empty, show all names from *read_names*."""
        self._open_ledger = open_ledger
        self._names = _Cached(read_names, interval=_NAMES_INTERVAL)
        self._summaries = _Cached(self._read_summaries, interval=_PART_INTERVAL)
        self._shown_names = shown_names
        self._overviews: dict[str, Overview] = {}
        self._open_lock = asyncio.Lock()
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    async def names(self) -> list[str]:
        """Return the shown names that have tasks, sorted."""
        all_names = await self._names.get()
        return [name for name in all_names if not self._shown_names or name in self._shown_names]

    async def summaries(self) -> list[dict[str, Any]]:
        """Return the overview numbers of each shown crawl by name; raises `LedgerUnavailableError`.

        If a crawl's ledger cannot be read, the crawl's entry has only `name` and `error`.
        """
        return await self._summaries.get()

    async def _read_summaries(self) -> list[dict[str, Any]]:
        return await asyncio.gather(*(self._summary(name) for name in await self.names()))

    async def _summary(self, name: str) -> dict[str, Any]:
        try:
            overview = await (await self.overview(name)).get()
        except LedgerUnavailableError:
            raise
        except (LedgerError, UsageError, RefusedError) as error:
            return {"name": name, "error": printable(error)}
        live_workers = [worker for worker in overview["workers"] if not worker["silent"]]
        return {
            **{field: overview[field] for field in _SUMMARY},
            "workers": len(live_workers),
        }

    async def overview(self, name: str) -> "Overview":
        """Return the overview of *name*; raises `RefusedError` for an unknown name."""
        async with self._open_lock:
            if (overview := self._overviews.get(name)) is not None:
                return overview
            if name not in await self.names():
                raise RefusedError(404, f"nothing is recorded for a spider or use case {name!r}")
            ledger = await self._open_ledger(name)
            self._exit_stack.push_async_callback(ledger.close)
            observer = await self._exit_stack.enter_async_context(Observer(ledger, name))
            self._overviews[name] = Overview(ledger, observer)
            return self._overviews[name]


class Overview:
    """Reads the current state of one crawl for the page."""

    def __init__(self, ledger: Ledger, observer: Observer) -> None:
        self.ledger = ledger
        self._observer = observer
        # The overview needs no cost factor, because its slow parts limit their own cost.
        self._overview = _Cached(self._read_overview, interval=_OVERVIEW_INTERVAL, cost_factor=0)
        self._counters = _Cached(ledger.workers.counters, interval=_PART_INTERVAL)
        self._failures = _Cached(self._read_failures, interval=_PART_INTERVAL)

    async def get(self) -> dict[str, Any]:
        """Return the page's data, which is at most some seconds old; raises `LedgerError`."""
        return await self._overview.get()

    def expire(self) -> None:
        """Drop the cached overview, because a user has changed tasks."""
        self._observer.expire()
        self._overview.expire()
        self._failures.expire()

    async def _read_overview(self) -> dict[str, Any]:
        state = await self._observer.poll(count_timeout=_COUNT_TIMEOUT)
        return {
            **_overview_fields(state, await self._counters.get()),
            "paused": state.paused,
            "settings": dict(state.settings),
            "workers": [_worker(worker, now=state.now) for worker in state.workers],
            "hosts": [_host(line) for line in state.hosts[:_MAX_HOSTS]],
            "failures": await self._failures.get(),
        }

    async def _read_failures(self) -> list[dict[str, Any]]:
        task_filter = TaskFilter(statuses=(Status.FAILED, Status.IGNORED), reasons=FAILURE_REASONS)
        page = await self.ledger.queries.page(
            task_filter, limit=_MAX_FAILURES, scan_limit=_SCAN_LIMIT
        )
        return [task_row(record) for record in page.records]


class _Cached(Generic[T]):
    """Caches the result of *load* for *interval* seconds, or longer if *load* is slow.

    The cache keeps the result at least *cost_factor* times as long as the call of *load* took.
    Concurrent callers share one call of *load*.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[T]],
        *,
        interval: float,
        cost_factor: float = _COST_FACTOR,
    ) -> None:
        self._load = load
        self._interval = interval
        self._cost_factor = cost_factor
        self._lock = asyncio.Lock()
        self._expires_at = float("-inf")
        self._value: T | None = None

    async def get(self) -> T:
        """Return the cached or new result of *load*; raises the errors of *load*."""
        async with self._lock:
            started_at = time.monotonic()
            if self._value is None or started_at >= self._expires_at:
                self._value = await self._load()
                ended_at = time.monotonic()
                self._expires_at = ended_at + max(
                    self._interval, self._cost_factor * (ended_at - started_at)
                )
            return self._value

    def expire(self) -> None:
        """Call *load* again at the next `get`."""
        self._expires_at = float("-inf")


def _overview_fields(state: CrawlState, counters: Counters) -> dict[str, Any]:
    return {
        "name": state.name,
        "kind": state.kind.value,
        "now": state.now,
        "counted_at": state.counted_at,
        "counts": state.counts.by_name(),
        "redirects": state.counts.redirects,
        "total": state.counts.without_redirects,
        "backlog": state.backlog,
        "rate": state.rate,
        "average_rate": state.average_rate,
        "eta": None if state.eta is None else state.eta.total_seconds(),
        "items": counters.items,
        "reasons": [
            {"reason": reason, "tasks": tasks, "failure": reason in FAILURE_REASONS}
            for reason, tasks in state.reasons.items()
        ],
        "stages": [
            {"name": stage.value} | fields(stage, "open", "finished", "ignored")
            for stage in state.stages
        ],
    }


def _worker(worker: Worker, *, now: datetime) -> dict[str, Any]:
    return {
        **fields(worker, "name", "host", "pid", "started", "heartbeat", "idle"),
        "silent": is_silent(worker, now=now),
        **fields(worker.counters, "pages", "stalls", "longest_stall"),
        **fields(worker.vitals or Vitals(), "rate", "processing", "memory", "lag"),
    }


def _host(line: HostLine) -> dict[str, Any]:
    return {
        **fields(line.host, "name", "delay", "failures"),
        "why": line.why,
        "resting_until": line.host.not_before,
    }
