"""Telling the others that this worker lives, what it has counted, and whether it wants hosts."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

import anyio

from crawlcw.engine.stats import Stats
from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.protocol import Ledger, Tally, Worker
from crawlcw.model.dropped import merged
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

_LONGEST_SILENCE = 5.0
#: A worker that has been silent for as many beats is not counted on.
_MISSED_BEATS = 3


class Heartbeat:
    """A worker, as the others see it."""

    def __init__(
        self, ledger: Ledger, worker: str, stats: Stats, *, lease: Callable[[], timedelta]
    ) -> None:
        """*worker* is its name, *stats* what it counts; *lease* returns how long its leases are."""
        self._ledger = ledger
        self._worker = worker
        self._stats = stats
        self._lease = lease
        self._hungry = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Beat until cancelled: every few seconds, and at once when hunger comes or goes."""
        while True:
            with anyio.move_on_after(min(_LONGEST_SILENCE, self._lease().total_seconds() / 3)):
                await self._changed.wait()
            self._changed.clear()
            try:
                await self.beat()
            except LedgerUnavailableError as error:
                logger.debug("no heartbeat: %s", printable(error), extra={"event": "no_heartbeat"})

    async def beat(self) -> None:
        """Write it down once; raises `LedgerError`."""
        await self._ledger.workers.beat(self._worker, self.tally(), hungry=self._hungry)

    def tally(self) -> Tally:
        """Return what this worker has counted."""
        stats = self._stats
        return Tally(
            pages=stats.pages,
            items=stats.items,
            fetched=stats.fetched,
            unchanged=stats.unchanged,
            bytes=stats.bytes,
            dropped=dict(stats.links_dropped),
            examples=merged([stats.link_examples]),
            stalls=stats.stalls,
            longest_stall=round(stats.longest_stall, 3),
            items_by_callback=dict(stats.items_by_callback),
            items_dropped=dict(stats.items_dropped),
        )

    def starving(self, hungry: bool) -> None:
        """Note whether this worker's fetchers have no host to ask, though there is work."""
        if hungry != self._hungry:
            self._hungry = hungry
            self._changed.set()

    async def neighbours(self) -> tuple[int, int]:
        """Return how many workers are at work, and how many others of them are hungry."""
        now = self._ledger.now()
        silent = timedelta(seconds=_MISSED_BEATS * _LONGEST_SILENCE)
        workers = [
            worker
            for worker in await self._ledger.workers.all()
            if worker.heartbeat is not None and now - worker.heartbeat < silent
        ]
        return len(workers), sum(self._is_hungry(worker) for worker in workers)

    def _is_hungry(self, worker: Worker) -> bool:
        return worker.hungry and worker.name != self._worker
