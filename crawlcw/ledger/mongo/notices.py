"""Being told of tasks that are added or made due, by a change stream of the server.

Only a replica set has one. What a consumer is told is that it may look again,
and no more: so any number of changes are one notice.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.mongo.connection import mapped, sentence
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.task import Status

#: So long a question for changes waits at the server where there are none, in seconds.
_PATIENCE = 5.0
_ANSWER_WITHIN = _PATIENCE + 10.0
_LAST_ANSWER = 1.0
#: What a server says that is no replica set.
_NO_STREAMS = 40573
_CHANGED = "updateDescription.updatedFields"
_PIPELINE: list[dict[str, Any]] = [
    {
        "$match": {
            "$or": [
                {"operationType": "insert"},
                {f"{_CHANGED}.status": {"$in": [int(Status.TODO), int(Status.FAILED)]}},
                {f"{_CHANGED}.woken": {"$exists": True}},
            ]
        }
    },
    {"$project": {"_id": 1}},
]
_OPTIONS = {"max_await_time_ms": round(_PATIENCE * 1000)}


class Notices(MongoStore):
    """Watches the tasks' collection."""

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield when the stream is open, and then for what it tells."""
        # PyMongo's is a coroutine, Motor's is not.
        driven = inspect.iscoroutinefunction(self._tasks.watch)
        stream = self._watched() if driven else self._watched_by_thread()
        async with aclosing(stream):
            with mapped():
                async for notice in stream:
                    yield notice

    async def _watched(self) -> AsyncGenerator[None, None]:
        try:
            stream = await self._tasks.watch(_PIPELINE, **_OPTIONS)
        except OperationFailure as error:
            _refuse(error)
            yield
            return
        async with stream:
            yield
            while True:
                with _told(), pymongo.timeout(_ANSWER_WITHIN):
                    change = await stream.try_next()
                if change is not None:
                    yield
                elif not stream.alive:
                    raise LedgerUnavailableError("the change stream has ended")

    async def _watched_by_thread(self) -> AsyncGenerator[None, None]:
        """Watch in a thread of one's own: Motor would take one for every single change."""
        loop = asyncio.get_running_loop()
        news, over = asyncio.Event(), threading.Event()
        try:
            stream = await asyncio.to_thread(self._tasks.delegate.watch, _PIPELINE, **_OPTIONS)
        except OperationFailure as error:
            _refuse(error)
            yield
            return

        def watch() -> None:
            while not over.is_set():
                with _told(), pymongo.timeout(_ANSWER_WITHIN):
                    change = stream.try_next()
                if change is not None:
                    if not news.is_set():
                        loop.call_soon_threadsafe(news.set)
                elif not stream.alive:
                    raise LedgerUnavailableError("the change stream has ended")

        def close() -> None:
            # The server then answers what the thread is waiting for.
            with suppress(PyMongoError), pymongo.timeout(_LAST_ANSWER):
                stream.close()

        watching = loop.run_in_executor(None, watch)
        watching.add_done_callback(lambda _: news.set())
        try:
            yield
            while True:
                await news.wait()
                news.clear()
                if watching.done():
                    await watching
                yield
        finally:
            over.set()
            await asyncio.to_thread(close)
            with suppress(LedgerUnavailableError, PyMongoError):
                await watching
            # The thread may have opened it anew where the connection was lost.
            await asyncio.to_thread(close)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what the server refuses to a stream that was open into its end."""
    try:
        yield
    except OperationFailure as error:
        raise LedgerUnavailableError(sentence(error)) from error


def _refuse(error: OperationFailure) -> None:
    """Raise what went wrong, unless it is that the server tells nobody of changes."""
    if error.code != _NO_STREAMS:
        raise error
