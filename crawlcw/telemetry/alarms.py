"""Raise an alarm if a crawl makes no progress (`on_idle`) or has many failed attempts.

An alarm writes a warning to the log and calls a hook of the spider. An alarm is not raised again
while its condition persists.
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
from crawlcw.model.idle_reason import IdleReason
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 1.0
#: The failure rate is computed from at least this number of the latest attempts.
_MIN_ATTEMPTS = 100


class Alarms:
    """Checks every second whether an alarm is due, at no cost for the crawl's pages."""

    def __init__(
        self,
        spider: Spider,
        settings: Settings,
        stats: Stats,
        *,
        idle_reason: Callable[[], IdleReason | None],
        stop: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If a hook of the spider raises `StopCrawl`, `Alarms` calls *stop* with the reason."""
        self._spider = spider
        self._stats = stats
        self._idle_reason = idle_reason
        self._stop = stop
        self._clock = clock
        self._idle_after = settings.idle_after.total_seconds()  # 0: never
        self._idle_since: float | None = None
        self._is_reported = False
        self._max_failure_rate = settings.failure_alarm  #: fraction of attempts; None: no limit
        #: The numbers of all attempts and of failed attempts at each check, the oldest check first.
        self._count_samples: deque[tuple[int, int]] = deque([(0, 0)])
        self._failures_reported = False

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await anyio.sleep(_CHECK_INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        """Raise the alarms that are due."""
        idle_reason = self._idle_reason()
        seconds = self._idle_seconds(idle_reason)
        if idle_reason is not None and seconds is not None:
            logger.warning(
                "no progress for %s%s",
                format_duration(timedelta(seconds=seconds)),
                printable(f": {sentence}" if (sentence := idle_reason.sentence()) else ""),
                extra={
                    "event": "idle",
                    "seconds": round(seconds),
                    "idle_reason": idle_reason.fields(),
                },
            )
            await self._call_hook("on_idle", idle_reason)
        rate = self._failure_rate()
        if rate is not None:
            logger.warning(
                "%.0f %% of the last attempts failed (at least %d attempts)",
                100 * rate,
                _MIN_ATTEMPTS,
                extra={"event": "failure_rate", "rate": round(rate, 4)},
            )
            await self._call_hook("on_failure_rate", rate)

    async def _call_hook(self, name: str, argument: object) -> None:
        try:
            with spider_code(f"{name}()", stop=self._stop):
                result = getattr(self._spider, name)(argument)
                if inspect.isawaitable(result):
                    await result
        except SpiderError as error:
            # Continue the crawl if a hook fails, for example if the hook cannot send a message.
            logger.warning("%s", printable(error), extra={"event": "hook_failed", "hook": name})

    def _idle_seconds(self, idle_reason: IdleReason | None) -> float | None:
        """Return the seconds without progress if an alarm is due, else None."""
        # Raise no alarm if other workers lease the due tasks, because these workers make progress,
        # or if all pages are done.
        if idle_reason is None or idle_reason.others_have_tasks or idle_reason.new_pages:
            self._idle_since, self._is_reported = None, False
            return None
        now = self._clock()
        if self._idle_since is None:
            self._idle_since = now
        seconds = now - self._idle_since
        if self._is_reported or not self._idle_after or seconds < self._idle_after:
            return None
        self._is_reported = True
        return seconds

    def _failure_rate(self) -> float | None:
        """Return the fraction of failed attempts if an alarm is due, else None.

        The alarm's condition ends when the fraction has fallen to half of the limit.
        """
        failed_count = sum(
            count for reason, count in self._stats.failures.items() if reason in FAILURE_REASONS
        )
        attempts = self._stats.pages + failed_count
        if self._max_failure_rate is None or attempts == self._count_samples[-1][0]:
            return None
        self._count_samples.append((attempts, failed_count))
        # Drop the oldest sample if the second oldest is at least `_MIN_ATTEMPTS` attempts old.
        while attempts - self._count_samples[1][0] >= _MIN_ATTEMPTS:
            self._count_samples.popleft()
        first_attempts, first_failed = self._count_samples[0]
        if attempts - first_attempts < _MIN_ATTEMPTS:
            return None
        rate = (failed_count - first_failed) / (attempts - first_attempts)
        was_reported = self._failures_reported
        self._failures_reported = rate > (
            self._max_failure_rate / 2 if was_reported else self._max_failure_rate
        )
        return rate if self._failures_reported and not was_reported else None
