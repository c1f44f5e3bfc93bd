"""MongoDB collections and indexes of a ledger, the server's time, and helpers for large reads."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo.connection import close_client, mapped
from crawlcw.ledger.mongo.drivers import awaited, bucket, shielded
from crawlcw.ledger.mongo.table import Table
from crawlcw.ledger.port import MAX_LIMIT, RATE_KEY, LedgerTables, P, T, Work
from crawlcw.model.clock import LedgerClock
from crawlcw.model.task import Status

#: Keys of an index, and the condition of a document in it.
Index = tuple[list[tuple[str, int]], dict[str, Any]]
Indexes = Mapping[str, Index]  #: by name
#: An upper bound of priorities: without a bound on the index's first field, the server does not use
#: the second field as a range, and also reads every deferred task.
ANY_PRIORITY = 1_000
#: Earlier than any time in a ledger; as a bound it lets the server use an index alone.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
HAS_DUE = {"due": {"$exists": True}}

BY_HOST = "host_priority_due"
BY_PRIORITY = "priority_due"
#: Equal times are ordered by id, because `find` continues after a cursor.
BY_STATUS = "status_update_time_id"
BY_REVISIT = "revisit"
#: Tasks that may be visited again: finished or ignored, but not tasks that are `todo` again.
MAY_BE_REVISITED = {"status": {"$gte": int(Status.FINISHED)}}
#: A claim changes none of the indexes below: they do not depend on a status, or have only tasks
#: that are done, or that failed.
BY_HOST_NAME = "host"
BY_CALLBACK = "callback_depth"
DONE_BY_HOST = "done_host_status"
DONE_BY_CALLBACK = "done_callback_status_depth"
BY_RESPONSE_STATUS = "done_response_status"
BY_REASON = "reason_status"
FAILED_BY_HOST = "failed_host_callback_status"
#: Filter of failed tasks that wait; equal to the condition of their index.
HAS_FAILED = {"status": int(Status.FAILED)}
#: Filter of done tasks; equal to the condition of their indexes.
IS_DONE = MAY_BE_REVISITED
#: Filter of finished tasks, and of the redirects among them.
_IS_FINISHED = {"status": int(Status.FINISHED)}
IS_REDIRECT = {"reason": str(Reason.REDIRECT), **_IS_FINISHED}
INDEXES: Indexes = {
    BY_HOST: ([("host", 1), ("priority", -1), ("due", 1)], HAS_DUE),
    BY_PRIORITY: ([("priority", -1), ("due", 1)], HAS_DUE),
    BY_STATUS: ([("status", 1), ("update_time", -1), ("_id", -1)], {}),
    BY_REVISIT: ([("revisit", 1)], {"revisit": {"$exists": True}, **MAY_BE_REVISITED}),
    BY_HOST_NAME: ([("host", 1)], {}),
    BY_CALLBACK: ([("callback", 1), ("depth", 1)], {}),
    DONE_BY_HOST: ([("host", 1), ("status", 1)], IS_DONE),
    DONE_BY_CALLBACK: ([("callback", 1), ("status", 1), ("depth", 1)], IS_DONE),
    BY_RESPONSE_STATUS: ([("response.status", 1), ("status", 1)], IS_DONE),
    BY_REASON: ([("reason", 1), ("status", 1)], {"reason": {"$exists": True}}),
    # The last field is the status: otherwise the server would read the tasks to get their status.
    FAILED_BY_HOST: ([("host", 1), ("callback", 1), ("status", 1)], HAS_FAILED),
}

BY_READY = "ready_at"
BY_OWNER = "owner"
HOST_INDEXES: Indexes = {
    BY_READY: ([("ready_at", 1)], {"ready_at": {"$exists": True}}),
    # This index has only leased hosts, because `leave` must not read all free hosts.
    BY_OWNER: ([("owner", 1)], {"owner": {"$gt": ""}}),
}

BY_TASK = "task"
ITEM_INDEXES: Indexes = {BY_TASK: ([("_id.task", 1)], {})}
BLOB_INDEXES: Indexes = {BY_TASK: ([("metadata.task", 1)], {})}

BY_LEFT = "left_at"
WORKER_INDEXES: Indexes = {
    BY_LEFT: ([("left_at", 1), ("_id", 1)], {}),
}
_DURABLE = WriteConcern(w="majority", j=True)
#: Claims are not durable, because a claim that a failover undoes only repeats a fetch.
_QUICK = WriteConcern(w=1)
#: The collection that notes the kind and the version of the other collections.
SCHEMA = "crawlcw.schema"
#: The server's BadValue, which nothing else in a search for a task can raise.
_NO_SUCH_INDEX = 2
#: Number of documents in a reply of the server.
_IN_REPLY = 2_000
#: Number of tasks given up, hosts woken, or workers deleted by one command.
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
        kind: LedgerKind | None = None,
    ) -> None:
        """Use a database of either client; see `Schema.prepare`.

        *claims* is `each` (a `find_one_and_update` for every task) or `batch`. *url* and *driver*
        serve to open another connection. *kind* is the kind of the tasks; None: a spider's.
        """
        self.kind = kind or LedgerKind.SPIDER
        self.database = database = shielded(database)
        self.client = shielded(client)
        self.url = url
        self.driver = driver
        self.name = spider

        def collection(name: str, concern: WriteConcern = _DURABLE) -> Any:
            return database.get_collection(f"{spider}{name}", write_concern=concern)

        self.tasks, self.durable = collection("", _QUICK), collection("")
        # All writes of hosts are durable, because a failover that undoes a lease would leave a host
        # with two owners. One write covers many hosts.
        self.hosts = collection(".hosts")
        self.workers = collection(".workers")
        # Points are not durable, because the next point replaces a point that a failover undoes.
        self.rates = Table(collection(".rates", _QUICK), key=RATE_KEY)
        self.items = collection(".items")
        self.sessions = Table(collection(".sessions"))
        self.state = Table(collection(".state"))
        self.blob_files, self.blob_chunks = collection(".blobs.files"), collection(".blobs.chunks")
        self.schema = database.get_collection(SCHEMA, write_concern=_DURABLE)
        self.marker = Table(self.schema)
        self.ledger_tables: LedgerTables  #: set when the ledger is assembled
        self.clock = LedgerClock()
        self.now: Callable[[], datetime] = clock or self.clock.now
        self.own_clock = clock is None
        self.clock_checked = 0.0
        self.claims_in_batches = claims == "batch"
        self._tokens = 0

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.reading`."""
        return await work(self.ledger_tables, *args, **kwargs)

    writing = reading  #: see `port.Store.writing`: MongoDB uses no transaction

    async def set_clock(self) -> None:
        """Read the server's time."""
        asked_at = self.clock.monotonic()
        hello = await self.database.command("hello")
        answered_at = self.clock.monotonic()
        # `command` always returns naive times.
        local = hello["localTime"].replace(tzinfo=UTC)
        self.clock.set(local, asked_at=asked_at, answered_at=answered_at)
        self.clock_checked = answered_at

    def token(self, worker: str) -> str:
        """Return a token that no other lease of the worker has."""
        self._tokens += 1
        return f"{worker}:{self._tokens}"

    def wake_field(self, now: datetime) -> documents.Document:
        """Return the further fields of a write, other than an outcome, that makes tasks due."""
        # These fields let `changes` distinguish such a write from a renewal. It watches only
        # tracked tasks.
        return {"woken": now} if self.kind.tracked else {}

    async def aggregate(
        self,
        pipeline: list[dict[str, Any]],
        *,
        hint: str | Mapping[str, int] = BY_STATUS,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Return the results of a pipeline over the tasks, fewer than *limit*."""
        with mapped():
            cursor = await awaited(self.tasks.aggregate(pipeline, hint=hint, batchSize=limit))
            groups: list[dict[str, Any]] = await cursor.to_list(None)
        return groups

    async def count(self, where: dict[str, Any], *, hint: str, limit: int = MAX_LIMIT) -> int:
        """Return how many tasks match; it counts at most *limit*."""
        command = {"count": self.name, "query": where, "hint": hint, "limit": limit}
        with mapped():
            try:
                reply = await self.database.command(command)
            except OperationFailure as error:
                if error.code != _NO_SUCH_INDEX or limit != 1:
                    raise
                # Another process is creating the collection, and then its indexes. A ledger with
                # tasks has its indexes when it is opened.
                return 0
        number: int = reply["n"]
        return number

    def bucket(self) -> Any:
        """Return the GridFS bucket of the blobs."""
        return bucket(self.database, f"{self.name}.blobs", self.blob_files.write_concern)

    def parts(self) -> list[tuple[Any, Indexes]]:
        """Return the collections, each with the indexes that it needs; the tasks come last."""
        blob_collections: list[tuple[Any, Indexes]] = [
            (self.blob_chunks, {}),
            (self.blob_files, BLOB_INDEXES),
        ]
        return [
            (self.items, ITEM_INDEXES),
            *(blob_collections if self.kind.tracked else ()),
            (self.hosts, HOST_INDEXES),
            (self.workers, WORKER_INDEXES),
            (self.rates.collection, {}),
            (self.sessions.collection, {}),
            (self.state.collection, {}),
            (self.durable, INDEXES),
        ]

    async def drop(self) -> None:
        """See `port.Store.drop`.

        It deletes the tasks last, so that no data remains without its task.
        """
        with mapped():
            for collection, _ in self.parts():
                await collection.drop()
            await self.schema.delete_one({"_id": self.name})

    async def close(self) -> None:
        """Close the client, if this ledger opened it."""
        if self.client is not None:
            await close_client(self.client)


async def all_of(cursor: Any, limit: int) -> list[dict[str, Any]]:
    """Return all documents of a cursor, at most *limit*, in one reply."""
    # Set the reply's size: by default the server's first reply has only 101 documents, and a reply
    # that is exactly full does not say whether more follow.
    reply: list[dict[str, Any]] = await cursor.batch_size(limit + 1).to_list(None)
    return reply


async def read_batch(
    collection: Any,
    fields: Mapping[str, Any] | None,
    *,
    last_id: Any = None,
    wanted_ids: Collection[Any] | None = None,
) -> tuple[list[dict[str, Any]], Any]:
    """Return the documents of one server reply (at most 16 MiB), and the last document's id.

    They are the first documents after an id of any type. The returned id is None if there are no
    more. With *wanted_ids*, it returns all documents of these ids.
    """
    chosen: dict[str, Any] = {} if wanted_ids is None else {"_id": {"$in": list(wanted_ids)}}
    if last_id is not None:
        chosen = {"_id": {"$ne": last_id}}
    cursor = collection.find(chosen, fields).sort([("_id", 1)]).hint("_id_")
    if wanted_ids is None:
        # With a negative limit the server closes the cursor after its first reply.
        cursor = cursor.limit(-_IN_REPLY)
    if last_id is not None:
        # Unlike `$gt`, it continues with ids of other types.
        cursor = cursor.min([("_id", last_id)])
    with mapped():
        batch = await all_of(cursor, _IN_REPLY)
    return batch, batch[-1]["_id"] if batch and wanted_ids is None else None
