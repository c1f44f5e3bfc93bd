"""Crawl as a worker process: without output, controlled by its supervisor."""

import asyncio
import ctypes
import io
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
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
from crawlcw.telemetry.meter import Meter

_STATE_EVERY = 0.5
#: Interval until the first page: the state decides whether a crash is one without progress.
_FIRST_STATE_WITHIN = 0.05
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
    measured: bool,
) -> int:
    """Crawl *spider* under the supervisor at the other end of *channel*; return the exit code.

    If *measured*, the states for the supervisor include measures.
    """
    meter = Meter() if measured else None
    async with open_crawl(spider, ledger=ledger_url, settings=settings, meter=meter) as running:
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
