"""Alarms of the spider and the log: no progress (`on_stall`), many failures (`on_failure_rate`).

Each alarm comes once, and again only after its condition was over.
"""

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.api.user_code import spider_code
from crawlcw.engine.stats import Stats
from crawlcw.errors import FAILURE_REASONS, SpiderError
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable
from crawlcw.model.standstill import Standstill

logger = logging.getLogger(__name__)

_LOOK_EVERY = 1.0
#: The rate counts at least this number of attempts.
_ATTEMPTS = 100


class Alarms:
    """Checks the crawl every second, at no cost for its pages."""

    def __init__(
        self,
        spider: Spider,
        settings: Settings,
        stats: Stats,
        *,
        standstill: Callable[[], Standstill | None],
        stop: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*stop* receives the reason if a hook raises `StopCrawl`."""
        self._spider = spider
        self._stats = stats
        self._standstill = standstill
        self._stop = stop
        self._clock = clock
        self._stall_after = settings.stall_after.total_seconds()  # 0: never
        self._still_since: float | None = None
        self._told_of_stall = False
        self._most = settings.failure_alarm  #: the share that may fail; None: any
        #: Counts at each check, the oldest first: attempts, and those that failed.
        self._looks: deque[tuple[int, int]] = deque([(0, 0)])
        self._told_of_failures = False

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await anyio.sleep(_LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Raise the alarms that are due."""
        standstill = self._standstill()
        seconds = self._stalled(standstill)
        if standstill is not None and seconds is not None:
            logger.warning(
                "nothing has moved for %s%s",
                format_duration(timedelta(seconds=seconds)),
                printable(f": {sentence}" if (sentence := standstill.sentence()) else ""),
                extra={
                    "event": "stalled",
                    "seconds": round(seconds),
                    "standstill": standstill.fields(),
                },
            )
            await self._call("on_stall", standstill)
        rate = self._failing()
        if rate is not None:
            logger.warning(
                "%.0f %% of the last %d attempts or more have failed",
                100 * rate,
                _ATTEMPTS,
                extra={"event": "failure_rate", "rate": round(rate, 4)},
            )
            await self._call("on_failure_rate", rate)

    async def _call(self, name: str, argument: object) -> None:
        try:
            with spider_code(f"{name}()", stop=self._stop):
                waits = getattr(self._spider, name)(argument)
                if inspect.isawaitable(waits):
                    await waits
        except SpiderError as error:
            # The receiver of the alarm may be unavailable, and the pages are worth more.
            logger.warning("%s", printable(error), extra={"event": "hook_failed", "hook": name})

    def _stalled(self, standstill: Standstill | None) -> float | None:
        """Return the seconds without progress if an alarm is due, else None."""
        # If other workers have the due tasks, the crawl goes on.
        if standstill is None or standstill.others:
            self._still_since, self._told_of_stall = None, False
            return None
        now = self._clock()
        if self._still_since is None:
            self._still_since = now
        seconds = now - self._still_since
        if self._told_of_stall or not self._stall_after or seconds < self._stall_after:
            return None
        self._told_of_stall = True
        return seconds

    def _failing(self) -> float | None:
        """Return the share of failures if an alarm is due, else None.

        The alarm is over when the share has fallen to half of the allowed one.
        """
        failed_count = sum(
            count for reason, count in self._stats.failures.items() if reason in FAILURE_REASONS
        )
        attempts = self._stats.pages + failed_count
        if self._most is None or attempts == self._looks[-1][0]:
            return None
        self._looks.append((attempts, failed_count))
        # Begin at the last check with enough attempts after it, and drop all older ones.
        while attempts - self._looks[1][0] >= _ATTEMPTS:
            self._looks.popleft()
        attempts_then, failed_then = self._looks[0]
        if attempts - attempts_then < _ATTEMPTS:
            return None
        rate = (failed_count - failed_then) / (attempts - attempts_then)
        was_alarmed = self._told_of_failures
        self._told_of_failures = rate > (self._most / 2 if was_alarmed else self._most)
        return rate if self._told_of_failures and not was_alarmed else None
