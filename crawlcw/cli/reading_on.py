"""Reading what somebody writes slowly: what is there comes as soon as something is."""

import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from anyio import to_thread

T = TypeVar("T")


class _End(Enum):
    WELL = "well"


async def as_they_come(things: Iterator[T], *, at_once: int) -> AsyncIterator[list[T]]:
    """Yield what *things* has, read in a thread, at most *at_once* at a time, in flat memory."""
    read: queue.Queue[tuple[T] | Exception | _End] = queue.Queue(2 * at_once)

    def read_on() -> None:
        try:
            for thing in things:
                read.put((thing,))
            read.put(_End.WELL)
        except Exception as error:
            read.put(error)

    # Nobody can interrupt a thread that waits for standard input.
    threading.Thread(target=read_on, daemon=True).start()
    while True:
        chunk, end = await to_thread.run_sync(_some, read, at_once, abandon_on_cancel=True)
        if chunk:
            yield chunk
        if isinstance(end, Exception):
            raise end
        if end is _End.WELL:
            return


def _some(
    read: "queue.Queue[tuple[T] | Exception | _End]", at_once: int
) -> tuple[list[T], Exception | _End | None]:
    """Return what is there, waiting for the first; and how the input ended, if it did."""
    chunk: list[T] = []
    found = read.get()
    with suppress(queue.Empty):
        while isinstance(found, tuple):
            chunk.append(found[0])
            if len(chunk) == at_once:
                return chunk, None
            found = read.get_nowait()
        return chunk, found
    return chunk, None
