"""Counts of a ledger's tasks by status, cached for repeated scrapes."""

import time
from collections.abc import Awaitable, Callable

import anyio

from crawlcw.errors import LedgerError
from crawlcw.ledger.protocol import Counts
from crawlcw.telemetry.measures import Values

#: Seconds that a scrape waits for a count; after that it gets the last one.
_COUNT_WITHIN = 2.0
#: Wait until the next count, in durations of the last one: 5 % of the time.
_COUNT_COST = 20


class TaskCounts:
    """Counts again if the last count is old enough for its cost."""

    def __init__(self, count: Callable[[], Awaitable[Counts]]) -> None:
        """*count* may raise `LedgerError`."""
        self._count = count
        self._counts: Counts | None = None
        self._next = 0.0
        self._counting = anyio.Lock()

    async def latest(self) -> Values | None:
        """Return the numbers by the statuses' names; None: unknown."""
        async with self._counting:
            began = time.monotonic()
            if began >= self._next:
                try:
                    with anyio.move_on_after(_COUNT_WITHIN):
                        self._counts = await self._count()
                except LedgerError:
                    # Other code logs the error. Old numbers would look like new ones.
                    self._counts = None
                ended = time.monotonic()
                self._next = ended + _COUNT_COST * (ended - began)
        counts = self._counts
        if counts is None:
            return None
        redirects = {"redirect": counts.redirects} if counts.redirects else {}
        return {**counts.by_name(), **redirects}
