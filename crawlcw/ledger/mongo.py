"""The ledger on MongoDB, for any number of processes and machines.

One collection for each spider, named after it, plus `<spider>.workers` and
`<spider>.items` (only items over 1 MiB). Written against what Motor and
PyMongo's own `AsyncMongoClient` share; this is the only module that knows them.

Only classic update operators are used: in an update *pipeline* a crawled text
that begins with `$` would be evaluated by the server.
"""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import bson
import pymongo
from bson.errors import BSONError
from pymongo import UpdateOne, WriteConcern
from pymongo.errors import (
    BulkWriteError,
    CollectionInvalid,
    ConfigurationError,
    ConnectionFailure,
    CursorNotFound,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WTimeoutError,
)

from crawlcw import transitions
from crawlcw.clock import LedgerClock
from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerError,
    LedgerUnavailableError,
    Reason,
)
from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Added, Claimed, Committed, Counts, ItemRow, Selection, Worker
from crawlcw.task import Lease, Record, Status, Task
from crawlcw.transitions import Change, Settlement

SCHEMA_VERSION = 1
OLDEST_SERVER = (5, 0)
#: An upper bound of priorities: without a bound on the index's first field the
#: second one is not used as a range, and every deferred task is read as well.
_ANY_PRIORITY = 1_000
_DURABLE = WriteConcern(w="majority", j=True)
#: A claim that is lost in a failover is a repeated fetch; it needs no journal.
_QUICK = WriteConcern(w=1)
_ITEM_ASIDE = 1 << 20
_ITEMS_INSIDE = 8 << 20
_LARGEST_ITEM = 15 << 20
_CLOCK_CHECK = 60.0
_FIRST_ANSWER = 5.0
_LAST_ANSWER = 1.0
_ITEM_BATCH = 200
_RESETS_AT_ONCE = 5_000
_RESUMES = 5

_BY_HOST = "host_priority_due"
_BY_PRIORITY = "priority_due"
_BY_STATUS = "status_update_time"
_HAS_DUE = {"due": {"$exists": True}}
_INDEXES: dict[str, tuple[list[tuple[str, int]], dict[str, Any]]] = {
    _BY_HOST: ([("host", 1), ("priority", -1), ("due", 1)], _HAS_DUE),
    _BY_PRIORITY: ([("priority", -1), ("due", 1)], _HAS_DUE),
    _BY_STATUS: ([("status", 1), ("update_time", -1)], {}),
}
#: The server itself refuses any other status.
_VALIDATOR = {
    "$jsonSchema": {"properties": {"status": {"enum": [int(status) for status in Status]}}}
}
#: What raises when a value cannot be encoded: bson's errors, and Python's own.
_UNENCODABLE = (BSONError, DocumentTooLarge, OverflowError, UnicodeError, ValueError, TypeError)
_ACCESS_CODES = {13, 18, 8000}


