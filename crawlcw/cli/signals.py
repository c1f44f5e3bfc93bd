"""Stop a crawl or worker gracefully after one SIGINT or SIGTERM, and immediately after two.

A third signal exits the process. `signal.signal` installs the handlers, not the event loop, so that
the handlers run while the loop is blocked. If the loop is not blocked, the handlers call `stop` in
the loop. If the user's code does not end, `cli.deadline` ends the process. SIGTSTP (Ctrl-Z)
suspends this process and its workers.
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

#: Seconds within which the event loop must react to a signal; a slower loop counts as blocked.
_OBEY_WITHIN_S = 0.7


class Stoppable(Protocol):
    """A crawl or other work of this process or of its worker processes."""

    def stop(self) -> None:
        """Claim no more tasks, finish requests within the grace, and release all other tasks."""

    def stop_now(self) -> None:
        """Release all tasks immediately."""


class Blockable(Protocol):
    """Work in this process's own event loop, which the user's code may block."""

    def stuck_in(self) -> str:
        """Return the location of the code that blocks the event loop, or an empty text."""


@contextmanager
def stopping(
    crawl: Stoppable,
    *,
    grace: timedelta,
    kill: Callable[[], None] = lambda: None,
    blockable: Blockable | None = None,
) -> Iterator[None]:
    """Let the first signal in the block end *crawl* gracefully, and the second immediately.

    The third signal calls *kill* and exits the process. After the first signal, running requests
    have *grace* to finish. If *blockable* is not None, the process gets a deadline when a signal
    comes or when the block ends.
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
    """The signal handler; each further signal ends the crawl faster."""

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
            # Exit without releasing tasks; their leases expire.
            os._exit(INTERRUPTED)
        received_signal = signal.Signals(number)
        obeyed_event = threading.Event()
        with suppress(RuntimeError):  # the event loop has just ended
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
        """If the event loop is blocked, log this; after the second signal, also end the process."""
        if obeyed_event.wait(_OBEY_WITHIN_S):
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
        # Log a warning, which --quiet shows too, because the user waits for a reaction.
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
    """During the block, SIGTSTP suspends the workers and this process; SIGCONT resumes all of them.

    *send* sends a signal to the workers, which do not receive the terminal's signals. If this
    process ignores SIGTSTP, for example as a background job, the block changes nothing.
    """
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()

    def suspend() -> None:
        send(signal.SIGSTOP)
        loop.remove_signal_handler(signal.SIGTSTP)
        # Suspend this process by SIGTSTP, so that the shell sees a suspended job.
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, suspend)
        send(signal.SIGCONT)

    loop.add_signal_handler(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)
