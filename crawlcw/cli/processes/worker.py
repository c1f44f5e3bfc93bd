"""A crawl as one of several workers does it: it shows nothing, and obeys its supervisor."""

import asyncio
import ctypes
import io
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl
from crawlcw.cli import signals
from crawlcw.cli.background_tasks import background_tasks
from crawlcw.cli.exit_codes import INTERNAL, INTERRUPTED, OK
from crawlcw.cli.processes.channel import WorkerState, exit_line
from crawlcw.crawl.crawl import Crawl
from crawlcw.model.counters import FinishReason
from crawlcw.model.sanitize import printable
from crawlcw.telemetry.meter import Meter

_STATE_EVERY = 0.5
#: Until there is something to tell: it decides whether a crash is one without progress.
_FIRST_STATE_WITHIN = 0.05
#: Once its supervisor is gone: what a worker may take to begin with the crawl, in seconds, and
#: what its event loop may take to answer besides the time that user code gets.
_BEGINS_WITHIN = 10.0
_ANSWERS_WITHIN = 2.0
#: The option of prctl(2) for the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


def prepare(channel: int) -> None:
    """Make this process a worker, before any code of the spider runs in it."""
    # A process that the spider starts must not keep the channel open.
    os.set_inheritable(channel, False)
    sys.stdout, sys.stderr = _lines_to(1), _lines_to(2)
    if sys.platform == "linux":
        # One that Ctrl-Z has stopped would not see that its parent was killed, for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def last_word(channel: int, command: Callable[[], int]) -> int:
    """Run *command*, and tell the supervisor what it ends with, if it does so by itself.

    Not of an error of crawlcw itself: that is a crash as any other.
    """
    # The connection of the crawl is closed when it ends.
    descriptor = os.dup(channel)
    code = command()
    if code != INTERNAL:
        # It is gone, or has more to read than it could: then it starts another one.
        with suppress(OSError):
            os.write(descriptor, exit_line(code))
    return code


class Lifeline:
    """Ends this worker after its supervisor where user code keeps the event loop.

    A loop that runs sees the end of the supervisor by itself, and ends softly.
    """

    def __init__(self, channel: int) -> None:
        """Watch the other end of *channel* in a thread, from now until this process ends."""
        self._channel = os.dup(channel)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crawl: signals.Abandonable | None = None
        self._patience = _BEGINS_WITHIN
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()

    def hold(self, crawl: signals.Abandonable, *, patience: timedelta) -> None:
        """Give *crawl* back where the running loop stands still for longer than *patience*."""
        self._loop, self._crawl = asyncio.get_running_loop(), crawl
        self._patience = patience.total_seconds() + _ANSWERS_WITHIN

    def _watch(self) -> None:
        hung_up = select.poll()
        hung_up.register(self._channel, select.POLLHUP)
        hung_up.poll()
        with suppress(RuntimeError):  # the loop has ended, and the process ends
            while self._loop_runs():
                time.sleep(_STATE_EVERY)
            if self._crawl is None:
                os._exit(INTERRUPTED)
            where = self._crawl.stuck_in()
            where = f" ({printable(where)})" if where else ""
            signals.give_up(
                self._crawl, f"the supervisor is gone, and the event loop stands still{where}"
            )

    def _loop_runs(self) -> bool:
        answered = threading.Event()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(self._patience)


class _Pipe(io.FileIO):
    """A pipe to the supervisor, which may have been killed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # A page must not fail for what it prints, not even before this
            # process has seen that nobody reads any more.
            return memoryview(data).nbytes


def _lines_to(descriptor: int) -> io.TextIOWrapper:
    # The supervisor gives on whole lines, of UTF-8.
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(descriptor, "wb", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


async def crawl(
    spider: Spider,
    ledger_url: str,
    *,
    settings: Settings,
    channel: int,
    lifeline: Lifeline,
    measured: bool,
) -> int:
    """Crawl *spider* under the supervisor at the other end of *channel*; return the exit code.

    Where it is *measured*, the supervisor is told what was measured as well.
    """
    meter = Meter() if measured else None
    async with open_crawl(spider, ledger=ledger_url, settings=settings, meter=meter) as running:
        lifeline.hold(running, patience=settings.grace)
        # A signal may come from elsewhere: an orderly shutdown of the machine
        # sends one to each process.
        with signals.stopping(running, grace=settings.grace, stuck=running):
            supervisor = socket.socket(fileno=channel)
            orders, states = await asyncio.open_unix_connection(sock=supervisor)
            try:
                async with background_tasks(_tell(running, states), _obey(running, orders, states)):
                    report = await running.run()
                if not states.is_closing():
                    end = replace(
                        _state(running),
                        standstill=None,
                        released=report.released,
                        finish_reason=report.finish_reason,
                    )
                    states.write(end.line())
            finally:
                states.close()
                with suppress(ConnectionError):
                    await states.wait_closed()
    return INTERRUPTED if report.finish_reason == FinishReason.STOPPED_AT_ONCE else OK


def _state(crawl: Crawl) -> WorkerState:
    return WorkerState(
        counters=crawl.stats.counted(),
        standstill=crawl.standstill,
        ending=crawl.ending,
        measures=crawl.measures(),
    )


async def _tell(crawl: Crawl, states: asyncio.StreamWriter) -> None:
    while not states.is_closing():
        state = _state(crawl)
        # Unless the supervisor has not taken the last one.
        if not states.transport.get_write_buffer_size():
            states.write(state.line())
        await asyncio.sleep(_STATE_EVERY if state.counters.pages else _FIRST_STATE_WITHIN)


async def _obey(crawl: Crawl, orders: asyncio.StreamReader, states: asyncio.StreamWriter) -> None:
    """Do what the supervisor orders; stop softly when it was killed."""
    with suppress(ConnectionError):
        async for line in orders:
            # Of a supervisor that was killed, half an order may arrive.
            match line.strip().decode():
                case FinishReason.STOPPED:
                    crawl.stop()
                case FinishReason.STOPPED_AT_ONCE:
                    crawl.stop_now()
    states.close()
    # What is printed has no reader any more, and what a page that is still under
    # way has started must not fail for that either.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    crawl.stop()
