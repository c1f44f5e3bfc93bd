"""A ledger that repeats its operations while its database is away (Decorator and Retry).

An outage is no failure of a page, so operations are tried again with exponential backoff. It is no
crash of a worker either: leases that expire during an outage can still be renewed for a short time
after it, the renewal grace.
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
#: Seconds that a report waits for one figure; after that it omits the figure.
_REPORT_TIMEOUT_S = 10.0
#: Seconds after an outage within which every process that waited comes back.
_RETURN_WINDOW_S = 2 * _MAX_DELAY_S


class LedgerRetry:
    """The waits of one process for its ledger, and the last outage that it noticed."""

    def __init__(self, give_up: timedelta) -> None:
        """Give up if the ledger has not answered for *give_up*."""
        #: Operations, including repetitions, by a name such as `tasks.add`.
        self.calls_by_operation: Counter[str] = Counter()
        self._give_up = give_up
        self._last_success_start = time.monotonic()  #: when the last successful operation started
        self._waiting_count = 0
        self._outage_start = self._outage_end = float("-inf")  #: the last outage

    def shorten(self, give_up: timedelta) -> None:
        """Give up earlier, because the crawl must stop."""
        self._give_up = min(self._give_up, give_up)

    def grace_start(self, now: datetime) -> datetime | None:
        """Return the start of the outage whose expired leases have a renewal grace, or None."""
        monotonic = time.monotonic()
        if not self._waiting_count and monotonic > self._outage_end + _RETURN_WINDOW_S:
            return None
        return now - timedelta(seconds=monotonic - self._outage_start)

    async def call(
        self, name: str, operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of *operation*, repeated while the ledger is unavailable.

        Raises `LedgerUnavailableError` when the time is up. *name* is for the counters.
        """
        # This runs several times a page: without an outage, it makes no further Python call.
        started_at = time.monotonic()
        self.calls_by_operation[name] += 1
        try:
            result = await operation(*args, **kwargs)
        except LedgerUnavailableError as error:
            return await self._repeat(name, partial(operation, *args, **kwargs), error, started_at)
        if (now := time.monotonic()) - started_at > _MAX_DELAY_S:
            # No operation failed: the ledger was frozen, and continued afterwards.
            self._note_outage(started_at)
            self._outage_end = now
        if started_at > self._last_success_start:
            self._last_success_start = started_at
        return result

    async def read_for_report(self, operation: Callable[[], Awaitable[T]]) -> T | None:
        """Return a figure for a report; None if *operation* fails or takes longer than 10 s."""
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
        # The ledger answered the last operation, but it may have been away at any time since.
        outage_start = min(failed_at, self._last_success_start)
        if outage_start > self._outage_end and not self._waiting_count:
            self._outage_start = outage_start


def retrying(ledger: Ledger, retry: LedgerRetry) -> Ledger:
    """Return *ledger* with each operation of its facets repeated, see `LedgerRetry.call`."""
    return cast("Ledger", _Retrying(ledger, retry))


class _Retrying:
    """Repeats the operations of a ledger, or of its facet with a *name*."""

    def __init__(self, target: Any, retry: LedgerRetry, *, name: str = "") -> None:
        self._target = target
        self._retry = retry
        self._name = name

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._target, name)
        if not self._name:
            if name in Ledger.__annotations__:
                member = _Retrying(member, self._retry, name=name)
        # Walks are not coroutines, so use the walks of the real ledger.
        elif iscoroutinefunction(member):
            member = partial(self._retry.call, f"{self._name}.{name}", member)
        # Store the method: the next access finds it in the instance.
        setattr(self, name, member)
        return member
