"""Waiting for a ledger that is away.

An outage of the database is not a failure of a page: whoever needs the ledger
tries again, with growing waits, until it answers or until patience ends.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import anyio

from crawlcw.durations import spoken
from crawlcw.errors import LedgerUnavailableError
from crawlcw.printable import printable

logger = logging.getLogger(__name__)

T = TypeVar("T")
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0


class Patience:
    """How one crawl waits for its ledger."""

    def __init__(self, give_up: timedelta) -> None:
        """Give up where the ledger has not answered for *give_up*."""
        self._give_up = give_up

    def shorten(self, give_up: timedelta) -> None:
        """Give up earlier, because the crawl is to stop."""
        self._give_up = min(self._give_up, give_up)

    async def insist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return what *operation* returns, calling it again while the ledger is unavailable.

        Raises `LedgerUnavailableError` when patience ends.
        """
        wait = _FIRST_WAIT
        began: float | None = None
        while True:
            try:
                result = await operation()
            except LedgerUnavailableError as error:
                now = time.monotonic()
                began = now if began is None else began
                if now - began + wait > self._give_up.total_seconds():
                    raise LedgerUnavailableError(
                        f"the ledger has not answered for {spoken(self._give_up)}: {error}"
                    ) from error
                logger.warning(
                    "the ledger does not answer, trying again: %s",
                    printable(error),
                    extra={"event": "ledger_unavailable"},
                )
                await anyio.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)
                continue
            if began is not None:
                logger.warning("the ledger answers again", extra={"event": "ledger_back"})
            return result
