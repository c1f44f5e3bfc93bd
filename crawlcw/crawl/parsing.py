"""Having a page's tree ready before its callback, where making it may take long, or much memory.

Ordinary pages are parsed when their callback asks. Large and suspicious ones are
parsed by another process first; one that it lives through is parsed once more in
a thread, and one that it dies of is refused. Each tree has its share of the
memory budget until its callback has ended. Once a callback has asked for a tree of
parsel's, the same is done with that.
"""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
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
from crawlcw.crawl.parser_processes import NoParserError, ParserProcesses
from crawlcw.errors import ParseRefusedError
from crawlcw.fetch.memory_budget import MemoryBudget, Share

#: Of the memory budget; a quarter is for bodies, and the rest for what is not counted.
_FOR_TREES = 3 / 8
_COPIES = 2


class Parsing:
    """The trees of one crawl; its processes end with the block."""

    def __init__(self, settings: Settings, *, seconds: float = 5.0) -> None:
        """Give one page so many *seconds* of CPU."""
        self._trees = MemoryBudget(int(settings.memory_budget * _FOR_TREES))
        self._processes = ParserProcesses(seconds=seconds)
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

    def ready(self, *responses: Response) -> AbstractAsyncContextManager[None]:
        """Hold the memory for the responses' trees in the block; a tree of a process is there."""
        return _Ready(self, responses)

    async def prepared(self, response: Response) -> Share:
        """Return the memory for a response's tree; a tree of a process is made."""
        body = response.body
        if not markup.is_markup(response.headers.get("content-type"), body):
            return Share(self._trees, 0)  # `Response.tree` looks at it, should it be asked for
        if len(body) <= markup.LARGE:
            size = markup.ordinary_tree_size(response.source())
            if size is not None:
                response.screened = True
                return await self._trees.take(size * self._kinds)
        try:
            return await self._doubtful(response)
        except ParseRefusedError as refusal:
            response.refusal = refusal.with_traceback(None)  # it would keep this response
        except NoParserError:
            pass  # `Response.tree` refuses it, if need be
        return Share(self._trees, 0)

    def note_use(self, response: Response) -> None:
        """Note which trees of a response the callback has asked for."""
        self._selecting = self._selecting or response.selected

    async def _doubtful(self, response: Response) -> Share:
        """Return the memory of a tree that was made; raises `ParseRefusedError`."""
        # What is parsed is in memory twice more: as text or UTF-8, and on its way.
        beside = _COPIES * response.size
        most = max(0, self._trees.limit - beside)
        expected = min(self._expected(response.body), most)
        async with self._processes.turn():
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

    @property
    def _kinds(self) -> int:
        """How many trees there are of a page: lexbor's, and parsel's where it is used."""
        return 2 if self._selecting else 1

    def _expected(self, source: bytes) -> int:
        return markup.tree_size(source) * self._kinds

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


class _Ready:
    """The block of `Parsing.ready`; no generator, for every page has one."""

    __slots__ = ("_parsing", "_responses", "_shares")

    def __init__(self, parsing: Parsing, responses: Iterable[Response]) -> None:
        self._parsing = parsing
        self._responses = responses
        self._shares: list[Share] = []

    async def __aenter__(self) -> None:
        try:
            for response in self._responses:
                self._shares.append(await self._parsing.prepared(response))
        except BaseException:
            self._give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        for response in self._responses:
            self._parsing.note_use(response)
        self._give_back()

    def _give_back(self) -> None:
        for share in self._shares:
            share.shrink(0)
