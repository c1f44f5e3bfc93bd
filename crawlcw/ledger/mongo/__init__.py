"""The ledger on MongoDB, for any number of processes and machines.

One collection for each spider, named after it, plus `<spider>.hosts`,
`<spider>.workers` and `<spider>.items` (only items over 1 MiB). Written against what Motor and
PyMongo's own `AsyncMongoClient` share; this is the only module that knows them.

Only classic update operators are used: in an update *pipeline* a crawled text
that begins with `$` would be evaluated by the server.
"""

import asyncio
import inspect
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

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
    DuplicateKeyError,
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
from crawlcw.hosts import Host, HostLease
from crawlcw.invariants import Kind, Violation
from crawlcw.ledger import documents
from crawlcw.ledger.examination import HOST_STATE, TASK_STATE, Health
from crawlcw.ledger.protocol import (
    Added,
    Claimed,
    Committed,
    Counts,
    ItemRow,
    Selection,
    Tally,
    Worker,
)
from crawlcw.task import Lease, Record, Status, Task
from crawlcw.transitions import Change, Settlement

_T = TypeVar("_T")

SCHEMA_VERSION = 2
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
#: How many tasks are given up, or hosts woken, by one command.
_BATCH = 5_000
#: How many tasks `host_counts` counts by one command: its groups fit into one reply.
_COUNTED = 20_000
#: How often `lease_hosts` looks again where others were faster.
_LEASE_ROUNDS = 3

