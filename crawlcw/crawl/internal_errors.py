"""Put pages back that an error of crawlcw's own keeps from being done.

Such an error is no outcome of a page, and costs it no attempt. The page is tried again
after a wait that doubles each time, so that a crawl cannot spin on it. When nothing else
is left the crawl ends, and the pages stay in the ledger for the next run.
"""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.durations import format_duration
from crawlcw.model.retry import backoff
from crawlcw.model.sanitize import printable
from crawlcw.model.task import WAITING, Lease, Status
from crawlcw.model.tracebacks import describe_error
from crawlcw.model.transitions import put_off

logger = logging.getLogger(__name__)

#: A crawl ends without a page that so many attempts in this process have come to nothing with.
_ENOUGH = 3
_FIRST_WAIT = timedelta(seconds=1)
#: So long that even a large crawl is through with all such pages before the first is due again.
_LONGEST_WAIT = timedelta(days=1)
_PACKAGE = __name__.partition(".")[0]


class InternalErrors:
    """The errors of crawlcw's own in one process, and the pages that met them."""

    def __init__(
        self, ledger: Ledger, stats: Stats, *, end: Callable[[FinishReason, str], None]
    ) -> None:
        """*end* ends the crawl softly, see `Ending.end`."""
        self._ledger = ledger
        self._stats = stats
        self._end = end
        self._times: Counter[bytes] = Counter()  #: task id -> attempts in a row
        self._last = ""

    def put_off(self, lease: Lease, error: Exception) -> Lease:
        """Log an error; return the lease such that its release leaves the page due later."""
        self._stats.internal_errors += 1
        self._times[lease.task.id] += 1
        times = self._times[lease.task.id]
        wait = backoff(times, base=_FIRST_WAIT, ceiling=_LONGEST_WAIT)
        place = _place(error)
        self._last = f"{describe_error(error)} at {place}"
        logger.error(
            "an error of crawlcw itself at %s on %s: %s; the page is tried again in %s",
            place,
            printable(lease.task.url),
            printable(describe_error(error)),
            format_duration(wait),
            exc_info=error,
            extra={"event": "internal", "url": lease.task.url, "reason": place},
        )
        return put_off(lease, until=self._ledger.now() + wait)

    def settled(self, lease: Lease) -> None:
        """Note that something has come of a page."""
        if self._times:
            self._times.pop(lease.task.id, None)

    async def end_where_nothing_else_is_left(self) -> None:
        """End the crawl where only pages are left that were tried often enough."""
        if not self._times:
            return
        unfinished = TaskFilter(statuses=(*WAITING, Status.PROCESSING))
        left = await self._ledger.queries.find(unfinished, limit=len(self._times) + 1)
        if left and all(self._times[record.task.id] >= _ENOUGH for record in left):
            pages = "1 page" if len(left) == 1 else f"{len(left):,} pages"
            self._end(
                FinishReason.INTERNAL_ERROR,
                f"an error of crawlcw itself keeps {pages} from being done: {self._last}",
            )


def _place(error: BaseException) -> str:
    """Return the module and the line of crawlcw's own that an error was last in."""
    place, frame = "", error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if not place or module.partition(".")[0] == _PACKAGE:
            place = f"{module}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place or "a place that is not known"
