"""Handle signals of a crawl or worker: SIGINT or SIGTERM stops it, a second stops it at once.

A third signal exits the process. The handlers are Python's, not the event loop's, so that they run
while the loop is blocked. A running loop does their work. If the user's code does not end, the
deadline of the process ends it. SIGTSTP (Ctrl-Z) stops the workers as well.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Protocol

from crawlcw.cli.deadline import deadline
from crawlcw.cli.exit_codes import INTERRUPTED
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Seconds for a running loop to obey; after that it counts as blocked.
_OBEYED_WITHIN = 0.7


class Stoppable(Protocol):
    """A crawl or other work by this process, or by the workers it supervises."""

    def stop(self) -> None:
        """Stop claiming, finish running requests within the grace, and release all other tasks."""

    def stop_now(self) -> None:
        """Release all tasks immediately."""


class Blockable(Protocol):
    """Work by this process's own event loop, which the user's code may block."""

    def stuck_in(self) -> str:
        """Return the code that blocks the loop, or an empty text."""


@contextmanager
def stopping(
    crawl: Stoppable,
    *,
    grace: timedelta,
    kill: Callable[[], None] = lambda: None,
    blockable: Blockable | None = None,
) -> Iterator[None]:
    """Let signals end *crawl* within the block: the first gracefully, the second at once.

    The third signal calls *kill* and exits the process. After the first signal, running requests
    have *grace* to finish. With *blockable*, the work of this process's own event loop, the signals
    and the end of the block set the deadline of the process as well.
    """
    stop = _Stop(crawl, grace, kill, blockable)
    old_handlers = {
        signal_number: signal.signal(signal_number, stop)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        if blockable is not None:
            deadline.allow(grace)
        for signal_number, handler in old_handlers.items():
            signal.signal(signal_number, handler)


@dataclass(slots=True, eq=False)
class _Stop:
    """Counts the signals; each does more than the previous signal."""

    crawl: Stoppable
    grace: timedelta
    kill: Callable[[], None]
    blockable: Blockable | None
    received: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.received += 1
        if self.received > 2:
            self.kill()
            # Leases that were not released expire.
            os._exit(INTERRUPTED)
        received_signal = signal.Signals(number)
        obeyed_event = threading.Event()
        with suppress(RuntimeError):  # the loop has just ended
            self.loop.call_soon_threadsafe(self._obey, self.received, received_signal, obeyed_event)
        if self.blockable is not None:
            if at_once := self.received > 1:
                deadline.hurry()
            else:
                deadline.allow(self.grace)
            arguments = (self.blockable, received_signal, at_once, obeyed_event)
            threading.Thread(target=self._wait, args=arguments, daemon=True).start()

    def _wait(
        self,
        blockable: Blockable,
        received_signal: signal.Signals,
        at_once: bool,
        obeyed_event: threading.Event,
    ) -> None:
        """Report that the loop is blocked; after the second signal, do not wait for the loop."""
        if obeyed_event.wait(_OBEYED_WITHIN):
            return
        location = blockable.stuck_in()
        location = f" ({printable(location)})" if location else ""
        if at_once:
            logger.warning(
                "%s again, and the event loop is blocked%s",
                received_signal.name,
                location,
                extra={"event": "stop_now"},
            )
            deadline.set(0.0)
            return
        logger.warning(
            "%s: the event loop is blocked%s; the process ends in %s; a second signal ends it now",
            received_signal.name,
            location,
            format_duration(self.grace),
            extra={"event": "stop_stuck"},
        )

    def _obey(
        self, signal_count: int, received_signal: signal.Signals, obeyed_event: threading.Event
    ) -> None:
        obeyed_event.set()
        # Log warnings, which --quiet shows too, because the user waits for a reaction.
        if signal_count == 1:
            logger.warning(
                "%s: stopping; current requests have %s to finish, all other tasks are released; "
                "a second signal stops at once",
                received_signal.name,
                format_duration(self.grace),
                extra={"event": "stop"},
            )
            self.crawl.stop()
        else:
            logger.warning(
                "%s again: stopping at once, all tasks are released",
                received_signal.name,
                extra={"event": "stop_now"},
            )
            self.crawl.stop_now()


@contextmanager
def suspending(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Let SIGTSTP, within the block, stop the workers before this process, and SIGCONT resume them.

    The workers do not receive the terminal's signals: *send* sends a signal to them. If SIGTSTP is
    ignored, as in a script's background job, it stays ignored.
    """
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()

    def suspend() -> None:
        send(signal.SIGSTOP)
        loop.remove_signal_handler(signal.SIGTSTP)
        # Stop by the signal itself, so that the shell sees a stopped job.
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, suspend)
        send(signal.SIGCONT)

    loop.add_signal_handler(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)
