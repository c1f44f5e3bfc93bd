"""Completion of begun work although the caller is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

#: Seconds until a task that does not end is cancelled once more.
_CANCELLED_WITHIN = 0.5


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


async def cancelled_gently(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what *function* returns; a caller that is cancelled waits until it has ended for it.

    In a scope of anyio that is cancelled every wait is, and a driver that is
    stopped in the middle could not even close its sockets.
    """
    working = asyncio.ensure_future(function())
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not working.done():
                working.cancel()
                # A driver may take it for a broken connection, and try again.
                await asyncio.wait([working], timeout=_CANCELLED_WITHIN)
        if not working.cancelled():
            working.exception()  # it is not to be reported any more
        raise
