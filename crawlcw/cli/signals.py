"""What SIGINT and SIGTERM do to a crawl or a worker: stop, then stop at once, then exit.

Their handlers are Python's own and not the loop's, so that they are called while
the loop stands still; what they do they let the loop do, as long as it does.
SIGTSTP, the Ctrl-Z of a terminal, stops the workers as well.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import NoReturn, Protocol

from crawlcw.cli.exit_codes import INTERRUPTED
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: What a loop that runs takes to obey; one that does not by then stands still.
_OBEYED_WITHIN = 0.7
#: What an end at once takes, a ledger that is away included; code that is cancelled and goes
#: on would keep the process for ever.
_ENDS_WITHIN = 8.0
#: What giving everything back may take, where the loop cannot do it.
_LAST_WORDS = 6.0


class Stoppable(Protocol):
    """A crawl or other work by this process, or by the workers it supervises."""

    def stop(self) -> None:
        """End soon: finish within the grace what is under way, and release the rest."""

    def stop_now(self) -> None:
        """End at once: release everything."""


class Suspendable(Protocol):
    """Processes that no terminal reaches."""

    def suspend(self) -> None:
        """Stop them, by SIGSTOP."""

    def resume(self) -> None:
        """Let them go on."""


class Abandonable(Protocol):
    """What can be given up by another thread than that of its loop."""

    def abandon(self) -> None:
        """Give everything back; may raise anything."""

    def stuck_in(self) -> str:
        """Return what keeps the loop, as far as that is known."""


@contextmanager
def stopping(
    crawl: Stoppable,
    *,
    grace: timedelta,
    kill: Callable[[], None] = lambda: None,
    stuck: Abandonable | None = None,
) -> Iterator[None]:
    """Let signals end *crawl* within the block: the first softly, the second at once.

    At the third the process exits, whatever it is doing; *kill* is called
    before. *grace* is how long the first one leaves it. Where the loop stands
    still, *stuck* is given up at the second signal, and the process exits; likewise
    where that has not ended *crawl* in time.
    """
    stop = _Stop(crawl, grace, kill, stuck)
    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        stop.ended.set()
        for each, handler in before.items():
            signal.signal(each, handler)


class _Stop:
    """Counts the signals; each does more than the one before."""

    def __init__(
        self,
        crawl: Stoppable,
        grace: timedelta,
        kill: Callable[[], None],
        stuck: Abandonable | None,
    ) -> None:
        self._crawl = crawl
        self._grace = grace
        self._kill = kill
        self._stuck = stuck
        self._received = 0
        self.ended = threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self._received += 1
        if self._received > 2:
            self._kill()
            # Leases that could not be given back run out by themselves.
            os._exit(INTERRUPTED)
        received = signal.Signals(number)
        obeyed = threading.Event()
        with suppress(RuntimeError):  # the loop has just come to its end
            self._loop.call_soon_threadsafe(self._obey, self._received, received, obeyed)
        waiting = threading.Thread(
            target=self._wait, args=(self._received, received, obeyed), daemon=True
        )
        waiting.start()

    def _wait(self, which: int, received: signal.Signals, obeyed: threading.Event) -> None:
        """See to it that something happens although the loop stands still, or code goes on."""
        stuck = self._stuck
        if stuck is None:
            return
        if obeyed.wait(_OBEYED_WITHIN):
            if which > 1 and not self.ended.wait(_ENDS_WITHIN):
                give_up(stuck, "code that was cancelled goes on")
            return
        where = stuck.stuck_in()
        where = f" ({printable(where)})" if where else ""
        if which == 1:
            logger.warning(
                "%s: the event loop stands still%s; once more to release everything and exit",
                received.name,
                where,
                extra={"event": "stop_stuck"},
            )
            return
        give_up(stuck, f"{received.name} again, and the event loop stands still{where}")

    def _obey(self, which: int, received: signal.Signals, obeyed: threading.Event) -> None:
        obeyed.set()
        # Warnings, so that --quiet shows them: somebody is waiting for an answer.
        if which == 1:
            logger.warning(
                "%s: claiming nothing more; what is under way gets %s to finish, the rest is "
                "released; once more to stop at once",
                received.name,
                format_duration(self._grace),
                extra={"event": "stop"},
            )
            self._crawl.stop()
        else:
            logger.warning(
                "%s again: releasing everything at once", received.name, extra={"event": "stop_now"}
            )
            self._crawl.stop_now()


@contextmanager
def suspending(workers: Suspendable) -> Iterator[None]:
    """Let SIGTSTP, within the block, stop *workers* before this process, and SIGCONT resume them.

    Where SIGTSTP is ignored, as in a script's background, it stays so.
    """
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()

    def suspend() -> None:
        workers.suspend()
        loop.remove_signal_handler(signal.SIGTSTP)
        # By the signal itself, so that the shell sees a job that Ctrl-Z has stopped.
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, suspend)
        workers.resume()

    loop.add_signal_handler(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)


def give_up(stuck: Abandonable, why: str) -> NoReturn:
    """Give everything back, and exit, because of *why*. May be called by any thread."""
    last = threading.Timer(_LAST_WORDS, os._exit, [INTERRUPTED])
    last.daemon = True
    last.start()
    logger.warning("%s: releasing everything, and exiting", why, extra={"event": "stop_now"})
    try:
        stuck.abandon()
    except Exception as error:
        logger.warning(
            "leases not given back, they will run out: %s",
            printable(error),
            extra={"event": "not_given_back"},
        )
    os._exit(INTERRUPTED)
