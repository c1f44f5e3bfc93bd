"""A clock that follows the ledger's time, and a record of the event loop's stalls. No I/O.

The ledger's time is the time of the monotonic clock plus an offset. The offset comes from a
comparison with the ledger's own clock. So a jump of this machine's clock does not change a lease,
and machines with different clocks agree on the ledger's time. If the ledger has no own clock, the
offset comes from this machine's time of day, once a minute. The times of stalls are seconds of any
monotonic clock.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from crawlcw.errors import Reason

_SET_EVERY = 60.0
#: If the time of day has gone back by more than a minute, a user has set the clock back. The
#: ledger's time then does not follow the time of day, because tasks would become due much later.
_LONGEST_STALL = timedelta(minutes=1)
#: Seconds between two ticks of a running event loop.
TICK = 0.1
#: Lag of the event loop in seconds. A lag this long may break connections, and is logged.
STALL = 1.0
#: Smallest lag in seconds that is recorded as a stall. A busy loop often has a smaller lag.
_COUNTED_FROM = 0.1
#: Short stalls explain a timeout only if they took at least this fraction of its length.
_SIGNIFICANT_SHARE = 0.2
_MAX_STALLS = 4_096


class LedgerClock:
    """A clock that runs evenly between two calls of `set`; each call corrects the clock's time."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], datetime] | None = None,
    ) -> None:
        """Set the clock to *time_of_day* once a minute, unless *time_of_day* is None."""
        self.monotonic = monotonic  #: function that returns seconds
        self._time_of_day = time_of_day
        self._next_set = math.inf if time_of_day is None else monotonic() + _SET_EVERY
        self._offset_s = time.time() - monotonic()
        self._latest_ms = 0  #: milliseconds
        self._latest_datetime = datetime.fromtimestamp(0, UTC)

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds; the returned time never goes back."""
        monotonic_now = self.monotonic()
        if monotonic_now >= self._next_set and self._time_of_day is not None:
            self._next_set = monotonic_now + _SET_EVERY
            time_of_day = self._time_of_day()
            if time_of_day >= self._latest_datetime - _LONGEST_STALL:
                self.set(time_of_day, asked_at=monotonic_now, answered_at=monotonic_now)
        # Cache the time, because callers need it several times in a millisecond.
        milliseconds = int((monotonic_now + self._offset_s) * 1000)
        if milliseconds > self._latest_ms:
            self._latest_ms = milliseconds
            self._latest_datetime = datetime.fromtimestamp(milliseconds / 1000, UTC)
        return self._latest_datetime

    def set(self, ledger_time: datetime, *, asked_at: float, answered_at: float) -> None:
        """Set the clock to *ledger_time*, which was measured between *asked_at* and *answered_at*.

        The error is at most half of the time from *asked_at* to *answered_at* (Cristian,
        "Probabilistic clock synchronization", 1989).
        """
        self._offset_s = ledger_time.timestamp() - (asked_at + answered_at) / 2


class StallLog:
    """Records the stalls of one event loop."""

    def __init__(self, *, now: float) -> None:
        self._next_tick_at = now + TICK  #: time at which the next tick should come
        self._stalls: deque[tuple[float, float]] = deque(maxlen=_MAX_STALLS)

    def ticked(self, now: float) -> float:
        """Record a tick of the event loop; return the seconds by which the tick is late."""
        lag = max(0.0, now - self._next_tick_at)
        if lag >= _COUNTED_FROM:
            self._stalls.append((self._next_tick_at, now))
        self._next_tick_at = now + TICK
        return lag

    def lag(self, now: float) -> float:
        """Return the length of the current stall in seconds; any thread may call `lag`."""
        return max(0.0, now - self._next_tick_at)

    def seconds_since(self, start: float, *, now: float) -> float:
        """Return the total length in seconds of the stalls since *start*."""
        has_stalls = self._stalls and self._stalls[-1][1] > start
        if not has_stalls and now - self._next_tick_at < _COUNTED_FROM:  # the usual case
            return 0.0
        return sum(self._stall_lengths(start, now))

    def explains(
        self, reason: Reason, attempt_start: float, *, now: float, limits: Mapping[Reason, float]
    ) -> bool:
        """Return whether stalls alone may have failed an attempt that began at *attempt_start*.

        *limits* maps each timeout to its limit in seconds. The stalls explain a timeout if the
        attempt exceeded the limit only because of the stalls. A long stall also explains a
        disconnection, because the server may have closed the connection.
        """
        lengths = self._stall_lengths(attempt_start, now)
        longest = max(lengths, default=0.0)
        if reason is Reason.DISCONNECTED:
            return longest >= STALL
        limit = limits.get(reason)
        if limit is None:
            return False
        stalled_seconds = sum(lengths)
        is_significant = longest >= STALL or stalled_seconds >= _SIGNIFICANT_SHARE * limit
        return is_significant and now - attempt_start - stalled_seconds < limit

    def _stall_lengths(self, attempt_start: float, now: float) -> list[float]:
        lengths = []
        for start, end in reversed((*self._stalls, (self._next_tick_at, now))):
            if end <= attempt_start:
                break
            length = end - max(start, attempt_start)
            if length >= _COUNTED_FROM:
                lengths.append(length)
        return lengths


class Silence:
    """Measures, in another thread or process, how long a worker has shown no sign of life.

    The time does not count while the observer's process is stopped or its machine sleeps.
    """

    def __init__(self, *, now: float, interval: float) -> None:
        self._recorded_at = now
        self._max_elapsed_s = 2 * interval
        self.seconds = 0.0

    def record(self, now: float, *, has_sign: bool) -> float:
        """Record whether a sign of life has come; return the seconds since the last sign."""
        elapsed = min(now - self._recorded_at, self._max_elapsed_s)
        self._recorded_at = now
        self.seconds = 0.0 if has_sign else self.seconds + elapsed
        return self.seconds
