"""Background loops beside a crawl, which neither delay nor end it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background_tasks(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run *loops* during the block; an error in one ends only that one."""
    # Not a task group: a closed terminal must not cancel the crawl.
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
