"""The ledger's time, as one process keeps it.

Time is the monotonic clock plus an offset that was measured against the
ledger's own clock, so a jump of this machine's clock neither ends nor extends a
lease, and machines whose clocks differ agree.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime


class LedgerClock:
    """A clock that is set by measurements and runs evenly in between."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic  #: the time that measurements are taken with, in seconds
        self._offset = time.time() - monotonic()
        self._latest = 0  #: milliseconds
        self._shown = datetime.fromtimestamp(0, UTC)

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds, never earlier than before."""
        # Asked several times in a millisecond: each page needs it six times.
        milliseconds = int((self.monotonic() + self._offset) * 1000)
        if milliseconds > self._latest:
            self._latest = milliseconds
            self._shown = datetime.fromtimestamp(milliseconds / 1000, UTC)
        return self._shown

    def set(self, ledger_time: datetime, *, asked: float, answered: float) -> None:
        """Take over what the ledger's clock showed between two readings of `monotonic`.

        The error is at most half of what the question took (Cristian,
        "Probabilistic clock synchronization", 1989).
        """
        self._offset = ledger_time.timestamp() - (asked + answered) / 2
