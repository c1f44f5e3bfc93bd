"""Group commit: write the things of a queue, or of a source, in groups.

While a group waits for the ledger's journal, the next group gathers. If no worker waits for its
writes, groups start some time apart, because a large group costs a fast ledger half as much.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from crawlcw.model.sanitize import describe_error, printable

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Maximum number of things in one group.
LARGEST_GROUP = 200
_GROUPS_AT_ONCE = 3
#: Seconds. Groups that follow sooner are small, and each costs one or two commands.
_APART = 0.05
#: Seconds until the wait of a worker is noticed.
_LOOK = 0.01
#: Seconds that a batch waits for more: a source with many things yields them at once.
_A_WHILE = 0.1
#: Seconds that a source may take to close its resources if it is not read to its end.
_TO_CLOSE = 5.0


async def write_in_groups(
    queue: "asyncio.Queue[T]",
    write: Callable[[list[T]], Awaitable[None]],
    *,
    workers_wait: Callable[[], bool] = lambda: True,
) -> None:
    """Call *write* with the things of *queue*, group after group until cancelled.

    While *workers_wait* for a write, or for room in the queue, a group is written as soon as the
    last one was. Raises what *write* raises.
    """
    permits = anyio.Semaphore(_GROUPS_AT_ONCE)

    async def write_out(group: list[T], group_written: anyio.Event) -> None:
        await write(group)
        for _ in group:
            queue.task_done()
        permits.release()
        group_written.set()

    last_written = anyio.Event()
    last_written.set()
    started_at = float("-inf")
    async with anyio.create_task_group() as writers:
        while True:
            # First wait for room and then take the group, which grows in the meantime.
            await permits.acquire()
            with anyio.move_on_after(_APART):
                await last_written.wait()
            group = [await queue.get()]
            while (  # noqa: ASYNC110  # no event tells that a worker waits
                not queue.full()
                and queue.qsize() < LARGEST_GROUP
                and time.monotonic() < started_at + _APART
                and not workers_wait()
            ):
                await anyio.sleep(_LOOK)
            started_at = time.monotonic()
            while len(group) < LARGEST_GROUP and not queue.empty():
                group.append(queue.get_nowait())
            last_written = anyio.Event()
            writers.start_soon(write_out, group, last_written)


class Gathering(Generic[T]):
    """Things on their way from one source to `write`."""

    def __init__(
        self, write: Callable[[list[T]], Awaitable[None]], *, first: int, largest: int
    ) -> None:
        """*write* gets up to *first* things, and then up to *largest* at a time."""
        self._write = write
        self._room = first
        self._largest = largest
        self._coming: list[T] = []  #: things that were read but are not being written
        self._taken: list[T] = []  #: things that are being written
        self._is_over = False
        self._changed = anyio.Event()

    @property
    def left(self) -> int:
        """How many things were read and are possibly not written."""
        return len(self._taken) + len(self._coming)

    async def run(self, source: AsyncIterable[T]) -> None:
        """Write all that *source* yields; a generator is closed in any case.

        Raises the exceptions of both. Things that were read but not written remain for `finish`.
        """
        # In a separate task: AnyIO cancels repeatedly, even while a source closes.
        read_task = asyncio.create_task(self._read(source))
        try:
            await self._write_lots()
            await read_task
        finally:
            if not read_task.done():
                await _ended(read_task)

    async def finish(self) -> None:
        """Write the things that `run` has read and possibly not written."""
        if self.left:
            await self._write([*self._taken, *self._coming])
        self._taken, self._coming = [], []

    async def _read(self, source: AsyncIterable[T]) -> None:
        first_read_at = anyio.current_time()
        try:
            async for element in source:
                self._coming.append(element)
                if len(self._coming) >= self._room:
                    self._tell()
                    await self._until(lambda: len(self._coming) < self._room)
                elif len(self._coming) == 1:
                    first_read_at = anyio.current_time()
                    self._tell()
                elif anyio.current_time() - first_read_at > _A_WHILE:
                    # else a source that blocks the loop would prevent all writes
                    await checkpoint()
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
            self._is_over = True
            self._tell()

    async def _write_lots(self) -> None:
        while True:
            await self._until(lambda: bool(self._coming) or self._is_over)
            with anyio.move_on_after(_A_WHILE):
                await self._until(lambda: len(self._coming) >= self._room or self._is_over)
            if not self._coming:
                return
            self._taken, self._coming = self._coming, []
            self._room = self._largest
            self._tell()
            await self._write(self._taken)
            self._taken = []

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


async def _ended(read_task: "asyncio.Task[None]") -> None:
    """End a source that is read no further; its exceptions from now on are only logged."""
    read_task.cancel()
    with anyio.move_on_after(_TO_CLOSE, shield=True):
        await asyncio.wait({read_task})
    log_fields = {"event": "not_closed"}
    if not read_task.done():
        message = "an abandoned read did not end within %g s after its cancellation"
        logger.warning(message, _TO_CLOSE, extra=log_fields)
    elif not read_task.cancelled() and (error := read_task.exception()) is not None:
        error_text = printable(describe_error(error))
        logger.warning("closing an abandoned read raised %s", error_text, extra=log_fields)
