"""Writing what a source yields, some of it at a time: what is there does not wait for more.

While one lot is written the next one gathers, so a source that is fast is written in large
lots, and of one that is slow each thing is written soon.
"""

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from crawlcw.errors import single_errors

T = TypeVar("T")

#: Seconds that a lot waits for more: sources that yield many things do so at once.
_A_WHILE = 0.1


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

    async def run(self, source: AsyncIterable[T]) -> None:
        """Write all that *source* yields.

        Raises what *source* or *write* raises. What was read until then, or until this is
        cancelled, and is not written is left for `finish`.
        """
        with single_errors():
            async with anyio.create_task_group() as writing:
                writing.start_soon(self._write_lots)
                async for thing in source:
                    await self._put(thing)
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
