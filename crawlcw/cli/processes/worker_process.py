"""A worker as its supervisor sees it: a process, what it counts, and what it prints."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import BinaryIO, TextIO

import anyio

from crawlcw.cli.processes.channel import Account, LastWord, Lines, Order
from crawlcw.cli.processes.own_command import own_command, own_environment

#: What the last lines of a process that has ended may take to arrive.
_LAST_LINES = 2.0


class WorkerProcess:
    """A worker: this process's own command once more, with an interpreter of its own.

    It gets no signal that a terminal sends, and it stops softly when this
    process is gone, whatever it died of.
    """

    def __init__(
        self, number: int = 1, *, on_account: Callable[[Account], None] = lambda _: None
    ) -> None:
        """Take the *number* of its slot. Call *on_account* with each account that arrives."""
        self.number = number
        self.account = Account()  #: the last one that arrived
        self.accounts = 0  #: how many have arrived
        self._on_account = on_account
        self.last_word: LastWord | None = None  #: None while it has not said that it ends
        self._process: Process | None = None
        self._accounts = Lines(self._take)
        # Whatever the two streams are just then: a live display stands in for them.
        self._printed = Lines(lambda line: _print(line, sys.stdout))
        self._logged = Lines(lambda line: _print(line, sys.stderr))
        self._channel: asyncio.WriteTransport | None = None
        self._outputs: list[asyncio.BaseTransport] = []

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._started.pid

    async def start(self, *, max_pages: int | None) -> None:
        """Start the process; raises `OSError` where the system has no room for it."""
        try:
            with ExitStack() as theirs:
                channel = theirs.enter_context(await self._open_channel())
                printed = theirs.enter_context(await self._open_pipe(self._printed))
                logged = theirs.enter_context(await self._open_pipe(self._logged))
                self._process = await asyncio.create_subprocess_exec(
                    *own_command(*_options(channel=channel.fileno(), max_pages=max_pages)),
                    env=own_environment(),
                    stdin=DEVNULL,
                    stdout=printed,
                    stderr=logged,
                    pass_fds=(channel.fileno(),),
                    # Out of reach of the terminal's Ctrl-C, which comes by this process.
                    start_new_session=True,
                )
        except BaseException:
            self.close()
            raise

    def tell(self, order: Order) -> None:
        """Send *order*, unless the worker is gone."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(order.encode() + b"\n")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send(signal.SIGKILL)

    def send(self, which: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            self._started.send_signal(which)

    async def ended(self) -> int:
        """Wait for its end; return its exit code, or the number of a signal below zero."""
        code = await self._started.wait()
        # A process that the spider has left behind may hold the other ends for ever.
        with anyio.move_on_after(_LAST_LINES):
            for lines in (self._accounts, self._printed, self._logged):
                await lines.ended.wait()
        return code

    def close(self) -> None:
        """Let go of it: a worker that still runs stops softly."""
        for transport in (self._channel, *self._outputs):
            if transport is not None:
                transport.close()

    @property
    def _started(self) -> Process:
        assert self._process is not None, "no process was started"
        return self._process

    async def _open_channel(self) -> socket.socket:
        """Return the worker's end of the channel."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self._channel, _ = await loop.create_unix_connection(lambda: self._accounts, sock=ours)
        return theirs

    async def _open_pipe(self, lines: Lines) -> BinaryIO:
        """Return what the worker writes to, for *lines* to arrive."""
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: lines, os.fdopen(reading, "rb"))
        self._outputs.append(transport)
        return os.fdopen(writing, "wb")

    def _take(self, line: bytes) -> None:
        # A worker that is killed may leave half an account.
        with suppress(ValueError):
            if word := LastWord.read(line):
                self.last_word = word
            else:
                self.account = Account.read(line)
                self.accounts += 1
                self._on_account(self.account)


def _options(*, channel: int, max_pages: int | None) -> list[str]:
    """Return what makes a process a worker."""
    options = [f"--worker-channel={channel}"]
    if max_pages is not None:
        options.append(f"--worker-max-pages={max_pages}")
    return options


def _print(line: bytes, stream: TextIO) -> None:
    # As in a process that logs for itself, nobody reading it ends no crawl.
    with suppress(OSError, ValueError):
        stream.write(line.decode(errors="backslashreplace") + "\n")
        stream.flush()
