"""Signal handling of a crawl or a worker: SIGINT or SIGTERM stops, a second stops at once.

A third one exits. The handlers are Python's, not the event loop's, so that they run
while the loop is blocked; a running loop does their work. SIGTSTP (Ctrl-Z) stops the
workers as well.
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
from typing import NoReturn, Protocol

from crawlcw.cli.exit_codes import INTERRUPTED
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Seconds for a running loop to obey; after that it counts as blocked.
_OBEYED_WITHIN = 0.7
#: Seconds for a stop at once, even with an unavailable ledger. Code that ignores its
#: cancellation would keep the process for ever.
_ENDS_WITHIN = 8.0
#: Seconds to release all leases when the loop is blocked.
_LAST_WORDS = 6.0


class Stoppable(Protocol):
    """A crawl or other work by this process, or by the workers it supervises."""

    def stop(self) -> None:
        """Stop claiming, finish requests under way within the grace, and release the rest."""

    def stop_now(self) -> None:
        """Release everything at once."""


class Abandonable(Protocol):
    """Work that another thread than the loop's can release."""

    def abandon(self) -> None:
        """Release everything; may raise any exception."""

    def stuck_in(self) -> str:
        """Return the code that blocks the loop, or an empty text."""


@contextmanager
def stopping(
    crawl: Stoppable,
    *,
    grace: timedelta,
    kill: Callable[[], None] = lambda: None,
    stuck: Abandonable | None = None,
) -> Iterator[None]:
    """Let signals end *crawl* within the block: the first gracefully, the second at once.

    The third one calls *kill* and exits the process. *grace* is the time that the first
    one leaves for requests under way. If the loop is blocked, or does not end *crawl* in
    time, the second signal releases *stuck* from another thread and exits the process.
    """
    stop = _Stop(crawl, grace, kill, stuck)
    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        stop.ended.set()
        for each, handler in before.items():
            signal.signal(each, handler)


@dataclass(slots=True, eq=False)
class _Stop:
    """Counts the signals; each does more than the one before."""

    crawl: Stoppable
    grace: timedelta
    kill: Callable[[], None]
    stuck: Abandonable | None
    received: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.received += 1
        if self.received > 2:
            self.kill()
            # Leases that were not released run out.
            os._exit(INTERRUPTED)
        received = signal.Signals(number)
        obeyed = threading.Event()
        with suppress(RuntimeError):  # the loop has just ended
            self.loop.call_soon_threadsafe(self._obey, self.received, received, obeyed)
        waiting = threading.Thread(
            target=self._wait, args=(self.received, received, obeyed), daemon=True
        )
        waiting.start()

    def _wait(self, which: int, received: signal.Signals, obeyed: threading.Event) -> None:
        """Act if the loop is blocked, or cancelled code does not end."""
        stuck = self.stuck
        if stuck is None:
            return
        if obeyed.wait(_OBEYED_WITHIN):
            if which > 1 and not self.ended.wait(_ENDS_WITHIN):
                give_up(stuck, "cancelled code does not end")
            return
        where = stuck.stuck_in()
        where = f" ({printable(where)})" if where else ""
        if which == 1:
            logger.warning(
                "%s: the event loop is blocked%s; once more to release everything and exit",
                received.name,
                where,
                extra={"event": "stop_stuck"},
            )
            return
        give_up(stuck, f"{received.name} again, and the event loop is blocked{where}")

    def _obey(self, which: int, received: signal.Signals, obeyed: threading.Event) -> None:
        obeyed.set()
        # Warnings, so that --quiet shows them: the user waits for a reaction.
        if which == 1:
            logger.warning(
                "%s: claiming nothing more; requests under way have %s to finish, the rest is "
                "released; once more to stop at once",
                received.name,
                format_duration(self.grace),
                extra={"event": "stop"},
            )
            self.crawl.stop()
        else:
            logger.warning(
                "%s again: releasing everything at once", received.name, extra={"event": "stop_now"}
            )
            self.crawl.stop_now()


@contextmanager
def suspending(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Let SIGTSTP, within the block, stop the workers before this process, and SIGCONT resume them.

    The workers do not receive the terminal's signals: *send* sends them one. If SIGTSTP is
    ignored, as in a script's background job, it stays ignored.
    """
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()

    def suspend() -> None:
        send(signal.SIGSTOP)
        loop.remove_signal_handler(signal.SIGTSTP)
        # By the signal itself, so that the shell sees a stopped job.
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, suspend)
        send(signal.SIGCONT)

    loop.add_signal_handler(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)


def give_up(stuck: Abandonable, why: str) -> NoReturn:
    """Release everything, log *why*, and exit. May be called by any thread."""
    last = threading.Timer(_LAST_WORDS, os._exit, [INTERRUPTED])
    last.daemon = True
    last.start()
    logger.warning("%s: releasing everything, and exiting", why, extra={"event": "stop_now"})
    try:
        stuck.abandon()
    except Exception as error:
        logger.warning(
            "leases were not released, they will run out: %s",
            printable(error),
            extra={"event": "not_given_back"},
        )
    os._exit(INTERRUPTED)
