"""Completion of work that has begun, although the caller is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

#: Seconds until a task that does not end is cancelled again.
_CANCELLED_WITHIN = 0.5


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of *work*; a cancellation of the caller is raised after its end."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # anyio's shield stops only cancellations by anyio's scopes, not `asyncio.Task.cancel`.
    with anyio.CancelScope(shield=True):
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.result()


async def cancelled_gently(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of *function*; a cancelled caller waits until the function has ended.

    A cancelled scope of anyio cancels every wait, and a driver that is stopped in the middle
    could not even close its sockets.
    """
    future = asyncio.ensure_future(function())
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not future.done():
                future.cancel()
                # A driver may mistake the cancellation for a broken connection, and try again.
                await asyncio.wait([future], timeout=_CANCELLED_WITHIN)
        if not future.cancelled():
            future.exception()  # so that asyncio does not report it
        raise
