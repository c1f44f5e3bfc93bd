"""Alarms of the spider and the log: nothing moves (`on_stall`), much fails (`on_failure_rate`).

An alarm is given once, and again only after it was over.
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
#: The rate is that of at least this number of attempts.
_ATTEMPTS = 100


class Alarms:
    """Looks at the crawl every second, which costs no page anything."""

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
        """*stop* is told why, where a hook raises `StopCrawl`."""
        self._spider = spider
        self._stats = stats
        self._standstill = standstill
        self._stop = stop
        self._clock = clock
        self._stall = StallAlarm(settings.stall_after.total_seconds())
        self._failures = FailureAlarm(settings.failure_alarm)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(_LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Give the alarms whose time has come."""
        standstill = self._standstill()
        # Where others have the due tasks, the crawl goes on.
        stands = standstill is not None and not standstill.others
        seconds = self._stall.look(stands=stands, now=self._clock())
        if standstill is not None and seconds is not None:
            logger.warning(
                "nothing has moved for %s%s",
                format_duration(timedelta(seconds=seconds)),
                printable(f": {why}" if (why := standstill.sentence()) else ""),
                extra={
                    "event": "stalled",
                    "seconds": round(seconds),
                    "standstill": standstill.fields(),
                },
            )
            await self._call("on_stall", standstill)
        failed = sum(n for why, n in self._stats.failures.items() if why in FAILURE_REASONS)
        rate = self._failures.look(attempts=self._stats.pages + failed, failed=failed)
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
            # The one who is to be told may be away; the pages are worth more.
            logger.warning("%s", printable(error), extra={"event": "hook_failed", "hook": name})


class StallAlarm:
    """Nothing has moved for some time. Times are in seconds, of any clock that runs forward."""

    def __init__(self, after: float) -> None:
        """Give an alarm *after* seconds without a move; 0: never."""
        self._after = after
        self._since: float | None = None
        self._given = False

    def look(self, *, stands: bool, now: float) -> float | None:
        """Return for how long nothing has moved where it is time to say so, else None."""
        if not stands:
            self._since, self._given = None, False
            return None
        if self._since is None:
            self._since = now
        if self._given or not self._after or now - self._since < self._after:
            return None
        self._given = True
        return now - self._since


class FailureAlarm:
    """More than a share of the last attempts has failed."""

    def __init__(self, share: float | None) -> None:
        """Give an alarm where more than *share* failed, a number from 0 to 1; None: never."""
        self._share = share
        #: The counts at each look, the oldest first: attempts, and those that failed.
        self._looks: deque[tuple[int, int]] = deque([(0, 0)])
        self._given = False

    def look(self, *, attempts: int, failed: int) -> float | None:
        """Return the share where it is time to say so, else None; both were counted from the start.

        It is over when the share has fallen to half of the allowed one.
        """
        if self._share is None or attempts == self._looks[-1][0]:
            return None
        self._looks.append((attempts, failed))
        # The oldest look that has enough attempts behind it, and none older than that.
        while attempts - self._looks[1][0] >= _ATTEMPTS:
            self._looks.popleft()
        since, failed_then = self._looks[0]
        if attempts - since < _ATTEMPTS:
            return None
        rate = (failed - failed_then) / (attempts - since)
        if self._given:
            self._given = rate > self._share / 2
            return None
        self._given = rate > self._share
        return rate if self._given else None
