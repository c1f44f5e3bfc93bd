"""The ledger's time as one process keeps it, and the stalls of its event loop. No I/O.

The ledger's time is the monotonic clock plus an offset that was measured against the
ledger's own clock, so a jump of this machine's clock neither ends nor extends a
lease, and machines whose clocks differ agree. Where the ledger has no clock but this
machine's, that sets the offset once a minute. Stalls are in seconds of any clock that runs forward.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from crawlcw.errors import Reason

_SET_EVERY = 60.0
#: A time of day earlier by more than this was set back, and is not followed: due tasks would be
#: due much later.
_LONGEST_STANDSTILL = timedelta(minutes=1)
#: How often a loop that runs shows that it does.
TICK = 0.1
#: A lag from which on a warning is logged, and a connection may have broken of it.
STANDSTILL = 1.0
#: Smaller lags than this are those of a loop that is busy.
_COUNTED_FROM = 0.1
#: Lags that are no standstill explain a timeout where they took such a part of it.
_PART = 0.2
_KEPT = 4_096


class LedgerClock:
    """A clock that is set by measurements and runs evenly in between."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], datetime] | None = None,
    ) -> None:
        """Set the clock by *time_of_day* once a minute; None: `set` does."""
        self.monotonic = monotonic  #: the time that measurements are taken with, in seconds
        self._time_of_day = time_of_day
        self._to_set = math.inf if time_of_day is None else monotonic() + _SET_EVERY
        self._offset = time.time() - monotonic()
        self._latest = 0  #: milliseconds
        self._shown = datetime.fromtimestamp(0, UTC)

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds, never earlier than before."""
        reading = self.monotonic()
        if reading >= self._to_set and self._time_of_day is not None:
            self._to_set = reading + _SET_EVERY
            found = self._time_of_day()
            if found >= self._shown - _LONGEST_STANDSTILL:
                self.set(found, asked=reading, answered=reading)
        # Asked several times in a millisecond: each page needs it six times.
        milliseconds = int((reading + self._offset) * 1000)
        if milliseconds > self._latest:
            self._latest = milliseconds
            self._shown = datetime.fromtimestamp(milliseconds / 1000, UTC)
        return self._shown

    def set(self, ledger_time: datetime, *, asked: float, answered: float) -> None:
        """Take over the time of the ledger's clock between two readings of `monotonic`.

        The error is at most half of the time that the question took (Cristian,
        "Probabilistic clock synchronization", 1989).
        """
        self._offset = ledger_time.timestamp() - (asked + answered) / 2


class Stalls:
    """The times at which one loop stood still."""

    def __init__(self, *, now: float) -> None:
        self._due = now + TICK  #: when the next tick should come
        self._stalls: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def ticked(self, now: float) -> float:
        """Note that the loop runs; return by how much this is late."""
        lag = max(0.0, now - self._due)
        if lag >= _COUNTED_FROM:
            self._stalls.append((self._due, now))
        self._due = now + TICK
        return lag

    def lag(self, now: float) -> float:
        """Return for how long the loop has stood still just now. May be called by any thread."""
        return max(0.0, now - self._due)

    def since(self, began: float, *, now: float) -> float:
        """Return for how long it has stood still since *began*."""
        stood = self._stalls and self._stalls[-1][1] > began
        if not stood and now - self._due < _COUNTED_FROM:  # the usual case
            return 0.0
        return sum(self._lengths(began, now))

    def explains(
        self, reason: Reason, began: float, *, now: float, limits: Mapping[Reason, float]
    ) -> bool:
        """Return whether an attempt that *began* then may have failed for the loop alone.

        *limits* are the deadlines that are over with the reasons of timeouts. One
        that would not be over, had the time of the stalls not passed, is no
        failure; and a server that was not answered may have hung up.
        """
        lengths = self._lengths(began, now)
        longest = max(lengths, default=0.0)
        if reason is Reason.DISCONNECTED:
            return longest >= STANDSTILL
        limit = limits.get(reason)
        if limit is None:
            return False
        stood = sum(lengths)
        weighs = longest >= STANDSTILL or stood >= _PART * limit
        return weighs and now - began - stood < limit

    def _lengths(self, began: float, now: float) -> list[float]:
        lengths = []
        for start, end in reversed((*self._stalls, (self._due, now))):
            if end <= began:
                break
            length = end - max(start, began)
            if length >= _COUNTED_FROM:
                lengths.append(length)
        return lengths


class Silence:
    """The time since a worker was heard of, as far as the listener was awake to hear it.

    A machine that was asleep, or a process that was stopped, has heard none.
    """

    def __init__(self, *, now: float, look_every: float) -> None:
        self._looked = now
        self._longest = 2 * look_every
        self.seconds = 0.0

    def look(self, now: float, *, heard: bool) -> float:
        """Note whether anything was *heard* since the last look; return how long nothing was."""
        passed = min(now - self._looked, self._longest)
        self._looked = now
        self.seconds = 0.0 if heard else self.seconds + passed
        return self.seconds
