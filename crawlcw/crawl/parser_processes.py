"""Processes that parse pages which may hang or crash the parser, as their parent sees them.

They are started when the first such page comes, used for many, and replaced when
one dies of its page. What a page is found to take is all that comes back: a tree
cannot travel.

They are no process pool of a library. `anyio.to_process` does not tell by which signal a
process died, so a page whose time is over would be parsed twice; pools of `multiprocessing`
count its time by the clock, and a process that was stopped or gets no CPU would cost the page.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import anyio

from crawlcw.crawl import parser_child
from crawlcw.errors import ParseRefusedError
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

_MOST = 2
#: So much longer than its time of CPU may a page take: the process was stopped, or gets no CPU.
_LONGER = 12
_STARTS_WITHIN = 60.0
#: So many deaths are the page's fault: a process may be killed by chance.
_DEATHS = 2
#: After so many failures in a row nobody tries to start one any more.
_FAILURES = 3


class NoParserError(Exception):
    """No process could be started; the text says why."""


class ProcessEndedError(Exception):
    """The process has ended, or hung up, before it answered; the text says how."""

    def __init__(self, code: int) -> None:
        """*code* is its exit code, or less than 0 for a signal that ended it."""
        died = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        super().__init__(died)
        self.code = code


class _Process:
    """One process at the other end of a socket.

    It is to be killed in the end, even where its start was cancelled or has failed.
    """

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


class _Parser:
    """One process."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._process = _Process()
        self.at_work = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it is ready; raises `NoParserError`."""
        try:
            await self._process.start(_command, env=_environment())
            with anyio.fail_after(_STARTS_WITHIN):
                answer = await self._answer()
            if answer != parser_child.READY:
                raise NoParserError("it is another program")
        except BaseException as error:
            await self._process.kill()
            if isinstance(error, OSError | TimeoutError | ProcessEndedError):
                raise NoParserError(str(error) or "it was silent") from error
            raise

    async def measure(self, body: bytes, *, room: int, parser: int) -> int:
        """Return what the tree takes, or TOO_LARGE.

        Raises `ProcessEndedError` where it died, and `ParseRefusedError` where its time was up.
        """
        # A caller that is cancelled in between leaves it at work.
        self.at_work = True
        try:
            with anyio.fail_after(_LONGER * self._seconds):
                self._process.send(parser_child.PAGE.pack(len(body), room, self._seconds, parser))
                self._process.send(body)
                answer = await self._answer()
        except TimeoutError:
            raise self._did_not_end() from None
        self.at_work = False
        return answer

    async def _answer(self) -> int:
        try:
            content = await self._process.read(parser_child.ANSWER.size)
        except ProcessEndedError as end:
            if end.code == -parser_child.TIME_IS_OVER:
                raise self._did_not_end() from None
            raise
        (answer,) = parser_child.ANSWER.unpack(content)
        return int(answer)

    def _did_not_end(self) -> ParseRefusedError:
        return ParseRefusedError(f"the parser did not end within {self._seconds:g} s")

    async def kill(self) -> None:
        """End it, if it has not ended yet."""
        await self._process.kill()


class ParserProcesses:
    """The processes of one crawl; to be closed."""

    def __init__(self, *, seconds: float) -> None:
        """Give one page so many *seconds* of CPU."""
        self._seconds = seconds
        self._turns = asyncio.Semaphore(min(_MOST, os.cpu_count() or 1))
        self._idle: list[_Parser] = []
        self._in_use: set[_Parser] = set()
        self._failures = 0

    @property
    def pids(self) -> list[int]:
        """The processes that live, as far as is known."""
        return [parser.pid for parser in (*self._idle, *self._in_use)]

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until one is free; `measure` is for use in the block."""
        async with self._turns:
            yield

    async def measure(self, body: bytes, *, room: int, by: int = parser_child.LEXBOR) -> int | None:
        """Return how many bytes the tree of *body*, in UTF-8, takes; None where over *room*.

        *by* is the parser, one of those of `parser_child`.

        Raises `ParseRefusedError` for a page that does not end, or that two processes died
        of, and `NoParserError` where none can be started.
        """
        for deaths in range(1, _DEATHS + 1):
            parser = await self._one()
            self._in_use.add(parser)
            try:
                size = await parser.measure(body, room=room, parser=by)
            except ProcessEndedError as death:
                how = printable(str(death))
                logger.info(
                    "a process died while it parsed a page: %s", how, extra={"event": "parser_died"}
                )
                if deaths == _DEATHS:
                    message = f"{_DEATHS} processes died while they parsed it: {how}"
                    raise ParseRefusedError(message) from None
            else:
                return None if size == parser_child.TOO_LARGE else size
            finally:
                self._in_use.discard(parser)
                if parser.at_work:
                    await parser.kill()
                else:
                    self._idle.append(parser)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """End them."""
        while self._idle:
            await self._idle.pop().kill()

    async def _one(self) -> _Parser:
        if self._idle:
            return self._idle.pop()
        if self._failures >= _FAILURES:
            raise NoParserError("the last ones could not be started")
        parser = _Parser(seconds=self._seconds)
        try:
            await parser.start()
        except NoParserError as error:
            self._failures += 1
            if self._failures == 1:
                logger.warning(
                    "no process for odd pages can be started, so these are refused: %s",
                    printable(str(error)),
                    extra={"event": "no_parser"},
                )
            raise
        self._failures = 0
        return parser


def _command(number: int) -> list[str]:
    # Beside the script are modules that it must not find.
    return [sys.executable, "-P", parser_child.__file__, str(number)]


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        # What this process can import, wherever that was found.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        # What was freed goes back to the system, so that each tree can be measured.
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
