"""Overview of a crawl for the page, cached for all viewers."""

from datetime import datetime
from typing import Any

from crawlcw.dashboard.kept import Kept
from crawlcw.dashboard.observer import HostLine, Look, Observer, is_silent
from crawlcw.dashboard.stories import row
from crawlcw.errors import FAILURE_REASONS
from crawlcw.ledger.protocol import Counters, Group, Ledger, TaskFilter, Worker
from crawlcw.model.rates import Vitals
from crawlcw.model.task import Status

#: Shortest intervals between two reads of each part, in seconds.
_FAST, _SLOW = 1.0, 3.0
#: Seconds that an update waits for a due count of all tasks.
_PATIENCE = 0.2
_FAILURES = 12
_HOSTS = 12
#: Tasks examined for the last failures: a million refused links may come first.
_SCAN_LIMIT = 2_000


class Overview:
    """The current state of one crawl."""

    def __init__(self, ledger: Ledger, observer: Observer) -> None:
        self.ledger = ledger
        self._observer = observer
        # Without a cost limit: the parts have their own, and the wait for a count is bounded.
        self._whole = Kept(self._take, every=_FAST, cost=0)
        self._counters = Kept(ledger.workers.counters, every=_SLOW)
        self._failures = Kept(self._take_failures, every=_SLOW)

    async def get(self) -> dict[str, Any]:
        """Return the data of the page, at most some seconds old; raises `LedgerError`."""
        return await self._whole.get()

    def changed(self) -> None:
        """Drop the cache, after a user has changed tasks."""
        self._observer.changed()
        for part in (self._whole, self._failures):
            part.forget()

    async def _take(self) -> dict[str, Any]:
        look = await self._observer.look(patience=_PATIENCE)
        return {
            **_numbers(look, await self._counters.get()),
            "paused": look.paused,
            "workers": [_worker(worker, now=look.now) for worker in look.workers],
            "hosts": [_host(line) for line in look.hosts[:_HOSTS]],
            "failures": await self._failures.get(),
        }

    async def _take_failures(self) -> list[dict[str, Any]]:
        chosen = TaskFilter(statuses=(Status.FAILED, Status.IGNORED), reasons=FAILURE_REASONS)
        found = await self.ledger.queries.page(chosen, limit=_FAILURES, scan_limit=_SCAN_LIMIT)
        return [row(record) for record in found.records]


def _numbers(look: Look, counters: Counters) -> dict[str, Any]:
    return {
        "name": look.name,
        "kind": look.kind.value,
        "now": look.now,
        "counted": look.counted,
        "counts": look.counts.by_name(),
        "redirects": look.counts.redirects,
        "total": look.counts.known,
        "backlog": look.backlog,
        "rate": look.rate,
        "average": look.average,
        "eta": None if look.eta is None else look.eta.total_seconds(),
        "items": counters.items,
        "reasons": dict(look.reasons),
        "stages": [_stage(group) for group in look.stages],
    }


def _stage(group: Group) -> dict[str, Any]:
    return {
        "name": group.value,
        "open": group.open,
        "finished": group.finished,
        "ignored": group.ignored,
    }


def _worker(worker: Worker, *, now: datetime) -> dict[str, Any]:
    vitals = worker.vitals or Vitals()
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "started": worker.started,
        "heartbeat": worker.heartbeat,
        "silent": is_silent(worker, now=now),
        "idle": worker.idle,
        "pages": worker.counters.pages,
        "stalls": worker.counters.stalls,
        "longest_stall": worker.counters.longest_stall,
        "rate": vitals.rate,
        "processing": vitals.processing,
        "memory": vitals.memory,
        "lag": vitals.lag,
    }


def _host(line: HostLine) -> dict[str, Any]:
    host = line.host
    return {
        "name": host.name,
        "why": line.why,
        "delay": host.delay,
        "failures": host.failures,
        "resting_until": host.not_before,
    }
