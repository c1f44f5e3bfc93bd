"""The ledger's time, as one process keeps it.

Time is the monotonic clock plus an offset that was measured against the
ledger's own clock, so a jump of this machine's clock neither ends nor extends a
lease, and machines whose clocks differ agree. Where the ledger has no clock but this
machine's, that sets the offset once a minute.
"""

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_SET_EVERY = 60.0
#: A time of day earlier by more than this was set back, and is not followed: due tasks would be
#: due much later.
_LONGEST_STANDSTILL = timedelta(minutes=1)


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
