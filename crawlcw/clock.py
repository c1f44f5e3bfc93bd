"""The ledger's time, as one process keeps it.

Time is the monotonic clock plus an offset that was measured against the
ledger's own clock, so a jump of this machine's clock neither ends nor extends a
lease, and machines whose clocks differ agree. Where the ledger's own clock is
set back, the ledger's time goes on: what is due would be due much later.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

#: In seconds. What gains as much between two measurements was set back.
_LONGEST_STANDSTILL = 60.0


class LedgerClock:
    """A clock that is set by measurements and runs evenly in between."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = time.time() - monotonic()
        self._latest = 0.0

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds, never earlier than before."""
        seconds = max(self._monotonic() + self._offset, self._latest)
        self._latest = seconds
        return datetime.fromtimestamp(int(seconds * 1000) / 1000, UTC)

    def monotonic(self) -> float:
        """Return the time that measurements are taken with, in seconds."""
        return self._monotonic()

    def set(self, ledger_time: datetime, *, asked: float, answered: float) -> None:
        """Take over what the ledger's clock showed between two readings of `monotonic`.

        The error is at most half of what the question took (Cristian,
        "Probabilistic clock synchronization", 1989). A clock that was set back
        is not followed, for `now` would stand still until it has caught up.
        """
        offset = ledger_time.timestamp() - (asked + answered) / 2
        if answered + offset >= self._latest - _LONGEST_STANDSTILL:
            self._offset = offset
