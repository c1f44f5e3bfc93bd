"""Worker processes that are coroutines of the test, for a supervisor in virtual time.

The supervisor starts them as it starts processes, and has the same sockets and pipes to them.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import IO, Any

import pytest

from crawlcw.cli.processes import worker_process
from crawlcw.cli.processes.channel import WorkerState, exit_line
from crawlcw.model.counters import Counters, FinishReason

#: The behaviour of a worker; returns the exit code of its process, or a signal below zero.
Script = Callable[["ScriptedWorker"], Awaitable[int]]


class ScriptedWorker:
    """Stands for a process that waits; SIGKILL ends its script, other signals do not."""

    def __init__(self, number: int, script: Script) -> None:
        # No process has a number that is this high.
        self.pid = (1 << 30) + number
        self.returncode: int | None = None
        self.share: dict[str, int] = {}  #: of the limits, by setting
        self.started = asyncio.get_running_loop().time()
        self.signals: list[tuple[float, signal.Signals]] = []  #: with the loop's times
        self.leaves_open = False  #: whether a child process has the ends, too
        self._script = script
        self._ends = ExitStack()
        self.popen = self
        self.channel, channel = socket.socketpair()
        self._channel = self._ends.enter_context(channel)
        self.stdout_reader, self.stdout = self._pipe()
        self.stderr_reader, self.stderr = self._pipe()
        self._channel.setblocking(False)
        self._received = b""
        self._life = asyncio.create_task(self._live())

    def _pipe(self) -> tuple[IO[bytes], IO[bytes]]:
        reading, writing = os.pipe()
        theirs = self._ends.enter_context(os.fdopen(writing, "wb", buffering=0))
        return os.fdopen(reading, "rb"), theirs

    def send_arguments(self, share: Mapping[str, int], *, started_at: datetime) -> None:
        self.share = dict(share)

    async def _live(self) -> None:
        try:
            code = await self._script(self)
        except asyncio.CancelledError:
            code = -signal.SIGKILL
        finally:
            if not self.leaves_open:
                self.close()
        self.returncode = code

    def close(self) -> None:
        """Close the channel and the outputs, as the end of the last process that has them does."""
        self._ends.close()

    async def wait(self) -> int:
        await asyncio.wait([self._life])
        self._life.result()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signal_number: signal.Signals) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        self.signals.append((asyncio.get_running_loop().time(), signal_number))
        if signal_number == signal.SIGKILL:
            self._life.cancel()

    async def received(self) -> str:
        """Return the next line from the supervisor, or an empty text at its end."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._received:
            if not (more := await loop.sock_recv(self._channel, 1 << 16)):
                return ""
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    async def order(self) -> FinishReason:
        """Wait for an order to stop."""
        order, _, _ = (await self.received()).partition(" ")
        return FinishReason(order)

    def send(self, line: bytes) -> None:
        self._channel.send(line)

    def says(self, *, pages: int = 0, **state: Any) -> None:
        """Send a state."""
        self.send(WorkerState(counters=Counters(pages=pages), **state).line())

    def ends(self, code: int, reason: FinishReason, *, pages: int = 0) -> int:
        """Send the last state and the exit code of an orderly end."""
        self.says(pages=pages, finish_reason=reason)
        self.send(exit_line(code))
        return code


class Starts:
    """Stands for the start of processes: each start is of the next script."""

    def __init__(self, patch: pytest.MonkeyPatch, *scripts: Script | OSError) -> None:
        self._scripts = iter(scripts)
        self.workers: list[ScriptedWorker] = []
        patch.setattr(worker_process, "start", self.start)
        patch.setattr(worker_process, "end_of", ScriptedWorker.wait)

    def start(self) -> ScriptedWorker:
        script = next(self._scripts)
        if isinstance(script, OSError):
            raise script
        worker = ScriptedWorker(len(self.workers), script)
        self.workers.append(worker)
        return worker
