"""Histogram of durations, with fixed bounds as in Prometheus. No I/O."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

#: The upper bounds, in seconds: from an answer out of a cache to the longest timeout.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts durations in seconds, in constant memory."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        #: How many lay under each of `BOUNDS` and above the one before; the last: above all.
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0  #: their sum

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def numbers(self) -> list[float]:
        """Return the counts and then the sum, as one list: to be sent, and to be `added`."""
        return [*self.counts, self.seconds]


def added(histograms: Iterable[Sequence[float]]) -> list[float]:
    """Return the numbers of one histogram that counted what all of them have."""
    return [sum(column) for column in zip(*histograms, strict=True)] or Histogram().numbers()
