"""How many tasks of a ledger are in each status, for those who ask again and again."""

import time
from collections.abc import Awaitable, Callable

import anyio

from crawlcw.errors import LedgerError
from crawlcw.ledger.protocol import Counts
from crawlcw.telemetry.measures import Values

#: Counting may take one who asks so many seconds; then the last count stands.
_COUNT_WITHIN = 2.0
#: And the next count is not before this many times what the last one took: 5 %.
_COUNT_COST = 20


class TaskCounts:
    """Counts anew where the last count is old enough for what it took."""

    def __init__(self, count: Callable[[], Awaitable[Counts]]) -> None:
        """*count* may raise `LedgerError`."""
        self._count = count
        self._counts: Counts | None = None
        self._next = 0.0
        self._counting = anyio.Lock()

    async def latest(self) -> Values | None:
        """Return the numbers by the statuses' names; None: the ledger has not said."""
        async with self._counting:
            began = time.monotonic()
            if began >= self._next:
                try:
                    with anyio.move_on_after(_COUNT_WITHIN):
                        self._counts = await self._count()
                except LedgerError:
                    # The user of the ledger says so. Old numbers would look like new ones.
                    self._counts = None
                ended = time.monotonic()
                self._next = ended + _COUNT_COST * (ended - began)
        counts = self._counts
        if counts is None:
            return None
        redirects = {"redirect": counts.redirects} if counts.redirects else {}
        return {**counts.by_name(), **redirects}
