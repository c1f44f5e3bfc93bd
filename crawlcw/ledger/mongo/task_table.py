"""The tasks and results of the port in MongoDB.

Counts read an index in batches: on a slow server one command for a million tasks would exceed the
driver's time limit, and be repeated for ever.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pymongo

from crawlcw.errors import LedgerError, LedgerUnavailableError
from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.blobs import Blobs
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.indexes import (
    ANY_PRIORITY,
    BY_CALLBACK,
    BY_HOST,
    BY_HOST_NAME,
    BY_PRIORITY,
    BY_REASON,
    BY_REVISIT,
    BY_STATUS,
    BY_TASK,
    DONE_BY_CALLBACK,
    FAILED_BY_HOST,
    HAS_DUE,
    INDEXES,
    IS_REDIRECT,
)
from crawlcw.ledger.mongo.items import Items
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.ledger.mongo.table import Index, Table
from crawlcw.ledger.mongo.updates import of_host
from crawlcw.ledger.port import Among, Edit, Key, Looked, Path, Where
from crawlcw.ledger.values import Counts, Cursor, ItemCount, ItemRow
from crawlcw.model import values
from crawlcw.model.task import DONE, Status
from crawlcw.model.transitions import LOCK

#: Order of results; with more fields the server would sort the tasks of one time.
ORDER = [("update_time", -1), ("_id", -1)]
_ORDER_OF_EQUALS = [("_id", -1)]
_PLACE = {"update_time": 1}
_INDEX = {
    Path.STATUS: BY_STATUS,
    Path.HOST: BY_HOST_NAME,
    Path.REASON: BY_REASON,
    Path.CALLBACK: BY_CALLBACK,
}
_IS_DUE = {"priority": {"$lte": ANY_PRIORITY}, **HAS_DUE}
_OF_TASKS = {
    Path.DUE: Index(BY_PRIORITY, INDEXES[BY_PRIORITY][0], _IS_DUE),
    Path.HOST_DUE: Index(BY_HOST, INDEXES[BY_HOST][0], _IS_DUE),
    Path.REVISIT: Index(BY_REVISIT, INDEXES[BY_REVISIT][0]),
}
#: The fields of the index of statuses.
_IN_INDEX = {"status", "update_time"}
#: Limits of one command: tasks to read, which take 0.4 us each, and seconds.
_SCANNED = 5_000_000
_SCANNED_WITHIN = 5.0
_AS_THEY_LIE = {"$natural": 1}
#: Tasks in one count, and tasks of one status in one command: a second on a slow server.
COUNTED = 50_000
COUNTED_AT_ONCE = 2_000_000
#: Tasks in one read for counting items, and for reading items; and bytes of items, offloaded ones
#: included, that end a batch.
_READ = 5_000
_WITH_ITEMS = 200
_BATCH_BYTES = 16 << 20
_NUMBER_OF_ITEMS = {"$sum": {"$size": {"$ifNull": ["$items", []]}}}
#: Statuses with items first; at the end those that may only wait for another visit.
_ITEMS_FIRST = (*DONE, Status.FAILED, Status.PROCESSING, Status.TODO)
_ITEM_FIELDS = ("url", "items", "items_from", "settled", "update_time", "response.final_url")
_Reading = Callable[[Document], Awaitable[list[ItemRow]]]


class TaskTable(Table):
    """The collection of tasks."""

    def __init__(self, store: MongoStore, blobs: Blobs) -> None:
        super().__init__(store.durable, null=LOCK, hidden=("items",), indexes=_OF_TASKS)
        self._store = store
        self._blobs = blobs
        #: Tasks that may have been deleted without their data.
        self._half_deleted: set[bytes] = set()

    def _stretch(self, index: Index, where: Where) -> Document:
        chosen = super()._stretch(index, where)
        host = where.get("host")
        if index.name == BY_HOST and isinstance(host, str):
            chosen |= of_host(host, self._store.kind)
        return chosen

    async def look(
        self, where: Where, *, limit: int, look_at: int | None = None, after: Cursor | None = None
    ) -> Looked:
        """See `port.Tasks.look`."""
        stretch = self.filter({name: where[name] for name in _IN_INDEX if name in where})
        places: list[Cursor] = []
        # Tasks with the cursor's time, and then earlier ones: each is one index range for
        # every status; one filter for both would not be.
        for part, order in behind(stretch, after):
            missing = limit - len(places)
            pipeline: list[Any] = [
                {"$match": part},
                {"$sort": dict(order)},
                {"$limit": look_at or missing},
                {"$match": self.filter(where)},
                {"$limit": missing},
                {"$project": _PLACE},
            ]
            if where.keys() <= _IN_INDEX or look_at is None:
                del pipeline[2:4]
                pipeline[0] = {"$match": {**self.filter(where), **part}}
            places += _places(await self._store.aggregate(pipeline, most=missing + 1))
            if len(places) == limit:
                return Looked(places, places[-1])
            if look_at and (last := await self._nth(part, order, look_at)):
                return Looked(places, last)
        return Looked(places, None)

    async def _nth(
        self, part: Document, order: list[tuple[str, int]], number: int
    ) -> Cursor | None:
        """Return the cursor of the nth task, by the index; None: there are fewer."""
        with mapped():
            cursor = self.collection.find(part, _PLACE).sort(order).hint(BY_STATUS)
            found = await all_of(cursor.skip(number - 1).limit(1), 1)
        return _places(found)[0] if found else None

    async def find(
        self, where: Where, *, by: Path, limit: int, after: Cursor | None = None
    ) -> list[Cursor] | None:
        """See `port.Tasks.find`."""
        parts = [self.filter(where)]
        if after is not None:
            earlier = {"update_time": {"$lt": after.update_time}}
            equal = {"update_time": after.update_time, "_id": {"$lt": after.id}}
            parts.append({"$or": [earlier, equal]})
        found = await self._aggregate(
            [
                {"$match": {"$and": parts}},
                {"$project": _PLACE},
                {"$sort": dict(ORDER)},
                {"$limit": limit},
            ],
            by,
            most=limit,
        )
        return None if found is None else _places(found)

    async def _aggregate(
        self, pipeline: list[dict[str, Any]], by: Path, *, most: int
    ) -> list[Document] | None:
        if by is not Path.AS_STORED:
            return await self._store.aggregate(pipeline, hint=_INDEX[by], most=most + 1)
        if await self._store.estimate() > _SCANNED:
            return None
        # It may fail for large documents, or on servers other than MongoDB. The fallback is
        # slower, and raises its own error.
        with suppress(LedgerError), pymongo.timeout(_SCANNED_WITHIN):
            return await self._store.aggregate(pipeline, hint=_AS_THEY_LIE, most=most + 1)
        return None

    async def at_most(self, where: Where, *, by: Path, most: int) -> int:
        """See `port.Tasks.at_most`."""
        return await self._store.count(self.filter(where), hint=_INDEX[by], most=most)

    async def count(self, where: Where, *, by: Path) -> int | None:
        """See `port.Tasks.count`."""
        pipeline: list[Any] = [{"$match": self.filter(where)}, {"$count": "n"}]
        found = await self._aggregate(pipeline, by, most=1)
        return None if found is None else sum(int(each["n"]) for each in found)

    async def told(self, where: Where) -> int | None:
        """See `port.Tasks.told`: each is one index range."""
        statuses = where["status"].values
        match sorted(where.keys() - {"status"}):
            case [] | ["update_time"]:
                times = self.filter({n: t for n, t in where.items() if n != "status"})
                return sum([await self._of_status({**times, "status": each}) for each in statuses])
            case ["reason"]:
                test = where["reason"]
                return sum(
                    [
                        await self._store.count({"reason": reason, "status": each}, hint=BY_REASON)
                        for reason in (test.values if isinstance(test, Among) else [test])
                        for each in statuses
                    ]
                )
            case ["callback"]:
                return await self._of_callback(where["callback"], set(map(Status, statuses)))
        return None

    async def _of_status(self, where: Document) -> int:
        """Return the number of tasks of one status, and of some times, in batches.

        Counting an index range takes a quarter of the time of grouping it, and finding the
        start of the next range about as long.
        """
        total, after = 0, None
        while True:
            room = COUNTED_AT_ONCE
            for part, order in behind(where, after):
                number = await self._store.count(part, hint=BY_STATUS, most=room)
                total += number
                room -= number
                if not room:
                    after = await self._nth(part, order, number)
                    break
            if room or after is None:
                return total

    async def _of_callback(self, name: str, wanted: set[Status]) -> int:
        """Count the done and the failed tasks; the rest is waiting."""
        known = wanted if Status.TODO not in wanted else set(Status) - {Status.TODO}
        counted = {status: await self._of_both(name, status) for status in sorted(known)}
        if Status.TODO in wanted:
            total = await self._store.count({"callback": name}, hint=BY_CALLBACK)
            # Counted one after the other: a task that changed in between must not count twice.
            counted[Status.TODO] = max(total - sum(counted.values()), 0)
        return sum(counted[status] for status in wanted)

    async def _of_both(self, name: str, status: Status) -> int:
        where: Document = {"status": int(status), "callback": name}
        if status in DONE:
            return await self._store.count(where, hint=DONE_BY_CALLBACK)
        # Leased tasks, which are few, are read.
        index = BY_STATUS
        if status is Status.FAILED:
            # The host is the first field of that index.
            index = FAILED_BY_HOST
            where["host"] = {"$gte": ""}
        found = await self._store.aggregate([{"$match": where}, {"$count": "n"}], hint=index)
        return sum(int(each["n"]) for each in found)

    async def change_all(self, keys: Sequence[Key], where: Where, edit: Edit) -> int:
        """See `port.Tasks.change_all`."""
        update = self.operators(edit, {})
        chosen = self.filter({"_id": Among(keys), **where})
        with mapped():
            result = await self.collection.update_many(chosen, update, hint="_id_")
        return int(result.matched_count)

    def operators(self, edit: Edit, new: Document) -> Document:
        """Return the update of a change; one that makes a task due notifies the watchers."""
        update = super().operators(edit, new)
        if edit.set.get("due") is not None:
            update["$set"] |= self._store.woken(self._store.now())
        return update

    async def delete_all(self, keys: Sequence[Key], where: Where) -> int:
        """See `port.Tasks.delete_all`: the tasks first, and then their data.

        A crash in between leaves unreferenced data; after a lost reply, the next call deletes
        it.
        """
        await self._forget(list(self._half_deleted))
        try:
            deleted = await self.delete({"_id": Among(keys), **where}) if keys else 0
            await self._forget(keys)
        except LedgerUnavailableError:
            self._half_deleted.update(keys)
            raise
        return deleted

    async def _forget(self, keys: Sequence[Key]) -> None:
        """Delete the data of those tasks that no longer exist."""
        if not keys:
            return
        there = await self.read(keys, ("_id",))
        gone = [key for key in keys if key not in there]
        with mapped():
            await self._store.items.delete_many({"_id.task": {"$in": gone}}, hint=BY_TASK)
            if self._store.kind.tracked:
                await self._blobs.drop_of(gone)
        self._half_deleted.difference_update(keys)

    async def counts(self) -> Counts:
        """See `port.Tasks.counts`."""
        # Their index has no order in which a second command could go on.
        redirects = await self._store.count(IS_REDIRECT, hint=BY_REASON)
        groups = await self._store.aggregate(
            [
                {"$match": {"status": {"$in": [int(status) for status in Status]}}},
                {"$sort": {"status": 1, **dict(ORDER)}},
                {"$limit": COUNTED},
                {"$group": {"_id": "$status", "n": {"$sum": 1}}},
            ]
        )
        counts = {Status(group["_id"]): int(group["n"]) for group in groups}
        if sum(counts.values()) == COUNTED:
            counts = {each: await self._of_status({"status": int(each)}) for each in Status}
        return Counts(
            by_status={each: number for each, number in counts.items() if number},
            redirects=redirects,
        )


class Results:
    """The items of tasks, in their documents and offloaded."""

    def __init__(self, store: MongoStore, tasks: TaskTable, items: Items) -> None:
        self._store = store
        self._tasks = tasks
        self._items = items

    async def count(self, *, look_at: int | None = None) -> ItemCount:
        """See `port.Results.count`."""
        number, left = 0, look_at
        for status in _ITEMS_FIRST:
            looked = Looked([], None)
            while True:
                limit = _READ if left is None else min(left, _READ)
                where = {"status": Among([int(status)])}
                looked = await self._tasks.look(where, limit=limit, after=looked.after)
                ids = [place.id for place in looked.places]
                sums = await self._store.aggregate(
                    [
                        {"$match": {"_id": {"$in": ids}}},
                        {"$group": {"_id": None, "items": _NUMBER_OF_ITEMS}},
                    ],
                    hint="_id_",
                )
                number += sum(int(each["items"]) for each in sums)
                if left is not None and not (left := left - len(ids)):
                    return ItemCount(number=number, whole=False)
                if looked.after is None:
                    break
        return ItemCount(number=number, whole=True)

    async def of(self, keys: Sequence[Key]) -> tuple[list[ItemRow], int]:
        """See `port.Results.of`."""
        while True:
            found = await self._reply({"_id": {"$in": keys}}, _ITEM_FIELDS, most=len(keys))
            if len(found) == len(keys) or len(keys) <= 1:
                break
            # The reply was full, and has the first tasks by id instead of by the keys. A task
            # deleted meanwhile looks the same, and costs a few reads.
            keys = keys[: max(1, min(len(found), len(keys) // 2))]
        by_key = {each["_id"]: each for each in found}
        return await self._first(self._items.rows, [by_key.get(key) for key in keys])

    async def items(self, after: Key) -> tuple[list[ItemRow], Key | None]:
        """See `port.Results.items`."""
        return await self._results("items", _ITEM_FIELDS, self._items.rows, after)

    async def versions(self, after: Key) -> tuple[list[ItemRow], Key | None]:
        """See `port.Results.versions`."""
        return await self._results("versions", ("url", "versions"), self._items.versions, after)

    async def _results(
        self, field: str, fields: Sequence[str], read: _Reading, after: Key
    ) -> tuple[list[ItemRow], Key | None]:
        there = {"_id": {"$gt": after}, field: {"$exists": True}}
        found = await self._reply(there, fields, most=_WITH_ITEMS)
        rows, number = await self._first(read, found)
        return rows, found[number - 1]["_id"] if found else None

    async def _reply(
        self, chosen: Document, fields: Sequence[str], *, most: int
    ) -> Sequence[Document]:
        """Return the first tasks by id, as many as fit into one reply of the server: 16 MiB."""
        with mapped():
            cursor = self._tasks.collection.find(chosen, dict.fromkeys(fields, 1))
            # A negative limit: the server closes the cursor after its first reply, which has 101
            # documents by default.
            cursor = cursor.sort([("_id", 1)]).hint("_id_").limit(-most).batch_size(most)
            found: list[Document] = await cursor.to_list(None)
        return found

    async def _first(
        self, read: _Reading, tasks: Sequence[Document | None]
    ) -> tuple[list[ItemRow], int]:
        """Return the items of the first tasks, and their number; offloaded items are large."""
        rows: list[ItemRow] = []
        size = 0
        for number, task in enumerate(tasks, 1):
            with mapped():
                new = [] if task is None else await read(task)
            rows += new
            size += sum(values.size(row.item) for row in new)
            if size >= _BATCH_BYTES:
                return rows, number
        return rows, len(tasks)


def behind(
    where: Mapping[str, Any], after: Cursor | None
) -> list[tuple[dict[str, Any], list[tuple[str, int]]]]:
    """Return the filters of the tasks after a cursor, each with its order.

    Tasks of the same time come first, and then earlier ones.
    """
    if after is None:
        return [(dict(where), ORDER)]
    times = where.get("update_time", {})
    time = after.update_time
    earlier = {**where, "update_time": {**times, "$lt": min(time, times.get("$lt", time))}}
    if not times.get("$gte", time) <= time < times.get("$lt", datetime.max.replace(tzinfo=UTC)):
        # No task has that time, and the server would sort the result.
        return [(earlier, ORDER)]
    equal = {**where, "update_time": time, "_id": {"$lt": after.id}}
    return [(equal, _ORDER_OF_EQUALS), (earlier, ORDER)]


def _places(found: Iterable[Mapping[str, Any]]) -> list[Cursor]:
    return [Cursor(update_time=each["update_time"], id=bytes(each["_id"])) for each in found]
