"""Group commit: write what gathers in a queue, a few groups side by side.

While a group waits for the ledger's journal the next one gathers. While no worker waits for
what is written, groups are a while apart: a large one costs a fast ledger half as much.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

#: The most things in one group.
LARGEST_GROUP = 200
_GROUPS_AT_ONCE = 3
#: Seconds. Groups that follow each other sooner are small, and each costs a command or two.
_APART = 0.05
#: Seconds until a worker that has begun to wait is seen.
_LOOK = 0.01


async def write_in_groups(
    queue: "asyncio.Queue[T]",
    write: Callable[[list[T]], Awaitable[None]],
    *,
    workers_wait: Callable[[], bool] = lambda: True,
) -> None:
    """Give *write* what comes by *queue*, group after group until cancelled.

    What was written is done for the queue (`task_done`). While *workers_wait* for it, a group is
    written as soon as the last one was. Raises what *write* raises.
    """
    room = anyio.Semaphore(_GROUPS_AT_ONCE)

    async def write_out(group: list[T], written: anyio.Event) -> None:
        await write(group)
        for _ in group:
            queue.task_done()
        room.release()
        written.set()

    last = anyio.Event()
    last.set()
    began = float("-inf")
    async with anyio.create_task_group() as writing:
        while True:
            # First room and then the group, which grows as long as there is none.
            await room.acquire()
            with anyio.move_on_after(_APART):
                await last.wait()
            group = [await queue.get()]
            while (  # noqa: ASYNC110  # no event tells that a worker waits
                queue.qsize() < LARGEST_GROUP
                and (left := began + _APART - time.monotonic()) > 0
                and not workers_wait()
            ):
                await anyio.sleep(min(left, _LOOK))
            began = time.monotonic()
            while len(group) < LARGEST_GROUP and not queue.empty():
                group.append(queue.get_nowait())
            last = anyio.Event()
            writing.start_soon(write_out, group, last)
