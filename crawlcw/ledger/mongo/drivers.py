"""The two drivers: Motor, and PyMongo's asyncio client with a shield against cancellation.

MongoDB has deprecated Motor in favour of PyMongo's own client. No other module knows which of the
two drivers a ledger uses.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self

import anyio
from pymongo import WriteConcern

#: Prefixes of the modules with PyMongo's asyncio classes.
_ASYNCHRONOUS = ("pymongo.asynchronous.", "gridfs.asynchronous.")


class Shielded:
    """Wraps an object of PyMongo's client, and shields its coroutines from cancellation."""

    def __init__(self, driver_object: Any) -> None:
        self.driver_object = driver_object

    def __getitem__(self, name: str) -> Any:
        return shielded(self.driver_object[name])

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.driver_object, name)
        return partial(_call, attribute) if inspect.ismethod(attribute) else shielded(attribute)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        # Shield the read by a `CancelScope`, because a new asyncio task would take longer than the
        # read. A cancelled caller waits for one reply at most.
        with anyio.CancelScope(shield=True):
            return await anext(self.driver_object)


def shielded(driver_object: Any) -> Any:
    """Wrap an object of PyMongo's client in `Shielded`; return any other object unchanged."""
    return (
        Shielded(driver_object)
        if type(driver_object).__module__.startswith(_ASYNCHRONOUS)
        else driver_object
    )


def _call(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    result = method(*args, **options)
    return _to_its_end(result) if inspect.iscoroutine(result) else shielded(result)


async def _to_its_end(operation: Coroutine[Any, Any, Any]) -> Any:
    future = asyncio.ensure_future(operation)
    try:
        return shielded(await asyncio.shield(future))
    except asyncio.CancelledError:
        future.add_done_callback(read_error)
        raise


def read_error(future: "asyncio.Future[Any]") -> None:
    """Read the error of an asyncio task that no one awaits, so that Python does not log it."""
    if not future.cancelled():
        future.exception()


def client_class(driver: str) -> Any:
    """Import the chosen driver, and return the class of its client."""
    if driver == "pymongo":
        from pymongo import AsyncMongoClient

        return AsyncMongoClient
    from motor.motor_asyncio import AsyncIOMotorClient

    return AsyncIOMotorClient


async def awaited(returned: Any) -> Any:
    """Return the result of a method that is a coroutine in PyMongo, but not in Motor."""
    return await returned if inspect.isawaitable(returned) else returned


def bucket(database: Any, name: str, write_concern: WriteConcern) -> Any:
    """Return a GridFS bucket; import GridFS here, because only large values need it."""
    from gridfs.asynchronous import AsyncGridFSBucket

    if isinstance(database, Shielded):
        return shielded(
            AsyncGridFSBucket(database.driver_object, name, write_concern=write_concern)
        )
    from motor.motor_asyncio import AsyncIOMotorGridFSBucket

    return AsyncIOMotorGridFSBucket(database, name, write_concern=write_concern)
