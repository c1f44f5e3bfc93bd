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

#: The keys of an index, and the filter of the documents that the index contains.
Index = tuple[list[tuple[str, int]], dict[str, Any]]
Indexes = Mapping[str, Index]  #: by name
#: Upper bound of priorities. Queries use it as a bound so that the server uses `due` as a range of
#: the index. Otherwise the server would also read every deferred task.
ANY_PRIORITY = 1_000
#: A time before any time in a ledger; a filter with this lower bound reads only an index.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
HAS_DUE = {"due": {"$exists": True}}

BY_HOST = "host_priority_due"
BY_PRIORITY = "priority_due"
#: The index orders tasks with equal times by id, so that `find` can continue after a cursor.
BY_STATUS = "status_update_time_id"
BY_REVISIT = "revisit"
#: Filter of tasks that may be visited again, which are finished or ignored tasks.
MAY_BE_REVISITED = {"status": {"$gte": int(Status.FINISHED)}}
#: A claim does not change the following indexes. These indexes do not contain the status, or
#: contain only tasks that are done or have failed.
BY_HOST_NAME = "host"
BY_CALLBACK = "callback_depth"
DONE_BY_HOST = "done_host_status"
DONE_BY_CALLBACK = "done_callback_status_depth"
BY_RESPONSE_STATUS = "done_response_status"
BY_REASON = "reason_status"
FAILED_BY_HOST = "failed_host_callback_status"
#: Filter of failed tasks, and condition of their index.
HAS_FAILED = {"status": int(Status.FAILED)}
#: Filter of done tasks, and condition of their indexes.
IS_DONE = MAY_BE_REVISITED
#: Filters of finished tasks, and of finished tasks that are redirects.
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
    # The index has the status, so that the server need not read the tasks to get the status.
    FAILED_BY_HOST: ([("host", 1), ("callback", 1), ("status", 1)], HAS_FAILED),
}

BY_READY = "ready_at"
BY_OWNER = "owner"
HOST_INDEXES: Indexes = {
    BY_READY: ([("ready_at", 1)], {"ready_at": {"$exists": True}}),
    # The index of owners has only leased hosts, so that `leave` does not read all free hosts.
    BY_OWNER: ([("owner", 1)], {"owner": {"$gt": ""}}),
}

BY_TASK = "task"
ITEM_INDEXES: Indexes = {BY_TASK: ([("_id.task", 1)], {})}
ITEM_KEY_INDEXES: Indexes = {BY_TASK: ([("task", 1)], {})}
BLOB_INDEXES: Indexes = {BY_TASK: ([("metadata.task", 1)], {})}

BY_LEFT = "left_at"
WORKER_INDEXES: Indexes = {
    BY_LEFT: ([("left_at", 1), ("_id", 1)], {}),
}
_DURABLE = WriteConcern(w="majority", j=True)
#: Claims use this write concern: if a failover undoes a claim, the only effect is a second fetch.
_QUICK = WriteConcern(w=1)
#: The collection that notes the kind and the version of the other collections.
SCHEMA = "crawlcw.schema"
#: The server's error code BadValue. A count gets this error only if the index is missing.
_NO_SUCH_INDEX = 2
#: Maximum number of documents in one reply of the server.
_IN_REPLY = 2_000
#: Maximum number of documents that one command changes or deletes.
BATCH = 5_000


