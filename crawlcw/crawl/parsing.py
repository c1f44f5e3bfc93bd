"""Having a page's tree ready before its callback, where making it may take long, or much memory.

Ordinary pages are parsed when their callback asks. Large and suspicious ones are
parsed by another process first; one that it lives through is parsed once more in
a thread, for a tree cannot travel, and one that it dies of is refused. Each tree has its
share of the memory budget until its callback has ended. Once a callback has asked for a tree
of parsel's, the same is done with that.

The processes are no pool of a library. `anyio.to_process` does not tell by which signal a
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio import to_thread

from crawlcw.api import markup, xpath
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.tree import parse
from crawlcw.crawl import parser_child
from crawlcw.errors import ParseRefusedError
from crawlcw.fetch.memory_budget import MemoryBudget, Share
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Of the memory budget; a quarter is for bodies, and the rest for what is not counted.
_FOR_TREES = 3 / 8
_COPIES = 2
_MOST_PROCESSES = 2
#: So much longer than its time of CPU may a page take: the process was stopped, or gets no CPU.
_LONGER = 12
_STARTS_WITHIN = 60.0
#: So many deaths are the page's fault: a process may be killed by chance.
_DEATHS = 2
#: After so many failures in a row nobody tries to start one any more.
_FAILURES = 3


class Parsing:
    """The trees of one crawl; its processes end with the block."""

    def __init__(self, settings: Settings, *, seconds: float = 5.0) -> None:
        """Give one page so many *seconds* of CPU."""
        self._trees = MemoryBudget(int(settings.memory_budget * _FOR_TREES))
        self._processes = _Processes(seconds=seconds)
        # Its own, so that nothing else waits for pages; each thread keeps memory of its own.
        self._thread = anyio.CapacityLimiter(1)
        self._selecting = False  # whether a callback has asked for a tree of parsel's

    @property
    def pids(self) -> list[int]:
        """The processes that live, as far as is known."""
        return self._processes.pids

    @property
    def held(self) -> int:
        """How many bytes of trees there are just now, as far as they are counted."""
        return self._trees.used

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._processes.close()

    @asynccontextmanager
    async def ready(self, *responses: Response) -> AsyncIterator[None]:
        """Hold the memory for the responses' trees in the block; a tree of a process is there."""
        shares: list[Share] = []
        try:
            for response in responses:
                # One by one: each that was taken is given back, should the next one fail.
                shares += [await self._prepared(response)]
            yield
        finally:
            for response in responses:
                self._selecting = self._selecting or response.selected
            for share in shares:
                share.shrink(0)

    async def _prepared(self, response: Response) -> Share:
        """Return the memory for a response's tree; a tree of a process is made."""
        body = response.body
        if not markup.is_markup(response.headers.get("content-type"), body):
            return Share(self._trees, 0)  # `Response.tree` looks at it, should it be asked for
        if len(body) <= markup.LARGE:
            size = markup.ordinary_tree_size(response.source())
            if size is not None:
                response.screened = True
                return await self._trees.take(size * (2 if self._selecting else 1))
        try:
            return await self._doubtful(response)
        except ParseRefusedError as refusal:
            response.refusal = refusal.with_traceback(None)  # it would keep this response
        except NoParserError:
            pass  # `Response.tree` refuses it, if need be
        return Share(self._trees, 0)

    async def _doubtful(self, response: Response) -> Share:
        """Return the memory of a tree that was made; raises `ParseRefusedError`."""
        # What is parsed is in memory twice more: as text or UTF-8, and on its way.
        beside = _COPIES * response.size
        most = max(0, self._trees.limit - beside)
        expected = min(markup.tree_size(response.body) * (2 if self._selecting else 1), most)
        async with self._processes.turns:
            for room in dict.fromkeys((expected, most)):
                # One that takes more gives this back first: others may wait for the same.
                share = await self._trees.take(room + beside)
                try:
                    if await self._made(response, room, most=most):
                        share.shrink(room)
                        return share
                except BaseException:
                    share.shrink(0)
                    raise
                share.shrink(0)
        raise ParseRefusedError(
            f"its tree takes over {most >> 20} MiB, which is all that memory_budget leaves for it"
        )

    async def _made(self, response: Response, room: int, *, most: int) -> bool:
        """Make the trees of a response if they take no more than *room*; return whether they did.

        Where there is no more than that at *most*, parsel's is left out.
        """
        source = await to_thread.run_sync(response.source, limiter=self._thread)
        size = await self._processes.measure(source, room=room)
        if size is None:
            return False
        if self._selecting and not await self._selectable(response, source, room - size):
            if room < most:
                return False
            response.selector_refusal = ParseRefusedError(
                f"its tree for XPath takes over {room - size >> 20} MiB, which is all that "
                "memory_budget leaves for it"
            )
        response.tree = await to_thread.run_sync(
            parse, source, limiter=self._thread, abandon_on_cancel=True
        )
        if self._selecting and response.selector_refusal is None:
            response.selector = await to_thread.run_sync(
                partial(xpath.selector, source, kind=response.selector_kind, url=response.url),
                limiter=self._thread,
                abandon_on_cancel=True,
            )
        return True

    async def _selectable(self, response: Response, source: bytes, room: int) -> bool:
        """Return whether parsel's tree takes no more than *room*; a refusal is kept as one."""
        try:
            kind = response.selector_kind
            xpath.screen(source, kind)
            by = parser_child.XML if kind == "xml" else parser_child.HTML
            read = xpath.whole(source, kind)
            return await self._processes.measure(read, room=room, by=by) is not None
        except ParseRefusedError as refusal:
            response.selector_refusal = refusal.with_traceback(None)  # it would keep this response
            return True


