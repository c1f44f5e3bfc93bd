"""The shown spiders and use cases: their ledgers, opened on demand, and their overviews.

All viewers share the rows that are read from a ledger.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from crawlcw.dashboard.observer import CrawlState, HostLine, Observer, is_silent
from crawlcw.dashboard.stories import fields, row
from crawlcw.errors import FAILURE_REASONS, LedgerError, LedgerUnavailableError, UsageError
from crawlcw.ledger.protocol import Counters, Ledger, TaskFilter, Worker
from crawlcw.model.rates import Vitals
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status
from crawlcw.server.access import RefusedError

T = TypeVar("T")

#: Seconds between two reads of the list of names.
_NAMES_EVERY = 10.0
#: Shortest intervals between two reads of each part of an overview, in seconds.
_FAST, _SLOW = 1.0, 3.0
#: Wait between two reads, in durations of a read.
_COST = 20
#: Seconds that an update waits for a due count of all tasks.
_PATIENCE = 0.2
#: Fields of an overview that the list of crawls has as well.
_SUMMARY = (
    *("name", "kind", "paused", "counted", "counts", "total", "backlog"),
    *("rate", "eta", "items"),
)
_FAILURES = 12
_HOSTS = 12
#: Tasks examined for the last failures: a million refused links may come first.
_SCAN_LIMIT = 2_000


class Crawls:
    """The spiders and use cases of one ledger, closed at the end of the block."""

    def __init__(
        self,
        *,
        open_one: Callable[[str], Awaitable[Ledger]],
        recorded: Callable[[], Awaitable[Sequence[str]]],
        only: Sequence[str] = (),
    ) -> None:
        """*recorded* returns the names, *open_one* opens a ledger; show *only* these, or all."""
        self._open_one = open_one
        self._recorded = _Cached(recorded, every=_NAMES_EVERY)
        self._summaries = _Cached(self._take_summaries, every=_SLOW)
        self._only = only
        self._opened: dict[str, Overview] = {}
        self._opening = asyncio.Lock()
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def names(self) -> list[str]:
        """Return the shown names that have tasks, sorted."""
        known_names = await self._recorded.get()
        return [name for name in known_names if not self._only or name in self._only]

    async def summaries(self) -> list[dict[str, Any]]:
        """Return the numbers of each shown crawl, by name; raises `LedgerUnavailableError`.

        A crawl whose ledger cannot be read has only its `name` and the `error`.
        """
        return await self._summaries.get()

    async def _take_summaries(self) -> list[dict[str, Any]]:
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
        async with self._opening:
            if (overview := self._opened.get(name)) is not None:
                return overview
            if name not in await self.names():
                raise RefusedError(404, f"nothing is recorded for a spider or use case {name!r}")
            ledger = await self._open_one(name)
            self._closing.push_async_callback(ledger.close)
            observer = await self._closing.enter_async_context(Observer(ledger, name))
            self._opened[name] = Overview(ledger, observer)
            return self._opened[name]


class Overview:
    """The current state of one crawl."""

    def __init__(self, ledger: Ledger, observer: Observer) -> None:
        self.ledger = ledger
        self._observer = observer
        # Without a cost limit: the parts have their own, and the wait for a count is bounded.
        self._whole = _Cached(self._take, every=_FAST, cost=0)
        self._counters = _Cached(ledger.workers.counters, every=_SLOW)
        self._failures = _Cached(self._take_failures, every=_SLOW)

    async def get(self) -> dict[str, Any]:
        """Return the data of the page, at most some seconds old; raises `LedgerError`."""
        return await self._whole.get()

    def changed(self) -> None:
        """Drop the cache, after a user has changed tasks."""
        self._observer.changed()
        self._whole.forget()
        self._failures.forget()

    async def _take(self) -> dict[str, Any]:
        state = await self._observer.poll(patience=_PATIENCE)
        return {
            **_numbers(state, await self._counters.get()),
            "paused": state.paused,
            "settings": dict(state.settings),
            "workers": [_worker(worker, now=state.now) for worker in state.workers],
            "hosts": [_host(line) for line in state.hosts[:_HOSTS]],
            "failures": await self._failures.get(),
        }

    async def _take_failures(self) -> list[dict[str, Any]]:
        task_filter = TaskFilter(statuses=(Status.FAILED, Status.IGNORED), reasons=FAILURE_REASONS)
        page = await self.ledger.queries.page(task_filter, limit=_FAILURES, scan_limit=_SCAN_LIMIT)
        return [row(record) for record in page.records]


class _Cached(Generic[T]):
    """The last result of *take*, which is called again after *every* seconds, or later if slow.

    A slow *take* is called at most every *cost* times its duration; *cost* 0 ignores that.
    Concurrent callers share one call.
    """

    def __init__(
        self, take: Callable[[], Awaitable[T]], *, every: float, cost: float = _COST
    ) -> None:
        self._take = take
        self._every = every
        self._cost = cost
        self._lock = asyncio.Lock()
        self._until = float("-inf")
        self._value: T | None = None

    async def get(self) -> T:
        """Return the value; raises the errors of *take*."""
        async with self._lock:
            started_at = time.monotonic()
            if self._value is None or started_at >= self._until:
                self._value = await self._take()
                ended_at = time.monotonic()
                self._until = ended_at + max(self._every, self._cost * (ended_at - started_at))
            return self._value

    def forget(self) -> None:
        """Call *take* again at the next `get`."""
        self._until = float("-inf")


def _numbers(state: CrawlState, counters: Counters) -> dict[str, Any]:
    return {
        "name": state.name,
        "kind": state.kind.value,
        "now": state.now,
        "counted": state.counted,
        "counts": state.counts.by_name(),
        "redirects": state.counts.redirects,
        "total": state.counts.without_redirects,
        "backlog": state.backlog,
        "rate": state.rate,
        "average": state.average,
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
