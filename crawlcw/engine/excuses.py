"""What a loop that stood still excuses, for a crawl whose loop is watched."""

import time
from collections.abc import Mapping

from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, Reason


class LoopExcuses:
    """The `Excuses` of a watched loop; failures that it excuses are counted in *stats*."""

    def __init__(
        self, watchdog: Watchdog, stats: Stats, *, deadlines: Mapping[Reason, float]
    ) -> None:
        """*deadlines* are in seconds, by the reason that a request fails with when one is over."""
        self._watchdog = watchdog
        self._stats = stats
        self._deadlines = deadlines

    def failure(self, error: FetchError, began: float) -> bool:
        """Return whether what *began* then has failed for the loop alone."""
        limits = self._deadlines
        if error.deadline is not None:
            limits = {**limits, error.reason: error.deadline}
        excused = self._watchdog.stalls.excuses(
            error.underlying, began, now=time.monotonic(), limits=limits
        )
        self._stats.forgiven += excused
        return excused

    def seconds(self, began: float) -> float:
        """Return for how long the loop has stood still since *began*."""
        return self._watchdog.stalled(began)
