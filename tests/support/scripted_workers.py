"""Worker processes that are coroutines of the test, for a supervisor in virtual time.

The supervisor starts them as it starts processes, and has the same sockets and pipes to them.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import IO, Any

from crawlcw.cli.processes.channel import WorkerState, exit_line
from crawlcw.model.counters import Counters, FinishReason

#: Seconds from the order to create a process to its start.
START_TAKES = 0.001
#: The behaviour of a worker; returns the exit code of its process, or a signal below zero.
Script = Callable[["ScriptedWorker"], Awaitable[int]]


class ScriptedWorker:
    """Stands for `asyncio.subprocess.Process`; SIGKILL ends its script, other signals do not."""

    def __init__(
        self,
        number: int,
        script: Script,
        channel: int,
        outputs: list[IO[bytes]],
        *,
        share: dict[str, int],
    ) -> None:
        # No process has a number that is this high.
        self.pid = (1 << 30) + number
        self.returncode: int | None = None
        self.share = share  #: of the limits, by setting
        self.started = asyncio.get_running_loop().time()
        self.signals: list[tuple[float, signal.Signals]] = []  #: with the loop's times
        self.leaves_open = False  #: whether a child process has the ends, too
        self._script = script
        self._ends = ExitStack()
        self._channel = self._ends.enter_context(socket.socket(fileno=os.dup(channel)))
        self.stdout, self.stderr = (
            self._ends.enter_context(os.fdopen(os.dup(each.fileno()), "wb", buffering=0))
            for each in outputs
        )
        self._channel.setblocking(False)
        self._received = b""
        self._life = asyncio.create_task(self._live())

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

    def send_signal(self, which: signal.Signals) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        self.signals.append((asyncio.get_running_loop().time(), which))
        if which == signal.SIGKILL:
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
        return FinishReason(await self.received())

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
    """Stands for `asyncio.create_subprocess_exec`: each start is of the next script."""

    def __init__(self, *scripts: Script | OSError) -> None:
        self._scripts = iter(scripts)
        self.workers: list[ScriptedWorker] = []

    async def __call__(
        self, *command: str, pass_fds: tuple[int], stdout: IO[bytes], stderr: IO[bytes], **_: Any
    ) -> ScriptedWorker:
        script = next(self._scripts)
        await asyncio.sleep(START_TAKES)
        if isinstance(script, OSError):
            raise script
        shares = [each.split("=")[1:] for each in command if each.startswith("--share=")]
        worker = ScriptedWorker(
            len(self.workers),
            script,
            pass_fds[0],
            [stdout, stderr],
            share={name: int(limit) for name, limit in shares},
        )
        self.workers.append(worker)
        return worker
