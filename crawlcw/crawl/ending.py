"""How a crawl ends before it is drained: told to from outside, or for a reason of its own."""

import logging
from datetime import timedelta

import anyio

from crawlcw.crawl.coordinator import Coordinator
from crawlcw.engine.ledger_retry import LedgerRetry
from crawlcw.engine.stats import EarlyEnd, FinishReason
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: What giving back leases may take when the crawl was told to end at once.
LAST_WORDS = timedelta(seconds=2)


class Ending:
    """The end of one crawl; all of it may be called from signal handlers of the loop."""

    def __init__(self, coordinator: Coordinator, retry: LedgerRetry, *, grace: timedelta) -> None:
        self._coordinator = coordinator
        self._retry = retry
        self._grace = grace
        self._scope = anyio.CancelScope()
        self.at_once = False
        #: Why the crawl ends itself; None while it does not.
        self.early: EarlyEnd | None = None

    def stop(self) -> None:
        """See `Crawl.stop`."""
        logger.debug(
            "stopping: up to %s for what is under way",
            format_duration(self._grace),
            extra={"event": "stopping"},
        )
        self._retry.shorten(self._grace)
        self._coordinator.stop()

    def end(self, reason: FinishReason, detail: str) -> None:
        """End soon, as by `stop`, for a finish reason of the crawl's own; the first one counts."""
        if self.early is None:
            self.early = EarlyEnd(reason=reason, detail=detail)
            logger.warning("%s: %s", reason, printable(detail), extra={"event": reason})
            self.stop()

    def wished(self, why: str) -> None:
        """End as the spider itself has asked."""
        self.end(FinishReason.STOPPED_BY_SPIDER, why)

    def stop_now(self) -> None:
        """See `Crawl.stop_now`."""
        self.at_once = True
        self._retry.shorten(LAST_WORDS)
        self._coordinator.stop()
        self._scope.cancel()

    def grace(self) -> anyio.CancelScope:
        """Return the scope of the wait for what is under way: the grace, from now on."""
        self._scope.deadline = anyio.current_time() + self._grace.total_seconds()
        return self._scope
