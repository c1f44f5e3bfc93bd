"""Group commit: write the elements of a queue, or of a source, in groups.

While the ledger writes a group, elements for the next group are collected. If no worker waits for a
write, the collection takes some time, because one large group costs less than many small groups.
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

#: Maximum number of elements in one group.
MAX_GROUP_SIZE = 200
_MAX_PARALLEL_WRITES = 3
#: Minimum seconds between the starts of two groups, unless a worker waits for a write.
_GROUP_INTERVAL_S = 0.05
#: Seconds between two checks whether a worker waits for a write.
_POLL_INTERVAL_S = 0.01
#: Maximum seconds that a group waits for more elements of its source.
_MAX_GATHER_S = 0.1
#: Maximum seconds that a source may take to close its resources if it is not read to its end.
_CLOSE_TIMEOUT_S = 5.0


async def write_in_groups(
    queue: "asyncio.Queue[T]",
    write: Callable[[list[T]], Awaitable[None]],
    *,
    workers_wait: Callable[[], bool] = lambda: True,
) -> None:
    """Call *write* with groups of elements of *queue*, until cancelled.

    If *workers_wait* is true or the queue is full, a group is written without a wait for more
    elements. Raises what *write* raises.
    """
    permits = anyio.Semaphore(_MAX_PARALLEL_WRITES)

    async def write_group(group: list[T], group_written: anyio.Event) -> None:
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
            # Wait for a free writer before taking a group, because more elements come meanwhile.
            await permits.acquire()
            with anyio.move_on_after(_GROUP_INTERVAL_S):
                await last_written.wait()
            group = [await queue.get()]
            while (  # noqa: ASYNC110  # a waiting worker sets no event
                not queue.full()
                and queue.qsize() < MAX_GROUP_SIZE
                and time.monotonic() < started_at + _GROUP_INTERVAL_S
                and not workers_wait()
            ):
                await anyio.sleep(_POLL_INTERVAL_S)
            started_at = time.monotonic()
            while len(group) < MAX_GROUP_SIZE and not queue.empty():
                group.append(queue.get_nowait())
            last_written = anyio.Event()
            writers.start_soon(write_group, group, last_written)


class GroupWriter(Generic[T]):
    """Reads elements from one source, and writes them in groups."""

    def __init__(
        self, write: Callable[[list[T]], Awaitable[None]], *, first_size: int, max_size: int
    ) -> None:
        """Call *write* with up to *first_size* elements first, and then with up to *max_size*."""
        self._write = write
        self._group_size = first_size
        self._max_size = max_size
        self._next_group: list[T] = []  #: elements that were read but are not being written
        self._current_group: list[T] = []  #: elements that are being written
        self._source_ended = False
        self._progress_event = anyio.Event()

    @property
    def unwritten_count(self) -> int:
        """The number of elements that were read and are perhaps not written yet."""
        return len(self._current_group) + len(self._next_group)

    async def run(self, source: AsyncIterable[T]) -> None:
        """Write all elements of *source*; close *source* if it is a generator.

        Raises the exceptions of the source and of the write. After an exception, `finish` can write
        the elements that were read but not written.
        """
        # Read in a separate asyncio task, because AnyIO would cancel a source that is closing.
        read_task = asyncio.create_task(self._read(source))
        try:
            await self._write_groups()
            await read_task
        finally:
            if not read_task.done():
                await _end_read(read_task)

    async def finish(self) -> None:
        """Write the elements that `run` has read, but may not have written."""
        if self.unwritten_count:
            await self._write([*self._current_group, *self._next_group])
        self._current_group, self._next_group = [], []

    async def _read(self, source: AsyncIterable[T]) -> None:
        first_read_at = anyio.current_time()
        try:
            async for element in source:
                self._next_group.append(element)
                if len(self._next_group) >= self._group_size:
                    self._notify_waiting()
                    await self._wait_until(lambda: len(self._next_group) < self._group_size)
                elif len(self._next_group) == 1:
                    first_read_at = anyio.current_time()
                    self._notify_waiting()
                elif anyio.current_time() - first_read_at > _MAX_GATHER_S:
                    # A source that never waits would block the event loop and thus all writes.
                    await checkpoint()
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
            self._source_ended = True
            self._notify_waiting()

    async def _write_groups(self) -> None:
        while True:
            await self._wait_until(lambda: bool(self._next_group) or self._source_ended)
            with anyio.move_on_after(_MAX_GATHER_S):
                await self._wait_until(
                    lambda: len(self._next_group) >= self._group_size or self._source_ended
                )
            if not self._next_group:
                return
            self._current_group, self._next_group = self._next_group, []
            self._group_size = self._max_size
            self._notify_waiting()
            await self._write(self._current_group)
            self._current_group = []

    def _notify_waiting(self) -> None:
        self._progress_event.set()
        self._progress_event = anyio.Event()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._progress_event.wait()


async def _end_read(read_task: "asyncio.Task[None]") -> None:
    """Cancel the task that reads a source, and log the exceptions that the source raises."""
    read_task.cancel()
    with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
        await asyncio.wait({read_task})
    log_fields = {"event": "not_closed"}
    if not read_task.done():
        message = "an abandoned read did not end within %g s after its cancellation"
        logger.warning(message, _CLOSE_TIMEOUT_S, extra=log_fields)
    elif not read_task.cancelled() and (error := read_task.exception()) is not None:
        error_text = printable(describe_error(error))
        logger.warning("closing an abandoned read raised %s", error_text, extra=log_fields)
