"""Complete work that has begun, even if the caller is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

#: Seconds after which an asyncio task is cancelled again, if the first cancellation did not end it.
_CANCELLED_WITHIN = 0.5


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of *work*; a cancellation of the caller takes effect only after *work*."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # The shield does not stop a call of `asyncio.Task.cancel`, so catch `CancelledError` too.
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
    """Run *function*; if the caller is cancelled, cancel *function* too and wait for its end.

    If *function* ran in a cancelled `anyio.CancelScope`, each later `await` would fail. A database
    driver could then not even close its sockets.
    """
    future = asyncio.ensure_future(function())
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not future.done():
                future.cancel()
                # Cancel again, because a driver may mistake the first cancellation for a network
                # error.
                await asyncio.wait([future], timeout=_CANCELLED_WITHIN)
        if not future.cancelled():
            future.exception()  # without this call asyncio would log the exception
        raise
