"""Read a slow input in chunks, without waiting for a full chunk."""

import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TypeVar

from anyio import to_thread

T = TypeVar("T")


async def in_chunks(values: Iterator[T], *, chunk_size: int) -> AsyncIterator[list[T]]:
    """Read *values* in a thread, and yield them in lists of at most *chunk_size* values."""
    # The queue's entries are values, an error of the input, or None for the end of the input.
    entries: queue.Queue[tuple[T] | Exception | None] = queue.Queue(2 * chunk_size)

    def fill() -> None:
        try:
            for value in values:
                entries.put((value,))
            entries.put(None)
        except Exception as error:
            entries.put(error)

    # Python must not wait for this thread at exit, because a read of stdin cannot be interrupted.
    threading.Thread(target=fill, daemon=True).start()
    while True:
        chunk, entry = await to_thread.run_sync(
            _next_chunk, entries, chunk_size, abandon_on_cancel=True
        )
        if chunk:
            yield chunk
        if isinstance(entry, Exception):
            raise entry
        if entry is None:
            return


def _next_chunk(
    entries: "queue.Queue[tuple[T] | Exception | None]", chunk_size: int
) -> tuple[list[T], tuple[T] | Exception | None]:
    """Return the values of queue entries, and the last read entry (a value, an error or None)."""
    chunk: list[T] = []
    entry = entries.get()
    with suppress(queue.Empty):
        while isinstance(entry, tuple):
            chunk.append(entry[0])
            if len(chunk) == chunk_size:
                break
            entry = entries.get_nowait()
    return chunk, entry
