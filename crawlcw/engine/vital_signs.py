"""What a process shows of itself to the others: what it has counted, and how it is just now."""

import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from crawlcw.engine.stats import Stats
from crawlcw.model.rates import Vitals
from crawlcw.model.transitions import Event

_RATE_OVER = 60.0
_STATM = Path("/proc/self/statm")


class VitalSigns:
    """Reads the vitals of this process; may be asked by a thread beside its event loop."""

    def __init__(
        self,
        stats: Stats,
        *,
        in_flight: Callable[[], int] = lambda: 0,
        lag: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*in_flight* returns how many tasks are held.

        *lag* returns by how many seconds the event loop was late since it was asked last.
        """
        self._stats = stats
        self._in_flight = in_flight
        self._lag = lag
        self._clock = clock
        self._samples = deque([(clock(), stats.pages)])

    def read(self) -> Vitals:
        """Return how this process is just now."""
        stats = self._stats
        return Vitals(
            finished=stats.pages,
            failed=stats.outcomes[Event.FAIL],
            ignored=stats.given_up + stats.unwanted,
            items=stats.items,
            bytes=stats.bytes,
            rate=round(self._rate(), 3),
            in_flight=self._in_flight(),
            memory=resident_memory(),
            lag=round(self._lag(), 4),
        )

    def _rate(self) -> float:
        """Return how many tasks were finished a second in the last minute, or since the start."""
        now, samples = self._clock(), self._samples
        samples.append((now, self._stats.pages))
        while len(samples) > 2 and now - samples[1][0] >= _RATE_OVER:
            samples.popleft()
        began, first = samples[0]
        return (self._stats.pages - first) / (now - began) if now > began else 0.0


def resident_memory() -> int:
    """Return how many bytes of this process are in memory."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        # No Linux: the most that it ever was has to do.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * resource.getpagesize()
