"""The two drivers: PyMongo's asyncio client, and Motor, with what differs between them.

MongoDB has deprecated Motor in favour of PyMongo's own client. No other module knows which of the
two a ledger has.
"""

import inspect
from typing import Any

from pymongo import WriteConcern

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
