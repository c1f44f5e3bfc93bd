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
    entries: queue.Queue[tuple[T] | Exception | None] = queue.Queue(2 * at_once)

    def fill() -> None:
        try:
            for thing in things:
                entries.put((thing,))
            entries.put(None)
        except Exception as error:
            entries.put(error)

    # A daemon, because a thread that waits for standard input cannot be interrupted.
    threading.Thread(target=fill, daemon=True).start()
    while True:
        chunk, entry = await to_thread.run_sync(_some, entries, at_once, abandon_on_cancel=True)
        if chunk:
            yield chunk
        if isinstance(entry, Exception):
            raise entry
        if entry is None:
            return


def _some(
    entries: "queue.Queue[tuple[T] | Exception | None]", at_once: int
) -> tuple[list[T], tuple[T] | Exception | None]:
    """Wait for one entry, then return all that are available, with the last entry."""
    chunk: list[T] = []
    entry = entries.get()
    with suppress(queue.Empty):
        while isinstance(entry, tuple):
            chunk.append(entry[0])
            if len(chunk) == at_once:
                break
            entry = entries.get_nowait()
    return chunk, entry
