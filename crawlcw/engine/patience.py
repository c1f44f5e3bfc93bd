"""Waiting for a ledger that is away.

An outage of the database is not a failure of a page: a caller that needs the ledger
tries again, with growing waits, until it answers or until patience ends. Nor is
it a crash of a worker: leases that run out meanwhile are spared for a while.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypeVar

import anyio

from crawlcw.errors import LedgerError, LedgerGoneError, LedgerUnavailableError
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

T = TypeVar("T")
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
#: Seconds for a look at the ledger that may as well fail.
_LAST_LOOK = 10.0
#: Within so many seconds after an outage everybody who waited has come back.
_COMING_BACK = 2 * _LONGEST_WAIT


class Outage:
    """The last time that the ledger was away, as far as one process noticed."""

    def __init__(self) -> None:
        self._answered = time.monotonic()  #: when the last question with an answer was asked
        self._waiting = 0
        self._began = self._ended = float("-inf")

    def answered(self, *, asked: float) -> None:
        """Note that a question is answered."""
        now = time.monotonic()
        if now - asked > _LONGEST_WAIT:
            # Nobody was refused: the ledger was frozen, and took it up afterwards.
            self._begin(asked)
            self._ended = now
        self._answered = max(self._answered, asked)

    @contextmanager
    def waited_out(self, *, asked: float) -> Iterator[None]:
        """Hold on while a question that was not answered is asked again."""
        self._begin(asked)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._ended = time.monotonic()

    def _begin(self, asked: float) -> None:
        # It was there when it answered last, and nobody knows for how long after that.
        since = min(asked, self._answered)
        new = since > self._ended and not self._waiting
        self._began = since if new else min(since, self._began)

    def age(self) -> float | None:
        """Return how many seconds ago it began, or None once all have had the time to come back."""
        now = time.monotonic()
        if not self._waiting and now > self._ended + _COMING_BACK:
            return None
        return now - self._began


class Patience:
    """How one crawl waits for its ledger."""

    def __init__(self, give_up: timedelta) -> None:
        """Give up where the ledger has not answered for *give_up*."""
        self._give_up = give_up
        self._outage = Outage()

    def shorten(self, give_up: timedelta) -> None:
        """Give up earlier, because the crawl is to stop."""
        self._give_up = min(self._give_up, give_up)

    def spared_since(self, now: datetime) -> datetime | None:
        """Return since when leases that ended are spared at *now*; None: none is.

        Their holders could not renew them, and may be about to.
        """
        age = self._outage.age()
        return None if age is None else now - timedelta(seconds=age)

    async def insist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return what *operation* returns, calling it again while the ledger is unavailable.

        Raises `LedgerUnavailableError` when patience ends.
        """
        asked = time.monotonic()
        try:
            result = await operation()
        except LedgerUnavailableError as error:
            with self._outage.waited_out(asked=asked):
                result = await self._insist_again(operation, error)
            logger.warning("the ledger answers again", extra={"event": "ledger_back"})
            return result
        self._outage.answered(asked=asked)
        return result

    async def in_time(self, operation: Callable[[], Awaitable[T]]) -> T | None:
        """Return what *operation* returns; None where that fails, or takes longer than 10 s.

        For what a report would like to say, and nothing else depends on. It asks once;
        a retrying ledger's operations ask again by themselves.
        """
        with anyio.move_on_after(_LAST_LOOK):
            try:
                return await operation()
            except LedgerGoneError:
                raise
            except LedgerError as error:
                told = {"event": "not_counted"}
                logger.info("the report lacks a figure: %s", printable(error), extra=told)
        return None

    async def _insist_again(
        self, operation: Callable[[], Awaitable[T]], error: LedgerUnavailableError
    ) -> T:
        wait = _FIRST_WAIT
        began = time.monotonic()
        while True:
            if time.monotonic() - began + wait > self._give_up.total_seconds():
                raise LedgerUnavailableError(
                    f"the ledger has not answered for {format_duration(self._give_up)}: {error}"
                ) from error
            logger.warning(
                "the ledger does not answer, trying again: %s",
                printable(error),
                extra={"event": "ledger_unavailable"},
            )
            await anyio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
            try:
                return await operation()
            except LedgerUnavailableError as again:
                error = again
