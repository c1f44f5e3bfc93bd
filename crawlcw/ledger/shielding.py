"""Completion of begun work although the caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Return what *work* returns; a caller that is cancelled meanwhile is so when it is over."""
    working = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # anyio's shield holds off its own scopes only, and `asyncio.Task.cancel` not at all.
    with anyio.CancelScope(shield=True):
        while not working.done():
            try:
                await asyncio.wait([working])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
    return working.result()
