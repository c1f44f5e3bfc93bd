"""Notify workers by a change stream of the server when a task is added or made due.

Change streams need a replica set, and PyMongo's own client, because Motor cannot be cancelled while
it waits. An event names no task; it only tells the consumer to poll again.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import anyio
import pymongo
from pymongo.errors import OperationFailure

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.mongo.connection import mapped, sentence
from crawlcw.ledger.mongo.drivers import Shielded, read_error
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.model.task import WAITING

#: Seconds that a request waits at the server for the next change.
_MAX_AWAIT = 5.0
_REPLY_WITHIN = 10.0
#: Seconds that a cancelled caller waits for a stream that is being opened.
_OPEN_WITHIN = 1.0
#: Error code of a server that is not a member of a replica set.
_NO_STREAMS = 40573
_CHANGED = "updateDescription.updatedFields"
_PIPELINE: list[dict[str, Any]] = [
    {
        "$match": {
            "$or": [
                {"operationType": "insert"},
                {f"{_CHANGED}.status": {"$in": [int(status) for status in WAITING]}},
                {f"{_CHANGED}.woken": {"$exists": True}},
            ]
        }
    },
    {"$project": {"_id": 1}},
]


class Changes:
    """Watches the collection of the tasks for changes."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def watch(self) -> AsyncGenerator[None, None]:
        """Yield when the change stream is open, and then after each event of the stream."""
        database = self._store.database
        if not isinstance(database, Shielded):
            # Do not use Motor's change stream, because Motor's waiting thread cannot be cancelled.
            yield
            return
        with mapped():
            coroutine = database.driver_object[self._store.name].watch(
                _PIPELINE, max_await_time_ms=round(_MAX_AWAIT * 1000)
            )
            try:
                stream = await _opened(coroutine)
            except OperationFailure as error:
                if error.code != _NO_STREAMS:
                    raise
                yield
                return
            async with stream:
                yield
                while True:
                    if await _has_change(stream):
                        yield


async def _opened(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Open the stream; if the caller is cancelled, wait a moment for the stream, and close it."""
    # Shield the call, because a PyMongo call that is cancelled while it connects loses the socket.
    future = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            try:
                await asyncio.wait([future], timeout=_OPEN_WITHIN)
            finally:
                future.add_done_callback(read_error)
                if not future.done():
                    future.cancel()
                elif not future.cancelled() and future.exception() is None:
                    await future.result().close()
        raise


async def _has_change(stream: Any) -> bool:
    """Wait some seconds for a change of the tasks; return whether the server reported a change."""
    try:
        with pymongo.timeout(_MAX_AWAIT + _REPLY_WITHIN):
            change = await stream.try_next()
    except OperationFailure as error:
        # The stream was open, so an error of the server means that the stream has ended.
        raise LedgerUnavailableError(sentence(error)) from error
    if change is None and not stream.alive:
        raise LedgerUnavailableError("the change stream has ended")
    return change is not None
