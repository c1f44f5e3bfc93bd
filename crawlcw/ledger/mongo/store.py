"""What every operation stands on: the collections, the server's time, and ways to read much."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pymongo
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import driver_threads
from crawlcw.ledger.mongo.connection import bucket, mapped
from crawlcw.ledger.mongo.indexes import BY_STATUS
from crawlcw.ledger.mongo.shielding import shielded
from crawlcw.ledger.mongo.table import Table
from crawlcw.ledger.port import RATE_KEY, P, T, Unit, Work
from crawlcw.model.clock import LedgerClock

_DURABLE = WriteConcern(w="majority", j=True)
#: A claim that is lost in a failover is a repeated fetch; it needs no journal.
_QUICK = WriteConcern(w=1)
#: The collection that says which kind and version the others are.
SCHEMA = "crawlcw.schema"
_LAST_ANSWER = 1.0
#: The server's BadValue: nothing else in a look for a task can be one.
_NO_SUCH_INDEX = 2
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
        driver: str = "pymongo",
        kind: LedgerKind = LedgerKind.SPIDER,
    ) -> None:
        """Take a database of any of the two clients; see `Schema.prepare`.

        *claims* is `each` (a `find_one_and_update` for every task) or `batch`;
        *url* is where the database is and *driver* by which client, for another
        one; *kind* is what the tasks are.
        """
        self.kind = kind
        #: Whether it is yet to be said what this is.
        self.only_looks = False
        self.database = database = shielded(database)
        self.client = shielded(client)
        self.url = url
        self.driver = driver
        self.name = spider
        self.tasks = database.get_collection(spider, write_concern=_QUICK)
        self.durable = database.get_collection(spider, write_concern=_DURABLE)
        # Durable, all of it: a lease that a failover took back would leave a
        # host with two owners. One write is for many hosts.
        self.hosts = database.get_collection(f"{spider}.hosts", write_concern=_DURABLE)
        self.workers = database.get_collection(f"{spider}.workers", write_concern=_DURABLE)
        # Not durable: a point that a failover takes away is made up for by the next one.
        rates = database.get_collection(f"{spider}.rates", write_concern=_QUICK)
        self.rates = Table(rates, key=RATE_KEY)
        self.items = database.get_collection(f"{spider}.items", write_concern=_DURABLE)
        sessions = database.get_collection(f"{spider}.sessions", write_concern=_DURABLE)
        self.sessions = Table(sessions)
        state = database.get_collection(f"{spider}.state", write_concern=_DURABLE)
        self.state = Table(state)
        self.bucket_name = f"{spider}.asides"
        self.blob_files, self.blob_chunks = (
            database.get_collection(f"{self.bucket_name}.{part}", write_concern=_DURABLE)
            for part in ("files", "chunks")
        )
        self.schema = database.get_collection(SCHEMA, write_concern=_DURABLE)
        self.marker = Table(self.schema)
        self.unit: Unit  #: given when the ledger is put together
        self.clock = LedgerClock()
        self.now: Callable[[], datetime] = clock or self.clock.now
        self.own_clock = clock is None
        self.clock_checked = 0.0
        self.batches = claims == "batch"
        self._tokens = 0

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.reading`."""
        return await work(self.unit, *args, **kwargs)

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.writing`."""
        return await work(self.unit, *args, **kwargs)

    async def set_clock(self) -> None:
        """Ask the server for its time."""
        asked = self.clock.monotonic()
        hello = await self.database.command("hello")
        answered = self.clock.monotonic()
        # `command` answers without a time zone, whatever the client was told.
        local = hello["localTime"].replace(tzinfo=UTC)
        self.clock.set(local, asked=asked, answered=answered)
        self.clock_checked = answered

    def token(self, worker: str) -> str:
        """Return a token that no other lease of the worker has."""
        self._tokens += 1
        return f"{worker}:{self._tokens}"

    def woken(self, now: datetime) -> documents.Document:
        """Return what a write sets besides that makes tasks due and is no outcome."""
        # `changes` sees by it that this was no renewal. A spider's ledger is not watched.
        return {"woken": now} if self.kind.tracked else {}

    async def aggregate(
        self,
        pipeline: list[dict[str, Any]],
        *,
        hint: str | Mapping[str, int] = BY_STATUS,
        most: int = 1000,
    ) -> list[dict[str, Any]]:
        """Return the groups that a pipeline makes of the tasks, fewer than *most*."""
        with mapped():
            cursor = self.tasks.aggregate(pipeline, hint=hint, batchSize=most)
            # PyMongo's aggregate is a coroutine, Motor's is not.
            if inspect.isawaitable(cursor):
                cursor = await cursor
            groups: list[dict[str, Any]] = await cursor.to_list(None)
        return groups

    async def count(self, where: dict[str, Any], *, hint: str, most: int = 0, skip: int = 0) -> int:
        """Return how many tasks match behind the first *skip*, *most* at most; 0: however many."""
        command = {"count": self.name, "query": where, "hint": hint, "skip": skip}
        with mapped():
            try:
                answer = await self.database.command(
                    {**command, "limit": most} if most else command
                )
            except OperationFailure as error:
                if error.code != _NO_SUCH_INDEX or most != 1:
                    raise
                # Another process is making the collection, and its indexes come next: a ledger with
                # tasks has them when it is opened.
                return 0
        number: int = answer["n"]
        return number

    async def estimate(self) -> int:
        """Return about how many tasks there are: what the server wrote down, without counting."""
        with mapped():
            answer = await self.database.command({"count": self.name})
        number: int = answer["n"]
        return number

    async def stream(
        self,
        collection: Any,
        chosen: documents.Document,
        fields: Mapping[str, Any] | None,
        read: Callable[[Mapping[str, Any]], Awaitable[Sequence[T]]],
        *,
        at_once: int | None = None,
    ) -> AsyncGenerator[T, None]:
        """Stream by `_id` what *read* makes of each document, and go on where the cursor breaks.

        A reply of the server has *at_once* documents at most, and 16 MiB; None: 200.
        """
        behind: documents.Document = {}
        resumes = 0
        while True:
            cursor = collection.find(chosen | behind, fields)
            cursor = cursor.sort([("_id", 1)]).hint("_id_").batch_size(at_once or _ITEM_BATCH)
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

    def bucket(self) -> Any:
        """Return the GridFS bucket of the values that are set aside."""
        return bucket(self.database, self.bucket_name, self.blob_files.write_concern)

    async def drop(self) -> None:
        """See `port.Store.drop`.

        What belongs to the tasks goes before them: half of it must not be left behind.
        """
        with mapped():
            for collection in (
                self.items,
                self.blob_chunks,
                self.blob_files,
                self.hosts,
                self.workers,
                self.rates.collection,
                self.sessions.collection,
                self.state.collection,
                self.durable,
            ):
                await collection.drop()
            await self.schema.delete_one({"_id": self.name})

    async def close(self) -> None:
        """Close the client, if this ledger opened it."""
        if self.client is not None:
            # The driver says goodbye to the server, and would wait for ever for a
            # frozen one: `timeoutMS` does not count here.
            with pymongo.timeout(_LAST_ANSWER):
                closing = self.client.close()
                # PyMongo's close is a coroutine, Motor's is not.
                if inspect.isawaitable(closing):
                    await closing
            driver_threads.let_go_of_stopped()


async def all_of(cursor: Any, most: int) -> list[dict[str, Any]]:
    """Return everything a cursor has, at most *most* documents, in one reply."""
    # The server's first reply is of 101 documents if it is not told, and one
    # that is just full does not say whether there are more.
    found: list[dict[str, Any]] = await cursor.batch_size(most + 1).to_list(None)
    return found
