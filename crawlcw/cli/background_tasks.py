"""Loops that run beside a crawl, and neither hold it up nor end it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background_tasks(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run *loops* as long as the block; an error in one of them ends that one and nothing else."""
    # No task group: a terminal that goes away must not cancel the crawl.
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
