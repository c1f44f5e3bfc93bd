"""A process of our own at the other end of a socket, which may die of what it is given."""

import asyncio
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import anyio


class ProcessEndedError(Exception):
    """The process has ended, or hung up, before it answered; the text says how."""

    def __init__(self, code: int) -> None:
        """*code* is its exit code, or less than 0 for a signal that ended it."""
        died = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        super().__init__(died)
        self.code = code


class SocketProcess:
    """One process; to be killed in the end, even where its start was cancelled or has failed."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        """The process's id, which it keeps until its end was waited for."""
        return self._started.pid

    async def start(
        self, command: Callable[[int], Sequence[str]], *, env: Mapping[str, str]
    ) -> None:
        """Run what *command* makes of the number of its socket, in the environment *env*.

        It writes nothing, and ends with its parent, out of reach of a terminal's Ctrl-C.
        Raises `OSError`.
        """
        ours, theirs = socket.socketpair()
        # As soon as the process has its end, only this one keeps it open: what we read ends
        # with the process.
        with theirs:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self._process = await asyncio.create_subprocess_exec(
                *command(theirs.fileno()),
                env=env,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )

    def send(self, content: bytes) -> None:
        """Send *content*; whether it arrived shows in what is read."""
        assert self._writer is not None
        self._writer.write(content)

    async def read(self, size: int) -> bytes:
        """Return the next *size* bytes that it sends; raises `ProcessEndedError`."""
        assert self._reader is not None
        try:
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            raise ProcessEndedError(await self.wait()) from None

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or less than 0 for a signal that ended it."""
        return await self._started.wait()

    async def kill(self) -> None:
        """End it at once, if it has not ended yet."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            # Who is cancelled meanwhile must not leave a zombie behind.
            with anyio.CancelScope(shield=True):
                await self._process.wait()

    @property
    def _started(self) -> Process:
        assert self._process is not None
        return self._process
