"""Telling the spider, and the log, that its crawl does badly: `on_stall`, `on_failure_rate`."""

import inspect
import logging
import time
from collections.abc import Callable
from datetime import timedelta

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.api.user_code import spider_code
from crawlcw.engine.stats import Stats
from crawlcw.errors import FAILURE_REASONS, SpiderError
from crawlcw.model.alarms import ATTEMPTS, FailureAlarm, StallAlarm
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable
from crawlcw.model.standstill import Standstill

logger = logging.getLogger(__name__)

_LOOK_EVERY = 1.0


class Alarms:
    """What is looked at every second, and costs no page anything."""

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
        # Where others have what is due, the crawl goes on.
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
                ATTEMPTS,
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
