"""Repeat operations of a ledger while its database is unavailable (Decorator and Retry).

An outage of the database is no failure of a page, so operations are tried again with exponential
backoff. The renewal grace is a short time after an outage. In this time, workers can still renew
leases that expired during the outage.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, cast

import anyio

from crawlcw.errors import LedgerError, LedgerGoneError, LedgerUnavailableError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 5.0
#: Seconds that a report waits for a number from the ledger before the report omits the number.
_REPORT_TIMEOUT_S = 10.0
#: After an outage, every waiting process repeats its operation within these seconds.
_RETURN_WINDOW_S = 2 * _MAX_DELAY_S


class LedgerRetry:
    """Repeats the ledger operations of one process, and knows the last outage of the ledger."""

    def __init__(self, give_up: timedelta) -> None:
        """Let an operation fail if the ledger has not answered for the duration *give_up*."""
        #: Number of operations, including repetitions, by a name such as `tasks.add`.
        self.calls_by_operation: Counter[str] = Counter()
        self._give_up = give_up
        self._last_success_start = time.monotonic()  #: when the last successful operation started
        self._waiting_count = 0
        self._outage_start = self._outage_end = float("-inf")  #: monotonic times of the last outage

    def shorten(self, give_up: timedelta) -> None:
        """Give up operations after at most *give_up*, because the crawl must end."""
        self._give_up = min(self._give_up, give_up)

    def grace_start(self, now: datetime) -> datetime | None:
        """Return when the last outage began; None if its renewal grace is over."""
        monotonic = time.monotonic()
        if not self._waiting_count and monotonic > self._outage_end + _RETURN_WINDOW_S:
            return None
        return now - timedelta(seconds=monotonic - self._outage_start)

    async def call(
        self, name: str, operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of *operation*, repeated while the ledger is unavailable.

        Raises `LedgerUnavailableError` after `give_up`. *name* is the operation's name in the
        counters.
        """
        # Keep this method fast, because it runs several times for each page.
        started_at = time.monotonic()
        self.calls_by_operation[name] += 1
        try:
            result = await operation(*args, **kwargs)
        except LedgerUnavailableError as error:
            return await self._repeat(name, partial(operation, *args, **kwargs), error, started_at)
        if (now := time.monotonic()) - started_at > _MAX_DELAY_S:
            # A slow answer without a failure shows that the database was frozen: note an outage.
            self._note_outage(started_at)
            self._outage_end = now
        if started_at > self._last_success_start:
            self._last_success_start = started_at
        return result

    async def read_for_report(self, operation: Callable[[], Awaitable[T]]) -> T | None:
        """Return a value for a report; None if *operation* fails or takes longer than 10 s."""
        with anyio.move_on_after(_REPORT_TIMEOUT_S):
            try:
                return await operation()
            except LedgerGoneError:
                raise
            except LedgerError as error:
                log_fields = {"event": "not_counted"}
                logger.info(
                    "the report lacks a number, because the ledger failed: %s",
                    printable(error),
                    extra=log_fields,
                )
        return None

    async def _repeat(
        self,
        name: str,
        operation: Callable[[], Awaitable[T]],
        error: LedgerUnavailableError,
        started_at: float,
    ) -> T:
        self._note_outage(started_at)
        self._waiting_count += 1
        delay_s, waiting_since = _FIRST_DELAY_S, time.monotonic()
        try:
            while True:
                if time.monotonic() - waiting_since + delay_s > self._give_up.total_seconds():
                    raise LedgerUnavailableError(
                        f"the ledger has not answered for {format_duration(self._give_up)}: {error}"
                    ) from error
                logger.warning(
                    "the ledger does not answer; trying again: %s",
                    printable(error),
                    extra={"event": "ledger_unavailable"},
                )
                await anyio.sleep(delay_s)
                delay_s = min(delay_s * 2, _MAX_DELAY_S)
                self.calls_by_operation[name] += 1
                try:
                    result = await operation()
                except LedgerUnavailableError as next_error:
                    error = next_error
                else:
                    break
        finally:
            self._waiting_count -= 1
            self._outage_end = time.monotonic()
        logger.warning("the ledger answers again", extra={"event": "ledger_back"})
        return result

    def _note_outage(self, failed_at: float) -> None:
        # Let the outage begin at the last success, because it cannot have begun earlier.
        outage_start = min(failed_at, self._last_success_start)
        if outage_start > self._outage_end and not self._waiting_count:
            self._outage_start = outage_start


def retrying(ledger: Ledger, retry: LedgerRetry) -> Ledger:
    """Return a ledger that repeats the operations of *ledger*, see `LedgerRetry.call`."""
    return cast("Ledger", _Retrying(ledger, retry))


class _Retrying:
    """Repeats the operations of a ledger, or only of its part *name*, such as `tasks`."""

    def __init__(self, target: Any, retry: LedgerRetry, *, name: str = "") -> None:
        self._target = target
        self._retry = retry
        self._name = name

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._target, name)
        if not self._name:
            if name in Ledger.__annotations__:
                member = _Retrying(member, self._retry, name=name)
        # Do not wrap a method that iterates over records, because it is no coroutine function.
        elif iscoroutinefunction(member):
            member = partial(self._retry.call, f"{self._name}.{name}", member)
        # Store the method in the instance, so that the next access does not call `__getattr__`.
        setattr(self, name, member)
        return member
