"""What SIGINT and SIGTERM do to a crawl or a worker: stop, then stop at once, then exit."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from crawlcw.cli.exit_codes import INTERRUPTED
from crawlcw.durations import spoken

logger = logging.getLogger(__name__)


class Stoppable(Protocol):
    """A crawl or other work by this process, or by the workers it supervises."""

    def stop(self) -> None:
        """End soon: finish within the grace what is under way, and release the rest."""

    def stop_now(self) -> None:
        """End at once: release everything."""


@contextmanager
def stopping(
    crawl: Stoppable, *, grace: timedelta, kill: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Let signals end *crawl* within the block: the first softly, the second at once.

    At the third the process exits, whatever it is doing; *kill* is called
    before. *grace* is how long the first one leaves it.
    """
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    stop = _Stop(crawl, grace, kill)
    for each in signals:
        loop.add_signal_handler(each, stop, each)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


class _Stop:
    """Counts the signals; each does more than the one before."""

    def __init__(self, crawl: Stoppable, grace: timedelta, kill: Callable[[], None]) -> None:
        self._crawl = crawl
        self._grace = grace
        self._kill = kill
        self._received = 0

    def __call__(self, received: signal.Signals) -> None:
        self._received += 1
        # Warnings, so that --quiet shows them: somebody is waiting for an answer.
        if self._received == 1:
            logger.warning(
                "%s: claiming nothing more; what is under way gets %s to finish, the rest is "
                "released; once more to stop at once",
                received.name,
                spoken(self._grace),
                extra={"event": "stop"},
            )
            self._crawl.stop()
        elif self._received == 2:
            logger.warning(
                "%s again: releasing everything at once", received.name, extra={"event": "stop_now"}
            )
            self._crawl.stop_now()
        else:
            self._kill()
            # Leases that could not be given back run out by themselves.
            os._exit(INTERRUPTED)