class NoParserError(Exception):
    """No process could be started; the text says why."""


class _ProcessEndedError(Exception):
    """The process has ended, or hung up, before it answered; the text says how."""

    def __init__(self, code: int) -> None:
        """*code* is its exit code, or less than 0 for a signal that ended it."""
        died = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        super().__init__(died)
        self.code = code


class _Processes:
    """The processes of one crawl; to be closed."""

    def __init__(self, *, seconds: float) -> None:
        """Give one page so many *seconds* of CPU."""
        self._seconds = seconds
        #: `measure` is for use within one of these.
        self.turns = asyncio.Semaphore(min(_MOST_PROCESSES, os.cpu_count() or 1))
        self._idle: list[_Parser] = []
        self._in_use: set[_Parser] = set()
        self._failures = 0

    @property
    def pids(self) -> list[int]:
        """The processes that live, as far as is known."""
        return [parser.pid for parser in (*self._idle, *self._in_use)]

    async def measure(self, body: bytes, *, room: int, by: int = parser_child.LEXBOR) -> int | None:
        """Return how many bytes the tree of *body*, in UTF-8, takes *by* a parser.

        None where that is over *room*. Raises `ParseRefusedError` for a page that does not
        end, or that two processes died of, and `NoParserError` where none can be started.
        """
        for deaths in range(1, _DEATHS + 1):
            parser = await self._one()
            self._in_use.add(parser)
            try:
                size = await parser.measure(body, room=room, parser=by)
            except _ProcessEndedError as death:
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

    async def _one(self) -> "_Parser":
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


class _Parser:
    """One process at the other end of a socket.

    It is to be killed in the end, even where its start was cancelled or has failed.
    """

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._process: Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.at_work = False

    @property
    def pid(self) -> int:
        """The process's id, which it keeps until its end was waited for."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it is ready; raises `NoParserError`."""
        try:
            await self._spawn()
            with anyio.fail_after(_STARTS_WITHIN):
                answer = await self._answer()
            if answer != parser_child.READY:
                raise NoParserError("it is another program")
        except BaseException as error:
            await self.kill()
            if isinstance(error, OSError | TimeoutError | _ProcessEndedError):
                raise NoParserError(str(error) or "it was silent") from error
            raise

    async def _spawn(self) -> None:
        """Run it; it writes nothing, and ends with its parent, out of reach of Ctrl-C."""
        ours, theirs = socket.socketpair()
        # As soon as the process has its end, only this one keeps it open: what we read ends
        # with the process.
        with theirs:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            # -P: beside the script are modules that it must not find.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", parser_child.__file__, str(theirs.fileno())),
                env=_environment(),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )

    async def measure(self, body: bytes, *, room: int, parser: int) -> int:
        """Return what the tree takes, or TOO_LARGE.

        Raises `_ProcessEndedError` where it died, and `ParseRefusedError` where its time was up.
        """
        assert self._writer is not None
        # A caller that is cancelled in between leaves it at work.
        self.at_work = True
        try:
            with anyio.fail_after(_LONGER * self._seconds):
                # Whether it arrives shows in what is read.
                self._writer.write(parser_child.PAGE.pack(len(body), room, self._seconds, parser))
                self._writer.write(body)
                answer = await self._answer()
        except TimeoutError:
            raise self._did_not_end() from None
        self.at_work = False
        return answer

    async def _answer(self) -> int:
        assert self._reader is not None
        assert self._process is not None
        try:
            content = await self._reader.readexactly(parser_child.ANSWER.size)
        except (asyncio.IncompleteReadError, OSError):
            code = await self._process.wait()
            if code == -parser_child.TIME_IS_OVER:
                raise self._did_not_end() from None
            raise _ProcessEndedError(code) from None
        (answer,) = parser_child.ANSWER.unpack(content)
        return int(answer)

    def _did_not_end(self) -> ParseRefusedError:
        return ParseRefusedError(f"the parser did not end within {self._seconds:g} s")

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
