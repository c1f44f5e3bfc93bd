"""Crawl as a worker process: without output, controlled by its supervisor."""

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
from datetime import datetime, timedelta
from typing import Any

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl
from crawlcw.cli import signals
from crawlcw.cli.exit_codes import INTERNAL, INTERRUPTED, OK
from crawlcw.cli.loop import background_tasks
from crawlcw.cli.processes.channel import WorkerState, exit_line
from crawlcw.crawl.crawl import Crawl
from crawlcw.model.counters import FinishReason
from crawlcw.model.sanitize import printable
from crawlcw.telemetry.meter import Meter

_STATE_EVERY = 0.5
#: Interval until the first page: the state decides whether a crash is one without progress.
_FIRST_STATE_WITHIN = 0.05
#: Limits in seconds after the supervisor's end: for the start of the crawl, and for an answer
#: of the event loop, beyond the time for user code.
_BEGINS_WITHIN = 10.0
_ANSWERS_WITHIN = 2.0
#: The option of prctl(2) for the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


def prepare() -> None:
    """Make this process a worker, before any code of the spider runs in it."""
    sys.stdout, sys.stderr = _lines_to(1), _lines_to(2)
    if sys.platform == "linux":
        # A worker stopped by Ctrl-Z would stay stopped for ever after its parent was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def last_word(channel: int, command: Callable[[], int]) -> int:
    """Run *command*, and send the exit code of an orderly end to the supervisor.

    `INTERNAL` is not sent: an internal error counts as a crash.
    """
    # The crawl closes its own descriptor.
    descriptor = os.dup(channel)
    code = command()
    if code != INTERNAL:
        # If the supervisor has ended or does not read, this counts as a crash.
        with suppress(OSError):
            os.write(descriptor, exit_line(code))
    return code


class Lifeline:
    """Ends this worker after its supervisor's end if user code blocks the event loop.

    A running loop notices the supervisor's end itself, and stops gracefully.
    """

    def __init__(self, channel: int) -> None:
        """Watch the other end of *channel* in a thread, from now until this process ends."""
        self._channel = os.dup(channel)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crawl: signals.Abandonable | None = None
        self._patience = _BEGINS_WITHIN
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()

    def hold(self, crawl: signals.Abandonable, *, patience: timedelta) -> None:
        """Release *crawl* if the running loop is blocked for longer than *patience*."""
        self._loop, self._crawl = asyncio.get_running_loop(), crawl
        self._patience = patience.total_seconds() + _ANSWERS_WITHIN

    def _watch(self) -> None:
        hung_up = select.poll()
        hung_up.register(self._channel, select.POLLHUP)
        hung_up.poll()
        with suppress(RuntimeError):  # the loop has ended, and the process will
            while self._loop_runs():
                time.sleep(_STATE_EVERY)
            if self._crawl is None:
                os._exit(INTERRUPTED)
            where = self._crawl.stuck_in()
            where = f" ({printable(where)})" if where else ""
            signals.give_up(
                self._crawl, f"the supervisor has ended, and the event loop is blocked{where}"
            )

    def _loop_runs(self) -> bool:
        answered = threading.Event()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(self._patience)


class _Pipe(io.FileIO):
    """A pipe to the supervisor; writing to a killed one is not an error."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # A print in a callback must not fail a page before this process has noticed the
            # supervisor's end.
            return len(data)


def _lines_to(descriptor: int) -> io.TextIOWrapper:
    # The supervisor passes on whole lines of UTF-8.
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
    began: datetime,
    measured: bool,
) -> int:
    """Crawl *spider* under the supervisor at the other end of *channel*; return the exit code.

    The crawl *began* then by the ledger's clock. If *measured*, the states include measures.
    """
    meter = Meter() if measured else None
    async with open_crawl(spider, ledger=ledger_url, settings=settings, meter=meter) as running:
        running.share_run(began)
        lifeline.hold(running, patience=settings.grace)
        # Signals may come from others: a shutdown of the machine sends one to each process.
        with signals.stopping(running, grace=settings.grace, stuck=running):
            supervisor = socket.socket(fileno=channel)
            orders, states = await asyncio.open_unix_connection(sock=supervisor)
            try:
                async with background_tasks(_tell(running, states), _obey(running, orders, states)):
                    report = await running.run()
                if not states.is_closing():
                    end = replace(
                        _state(running),
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
        # Not while the supervisor has not read the last one.
        if not states.transport.get_write_buffer_size():
            states.write(state.line())
        await asyncio.sleep(_STATE_EVERY if state.counters.pages else _FIRST_STATE_WITHIN)


async def _obey(crawl: Crawl, orders: asyncio.StreamReader, states: asyncio.StreamWriter) -> None:
    """Follow the supervisor's orders; stop gracefully at its end."""
    with suppress(ConnectionError):
        async for line in orders:
            # A killed supervisor may have sent half an order.
            match line.strip().decode():
                case FinishReason.STOPPED:
                    crawl.stop()
                case FinishReason.STOPPED_AT_ONCE:
                    crawl.stop_now()
    states.close()
    # The pipes have no reader now: processes started by a callback must not fail on them.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    crawl.stop()
