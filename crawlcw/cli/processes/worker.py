"""Crawl as a worker process, which a supervisor controls and which shows no progress."""

import asyncio
import ctypes
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl
from crawlcw.cli import signals
from crawlcw.cli.deadline import deadline
from crawlcw.cli.exit_codes import INTERNAL
from crawlcw.cli.loop import background_tasks
from crawlcw.cli.processes.channel import WorkerState, code_of, exit_line
from crawlcw.crawl.crawl import Crawl
from crawlcw.model.counters import FinishReason, Report
from crawlcw.telemetry.meter import Meter

_STATE_EVERY = 0.5
#: Seconds between two reports (`WorkerState`) of a worker that has finished no page. The time is
#: short, because the last state before a crash must show whether the worker had finished a page.
_FIRST_STATE_WITHIN = 0.05
#: Grace after the supervisor's end, if the worker has not yet opened the crawl.
_BEGINS_WITHIN = timedelta(seconds=10)
#: The option of prctl(2) for the signal that this process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


def prepare() -> None:
    """Prepare this process as a worker, before any code of the spider runs."""
    sys.stdout, sys.stderr = _lines_to(1), _lines_to(2)
    if sys.platform == "linux":
        # If Ctrl-Z has suspended this worker and the supervisor is killed, SIGCONT resumes it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


class Supervision:
    """The supervisor at the other end of a worker's channel.

    A separate thread waits for orders and for the supervisor's end, because the spider's code may
    block the event loop. Orders and the supervisor's end set the deadline of this process.
    """

    def __init__(self, channel: int) -> None:
        """Read orders from the socket *channel*, from now until this process ends."""
        self._channel = socket.socket(fileno=channel)
        self._unsent = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crawl: signals.Stoppable | None = None
        self._orders: list[FinishReason] = []
        self._grace = _BEGINS_WITHIN
        threading.Thread(target=self._read, name="supervisor", daemon=True).start()

    def control(self, crawl: signals.Stoppable, *, grace: timedelta) -> None:
        """Let the supervisor's orders end *crawl*; also obey orders that came before this call."""
        self._grace = grace
        self._crawl, self._loop = crawl, asyncio.get_running_loop()
        for order in list(self._orders):
            self._obey(order)

    def send_exit_code(self, command: Callable[[], int]) -> int:
        """Run *command*, and send its exit code to the supervisor, except the code `INTERNAL`.

        An internal error counts as a crash.
        """
        code = command()
        if code != INTERNAL:
            self.send(exit_line(code))
        return code

    def send(self, line: bytes) -> None:
        """Send the rest of the previous line, and then *line*; wait until the supervisor reads."""
        # Ignore the error of an ended supervisor, because this process will soon end too.
        with suppress(OSError):
            self._channel.sendall(self._unsent + line)
            self._unsent = b""

    def offer(self, line: bytes) -> None:
        """Send *line*, or drop it if the supervisor has not read the previous lines."""
        with suppress(OSError):
            self._unsent = self._unsent or line
            sent = self._channel.send(self._unsent, socket.MSG_DONTWAIT)
            self._unsent = self._unsent[sent:]

    def _read(self) -> None:
        with self._channel as channel, suppress(ConnectionError), channel.makefile("rb") as orders:
            for line in orders:
                # Ignore an incomplete order, which a killed supervisor may have sent.
                order, _, grace = line.decode().partition(" ")
                if order in (FinishReason.STOPPED, FinishReason.STOPPED_AT_ONCE) and grace:
                    self._accept(FinishReason(order), timedelta(seconds=float(grace)))
        _discard_output()
        self._accept(FinishReason.STOPPED, self._grace)

    def _accept(self, order: FinishReason, grace: timedelta) -> None:
        if order is FinishReason.STOPPED:
            deadline.allow(grace)
        else:
            deadline.hurry()
        self._orders.append(order)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and the process will end
                self._loop.call_soon_threadsafe(self._obey, order)

    def _obey(self, order: FinishReason) -> None:
        if self._crawl is None:
            return
        if order is FinishReason.STOPPED:
            self._crawl.stop()
        else:
            self._crawl.stop_now()


def _discard_output() -> None:
    # Replace stdout and stderr, because a child process of the spider would fail without a reader.
    null_descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_descriptor, 1)
    os.dup2(null_descriptor, 2)
    os.close(null_descriptor)


class _Pipe(io.FileIO):
    """A pipe to the supervisor; a write has no effect after the supervisor was killed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # Raise no error, because a callback may print before this process notices the
            # supervisor's end.
            return len(data)


def _lines_to(descriptor: int) -> io.TextIOWrapper:
    # Write whole lines of UTF-8, because the supervisor prints only whole lines.
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
    supervision: Supervision,
    started_at: datetime,
    measured: bool,
) -> int:
    """Crawl *spider* under its supervisor; return the exit code.

    *started_at* is the start of the crawl by the ledger's clock. If *measured* is true, the
    worker's states include measures.
    """
    meter = Meter() if measured else None
    async with open_crawl(
        spider, ledger=ledger_url, settings=settings, meter=meter
    ) as current_crawl:
        current_crawl.share_run(started_at)

        def end(report: Report) -> int:
            state = replace(
                _state(current_crawl), released=report.released, finish_reason=report.finish_reason
            )
            supervision.send(state.line())
            return code_of(report.finish_reason)

        async def abandon() -> int:
            ledger = await current_crawl.ledger.reconnected()
            return end(await current_crawl.abandon(ledger, at_once=deadline.is_at_once))

        deadline.finish = lambda: supervision.send_exit_code(partial(anyio.run, abandon))
        current_crawl.on_end(deadline.allow)
        supervision.control(current_crawl, grace=settings.grace)
        # Handle signals too, because a shutdown of the machine sends a signal to each process.
        with signals.stopping(current_crawl, grace=settings.grace, blockable=current_crawl):
            async with background_tasks(_send_states(current_crawl, supervision)):
                report = await current_crawl.run()
            code = end(report)
        deadline.end_command(lambda: code)
    return code


def _state(crawl: Crawl) -> WorkerState:
    return WorkerState(
        counters=crawl.stats.snapshot(),
        idle_reason=crawl.idle_reason,
        ending=crawl.ending,
        measures=crawl.measures(),
    )


async def _send_states(crawl: Crawl, supervision: Supervision) -> None:
    while True:
        state = _state(crawl)
        supervision.offer(state.line())
        await asyncio.sleep(_STATE_EVERY if state.counters.pages else _FIRST_STATE_WITHIN)
