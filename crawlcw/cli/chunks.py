"""Read a slow input in chunks, without waiting for a full chunk."""

import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TypeVar

from anyio import to_thread

T = TypeVar("T")


async def in_chunks(things: Iterator[T], *, at_once: int) -> AsyncIterator[list[T]]:
    """Yield *things* in lists of at most *at_once*, read in a thread, in constant memory."""
    # None is the end of the input.
    read: queue.Queue[tuple[T] | Exception | None] = queue.Queue(2 * at_once)

    def read_on() -> None:
        try:
            for thing in things:
                read.put((thing,))
            read.put(None)
        except Exception as error:
            read.put(error)

    # A daemon, because a thread that waits for standard input cannot be interrupted.
    threading.Thread(target=read_on, daemon=True).start()
    while True:
        chunk, found = await to_thread.run_sync(_some, read, at_once, abandon_on_cancel=True)
        if chunk:
            yield chunk
        if isinstance(found, Exception):
            raise found
        if found is None:
            return


def _some(
    read: "queue.Queue[tuple[T] | Exception | None]", at_once: int
) -> tuple[list[T], tuple[T] | Exception | None]:
    """Wait for one entry, then return all that are available, with the last entry."""
    chunk: list[T] = []
    found = read.get()
    with suppress(queue.Empty):
        while isinstance(found, tuple):
            chunk.append(found[0])
            if len(chunk) == at_once:
                break
            found = read.get_nowait()
    return chunk, found