class MongoStore:
    """Gives access to the collections of one spider or use case in a MongoDB database."""

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
        """Use a database object of either driver; call `Schema.prepare` before a crawl.

        *claims* is `each` (one `find_one_and_update` claims one task) or `batch`. A reconnect uses
        *url* and *driver*. *kind* is the kind of the tasks, by default `SPIDER`.
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
        # with two owners. Durable writes of hosts are cheap, because one write covers many hosts.
        self.hosts = collection(".hosts")
        self.workers = collection(".workers")
        # The counts of a minute are not durable, because a later write soon replaces lost counts.
        self.rates = Table(collection(".rates", _QUICK), key=RATE_KEY)
        self.items = collection(".items")
        self.sessions = Table(collection(".sessions"))
        self.state = Table(collection(".state"))
        self.item_keys = Table(collection(".item_keys"))
        self.blob_files, self.blob_chunks = collection(".blobs.files"), collection(".blobs.chunks")
        self.schema = database.get_collection(SCHEMA, write_concern=_DURABLE)
        self.marker = Table(self.schema)
        self.ledger_tables: LedgerTables  #: tables of the ledger, which `MongoLedger` sets
        self.clock = LedgerClock()
        self.now: Callable[[], datetime] = clock or self.clock.now
        self.own_clock = clock is None
        self.clock_checked = 0.0
        self.claims_in_batches = claims == "batch"
        self._tokens = 0

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.reading`."""
        return await work(self.ledger_tables, *args, **kwargs)

    writing = reading  #: MongoDB uses no transaction; see `port.Store.writing`

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
        """Return a new lease token, which differs from all other tokens of the worker."""
        self._tokens += 1
        return f"{worker}:{self._tokens}"

    def wake_field(self, now: datetime) -> documents.Document:
        """Return the fields to add to a write that makes tasks due but records no outcome."""
        # By this field the module `changes`, which watches tracked tasks, distinguishes the write
        # from a renewal.
        return {"woken": now} if self.kind.tracked else {}

    async def aggregate(
        self,
        pipeline: list[dict[str, Any]],
        *,
        hint: str | Mapping[str, int] = BY_STATUS,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Return the results of an aggregation of the tasks; *limit* must exceed their number."""
        with mapped():
            cursor = await awaited(self.tasks.aggregate(pipeline, hint=hint, batchSize=limit))
            groups: list[dict[str, Any]] = await cursor.to_list(None)
        return groups

    async def count(self, where: dict[str, Any], *, hint: str, limit: int = MAX_LIMIT) -> int:
        """Return the number of matching tasks, at most *limit*."""
        command = {"count": self.name, "query": where, "hint": hint, "limit": limit}
        with mapped():
            try:
                reply = await self.database.command(command)
            except OperationFailure as error:
                if error.code != _NO_SUCH_INDEX or limit != 1:
                    raise
                # The ledger has no tasks, because another process has created the collection but no
                # indexes yet.
                return 0
        number: int = reply["n"]
        return number

    def bucket(self) -> Any:
        """Return the GridFS bucket of the blobs."""
        return bucket(self.database, f"{self.name}.blobs", self.blob_files.write_concern)

    def parts(self) -> list[tuple[Any, Indexes]]:
        """Return each collection with the indexes that it needs; the tasks' collection is last."""
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
            (self.item_keys.collection, ITEM_KEY_INDEXES),
            (self.durable, INDEXES),
        ]

    async def drop(self) -> None:
        """See `port.Store.drop`.

        `drop` deletes the tasks last, so that no data remains without a task.
        """
        with mapped():
            for collection, _ in self.parts():
                await collection.drop()
            await self.schema.delete_one({"_id": self.name})

    async def close(self) -> None:
        """Close the client if this store has opened the client."""
        if self.client is not None:
            await close_client(self.client)


async def all_of(cursor: Any, limit: int) -> list[dict[str, Any]]:
    """Return all documents of a cursor, of which the server sends at most *limit* in one reply."""
    # By default a reply has only 101 documents. Add one to *limit*, because after a full reply the
    # driver would send a further command.
    reply: list[dict[str, Any]] = await cursor.batch_size(limit + 1).to_list(None)
    return reply


async def read_batch(
    collection: Any,
    fields: Mapping[str, Any] | None,
    *,
    last_id: Any = None,
    wanted_ids: Collection[Any] | None = None,
) -> tuple[list[dict[str, Any]], Any]:
    """Return the documents of one server reply (at most 16 MiB), and the id of the last document.

    The documents are the first ones after *last_id*, which may have any type. The returned id is
    None if no documents follow. With *wanted_ids*, all documents with these ids are returned.
    """
    chosen: dict[str, Any] = {} if wanted_ids is None else {"_id": {"$in": list(wanted_ids)}}
    if last_id is not None:
        chosen = {"_id": {"$ne": last_id}}
    cursor = collection.find(chosen, fields).sort([("_id", 1)]).hint("_id_")
    if wanted_ids is None:
        # With a negative limit the server closes the cursor after its first reply.
        cursor = cursor.limit(-_IN_REPLY)
    if last_id is not None:
        # Use `min`, because `$gt` would skip ids of other types than the last id.
        cursor = cursor.min([("_id", last_id)])
    with mapped():
        batch = await all_of(cursor, _IN_REPLY)
    return batch, batch[-1]["_id"] if batch and wanted_ids is None else None
