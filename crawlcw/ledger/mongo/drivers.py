"""The two drivers: PyMongo's asyncio client, and Motor, with what differs between them.

MongoDB has deprecated Motor in favour of PyMongo's own client. No other module knows which of the
two a ledger has.
"""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from pymongo import WriteConcern, periodic_executor

from crawlcw.ledger.mongo.shielded_client import Shielded, shielded


def client_class(driver: str) -> Any:
    """Return the class of a driver's client; only the chosen driver is loaded."""
    if driver == "pymongo":
        from pymongo import AsyncMongoClient

        return AsyncMongoClient
    from motor.motor_asyncio import AsyncIOMotorClient

    return AsyncIOMotorClient


async def awaited(returned: Any) -> Any:
    """Return the result of a method that is a coroutine of PyMongo, and none of Motor."""
    return await returned if inspect.isawaitable(returned) else returned


def bucket(database: Any, name: str, write_concern: WriteConcern) -> Any:
    """Return a GridFS bucket, whose modules are loaded for large values only."""
    from gridfs.asynchronous import AsyncGridFSBucket

    if isinstance(database, Shielded):
        return shielded(AsyncGridFSBucket(database.inner, name, write_concern=write_concern))
    from motor.motor_asyncio import AsyncIOMotorGridFSBucket

    return AsyncIOMotorGridFSBucket(database, name, write_concern=write_concern)


@asynccontextmanager
async def cancellable(
    database: Any, connect: Callable[[], tuple[Any, Any]] | None
) -> AsyncIterator[Any]:
    """Return the database by PyMongo's own client, not shielded; *connect* opens one for Motor."""
    if connect is None or isinstance(database, Shielded):
        yield database.inner if isinstance(database, Shielded) else database
        return
    # Motor's stream keeps a thread waiting, and nothing ends that before the server answers;
    # nor does Motor hand over many changes at once.
    client, database = connect()
    try:
        yield database
    finally:
        # The caller is cancelled in the end, and this is to be closed all the same.
        with anyio.CancelScope(shield=True):
            await client.close()


def let_go_of_stopped() -> None:
    """Let the process end while threads sleep that are told to stop: they are daemons.

    PyMongo's synchronous client, on which Motor's stands, looks after each server by threads that
    sleep for half a second at a time, and holds up the end of the process for them. Those of
    clients that are still open, the spider's own for one, are waited for as ever.
    """
    # There is no public way. Where a later PyMongo has other names, processes end later again.
    for reference in list(getattr(periodic_executor, "_EXECUTORS", ())):
        executor: Any = reference()
        if getattr(executor, "_stopped", False):
            executor.join = _at_once


def _at_once(timeout: float | None = None) -> None:  # as `join`
    """Wait for nothing."""
