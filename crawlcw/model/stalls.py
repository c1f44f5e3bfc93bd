"""Standstills of an event loop, and the failures that they explain. No I/O.

Times are in seconds, of any clock that runs forward.
"""

from collections import deque
from collections.abc import Mapping

from crawlcw.errors import Reason

#: How often a loop that runs shows that it does.
TICK = 0.1
#: A lag from which on a warning is logged, and a connection may have broken of it.
STANDSTILL = 1.0
#: Smaller lags than this are those of a loop that is busy.
_COUNTED_FROM = 0.1
#: Lags that are no standstill explain a timeout where they took such a part of it.
_PART = 0.2
_KEPT = 4_096


class Stalls:
    """The times at which one loop stood still."""

    def __init__(self, *, now: float) -> None:
        self._due = now + TICK  #: when the next tick should come
        self._stalls: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def ticked(self, now: float) -> float:
        """Note that the loop runs; return by how much this is late."""
        lag = self.lag(now)
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