class MongoLedger:
    """The tasks of one spider in a MongoDB database. Fulfils `Ledger`."""

    def __init__(
        self,
        database: Any,
        spider: str,
        *,
        claims: str = "each",
        clock: Callable[[], datetime] | None = None,
        client: Any = None,
    ) -> None:
        """Take a database of any of the two clients; call `prepare` before use.

        *claims* is `each` (a `find_one_and_update` for every task) or `batch`.
        """
        self._database = database
        self._client = client
        self._spider = spider
        self._tasks = database.get_collection(spider, write_concern=_QUICK)
        self._durable = database.get_collection(spider, write_concern=_DURABLE)
        self._workers = database.get_collection(f"{spider}.workers", write_concern=_DURABLE)
        self._items = database.get_collection(f"{spider}.items", write_concern=_DURABLE)
        self._clock = LedgerClock()
        self._now = clock or self._clock.now
        self._own_clock = clock is None
        self._clock_checked = 0.0
        self._batches = claims == "batch"
        self._claims = 0
        #: Claims whose reply was lost, by task id: they may or may not be ours.
        self._unsure: dict[bytes, tuple[str, Task]] = {}

    @classmethod
    async def open(
        cls,
        url: str,
        spider: str,
        *,
        driver: str = "motor",
        claims: str = "each",
        clock: Callable[[], datetime] | None = None,
    ) -> Self:
        """Connect to *url* and prepare the spider's collections.

        The database is the URL's path, by default `crawlcw`; *driver* is
        `motor` or `pymongo`, *claims* as for the constructor. Raises
        `LedgerUnavailableError` where no server answers within 5 s, and
        `LedgerConfigurationError` where one answers that will not do.
        """
        try:
            with _mapped():
                client = _client(url, driver)
                database = client.get_default_database(default="crawlcw")
        except ValueError as error:
            raise LedgerConfigurationError(f"the ledger's URL will not do: {error}") from None
        ledger = cls(database, spider, claims=claims, clock=clock, client=client)
        try:
            await ledger._check_server()
            await ledger.prepare()
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def prepare(self) -> None:
        """Create the collection and its indexes where they are missing, and check what is there."""
        with _mapped():
            await self._check_schema()
            try:
                await self._database.create_collection(self._spider, validator=_VALIDATOR)
            except CollectionInvalid:
                pass  # it is there already, which is the usual case
            except OperationFailure as error:
                if error.code != 48:  # NamespaceExists: another process was faster
                    raise
            for name, (keys, partial) in _INDEXES.items():
                await self._create_index(name, keys, partial)
            await self._check_indexes()

    async def _create_index(
        self, name: str, keys: list[tuple[str, int]], partial: dict[str, Any]
    ) -> None:
        options = {"partialFilterExpression": partial} if partial else {}
        try:
            await self._tasks.create_index(keys, name=name, **options)
        except OperationFailure as error:
            if error.code not in (85, 86):  # IndexOptionsConflict, IndexKeySpecsConflict
                raise
            raise self._wrong_index(name) from None

    async def _check_indexes(self) -> None:
        found = await self._tasks.index_information()
        for name, (keys, partial) in _INDEXES.items():
            index = found.get(name, {})
            there = [(field, int(direction)) for field, direction in index.get("key", [])]
            if there != keys or dict(index.get("partialFilterExpression", {})) != partial:
                raise self._wrong_index(name)

    def _wrong_index(self, name: str) -> LedgerConfigurationError:
        return LedgerConfigurationError(
            f"index {name} of collection {self._spider} is not as crawlcw makes it: "
            f"drop it (db[{self._spider!r}].dropIndex({name!r})) and start again"
        )

    async def _check_schema(self) -> None:
        marker = await self._database["crawlcw.schema"].find_one_and_update(
            {"_id": self._spider},
            {"$setOnInsert": {"version": SCHEMA_VERSION}},
            upsert=True,
            return_document=True,
        )
        if marker["version"] != SCHEMA_VERSION:
            raise LedgerConfigurationError(
                f"the ledger of {self._spider} has schema version {marker['version']!r}, and this "
                f"crawlcw knows version {SCHEMA_VERSION}: use the crawlcw that wrote it, or "
                "another database"
            )

    async def _check_server(self) -> None:
        # A retry inside the driver would double what it takes to say that nobody is there.
        with _mapped(), pymongo.timeout(_FIRST_ANSWER):
            info = await self._client.server_info()
            await self._set_clock()
        version = tuple(info["versionArray"][:2])
        if version < OLDEST_SERVER:
            needed = ".".join(map(str, OLDEST_SERVER))
            raise LedgerConfigurationError(
                f"the server is MongoDB {info['version']}, and {needed} or later is needed"
            )

    async def _set_clock(self) -> None:
        asked = self._clock.monotonic()
        hello = await self._database.command("hello")
        answered = self._clock.monotonic()
        # `command` answers without a time zone, whatever the client was told.
        local = hello["localTime"].replace(tzinfo=UTC)
        self._clock.set(local, asked=asked, answered=answered)
        self._clock_checked = answered

    def now(self) -> datetime:
        """Return the server's time as this process knows it."""
        return self._now()

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add tasks by unordered upserts that only insert."""
        if not tasks:
            return Added()
        writes = [_insertion(task) for task in tasks]
        with _mapped():
            try:
                return await self._add(writes)
            except _UNENCODABLE:
                # The driver encodes a batch as a whole; find out which it was.
                bad = [_encoding_error(document) for _, document in writes]
                sound = [write for write, error in zip(writes, bad, strict=True) if not error]
                added = await self._add(sound) if sound else Added()
                rejected = tuple(
                    (task, error) for task, error in zip(tasks, bad, strict=True) if error
                )
                return replace(added, rejected=added.rejected + rejected)

    async def _add(self, writes: Sequence[tuple[UpdateOne, documents.Document]]) -> Added:
        try:
            result = await self._durable.bulk_write([w for w, _ in writes], ordered=False)
        except BulkWriteError as error:
            return _partly_added(error, writes)
        return Added(new=result.upserted_count, known=len(writes) - result.upserted_count)

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """Return due tasks by one index range, in the index's order."""
        due: dict[str, Any] = {"priority": {"$lte": _ANY_PRIORITY}, "due": {"$lte": self.now()}}
        hint = _BY_PRIORITY
        if hosts is not None:
            due = {"host": {"$in": list(hosts)}, **due}
            hint = _BY_HOST
        with _mapped():
            cursor = self._tasks.find(due, dict.fromkeys(_RESULTS, 0))
            # Without a batch size the server answers 101 and waits to be asked for the rest.
            cursor = cursor.sort([("priority", -1), ("due", 1)]).hint(hint)
            cursor = cursor.limit(limit).batch_size(limit)
            return [documents.task(found) for found in await cursor.to_list(limit)]

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """Claim the tasks, one by one or in batches as the ledger was opened."""
        adopted = await self._resolve_unsure()
        together = [t for t in tasks if self._batches and t.status is not Status.PROCESSING]
        # A task to take over is claimed alone: each has its own count of losses.
        alone = [t for t in tasks if not self._batches or t.status is Status.PROCESSING]
        answers: list[Lease | Status | None] = await asyncio.gather(
            *(self._claim_one(t, self._token(worker), lease, max_lost) for t in alone)
        )
        answers += await self._claim_together(together, self._token(worker), lease)
        return Claimed(
            leases=(*adopted, *(answer for answer in answers if isinstance(answer, Lease))),
            missed=sum(answer is None for answer in answers),
            abandoned=sum(answer is Status.IGNORED for answer in answers),
        )

    def _token(self, worker: str) -> str:
        self._claims += 1
        return f"{worker}:{self._claims}"

    async def _claim_one(
        self, task: Task, token: str, lease: timedelta, max_lost: int
    ) -> Lease | Status | None:
        """Claim one task: its lease, or IGNORED where it is given up, or None for a miss."""
        now = self.now()
        change = transitions.claim(task, token=token, now=now, lease=lease, max_lost=max_lost)
        if change is None:
            return None
        # The fence makes the decision exact: nobody has claimed it since it was read.
        guard = {
            "_id": task.id,
            "status": int(task.status),
            "fence": task.fence,
            "due": {"$lte": now},
        }
        try:
            with _mapped():
                found = await self._tasks.find_one_and_update(
                    guard, _claim(change), projection={"_id": 1}, hint="_id_"
                )
        except LedgerUnavailableError:
            self._unsure[task.id] = (token, task)
            return None
        if found is None:
            return None
        if change.due is None:
            return change.status
        return Lease(task=task, token=token, fence=change.fence, expires=change.due)

    async def _claim_together(
        self, tasks: Sequence[Task], token: str, lease: timedelta
    ) -> list[Lease | None]:
        """Claim many tasks in two round trips: one update by ids, then a read of which we got."""
        if not tasks:
            return []
        now = self.now()
        guard = {
            "_id": {"$in": [task.id for task in tasks]},
            "status": {"$in": sorted({int(task.status) for task in tasks})},
            "due": {"$lte": now},
        }
        taken = {
            "status": int(Status.PROCESSING),
            "due": now + lease,
            "update_time": now,
            "lock": token,
            "lock_time": now,
        }
        claims = {task.id: (token, task) for task in tasks}
        try:
            with _mapped():
                await self._tasks.update_many(
                    guard, {"$set": taken, "$inc": {"fence": 1}}, hint="_id_"
                )
                got = {lease.task.id: lease for lease in await self._held(claims)}
        except LedgerUnavailableError:
            self._unsure |= claims
            return [None] * len(tasks)
        return [got.get(task.id) for task in tasks]

    async def _resolve_unsure(self) -> list[Lease]:
        """Return the leases of claims whose reply was lost, where they did reach the server."""
        if not self._unsure:
            return []
        with _mapped():
            leases = await self._held(self._unsure)
        self._unsure = {}
        return leases

    async def _held(self, claims: Mapping[bytes, tuple[str, Task]]) -> list[Lease]:
        """Return the leases which the ledger shows for the claims (id -> token and task before)."""
        wanted = {"_id": {"$in": list(claims)}, "status": int(Status.PROCESSING)}
        cursor = self._tasks.find(wanted, dict.fromkeys(_MUTABLE, 1)).hint("_id_")
        cursor = cursor.batch_size(len(claims) + 1)
        leases = []
        for found in await cursor.to_list(None):
            token, task = claims[bytes(found["_id"])]
            if found["lock"] == token:
                leases.append(_lease_read(task, found))
        return leases

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """Move the leases' ends by one update; read only where some were not matched."""
        with _mapped():
            if self._own_clock and self._clock.monotonic() - self._clock_checked > _CLOCK_CHECK:
                await self._set_clock()
            if not leases:
                return set()
            ids = [held.task.id for held in leases]
            mine = {
                "_id": {"$in": ids},
                "lock": {"$in": list({held.token for held in leases})},
                "status": int(Status.PROCESSING),
            }
            result = await self._tasks.update_many(
                mine, {"$set": {"due": self.now() + lease}}, hint="_id_"
            )
            if result.matched_count == len(leases):
                return set()
            cursor = self._tasks.find(mine, {"fence": 1}).hint("_id_")
            fences = {bytes(found["_id"]): found["fence"] for found in await cursor.to_list(None)}
        return {held.task.id for held in leases if fences.get(held.task.id) != held.fence}

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """Write all outcomes in one unordered bulk of fenced updates."""
        if not settlements:
            return Committed()
        rejected: list[tuple[Lease, str]] = []
        with _mapped():
            writes = [await self._outcome_write(s, rejected) for s in settlements]
            try:
                matched = await self._write(writes)
            except _UNENCODABLE:
                # The driver encodes a bulk as a whole; find out which it was.
                writes = [
                    _storable(*each, rejected) for each in zip(settlements, writes, strict=True)
                ]
                matched = await self._write(writes)
            except BulkWriteError as error:
                refused = _refused(error)
                again = [_rejection(settlements[n], text, rejected) for n, text in refused.items()]
                matched = (error.details or {}).get("nMatched", 0) + await self._write(again)
            if matched == len(writes):
                return Committed(rejected=tuple(rejected))
            lost = await self._not_settled([settlement.lease for settlement in settlements])
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    async def _write(self, writes: Sequence[UpdateOne]) -> int:
        if not writes:
            return 0
        result = await self._durable.bulk_write(writes, ordered=False)
        matched: int = result.matched_count
        return matched

    async def _not_settled(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases whose outcome is not the last one recorded for the task."""
        ids = [lease.task.id for lease in leases]
        cursor = self._tasks.find({"_id": {"$in": ids}}, {"settled": 1}).hint("_id_")
        settled = {bytes(found["_id"]): found["settled"] for found in await cursor.to_list(None)}
        return [lease for lease in leases if settled.get(lease.task.id) != lease.fence]

    async def _outcome_write(
        self, settlement: Settlement, rejected: list[tuple[Lease, str]]
    ) -> UpdateOne:
        """Return the fenced update that records an outcome.

        Large items are written to their own collection first; the fence makes
        them visible when the update is applied.
        """
        update = _outcome(settlement.change)
        items = settlement.change.items
        if not items:
            if items is not None and settlement.lease.task.settled:
                # An earlier outcome may have left some.
                update.setdefault("$unset", {})["items"] = ""
            return UpdateOne(_mine(settlement.lease), update, hint="_id_")
        inside = 0
        kept: list[documents.Document | None] = []
        for number, item in enumerate(items):
            stored = documents.escaped(item)
            try:
                size = len(bson.encode(stored))
            except _UNENCODABLE as error:
                return _rejection(settlement, str(error), rejected)
            if size > _LARGEST_ITEM:
                return _rejection(settlement, f"an item of {size} bytes, too large", rejected)
            if size > _ITEM_ASIDE or inside + size > _ITEMS_INSIDE:
                await self._set_aside(settlement.lease, number, stored)
                kept.append(None)
            else:
                inside += size
                kept.append(stored)
        update["$set"]["items"] = kept
        return UpdateOne(_mine(settlement.lease), update, hint="_id_")

    async def _set_aside(self, lease: Lease, number: int, item: documents.Document) -> None:
        place = {"task": lease.task.id, "fence": lease.fence, "n": number}
        await self._items.replace_one({"_id": place}, {"item": item}, upsert=True)

    async def release(self, leases: Sequence[Lease]) -> int:
        """Write all releases in one unordered bulk of fenced updates."""
        if not leases:
            return 0
        now = self.now()
        with _mapped():
            changes = [transitions.release(lease, now=now).change for lease in leases]
            return await self._write(
                [
                    UpdateOne(_mine(lease), _update(change), hint="_id_")
                    for lease, change in zip(leases, changes, strict=True)
                ]
            )

    async def retry_failed(self, selection: Selection, *, dry_run: bool = False) -> int:
        """Reset the chosen failures a few thousand at a time, within the time limit of each."""
        now = self.now()
        total = 0
        for chosen in _failures(selection, until=now):
            with _mapped():
                if dry_run:
                    total += await self._tasks.count_documents(chosen, hint=_BY_STATUS)
                else:
                    total += await self._reset(chosen, now)
        return total

    async def _reset(self, chosen: dict[str, Any], now: datetime) -> int:
        reset = {
            "$set": {
                "status": int(Status.TODO),
                "retry": 0,
                "lost": 0,
                "due": now,
                "update_time": now,
            },
            "$unset": {"reason": ""},
        }
        total = 0
        while True:
            cursor = self._tasks.find(chosen, {"_id": 1}).hint(_BY_STATUS)
            cursor = cursor.limit(_RESETS_AT_ONCE).batch_size(_RESETS_AT_ONCE)
            ids = [found["_id"] for found in await cursor.to_list(None)]
            if not ids:
                return total
            result = await self._durable.update_many(
                {"_id": {"$in": ids}, **chosen}, reset, hint="_id_"
            )
            total += result.modified_count

    async def horizon(self) -> datetime | None:
        """Seek the earliest `due` of each priority there is; there are few."""
        earliest: datetime | None = None
        below = _ANY_PRIORITY
        while True:
            with _mapped():
                cursor = self._tasks.find(
                    {"priority": {"$lt": below}, **_HAS_DUE}, {"_id": 0, "priority": 1, "due": 1}
                )
                cursor = cursor.sort([("priority", -1), ("due", 1)]).limit(1).hint(_BY_PRIORITY)
                found = await cursor.to_list(1)
            if not found:
                return earliest
            due, below = found[0]["due"], found[0]["priority"]
            earliest = due if earliest is None else min(due, earliest)

    async def counts(self) -> Counts:
        """Count by the status index alone."""
        groups = await self._aggregate(
            [
                {"$match": {"status": {"$gte": 0}}},
                {"$group": {"_id": "$status", "n": {"$sum": 1}}},
            ],
        )
        return Counts(by_status={Status(group["_id"]): group["n"] for group in groups})

    async def item_count(self) -> int:
        """Sum the items of every task that has some."""
        groups = await self._aggregate(
            [
                {"$match": {"status": {"$gte": int(Status.FINISHED)}, "items": {"$exists": True}}},
                {"$group": {"_id": None, "n": {"$sum": {"$size": "$items"}}}},
            ],
        )
        return int(groups[0]["n"]) if groups else 0

    async def reasons(self) -> dict[str, int]:
        """Count failed and ignored tasks by reason."""
        groups = await self._aggregate(
            [
                {"$match": {"status": {"$in": [int(Status.FAILED), int(Status.IGNORED)]}}},
                {"$group": {"_id": "$reason", "n": {"$sum": 1}}},
                {"$sort": {"n": -1, "_id": 1}},
            ],
        )
        return {str(group["_id"]): group["n"] for group in groups}

    async def _aggregate(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # As a command, because the two clients' `aggregate` methods differ; every
        # result here has fewer groups than fit into one batch.
        with _mapped():
            answer = await self._database.command(
                {
                    "aggregate": self._spider,
                    "pipeline": pipeline,
                    "hint": _BY_STATUS,
                    "cursor": {"batchSize": 1000},
                }
            )
        groups: list[dict[str, Any]] = answer["cursor"]["firstBatch"]
        return groups

    async def items(self) -> AsyncIterator[ItemRow]:
        """Stream by `_id`, and go on behind the last one where the cursor breaks."""
        last: bytes | None = None
        resumes = 0
        while True:
            chosen: dict[str, Any] = {"items": {"$exists": True}}
            if last is not None:
                chosen["_id"] = {"$gt": last}
            cursor = self._tasks.find(chosen, dict.fromkeys(_ITEM_FIELDS, 1))
            cursor = cursor.sort([("_id", 1)]).hint("_id_").batch_size(_ITEM_BATCH)
            try:
                with _mapped():
                    async for found in cursor:
                        for row in await self._rows(found):
                            yield row
                        last, resumes = bytes(found["_id"]), 0
            except LedgerUnavailableError:
                resumes += 1
                if resumes > _RESUMES:
                    raise
                continue
            return

    async def _rows(self, found: Mapping[str, Any]) -> list[ItemRow]:
        response = found.get("response") or {}
        url = response.get("final_url") or found["url"]
        return [
            ItemRow(item=item, url=url, fetched_at=found["update_time"])
            for item in await self._whole_items(found)
        ]

    async def _whole_items(self, found: Mapping[str, Any]) -> list[dict[str, Any]]:
        items = []
        for number, item in enumerate(found.get("items") or ()):
            if item is None:
                place = {"task": found["_id"], "fence": found["settled"], "n": number}
                aside = await self._items.find_one({"_id": place})
                items.append(documents.unescaped(aside["item"]))
            else:
                items.append(documents.unescaped(item))
        return items

    async def get(self, task_id: bytes) -> Record | None:
        """Read one whole document."""
        with _mapped():
            found = await self._tasks.find_one({"_id": task_id})
            if found is None:
                return None
            found["items"] = [documents.escaped(item) for item in await self._whole_items(found)]
        return documents.record(found)

    async def join(self, worker: Worker) -> None:
        """Write the worker's document."""
        document = {
            "machine": worker.machine,
            "pid": worker.pid,
            "birth": worker.birth,
            "started": worker.started,
        }
        with _mapped():
            await self._workers.replace_one({"_id": worker.name}, document, upsert=True)

    async def workers(self) -> list[Worker]:
        """Read the workers' documents."""
        with _mapped():
            found = await self._workers.find({}).to_list(None)
        return [
            Worker(
                name=each["_id"],
                machine=each["machine"],
                pid=each["pid"],
                birth=each["birth"],
                started=each["started"],
            )
            for each in found
        ]

    async def leave(self, name: str) -> int:
        """End the leases first and forget the worker second: a crash in between repeats both."""
        held = {"status": int(Status.PROCESSING), "lock": {"$regex": f"^{re.escape(name)}:"}}
        with _mapped():
            ended = await self._durable.update_many(
                held, {"$set": {"due": self.now()}}, hint=_BY_STATUS
            )
            await self._workers.delete_one({"_id": name})
        count: int = ended.matched_count
        return count

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


#: What grows with a task's results; `page` leaves it out.
_RESULTS = ("errors", "response", "items")
_CLAIMED = ("status", "due", "update_time", "lock", "lock_time", "fence", "lost")
_MUTABLE = ("status", "due", "lock", "fence", "settled", "retry", "lost", "reason")
_ITEM_FIELDS = ("url", "items", "settled", "update_time", "response.final_url")


def _client(url: str, driver: str) -> Any:
    # Only the chosen driver is loaded.
    client: Any
    if driver == "pymongo":
        from pymongo import AsyncMongoClient

        client = AsyncMongoClient
    else:
        from motor.motor_asyncio import AsyncIOMotorClient

        client = AsyncIOMotorClient
    defaults: dict[str, Any] = {
        # The driver itself waits for ever for a server that is frozen.
        "timeoutMS": 10_000,
        "serverSelectionTimeoutMS": 5_000,
        # Every operation here may be sent again, and is, by whoever waits for
        # it; the driver's own way costs the server a second write for each claim.
        "retryWrites": False,
        "appname": "crawlcw",
    }
    given = url.partition("?")[2].lower()
    options = {key: value for key, value in defaults.items() if f"{key.lower()}=" not in given}
    return client(url, tz_aware=True, datetime_conversion="DATETIME_AUTO", **options)


def _insertion(task: Task) -> tuple[UpdateOne, documents.Document]:
    document = documents.document(task)
    identity = {"_id": document.pop("_id")}
    return UpdateOne(identity, {"$setOnInsert": document}, upsert=True), identity | document


def _encoding_error(document: documents.Document) -> str | None:
    try:
        size = len(bson.encode(document))
    except _UNENCODABLE as error:
        return str(error) or type(error).__name__
    return f"a document of {size} bytes, too large" if size > _LARGEST_ITEM else None


def _partly_added(
    error: BulkWriteError, writes: Sequence[tuple[UpdateOne, documents.Document]]
) -> Added:
    """Read what a bulk did that the server refused in part."""
    bad = _refused(error)
    new = (error.details or {}).get("nUpserted", 0)
    tasks = [
        (documents.task(document), bad[index])
        for index, (_, document) in enumerate(writes)
        if index in bad
    ]
    return Added(new=new, known=len(writes) - new - len(bad), rejected=tuple(tasks))


def _refused(error: BulkWriteError) -> dict[int, str]:
    """Return the writes of a bulk that the server refuses for what they are, and why."""
    details = error.details or {}
    if details.get("writeConcernErrors"):
        raise LedgerUnavailableError(_sentence(error)) from error
    # A duplicate key is a race between two upserts: the other one added it.
    return {
        e["index"]: str(e["errmsg"])[:500]
        for e in details.get("writeErrors", ())
        if e["code"] != 11000
    }


def _update(change: Change) -> dict[str, Any]:
    """Return what sets a task's fields: None means absent for `due` and `reason`."""
    fields = documents.changed(change)
    absent = {name: "" for name in ("due", "reason") if fields[name] is None}
    for name in absent:
        del fields[name]
    update: dict[str, Any] = {"$set": fields}
    if absent:
        update["$unset"] = absent
    if change.error is not None:
        errors = [documents.error_document(change.error)]
        update["$push"] = {"errors": {"$each": errors, "$slice": -transitions.KEPT_ERRORS}}
    return update


def _claim(change: Change) -> dict[str, Any]:
    """Return the update of a claim: only what it changes, since there are so many."""
    if change.error is not None:
        return _update(change)  # not claimed, but given up
    fields = documents.changed(change)
    return {"$set": {name: fields[name] for name in _CLAIMED}}


def _outcome(change: Change) -> dict[str, Any]:
    """Return the update of a commit, without the items."""
    update = _update(change)
    if change.response is not None:
        update["$set"]["response"] = documents.response_document(change.response)
    return update


def _mine(lease: Lease) -> dict[str, Any]:
    return {
        "_id": lease.task.id,
        "lock": lease.token,
        "fence": lease.fence,
        "status": int(Status.PROCESSING),
    }


def _lease_read(task: Task, found: Mapping[str, Any]) -> Lease:
    """Return the lease of a task that was claimed as the ledger shows it now."""
    before = replace(
        task,
        fence=found["fence"] - 1,
        settled=found["settled"],
        retry=found["retry"],
        reason=Reason(found["reason"]) if found.get("reason") else None,
    )
    if before.fence != task.fence:
        # It went through other hands between the page and the claim.
        status = Status.FAILED if before.retry else Status.TODO
        before = replace(before, status=status, lost=found["lost"], due=found["due"])
    return Lease(task=before, token=found["lock"], fence=found["fence"], expires=found["due"])


def _failures(selection: Selection, *, until: datetime) -> Iterator[dict[str, Any]]:
    """Yield a filter for each status whose tasks may be brought back."""
    for status in Status:
        reasons = [str(r) for r in Reason if transitions.retries(status, r)]
        if selection.reason is not None:
            reasons = [reason for reason in reasons if reason == selection.reason]
        if not reasons:
            continue
        # What fails again meanwhile is not brought back once more.
        failed_at = {"$lte": until}
        if selection.since is not None:
            failed_at["$gte"] = selection.since
        chosen: dict[str, Any] = {
            "status": int(status),
            "reason": {"$in": reasons},
            "update_time": failed_at,
        }
        if selection.host is not None:
            chosen["host"] = selection.host
        yield chosen


def _storable(
    settlement: Settlement, write: UpdateOne, rejected: list[tuple[Lease, str]]
) -> UpdateOne:
    error = _encoding_error({"update": _outcome(settlement.change)})
    return write if error is None else _rejection(settlement, error, rejected)


def _rejection(
    settlement: Settlement, message: str, rejected: list[tuple[Lease, str]]
) -> UpdateOne:
    """Return the write that gives a task up because its outcome cannot be stored."""
    rejected.append((settlement.lease, message))
    given_up = transitions.rejected(settlement, reason=Reason.STORE_REJECTED, message=message)
    return UpdateOne(_mine(settlement.lease), _outcome(given_up.change), hint="_id_")


@contextmanager
def _mapped() -> Iterator[None]:
    """Turn the drivers' errors into the ledger's, in this one place."""
    try:
        yield
    except (
        ConnectionFailure,
        ExecutionTimeout,
        WTimeoutError,
        WriteConcernError,
        CursorNotFound,
    ) as error:
        raise LedgerUnavailableError(_sentence(error)) from error
    except (ConfigurationError, InvalidURI) as error:
        raise LedgerConfigurationError(f"MongoDB: {_sentence(error)}") from error
    except BulkWriteError as error:
        raise LedgerUnavailableError(_sentence(error)) from error
    except OperationFailure as error:
        if error.code in _ACCESS_CODES:
            raise LedgerConfigurationError(
                f"MongoDB refuses access: {_sentence(error)}: check the user, the password and "
                "authSource in the ledger's URL"
            ) from error
        raise LedgerError(f"MongoDB: {_sentence(error)}") from error
    except DocumentTooLarge:
        raise
    except PyMongoError as error:
        raise LedgerError(f"MongoDB: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    # The drivers append a dump of the topology or of the whole reply.
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0]
    return text.partition(" (configured timeouts:")[0][:300]
