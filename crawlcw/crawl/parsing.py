"""Parse a page before its callback, if the parsing may need much time or memory.

Ordinary pages are parsed when their callback uses the tree. Large and suspicious pages are first
parsed by another process. If that process does not crash, a thread of this process parses the page
again, because a tree cannot be sent to another process. If that process dies, the page is refused.
A tree reserves a part of `memory_budget` until the page's callback has ended. After a callback has
used parsel's tree for the first time, this module also parses later pages with parsel.

The process is started by `Popen`, because `anyio.to_process` and `multiprocessing` would run the
main module again, and the main module may start a crawl.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from subprocess import DEVNULL, PIPE, Popen

import anyio
from anyio import to_thread
from selectolax.lexbor import LexborHTMLParser

from crawlcw.api import markup
from crawlcw.api.attempt import replaced
from crawlcw.api.document import Trees
from crawlcw.api.page_head import product_token
from crawlcw.api.response import Following, Response
from crawlcw.api.settings import Settings
from crawlcw.crawl import parser_child
from crawlcw.errors import ParseRefusedError
from crawlcw.fetch.body import MemoryBudget, Share
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Part of `memory_budget` for trees. A quarter is for bodies, and 3/8 is for other memory.
_TREES_SHARE = 3 / 8
_COPIES = 2
#: Memory of the parsing process for each byte of the estimated tree (we measured up to 1.23).
_GROWTH_FACTOR = 1.25
#: Bytes that lexbor needs even for the smallest page. With a quarter of them, lexbor segfaults.
_PARSER = 5 << 18
_MAX_PROCESSES = 2
#: A parsing process may wait for the CPU. The time limit is the CPU limit times this factor.
_TIMEOUT_FACTOR = 12
#: A page is refused if this number of processes died; a single process may die by chance.
_MAX_DEATHS = 2
_ORDINARY = Trees()
_NO_ROOM = "its tree for XPath needs more than its part of memory_budget"


class Parsing:
    """Parses the pages of one crawl."""

    def __init__(
        self, settings: Settings, *, selectors: str = "lexbor", seconds: float = 5.0
    ) -> None:
        """Allow the parser *seconds* of CPU time for each page; see `Spider.selectors`."""
        self.memory = MemoryBudget(int(settings.memory_budget * _TREES_SHARE))  #: memory of trees
        self._seconds = seconds
        self._robot = product_token(settings.user_agent)
        self._obey_robots = settings.obey_robots
        self._processes = asyncio.Semaphore(_MAX_PROCESSES)
        self._has_warned = False
        # Parse in one thread, because more threads would need more memory.
        self._thread = anyio.CapacityLimiter(1)
        self._selectors = selectors
        self._uses_selectors = selectors == "parsel"  # whether a callback has used parsel's tree

    @asynccontextmanager
    async def ready(self, response: Response) -> AsyncIterator[Response]:
        """Yield a response with its trees; memory for the trees is reserved in the `with` block."""
        share, trees = await self._prepared(response)
        following = Following(robot=self._robot, obey_robots=self._obey_robots)
        response = replaced(
            response, trees=trees, following=following, _selector_library=self._selectors
        )
        try:
            yield response
        finally:
            self._uses_selectors |= "selector" in vars(response)
            share.shrink(0)

    async def _prepared(self, response: Response) -> tuple[Share, Trees | None]:
        """Return memory for a response's trees, and the trees (None for a body without markup)."""
        body, nothing = response.body, Share(self.memory, 0)
        if not response.needs_tree or not markup.is_markup(
            response.headers.get("content-type"), body
        ):
            return nothing, None
        if len(body) <= markup.LARGE:
            size = markup.ordinary_tree_size(response.source())
            if size is not None:
                return await self.memory.take(size * (2 if self._uses_selectors else 1)), _ORDINARY
        try:
            return await self._parse_screened(response)
        except ParseRefusedError as refusal:
            # Drop the traceback, because a traceback would keep the response in memory.
            return nothing, Trees(refusal=refusal.with_traceback(None))
        except OSError as error:  # the system cannot start a process
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "cannot start a process for unusual pages, so crawlcw ignores them: %s",
                    printable(error),
                    extra={"event": "no_parser"},
                )
            return nothing, None

    async def _parse_screened(self, response: Response) -> tuple[Share, Trees]:
        """Return the memory for a response's trees, and the trees; raises `ParseRefusedError`."""
        # Parsing needs two more copies of the body: one as text or UTF-8, and one in the pipe.
        copies_size = _COPIES * response.size
        max_room = self.memory.limit - copies_size
        tree_size = markup.tree_size(response.body) * (2 if self._uses_selectors else 1)
        expected = min(_PARSER + int(_GROWTH_FACTOR * tree_size), max_room)
        rooms = dict.fromkeys((expected, max_room)) if max_room >= _PARSER else ()
        async with self._processes:
            for memory_limit in rooms:
                # If the tree needs more memory, release all memory of this page before the next
                # try. Otherwise two pages could wait for each other's memory for ever.
                share = await self.memory.take(memory_limit + copies_size)
                trees: Trees | None = None
                try:
                    trees = await self._parse(response, memory_limit, max_room=max_room)
                finally:
                    share.shrink(0 if trees is None else memory_limit)
                if trees is not None:
                    return share, trees
        raise ParseRefusedError(
            f"the page and its tree are larger than {self.memory.limit:,} bytes, the part of "
            "memory_budget for trees: increase memory_budget"
        )

    async def _parse(self, response: Response, memory_limit: int, *, max_room: int) -> Trees | None:
        """Return the trees of a response; None if the trees take more than *memory_limit* bytes.

        If *memory_limit* equals *max_room*, a tree for XPath that is too large is left out.
        """
        source = await to_thread.run_sync(response.source, limiter=self._thread)
        size = await self._measured(source, memory_limit=memory_limit, by="lexbor")
        if size is None:
            return None
        run_in_thread = partial(to_thread.run_sync, limiter=self._thread, abandon_on_cancel=True)
        trees = Trees()
        if self._uses_selectors:
            kind = response.selector_kind
            try:
                markup.screen(source, kind)
                parser_source = markup.readable_to_end(source, kind)
                if (
                    await self._measured(parser_source, memory_limit=memory_limit - size, by=kind)
                    is None
                ):
                    if memory_limit < max_room:
                        return None
                    raise ParseRefusedError(_NO_ROOM)
                make = partial(markup.selector, source, kind=kind, url=response.url)
                trees = Trees(selector=await run_in_thread(make))
            except ParseRefusedError as refusal:
                # Drop the traceback, because a traceback would keep the response in memory.
                trees = Trees(selector_refusal=refusal.with_traceback(None))
        return replace(trees, tree=await run_in_thread(LexborHTMLParser, source))

    async def _measured(self, source: bytes, *, memory_limit: int, by: str) -> int | None:
        """Return the size of the tree by the parser *by*; None if it is above *memory_limit*.

        Raises `ParseRefusedError` if the parsing does not end, or if it has crashed two processes.
        Raises `OSError` if no process can be started.
        """
        exit_code = 0
        for _ in range(_MAX_DEATHS):
            try:
                with anyio.fail_after(_TIMEOUT_FACTOR * self._seconds):
                    exit_code, output = await self._child(
                        source, by, str(memory_limit), str(self._seconds)
                    )
            except TimeoutError:
                exit_code = -parser_child.TIME_IS_OVER
            if exit_code == 0:
                return int(output)
            if exit_code == parser_child.TOO_LARGE:
                return None
            if exit_code > 0:
                raise ChildProcessError(f"exit code {exit_code}")
            if exit_code == -parser_child.TIME_IS_OVER:
                message = f"the parser did not end within {self._seconds:g} s"
                raise ParseRefusedError(message)
            logger.info(
                "a process died while parsing a page: %s",
                _signal_text(exit_code),
                extra={"event": "parser_died"},
            )
        raise ParseRefusedError(
            f"{_MAX_DEATHS} processes died while parsing it: {_signal_text(exit_code)}"
        )

    async def _child(self, source: bytes, *arguments: str) -> tuple[int, bytes]:
        """Parse a page in a process; return the exit code (negative for a signal) and output."""
        # uvloop would fork, which takes milliseconds in a large process. -P keeps Python from
        # importing modules beside the script. A process in a new session gets no Ctrl-C.
        child = Popen(  # noqa: ASYNC220, S603  # `Popen` returns when our program is loaded
            (sys.executable, "-PS", parser_child.__file__, *arguments),
            # Let the child process import all modules that this process can import.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        # The thread closes the pipes even if the caller is cancelled.
        communication = asyncio.get_running_loop().run_in_executor(None, child.communicate, source)
        try:
            output, _ = await asyncio.shield(communication)
        finally:
            child.kill()
            # Wait for the process even if the caller is cancelled, because a zombie would remain.
            with anyio.CancelScope(shield=True):
                await communication
        return child.returncode, output


def _signal_text(code: int) -> str:
    return f"signal {-code}, {signal.strsignal(-code)}"