_BY_HOST = "host_priority_due"
_BY_PRIORITY = "priority_due"
_BY_STATUS = "status_update_time"
_HAS_DUE = {"due": {"$exists": True}}
#: Name -> keys, and what a document must be to be in it.
_Indexes = Mapping[str, tuple[list[tuple[str, int]], dict[str, Any]]]
_INDEXES: _Indexes = {
    _BY_HOST: ([("host", 1), ("priority", -1), ("due", 1)], _HAS_DUE),
    _BY_PRIORITY: ([("priority", -1), ("due", 1)], _HAS_DUE),
    _BY_STATUS: ([("status", 1), ("update_time", -1)], {}),
}
_BY_READY = "ready_at"
_BY_OWNER = "owner"
_HOST_INDEXES: _Indexes = {
    _BY_READY: ([("ready_at", 1)], {"ready_at": {"$exists": True}}),
    # Only of the hosts that are held: `leave` must not read all the others.
    _BY_OWNER: ([("owner", 1)], {"owner": {"$gt": ""}}),
}
_BY_LEFT = "left"
_WORKER_INDEXES: _Indexes = {
    _BY_LEFT: ([("left", 1), ("_id", 1)], {}),
}
#: Earlier than any time in a ledger: as a bound it lets an index alone answer.
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
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
        # Durable, all of it: a lease that a failover took back would leave a
        # host with two owners. One write is for many hosts.
        self._hosts = database.get_collection(f"{spider}.hosts", write_concern=_DURABLE)
        self._workers = database.get_collection(f"{spider}.workers", write_concern=_DURABLE)
        self._items = database.get_collection(f"{spider}.items", write_concern=_DURABLE)
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
        client, database = _connected(url, driver)
        ledger = cls(database, spider, claims=claims, clock=clock, client=client)
        try:
            await ledger._check_server()
            await ledger.prepare()
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @classmethod
    async def look(
        cls,
        url: str,
        spider: str,
        *,
        driver: str = "motor",
        clock: Callable[[], datetime] | None = None,
    ) -> Self:
        """Connect to *url* to examine what is there; nothing is made.

        The arguments and errors are those of `open`, but that missing or wrong
        indexes are no error: `health` tells of them.
        """
        client, database = _connected(url, driver)
        ledger = cls(database, spider, clock=clock, client=client)
        try:
            await ledger._check_server()
            with _mapped():
                marker = await ledger._database["crawlcw.schema"].find_one({"_id": spider})
            if marker is not None:
                _check_version(marker, spider)
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
            for collection, indexes in self._indexes():
                for name, (keys, partial) in indexes.items():
                    await self._create_index(collection, name, keys, partial)
                await self._check_indexes(collection, indexes)

    def _indexes(self) -> list[tuple[Any, _Indexes]]:
        return [
            (self._tasks, _INDEXES),
            (self._hosts, _HOST_INDEXES),
            (self._workers, _WORKER_INDEXES),
        ]

    async def _create_index(
        self, collection: Any, name: str, keys: list[tuple[str, int]], partial: dict[str, Any]
    ) -> None:
        options = {"partialFilterExpression": partial} if partial else {}
        try:
            await collection.create_index(keys, name=name, **options)
        except OperationFailure as error:
            if error.code not in (85, 86):  # IndexOptionsConflict, IndexKeySpecsConflict
                raise
            raise _wrong_index(collection.name, name) from None

    async def _check_indexes(self, collection: Any, indexes: _Indexes) -> None:
        found = await collection.index_information()
        for name, design in indexes.items():
            if not _is_as_designed(found.get(name, {}), design):
                raise _wrong_index(collection.name, name)

    async def _check_schema(self) -> None:
        marker = await self._database["crawlcw.schema"].find_one_and_update(
            {"_id": self._spider},
            {"$setOnInsert": {"version": SCHEMA_VERSION}},
            upsert=True,
            return_document=True,
        )
        _check_version(marker, self._spider)

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

    async def _check_clock(self, lease: timedelta) -> None:
        """Measure the server's time again where it is some time ago."""
        # What a bad clock gains or loses between two looks must be small against a
        # lease, or a short one seems to have run out while its holder renews it.
        every = min(_CLOCK_CHECK, lease.total_seconds() / 2)
        if self._own_clock and self._clock.monotonic() - self._clock_checked > every:
            await self._set_clock()

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
        if limit < 1:
            return []  # to the server, no limit
        due: dict[str, Any] = {"priority": {"$lte": _ANY_PRIORITY}, "due": {"$lte": self.now()}}
        hint = _BY_PRIORITY
        if hosts is not None:
            due = {"host": {"$in": list(hosts)}, **due}
            hint = _BY_HOST
        with _mapped():
            cursor = self._tasks.find(due, dict.fromkeys(_RESULTS, 0))
            cursor = cursor.sort([("priority", -1), ("due", 1)]).limit(limit).hint(hint)
            return [documents.task(found) for found in await _all(cursor, limit)]

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """Claim the tasks, one by one or in batches as the ledger was opened.

        Where a reply is lost, this raises, and the same call sent again finds out
        what became of all its claims.
        """
        adopted = await self._resolve_unsure(tasks, lease=lease)
        ours = {each.task.id for each in adopted}
        tasks = [task for task in tasks if task.id not in ours]
        together = [t for t in tasks if self._batches and t.status is not Status.PROCESSING]
        # A task to take over is claimed alone: each has its own count of losses.
        alone = [t for t in tasks if not self._batches or t.status is Status.PROCESSING]
        answers: list[Lease | Status | LedgerUnavailableError | None] = await asyncio.gather(
            *(self._claim_one(t, self._token(worker), lease, max_lost) for t in alone)
        )
        answers += await self._claim_together(together, self._token(worker), lease)
        leases = (*adopted, *(answer for answer in answers if isinstance(answer, Lease)))
        for answer in answers:
            if isinstance(answer, LedgerUnavailableError):
                for each in leases:
                    self._doubt(each.task, each.token)
                raise answer
        return Claimed(
            leases=leases,
            missed=sum(answer is None for answer in answers),
            abandoned=sum(answer is Status.IGNORED for answer in answers),
        )

    def _token(self, worker: str) -> str:
        self._claims += 1
        return f"{worker}:{self._claims}"

    async def _claim_one(
        self, task: Task, token: str, lease: timedelta, max_lost: int
    ) -> Lease | Status | LedgerUnavailableError | None:
        """Claim one task: its lease, or IGNORED where it is given up, or None for a miss.

        Returns the error where the answer is lost: other claims are under way beside it.
        """
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
        # To give a task up is an outcome: after it a crawl may be at its end, and
        # nobody is left to repeat what a failover took back.
        collection = self._tasks if change.due is not None else self._durable
        try:
            with _mapped():
                found = await collection.find_one_and_update(
                    guard, _claim(change), projection={"_id": 1}, hint="_id_"
                )
        except LedgerUnavailableError as error:
            self._doubt(task, token)
            return error
        if found is None:
            return None
        if change.due is None:
            return change.status
        return Lease(task=task, token=token, fence=change.fence, expires=change.due)

    async def _claim_together(
        self, tasks: Sequence[Task], token: str, lease: timedelta
    ) -> Sequence[Lease | LedgerUnavailableError | None]:
        """Claim many tasks in two round trips: one update by ids, then a read of which we got."""
        if not tasks:
            return []
        now = self.now()
        alike: dict[tuple[int, int], list[bytes]] = {}
        for task in tasks:
            alike.setdefault((int(task.status), task.fence), []).append(task.id)
        guard = {
            "_id": {"$in": [task.id for task in tasks]},
            "due": {"$lte": now},
            # Each as it was read: a claim that was delayed on its way must not
            # take a task that has been leased and released since.
            "$or": [
                {"status": status, "fence": fence, "_id": {"$in": ids}}
                for (status, fence), ids in alike.items()
            ],
        }
        taken = {
            "status": int(Status.PROCESSING),
            "due": now + lease,
            "update_time": now,
            "lock": token,
            "lock_time": now,
        }
        claims = {task.id: {token: task} for task in tasks}
        try:
            with _mapped():
                await self._tasks.update_many(
                    guard, {"$set": taken, "$inc": {"fence": 1}}, hint="_id_"
                )
                got = {lease.task.id: lease for lease in await self._held(claims)}
        except LedgerUnavailableError as error:
            for task in tasks:
                self._doubt(task, token)
            return [error]
        return [got.get(task.id) for task in tasks]

    def _doubt(self, task: Task, token: str) -> None:
        # Two may claim a task at once, and either of them may have got it.
        self._unsure.setdefault(task.id, {})[token] = task

    async def _resolve_unsure(self, tasks: Sequence[Task], *, lease: timedelta) -> list[Lease]:
        """Return the leases of earlier claims of *tasks* that did reach the server.

        Each is returned to one of those who ask at once, and goes on: it may have
        run out while the ledger was away, and would cost the task a `lost`.
        """
        unsure = {task.id: self._unsure.pop(task.id) for task in tasks if task.id in self._unsure}
        if not unsure:
            return []
        try:
            with _mapped():
                await self._tasks.update_many(
                    _locked(unsure, (token for tokens in unsure.values() for token in tokens)),
                    {"$max": {"due": self.now() + lease}},
                    hint="_id_",
                )
                return await self._held(unsure)
        except BaseException:
            # Whoever comes next is to look.
            for tokens in unsure.values():
                for token, task in tokens.items():
                    self._doubt(task, token)
            raise

    async def _held(self, claims: Mapping[bytes, Mapping[str, Task]]) -> list[Lease]:
        """Return the leases which the ledger shows for the claims (id -> token -> task before)."""
        wanted = {"_id": {"$in": list(claims)}, "status": int(Status.PROCESSING)}
        cursor = self._tasks.find(wanted, dict.fromkeys(_HELD, 1)).hint("_id_")
        leases = []
        for found in await _all(cursor, len(claims)):
            token = found["lock"]
            if task := claims[bytes(found["_id"])].get(token):
                leases.append(
                    Lease(task=task, token=token, fence=found["fence"], expires=found["due"])
                )
        return leases

    async def begin(self, lease: Lease) -> bool:
        """See `Ledger.begin`."""
        with _mapped():
            result = await self._tasks.update_one(
                _mine(lease), {"$set": {"begun": lease.fence}}, hint="_id_"
            )
        return bool(result.matched_count)

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """Move the leases' ends by one update; read only where some were not matched."""
        with _mapped():
            await self._check_clock(lease)
            if not leases:
                return set()
            mine = _locked((held.task.id for held in leases), (held.token for held in leases))
            # One that was delayed on its way must not shorten what a later one has lengthened.
            result = await self._tasks.update_many(
                mine, {"$max": {"due": self.now() + lease}}, hint="_id_"
            )
            if result.matched_count == len(leases):
                return set()
            cursor = self._tasks.find(mine, {"fence": 1}).hint("_id_")
            fences = {bytes(each["_id"]): each["fence"] for each in await _all(cursor, len(leases))}
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
        settled = {bytes(each["_id"]): each["settled"] for each in await _all(cursor, len(ids))}
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
        if not dry_run:
            await self.wake_all_hosts()
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

    async def _aggregate(
        self, pipeline: list[dict[str, Any]], *, hint: str = _BY_STATUS, most: int = 1000
    ) -> list[dict[str, Any]]:
        # As a command, because the two clients' `aggregate` methods differ; every
        # result here has fewer groups than fit into one batch, *most*.
        with _mapped():
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

    async def items(self) -> AsyncIterator[ItemRow]:
        """Stream the tasks that have items."""
        chosen = {"items": {"$exists": True}}
        stream = self._stream(self._tasks, chosen, dict.fromkeys(_ITEM_FIELDS, 1), self._rows)
        async with aclosing(stream):
            async for row in stream:
                yield row

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
                with _mapped():
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

    async def lease_hosts(self, *, worker: str, limit: int, lease: timedelta) -> list[HostLease]:
        """Lease many hosts in three round trips: look, compare and set, read which we got."""
        if adopted := await self._resolve_unsure_hosts():
            return adopted
        token = self._token(worker)
        now = self.now()
        taken = {"$set": {"owner": token, "ready_at": now + lease}, "$inc": {"epoch": 1}}
        tried: list[str] = []
        missing = limit
        try:
            with _mapped():
                for _ in range(_LEASE_ROUNDS):
                    names = await self._ready_hosts(now, missing)
                    if not names:
                        break
                    tried += names
                    ready = {"_id": {"$in": names}, "ready_at": {"$lte": now}}
                    result = await self._hosts.update_many(ready, taken, hint="_id_")
                    missing -= result.matched_count
                    if result.matched_count == len(names):
                        break
                    # Somebody else was faster with the rest; behind it there may be more.
                return await self._owned(dict.fromkeys(tried, token)) if missing < limit else []
        except LedgerUnavailableError:
            # They may be ours without our knowing, and would stand still for a lease.
            self._unsure_hosts |= dict.fromkeys(tried, token)
            raise

    async def _ready_hosts(self, now: datetime, limit: int) -> list[str]:
        if limit < 1:
            return []  # to the server, no limit
        cursor = self._hosts.find({"ready_at": {"$lte": now}}, {"_id": 1})
        cursor = cursor.sort([("ready_at", 1)]).limit(limit).hint(_BY_READY)
        return [found["_id"] for found in await _all(cursor, limit)]

    async def _resolve_unsure_hosts(self) -> list[HostLease]:
        """Return the leases whose reply was lost, where they did reach the server."""
        if not self._unsure_hosts:
            return []
        now = self.now()
        with _mapped():
            leases = await self._owned(self._unsure_hosts)
        self._unsure_hosts = {}
        # What has run out meanwhile is ready, and is leased like any other.
        return [lease for lease in leases if lease.expires > now]

    async def _owned(self, tokens: Mapping[str, str]) -> list[HostLease]:
        """Return the leases of those hosts that the ledger shows with their tokens, in order."""
        cursor = self._hosts.find(
            {"_id": {"$in": list(tokens)}, "owner": {"$in": list(set(tokens.values()))}}
        ).hint("_id_")
        found = {each["_id"]: each for each in await _all(cursor, len(tokens))}
        return [
            documents.host_lease(found[name])
            for name, token in tokens.items()
            if name in found and found[name]["owner"] == token
        ]

    async def renew_hosts(self, leases: Sequence[HostLease], *, lease: timedelta) -> set[str]:
        """Move the leases' ends in one bulk; read only where some were not matched."""
        ready_at = self.now() + lease
        # As for tasks: one that was delayed on its way shortens nothing.
        return await self._write_hosts(
            [(held, {"$max": {"ready_at": ready_at}}) for held in leases]
        )

    async def save_hosts(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """Write all states in one unordered bulk of fenced updates."""
        return await self._write_hosts(
            [
                (lease, _setting(documents.host_learned(state, since=lease.host)))
                for lease, state in states
            ]
        )

    async def release_hosts(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """Write all releases in one unordered bulk, then look for what came while they were held.

        A crash between the two loses a wake-up: whoever polls the ledger finds its task.
        """
        lost = await self._write_hosts(
            [
                (
                    lease,
                    _setting(
                        documents.host_learned(state, since=lease.host)
                        | {"ready_at": state.ready_at, "released": lease.epoch},
                        always={"owner": None},
                    ),
                )
                for lease, state in states
            ],
            release=True,
        )
        now = self.now()
        rests: dict[str, datetime] = {}
        for lease, state in states:
            rest = max(now, state.not_before or now)
            if lease.host.name not in lost and (state.ready_at is None or state.ready_at > rest):
                rests[lease.host.name] = rest
        with _mapped():
            dues = await self._earliest_dues(rests)
            await self._hasten({name: max(due, rests[name]) for name, due in dues.items()})
        return lost

    async def _write_hosts(
        self, writes: Sequence[tuple[HostLease, dict[str, Any]]], *, release: bool = False
    ) -> set[str]:
        """Update hosts that are held; return the names of those that are not."""
        if not writes:
            return set()
        bulk = [
            UpdateOne(
                {"_id": lease.host.name, "owner": lease.token, "epoch": lease.epoch},
                update,
                hint="_id_",
            )
            for lease, update in writes
        ]
        with _mapped():
            result = await self._hosts.bulk_write(bulk, ordered=False)
            if result.matched_count == len(bulk):
                return set()
            cursor = self._hosts.find(
                {"_id": {"$in": [lease.host.name for lease, _ in writes]}},
                {"owner": 1, "epoch": 1, "released": 1},
            ).hint("_id_")
            found = {each["_id"]: each for each in await _all(cursor, len(writes))}
        return {
            lease.host.name
            for lease, _ in writes
            if not _stands(lease, found.get(lease.host.name, {}), release=release)
        }

    async def wake_hosts(self, dues: Mapping[str, datetime]) -> None:
        """Read what is there, and write where it is unknown or would be ready too late.

        What is held when it is read needs no write, also where it is released
        right after: its owner looks for tasks after the release, and the task
        that this is about is in the ledger.
        """
        names = list(dues)
        for start in range(0, len(names), _BATCH):
            some = names[start : start + _BATCH]
            with _mapped():
                cursor = self._hosts.find(
                    {"_id": {"$in": some}}, {"owner": 1, "ready_at": 1, "not_before": 1}
                ).hint("_id_")
                found = {each["_id"]: each for each in await _all(cursor, len(some))}
                late = {
                    name: ready
                    for name in some
                    if (ready := _woken(found.get(name), dues[name])) is not None
                }
                await self._hasten(late, upsert=True)

    async def _hasten(self, readies: Mapping[str, datetime], *, upsert: bool = False) -> None:
        """Let hosts that nobody holds be ready no later than given; *upsert* those unknown."""
        if not readies:
            return
        names = list(readies)
        bulk = []
        for name in names:
            update: dict[str, Any] = {"$min": {"ready_at": readies[name]}}
            if upsert:
                new = documents.host_document(Host(name=name))
                # The filter sets these two.
                del new["_id"], new["owner"]
                update["$setOnInsert"] = new
            bulk.append(UpdateOne({"_id": name, "owner": None}, update, upsert=upsert, hint="_id_"))
        try:
            await self._hosts.bulk_write(bulk, ordered=False)
        except BulkWriteError as error:
            errors = (error.details or {}).get("writeErrors", ())
            if not upsert or _refused(error):
                raise
            # Another process was faster: it made the host known, perhaps for a
            # later time, or it holds it.
            await self._hasten({names[e["index"]]: readies[names[e["index"]]] for e in errors})

    async def wake_all_hosts(self) -> int:
        """Wake the hosts in the order of their names, a few thousand at a time."""
        now = self.now()
        total = 0
        behind: dict[str, Any] = {}
        while True:
            with _mapped():
                cursor = self._hosts.find(behind, {"_id": 1}).sort([("_id", 1)])
                cursor = cursor.limit(_BATCH).hint("_id_")
                names = [each["_id"] for each in await _all(cursor, _BATCH)]
                if not names:
                    return total
                free = {"_id": {"$in": names}, "owner": None}
                # A rest without a failure is the gap after the last request, and is kept.
                await self._hosts.update_many(
                    {**free, "failures": {"$gt": 0}}, {"$unset": {"not_before": ""}}, hint="_id_"
                )
                woken = await self._hosts.update_many(
                    free,
                    {
                        "$set": {"ready_at": now, "failures": 0, "page_failures": 0},
                        "$unset": {"given_up": ""},
                    },
                    hint="_id_",
                )
            total += woken.matched_count
            behind = {"_id": {"$gt": names[-1]}}

    async def give_up_host(self, host: str, *, reason: Reason) -> int:
        """Walk the host's tasks by their index once, and ignore them a batch at a time."""
        waiting = {"status": {"$in": [int(each) for each in transitions.GIVEN_UP_WITH_HOST]}}
        of_host = {"host": host, "priority": {"$lte": _ANY_PRIORITY}, **_HAS_DUE}
        total = 0
        with _mapped():
            # What is given up leaves the index behind the cursor, so the
            # leased tasks and the revisits are read once and not for each batch.
            cursor = self._tasks.find(of_host | waiting, {"_id": 1}).hint(_BY_HOST)
            cursor = cursor.batch_size(_BATCH)
            while found := await cursor.to_list(_BATCH):
                given_up = {
                    "status": int(Status.IGNORED),
                    "reason": str(reason),
                    "update_time": self.now(),
                }
                result = await self._durable.update_many(
                    {"_id": {"$in": [each["_id"] for each in found]}, **waiting},
                    {"$set": given_up, "$unset": {"due": ""}},
                    hint="_id_",
                )
                total += result.modified_count
        return total

    async def hosts(self) -> AsyncIterator[Host]:
        """Stream the hosts' documents."""
        stream = self._stream(self._hosts, {}, None, _host_read)
        async with aclosing(stream):
            async for host in stream:
                yield host

    async def host_counts(self) -> dict[str, Counts]:
        """Count by host and status, some tasks at a time in the order of their ids."""
        totals: dict[str, Counter[Status]] = {}
        behind: dict[str, Any] = {}
        while True:
            groups = await self._aggregate(
                [
                    {"$match": behind},
                    {"$sort": {"_id": 1}},
                    {"$limit": _COUNTED},
                    {
                        "$group": {
                            "_id": {"host": "$host", "status": "$status"},
                            "n": {"$sum": 1},
                            "last": {"$max": "$_id"},
                        }
                    },
                ],
                hint="_id_",
                most=_COUNTED,
            )
            for group in groups:
                of_host = totals.setdefault(group["_id"]["host"], Counter())
                of_host[Status(group["_id"]["status"])] += group["n"]
            if sum(group["n"] for group in groups) < _COUNTED:
                return {host: Counts(by_status=dict(of_host)) for host, of_host in totals.items()}
            behind = {"_id": {"$gt": max(group["last"] for group in groups)}}

    async def get_hosts(self, names: Collection[str]) -> dict[str, Host]:
        """Read whole documents by their ids, a few thousand at a time."""
        wanted = list(names)
        hosts: dict[str, Host] = {}
        for start in range(0, len(wanted), _BATCH):
            some = wanted[start : start + _BATCH]
            with _mapped():
                cursor = self._hosts.find({"_id": {"$in": some}}).hint("_id_")
                found = await _all(cursor, len(some))
            hosts |= {each["_id"]: documents.host(each) for each in found}
        return hosts

    async def next_ready(self) -> datetime | None:
        """Read the first key of the index."""
        cursor = self._hosts.find({"ready_at": {"$gt": _LONG_AGO}}, {"_id": 0, "ready_at": 1})
        cursor = cursor.sort([("ready_at", 1)]).limit(1).hint(_BY_READY)
        with _mapped():
            found = await cursor.to_list(1)
        return found[0]["ready_at"] if found else None

    async def due_hosts(self, *, after: str, limit: int) -> list[str]:
        """Seek from each host to the next one."""
        names: list[str] = []
        with _mapped():
            while len(names) < limit:
                found = await self._first_of({"$gt": after}, {"$lte": _ANY_PRIORITY})
                if found is None:
                    break
                after = found["host"]
                names.append(after)
        return names

    async def earliest_due(self, host: str) -> datetime | None:
        """Seek the earliest `due` of each priority that the host has."""
        with _mapped():
            return (await self._earliest_dues([host])).get(host)

    async def _earliest_dues(self, hosts: Collection[str]) -> dict[str, datetime]:
        """Return the earliest `due` of those hosts that have one; the others cost nothing."""
        earliest: dict[str, datetime] = {}
        # In the order of the index: the first task found tells of all hosts
        # before it that they have none.
        rest = sorted(hosts)
        while rest:
            found = await self._first_of({"$in": rest}, {"$lte": _ANY_PRIORITY})
            if found is None:
                break
            host = found["host"]
            while found is not None:
                earliest[host] = min(found["due"], earliest.get(host, found["due"]))
                found = await self._first_of(host, {"$lt": found["priority"]})
            rest = rest[bisect_right(rest, host) :]
        return earliest

    async def _first_of(self, host: Any, priority: dict[str, int]) -> dict[str, Any] | None:
        cursor = self._tasks.find(
            {"host": host, "priority": priority, **_HAS_DUE},
            {"_id": 0, "host": 1, "priority": 1, "due": 1},
        )
        cursor = cursor.sort([("host", 1), ("priority", -1), ("due", 1)]).limit(1).hint(_BY_HOST)
        found: list[dict[str, Any]] = await cursor.to_list(1)
        return found[0] if found else None

    async def get(self, task_id: bytes) -> Record | None:
        """Read one whole document."""
        with _mapped():
            found = await self._tasks.find_one({"_id": task_id})
            if found is None:
                return None
            found["items"] = [documents.escaped(item) for item in await self._whole_items(found)]
        return documents.record(found)

    async def join(self, worker: Worker) -> None:
        """Write the worker's document, unless it is at work already or has left since it started.

        One that was delayed on its way takes back neither what the worker has
        counted since nor that it has left.
        """
        document = documents.worker_document(worker)
        absent = {"_id": document.pop("_id"), "left": {"$lte": worker.started}}
        with _mapped(), suppress(DuplicateKeyError):
            await self._workers.replace_one(absent, document, upsert=True)

    async def workers(self) -> list[Worker]:
        """Read the documents of those that have not left."""
        with _mapped():
            found = await self._workers.find({"left": None}).hint(_BY_LEFT).to_list(None)
        return [documents.worker(each) for each in found]

    async def beat(self, name: str, tally: Tally, *, hungry: bool = False) -> None:
        """Set all by one update of a worker that has not left."""
        counted = documents.tally_document(tally)
        news = {"heartbeat": self.now(), "hungry": hungry, "tally": counted}
        # One that was delayed on its way must not take back a later one.
        earlier = {"_id": name, "left": None, "heartbeat": {"$lte": news["heartbeat"]}}
        with _mapped():
            await self._workers.update_one(earlier, {"$set": news}, hint="_id_")

    async def tally(self) -> Tally:
        """Add up the documents of all workers that are kept."""
        with _mapped():
            found = await self._workers.find({}, {"tally": 1}).to_list(None)
        return sum((documents.tally(each["tally"]) for each in found), Tally())

    async def leave(self, name: str) -> int:
        """End the leases first and mark the worker second: a crash in between repeats both."""
        now = self.now()
        held = {"status": int(Status.PROCESSING), "lock": {"$regex": f"^{re.escape(name)}:"}}
        # ';' follows ':', so these are the tokens that begin with `name:`.
        owned = {"owner": {"$gte": f"{name}:", "$lt": f"{name};"}}
        with _mapped():
            ended = await self._durable.update_many(held, {"$set": {"due": now}}, hint=_BY_STATUS)
            await self._hosts.update_many(
                owned, {"$set": {"ready_at": now, "owner": None}}, hint=_BY_OWNER
            )
            await self._workers.update_one(
                {"_id": name, "left": None}, {"$set": {"left": now}}, hint="_id_"
            )
            await self._forget_workers()
        count: int = ended.matched_count
        return count

    async def _forget_workers(self) -> None:
        """Delete the workers that left before the last ones that are kept."""
        cursor = self._workers.find({"left": {"$gt": _LONG_AGO}}, {"_id": 1})
        cursor = cursor.sort([("left", -1), ("_id", -1)]).hint(_BY_LEFT)
        cursor = cursor.skip(documents.KEPT_WORKERS).limit(_BATCH)
        old = [each["_id"] for each in await _all(cursor, _BATCH)]
        if old:
            # A name may have joined anew since it was read.
            left = {"_id": {"$in": old}, "left": {"$ne": None}}
            await self._workers.delete_many(left, hint="_id_")

    async def health(self) -> Health:
        """Ask the server what it is, and for one write that changes nothing."""
        violations: list[Violation] = []
        with _mapped():
            info = await self._client.server_info()
            await self._set_clock()
            offset = self._clock.now() - datetime.now(UTC)
            hello = await self._database.command("hello")
            marker = await self._database["crawlcw.schema"].find_one({"_id": self._spider})
            if marker is None:
                detail = "the schema's version is missing"
                violations.append(Violation(kind=Kind.STORE_INCOMPLETE, detail=detail))
            for collection, indexes in self._indexes():
                found = await collection.index_information()
                violations += _index_violations(collection.name, found, indexes)
            recorded = await self._tasks.find_one({}, {"_id": 1}) is not None
        topology, doubts = _topology(hello)
        refusal = await self._durable_refusal()
        if refusal is not None:
            doubts.append(Violation(kind=Kind.NOT_DURABLE, detail=refusal))
        return Health(
            recorded=recorded,
            facts={
                "store": f"MongoDB {info['version']}",
                "topology": topology,
                "w: majority, j: true": "confirmed" if refusal is None else "not confirmed",
                "schema version": str(SCHEMA_VERSION),
            },
            violations=(*violations, *doubts),
            clock_offset=offset,
        )

    async def _durable_refusal(self) -> str | None:
        """Return why the server does not confirm a write as the ledger wants it, if it does not."""
        try:
            # It matches nothing, and is confirmed when all writes before it are.
            with pymongo.timeout(_FIRST_ANSWER):
                await self._durable.update_one({"_id": None}, {"$set": {"status": 0}}, hint="_id_")
        except (ConnectionFailure, ExecutionTimeout, WTimeoutError, WriteConcernError) as error:
            return _sentence(error)
        except OperationFailure as error:
            if error.code in _ACCESS_CODES:
                raise
            return _sentence(error)
        return None

    async def examine(
        self, *, only: Collection[bytes] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Stream the tasks, their results left with the server."""
        chosen = _of_ids(only)
        stream = self._stream(self._tasks, chosen, _EXAMINED, self._with_items_lost)
        async with aclosing(stream):
            async for found in stream:
                yield found

    async def _with_items_lost(self, found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Add which of the task's large items are not where they were set aside."""
        aside = found.get("items_aside")
        if not aside:
            return [found]
        places = [
            {"task": found["_id"], "fence": found.get("settled"), "n": number} for number in aside
        ]
        cursor = self._items.find({"_id": {"$in": places}}, {"_id": 1}).hint("_id_")
        there = {each["_id"]["n"] for each in await _all(cursor, len(places))}
        return [{**found, "items_lost": [number for number in aside if number not in there]}]

    async def examine_hosts(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Stream the hosts without their robots.txt."""
        chosen = _of_ids(only)
        stream = self._stream(self._hosts, chosen, {"robots": 0}, _as_it_is)
        async with aclosing(stream):
            async for found in stream:
                yield found

    async def mend(self, found: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
        """Update a task whose state is as it was found."""
        return await self._mend(self._durable, TASK_STATE, found, change)

    async def mend_host(self, found: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
        """Update a host whose state is as it was found."""
        return await self._mend(self._hosts, HOST_STATE, found, change)

    async def _mend(
        self,
        collection: Any,
        state: Sequence[str],
        found: Mapping[str, Any],
        change: Mapping[str, Any],
    ) -> bool:
        guard: dict[str, Any] = {"_id": {"$eq": found["_id"]}}
        for name in state:
            # Null equals what is absent, but for an index.
            guard[name] = {"$eq": found[name]} if name in found else {"$exists": False}
        # A lock that is away is null, all else is absent.
        null = {name: change[name] for name in ("lock", "lock_time") if name in change}
        update = _setting({k: v for k, v in change.items() if k not in null}, always=null)
        with _mapped():
            result = await collection.update_one(guard, update, hint="_id_")
        matched: int = result.matched_count
        return matched == 1

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
#: What `examine` reads: of the results how many there are, and which are elsewhere.
_EXAMINED: Mapping[str, Any] = {
    **dict.fromkeys((*TASK_STATE, "url", "host", "method", "body", "callback"), 1),
    **dict.fromkeys(("depth", "priority", "update_time", "create_time"), 1),
    "items": {"$cond": [{"$isArray": "$items"}, {"$size": "$items"}, "$$REMOVE"]},
    "items_aside": {
        "$cond": [
            {"$isArray": "$items"},
            {
                "$filter": {
                    "input": {"$range": [0, {"$size": "$items"}]},
                    "as": "n",
                    "cond": {"$eq": [{"$arrayElemAt": ["$items", "$$n"]}, None]},
                }
            },
            "$$REMOVE",
        ]
    },
}
_HELD = ("due", "lock", "fence")
_ITEM_FIELDS = ("url", "items", "settled", "update_time", "response.final_url")


def _connected(url: str, driver: str) -> tuple[Any, Any]:
    """Return a client, and the database that *url* names."""
    try:
        with _mapped():
            client = _client(url, driver)
            return client, client.get_default_database(default="crawlcw")
    except ValueError as error:
        raise LedgerConfigurationError(f"the ledger's URL will not do: {error}") from None


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


def _check_version(marker: Mapping[str, Any], spider: str) -> None:
    if marker["version"] != SCHEMA_VERSION:
        raise LedgerConfigurationError(
            f"the ledger of {spider} has schema version {marker['version']!r}, and this "
            f"crawlcw knows version {SCHEMA_VERSION}: use the crawlcw that wrote it, or "
            "another database"
        )


def _is_as_designed(
    index: Mapping[str, Any], design: tuple[list[tuple[str, int]], dict[str, Any]]
) -> bool:
    there = [(field, int(direction)) for field, direction in index.get("key", [])]
    return (there, dict(index.get("partialFilterExpression", {}))) == design


def _wrong_index(collection: str, name: str) -> LedgerConfigurationError:
    return LedgerConfigurationError(
        f"index {name} of collection {collection} is not as crawlcw makes it: "
        f"drop it (db[{collection!r}].dropIndex({name!r})) and start again"
    )


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


async def _all(cursor: Any, most: int) -> list[dict[str, Any]]:
    """Return everything a cursor has, at most *most* documents, in one reply."""
    # The server's first reply is of 101 documents if it is not told, and one
    # that is just full does not say whether there are more.
    found: list[dict[str, Any]] = await cursor.batch_size(most + 1).to_list(None)
    return found


async def _host_read(found: Mapping[str, Any]) -> list[Host]:
    return [documents.host(found)]


def _of_ids(only: Collection[Any] | None) -> dict[str, Any]:
    # Under `$and`, for where a stream breaks it goes on with an `_id` of its own.
    return {} if only is None else {"$and": [{"_id": {"$in": list(only)}}]}


async def _as_it_is(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [found]


def _index_violations(
    collection: str, found: Mapping[str, Any], indexes: _Indexes
) -> Iterator[Violation]:
    for name, design in indexes.items():
        if name not in found:
            detail = f"index {name} of {collection} is missing"
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=detail)
        elif not _is_as_designed(found[name], design):
            detail = f"db[{collection!r}].dropIndex({name!r}) drops what is no index of crawlcw"
            yield Violation(kind=Kind.STORE_DIFFERENT, detail=detail)


def _topology(hello: Mapping[str, Any]) -> tuple[str, list[Violation]]:
    """Return what answered *hello*, and what that means for the ledger."""
    if hello.get("msg") == "isdbgrid":
        return "sharded cluster", [Violation(kind=Kind.SHARDED, detail="mongos answers")]
    if "setName" not in hello:
        return "standalone", [Violation(kind=Kind.STANDALONE, detail="one mongod, no replica set")]
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    number = "1 member" if members == 1 else f"{members} members"
    return f"replica set {hello['setName']} of {number}", []


def _setting(
    fields: documents.Document, *, always: documents.Document | None = None
) -> dict[str, Any]:
    """Return what sets the fields, those that are None to absent, and *always* as they are."""
    kept = {name: value for name, value in fields.items() if value is not None} | (always or {})
    absent = dict.fromkeys(fields.keys() - kept.keys(), "")
    return {"$set": kept} | ({"$unset": absent} if absent else {})


def _stands(lease: HostLease, found: Mapping[str, Any], *, release: bool) -> bool:
    """Say whether the ledger shows a host as held by the lease, or as released by its owner."""
    if release:
        return found.get("released") == lease.epoch
    return (found.get("owner"), found.get("epoch")) == (lease.token, lease.epoch)


def _woken(found: Mapping[str, Any] | None, due: datetime) -> datetime | None:
    """Return when a host is to be ready for a task that is due, or None where nothing changes."""
    if found is None:
        return due
    ready_at = max(due, found.get("not_before") or due)
    if found["owner"] is not None:
        return None
    return None if "ready_at" in found and found["ready_at"] <= ready_at else ready_at


def _locked(ids: Iterable[bytes], tokens: Iterable[str]) -> dict[str, Any]:
    return {
        "_id": {"$in": list(ids)},
        "lock": {"$in": list(set(tokens))},
        "status": int(Status.PROCESSING),
    }


def _mine(lease: Lease) -> dict[str, Any]:
    return {
        "_id": lease.task.id,
        "lock": lease.token,
        "fence": lease.fence,
        "status": int(Status.PROCESSING),
    }


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
