"""PyMongo's own client, whose operations a cancelled caller leaves to their end.

AnyIO cancels a task again and again until it has left its scope. PyMongo's client does not
survive that everywhere: `asyncio.wait_for` of Python 3.11 gives up a condition that has yet to
take its lock back, which is never released then, so that the client stands still for ever; and a
connect that is cancelled leaves its socket to the garbage collector. Motor's operations, which
run in threads, go on when their caller is cancelled. So do these, each in a task of its own, which
is a tenth of what an operation costs.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self

import anyio

#: Where PyMongo's asyncio classes are, which are loaded by those alone who use them.
_ASYNCHRONOUS = ("pymongo.asynchronous.", "gridfs.asynchronous.")


class Shielded:
    """An object of PyMongo's client; its coroutines are shielded, as are its objects'."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, name: str) -> Any:
        return shielded(self.inner[name])

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return partial(_call, found) if inspect.ismethod(found) else shielded(found)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        # A task for each document would cost more than to read it. A cancelled caller waits for
        # one reply at most.
        with anyio.CancelScope(shield=True):
            return await anext(self.inner)


def shielded(found: Any) -> Any:
    """Return an object of PyMongo's client with its operations shielded, anything else as it is."""
    return Shielded(found) if type(found).__module__.startswith(_ASYNCHRONOUS) else found


def _call(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    returned = method(*args, **options)
    return _to_its_end(returned) if inspect.iscoroutine(returned) else shielded(returned)


async def _to_its_end(operation: Coroutine[Any, Any, Any]) -> Any:
    running = asyncio.ensure_future(operation)
    try:
        return shielded(await asyncio.shield(running))
    except asyncio.CancelledError:
        running.add_done_callback(unseen)
        raise


def unseen(ended: "asyncio.Future[Any]") -> None:
    """Read the error of a task whose result is not awaited: Python would log it otherwise."""
    if not ended.cancelled():
        ended.exception()
