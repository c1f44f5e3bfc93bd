"""What every operation stands on: the collections, the server's time, and ways to read much."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pymongo
from pymongo import WriteConcern

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.indexes import BY_STATUS
from crawlcw.model.clock import LedgerClock
from crawlcw.model.task import Task

_T = TypeVar("_T")
_DURABLE = WriteConcern(w="majority", j=True)
#: A claim that is lost in a failover is a repeated fetch; it needs no journal.
_QUICK = WriteConcern(w=1)
#: The collection that says which kind and version the others are.
SCHEMA = "crawlcw.schema"
_LAST_ANSWER = 1.0
_ITEM_BATCH = 200
_RESUMES = 5
#: How many tasks are given up, hosts woken, or workers forgotten, by one command.
BATCH = 5_000


class MongoStore:
    """The collections of one spider or use case in a MongoDB database."""

    def __init__(
        self,
        database: Any,
        spider: str,
        *,
        claims: str = "each",
        clock: Callable[[], datetime] | None = None,
        client: Any = None,
        url: str | None = None,
        tracked: bool = False,
    ) -> None:
        """Take a database of any of the two clients; call `prepare` before use.

        *claims* is `each` (a `find_one_and_update` for every task) or `batch`;
        *url* is where the database is, for another client; *tracked* says that
        the tasks are those of a use case.
        """
        self.tracked = tracked
        #: Whether it is yet to be said what this is.
        self._only_looks = False
        self._database = database
        self._client = client
        self._url = url
        self._driver = "motor"
        self._spider = spider
        self._tasks = database.get_collection(spider, write_concern=_QUICK)
        self._durable = database.get_collection(spider, write_concern=_DURABLE)
        # Durable, all of it: a lease that a failover took back would leave a
        # host with two owners. One write is for many hosts.
        self._hosts = database.get_collection(f"{spider}.hosts", write_concern=_DURABLE)
        self._workers = database.get_collection(f"{spider}.workers", write_concern=_DURABLE)
        self._items = database.get_collection(f"{spider}.items", write_concern=_DURABLE)
        self._bucket_name = f"{spider}.asides"
        self._blob_files, self._blob_chunks = (
            database.get_collection(f"{self._bucket_name}.{part}", write_concern=_DURABLE)
            for part in ("files", "chunks")
        )
        self._schema = database.get_collection(SCHEMA, write_concern=_DURABLE)
        self._clock = LedgerClock()
        self._now = clock or self._clock.now
        self._own_clock = clock is None
        self._clock_checked = 0.0
        self._batches = claims == "batch"
        self._claims = 0
        #: Claims whose reply was lost, by id and token: they may or may not be ours.
        self._unsure: dict[bytes, dict[str, Task]] = {}
        #: Likewise the hosts: host -> token.
        self._unsure_hosts: dict[str, str] = {}
        #: Hosts of tasks that were admitted, and that may not have been woken yet.
        self._admitted_hosts: set[str] = set()
        #: Tasks that may have been deleted without what belongs to them.
        self._half_purged: set[bytes] = set()

    def now(self) -> datetime:
        """Return the server's time as this process knows it."""
        return self._now()

    async def _set_clock(self) -> None:
        asked = self._clock.monotonic()
        hello = await self._database.command("hello")
        answered = self._clock.monotonic()
        # `command` answers without a time zone, whatever the client was told.
        local = hello["localTime"].replace(tzinfo=UTC)
        self._clock.set(local, asked=asked, answered=answered)
        self._clock_checked = answered

    def _token(self, worker: str) -> str:
        self._claims += 1
        return f"{worker}:{self._claims}"

    def _woken(self, now: datetime) -> documents.Document:
        """Return what a write sets besides that makes tasks due and is no outcome."""
        # `changes` sees by it that this was no renewal. A spider's ledger is not watched.
        return {"woken": now} if self.tracked else {}

    async def _aggregate(
        self, pipeline: list[dict[str, Any]], *, hint: str = BY_STATUS, most: int = 1000
    ) -> list[dict[str, Any]]:
        # As a command, because the two clients' `aggregate` methods differ; every
        # result here has fewer groups than fit into one batch, *most*.
        with mapped():
            answer = await self._database.command(
                {
                    "aggregate": self._spider,
                    "pipeline": pipeline,
                    "hint": hint,
                    "cursor": {"batchSize": most},
                }
            )
        groups: list[dict[str, Any]] = answer["cursor"]["firstBatch"]
        return groups

    async def _stream(
        self,
        collection: Any,
        chosen: documents.Document,
        fields: Mapping[str, Any] | None,
        read: Callable[[Mapping[str, Any]], Awaitable[Sequence[_T]]],
    ) -> AsyncGenerator[_T, None]:
        """Stream by `_id` what *read* makes of each document, and go on where the cursor breaks."""
        behind: documents.Document = {}
        resumes = 0
        while True:
            cursor = collection.find(chosen | behind, fields)
            cursor = cursor.sort([("_id", 1)]).hint("_id_").batch_size(_ITEM_BATCH)
            try:
                with mapped():
                    async for found in cursor:
                        for row in await read(found):
                            yield row
                        behind, resumes = {"_id": {"$gt": found["_id"]}}, 0
            except LedgerUnavailableError:
                resumes += 1
                if resumes > _RESUMES:
                    raise
                continue
            return

    async def close(self) -> None:
        """Close the client, if this ledger opened it."""
        if self._client is not None:
            # The driver says goodbye to the server, and would wait for ever for a
            # frozen one: `timeoutMS` does not count here.
            with pymongo.timeout(_LAST_ANSWER):
                closing = self._client.close()
                # PyMongo's close is a coroutine, Motor's is not.
                if inspect.isawaitable(closing):
                    await closing


async def all_of(cursor: Any, most: int) -> list[dict[str, Any]]:
    """Return everything a cursor has, at most *most* documents, in one reply."""
    # The server's first reply is of 101 documents if it is not told, and one
    # that is just full does not say whether there are more.
    found: list[dict[str, Any]] = await cursor.batch_size(most + 1).to_list(None)
    return found
