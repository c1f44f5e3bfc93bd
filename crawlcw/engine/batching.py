"""Writing what gathers in a queue: many things at a time, and a few groups side by side.

Each group waits for the ledger's journal. While a few of them do, the next one
gathers, so a slow ledger makes larger groups.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

#: The most things in one group.
LARGEST_GROUP = 200
_GROUPS_AT_ONCE = 3


async def write_in_groups(
    queue: "asyncio.Queue[T]", write: Callable[[list[T]], Awaitable[None]]
) -> None:
    """Give *write* what comes by *queue*, group after group until cancelled.

    What was written is done for the queue (`task_done`). Raises what *write* raises.
    """
    room = anyio.Semaphore(_GROUPS_AT_ONCE)

    async def write_out(group: list[T]) -> None:
        await write(group)
        for _ in group:
            queue.task_done()
        room.release()

    async with anyio.create_task_group() as writing:
        while True:
            # First room and then the group, which grows as long as there is none.
            await room.acquire()
            group = [await queue.get()]
            while len(group) < LARGEST_GROUP and not queue.empty():
                group.append(queue.get_nowait())
            writing.start_soon(write_out, group)
