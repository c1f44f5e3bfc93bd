"""Write what a source yields in lots: the next one gathers while one is written.

A fast source is written in large lots; what a slow one has yielded does not wait for more.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import describe_error

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a lot waits for more: sources that yield many things do so at once.
_A_WHILE = 0.1
#: Seconds that a source may take to close what it has open, where it is not read to its end.
_TO_CLOSE = 5.0


class Gathering(Generic[T]):
    """Things on their way from one source to where they are written."""

    def __init__(
        self, write: Callable[[list[T]], Awaitable[None]], *, first: int, largest: int
    ) -> None:
        """*write* is given up to *first* things, and then up to *largest* at a time."""
        self._write = write
        self._room = first
        self._largest = largest
        self._coming: list[T] = []  #: what was read since
        self._taken: list[T] = []  #: what is being written
        self._is_over = False
        self._since = 0.0  #: when the first of those that are coming was read
        self._any = anyio.Event()
        self._ready = anyio.Event()
        self._has_room = anyio.Event()

    @property
    def left(self) -> int:
        """How many things were read and may not be written."""
        return len(self._taken) + len(self._coming)

    async def run(self, source: AsyncIterable[T]) -> None:
        """Write all that *source* yields; a generator is closed in any case.

        Raises what *source* or *write* raises. What was read until then, or until this is
        cancelled, and is not written is left for `finish`.
        """
        # In a task of its own, for AnyIO cancels again and again: what a source awaits to
        # close its connections would be cancelled as well.
        reading = asyncio.create_task(self._read(source))
        try:
            await self._write_lots()
            await reading
        finally:
            if not reading.done():
                await _ended(reading)

    async def _read(self, source: AsyncIterable[T]) -> None:
        try:
            async for thing in source:
                await self._put(thing)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
            self._is_over = True
            self._any.set()
            self._ready.set()

    async def finish(self) -> None:
        """Write what was read and may not be written, of which some may be: at the end of `run`."""
        left = [*self._taken, *self._coming]
        if left:
            await self._write(left)
        self._taken, self._coming = [], []

    async def _put(self, thing: T) -> None:
        if not self._coming:
            self._since = anyio.current_time()
            self._any.set()
        self._coming.append(thing)
        if len(self._coming) >= self._room:
            self._ready.set()
            await self._has_room.wait()
        elif anyio.current_time() - self._since > _A_WHILE:
            await checkpoint()  # a source that blocks the loop lets nobody else write

    async def _write_lots(self) -> None:
        while True:
            await self._any.wait()
            with anyio.move_on_after(self._since + _A_WHILE - anyio.current_time()):
                await self._ready.wait()
            if not self._coming:
                return
            self._taken, self._coming = self._coming, []
            self._room = self._largest
            has_room, self._has_room = self._has_room, anyio.Event()
            has_room.set()
            if not self._is_over:
                self._any, self._ready = anyio.Event(), anyio.Event()
            await self._write(self._taken)
            self._taken = []


async def _ended(reading: "asyncio.Task[None]") -> None:
    """End a source that is read no further; what it raises meanwhile is told, and no more."""
    reading.cancel()
    with anyio.move_on_after(_TO_CLOSE, shield=True):
        await asyncio.wait({reading})
    if not reading.done():
        logger.warning(
            "what is read no further did not end within %g s of being cancelled",
            _TO_CLOSE,
            extra={"event": "not_closed"},
        )
    elif not reading.cancelled() and (error := reading.exception()) is not None:
        logger.warning(
            "closing what is read no further raised %s",
            printable(describe_error(error)),
            extra={"event": "not_closed"},
        )
