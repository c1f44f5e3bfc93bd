"""Implement `port.Tasks`, `port.Results` and `port.Raw` on MongoDB.

Each command counts one batch of tasks in an index. On a slow server one command that counts
millions of tasks would exceed the driver's time limit, and the driver would repeat the command for
ever.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.documents import Document
from crawlcw.ledger.examination import TASK_STATE
from crawlcw.ledger.mongo.blobs import Blobs, Items
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import (
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
    DONE_BY_HOST,
    HAS_DUE,
    INDEXES,
    IS_REDIRECT,
    MongoStore,
    all_of,
    read_batch,
)
from crawlcw.ledger.mongo.table import Index, Table
from crawlcw.ledger.mongo.updates import of_host, of_hosts
from crawlcw.ledger.port import MAX_LIMIT, Among, Edit, Key, Listed, Part, Path, Where
from crawlcw.ledger.values import Count, Counts, Cursor, ItemRow
from crawlcw.model import values
from crawlcw.model.task import DONE, Status
from crawlcw.model.transitions import LOCK

#: Sort order of listed tasks. An index has this order; any other order would need a sort in memory.
ORDER = [("update_time", -1), ("_id", -1)]
_ORDER_OF_EQUALS = [("_id", -1)]
_CURSOR_PROJECTION = {"update_time": 1}
_INDEX_BY_PATH = {
    Path.STATUS: BY_STATUS,
    Path.HOST: BY_HOST_NAME,
    Path.REASON: BY_REASON,
    Path.CALLBACK: BY_CALLBACK,
}
#: Map from a field to an index by this field; the index contains only done tasks.
_INDEX_OF_DONE_TASKS = {"host": DONE_BY_HOST, "callback": DONE_BY_CALLBACK}
_IS_DUE = {"priority": {"$lte": ANY_PRIORITY}, **HAS_DUE}
_OF_TASKS = {
    Path.DUE: Index(BY_PRIORITY, INDEXES[BY_PRIORITY][0], _IS_DUE),
    Path.HOST_DUE: Index(BY_HOST, INDEXES[BY_HOST][0], _IS_DUE),
    Path.REVISIT: Index(BY_REVISIT, INDEXES[BY_REVISIT][0]),
}
#: Fields of the index on `status`.
_IN_INDEX = {"status", "update_time"}
#: Number of tasks that one command counts; such a count takes a second on a slow server.
COUNT_BATCH_SIZE = 2_000_000
_MAX_TASKS_PER_READ = 5_000  #: maximum number of tasks in one count of items
_WITH_ITEMS = 200  #: maximum number of tasks in one read of items
_BATCH_BYTES = 16 << 20  #: a read ends when all its items together have this size
_NUMBER_OF_ITEMS = {"$sum": {"$size": {"$ifNull": ["$items", []]}}}
#: Statuses in the order in which the items of their tasks are counted. Most items belong to
#: finished tasks; a task of another status has items only from an earlier visit.
_ITEMS_FIRST = (*DONE, Status.FAILED, Status.PROCESSING, Status.TODO)
_ITEM_FIELDS = ("url", "items", "items_from", "settled", "update_time", "response.final_url")
_Reading = Callable[[Document], Awaitable[list[ItemRow]]]
#: Projection of a task for `doctor`. In place of an item it has a flag, which is true if the item
#: is in another document. In place of a value it has the reference to the value's blob.
_TASK: Mapping[str, Any] = {
    **dict.fromkeys((*TASK_STATE, "url", "host", "method", "body", "callback"), 1),
    **dict.fromkeys(("depth", "priority", "options", "update_time", "create_time"), 1),
    **dict.fromkeys(("revisit", "items_from", "context.%blob", "data.%blob"), 1),
    "results": {
        "$cond": [
            {"$eq": [{"$type": "$results"}, "object"]},
            {
                "$arrayToObject": {
                    "$map": {
                        "input": {"$objectToArray": "$results"},
                        "in": {"k": "$$this.k", "v": {"%blob": "$$this.v.%blob"}},
                    }
                }
            },
            "$$REMOVE",
        ]
    },
    "items": {
        "$cond": [
            {"$isArray": "$items"},
            {"$map": {"input": "$items", "in": {"$eq": ["$$this", None]}}},
            "$$REMOVE",
        ]
    },
}


class TaskTable(Table):
    """The collection of tasks."""

    def __init__(self, store: MongoStore, blobs: Blobs) -> None:
        super().__init__(
            store.durable, nullable_fields=LOCK, hidden_fields=("items",), indexes=_OF_TASKS
        )
        self._store = store
        self._blobs = blobs
        #: Ids of tasks whose deletion was interrupted, so their items and blobs may remain.
        self._half_deleted: set[bytes] = set()

    def _index_filter(self, index: Index, where: Where) -> Document:
        chosen = super()._index_filter(index, where)
        match where.get("host"):
            case str(host) if index.name == BY_HOST:
                return chosen | of_host(host, self._store.kind)
            case Among(hosts) if index.name == BY_HOST:
                return chosen | of_hosts([*hosts], self._store.kind)
        return chosen

    async def listed(
        self, where: Where, *, limit: int, scan_limit: int, cursor: Cursor | None = None
    ) -> Listed:
        """See `port.Tasks.listed`."""
        index_range = self.filter({name: where[name] for name in _IN_INDEX if name in where})
        other_tests = self.filter({n: test for n, test in where.items() if n not in _IN_INDEX})
        cursors: list[Cursor] = []
        # First read the tasks with the cursor's time, then earlier tasks. Each of the two reads
        # uses one index range for each status; one read of all would use several ranges.
        for range_filter, order in after_cursor(index_range, cursor):
            missing_count = limit - len(cursors)
            size = scan_limit if other_tests else min(scan_limit, missing_count)
            pipeline: list[Any] = [
                {"$match": range_filter},
                {"$sort": dict(order)},
                {"$limit": size},
                *([{"$match": other_tests}, {"$limit": missing_count}] if other_tests else []),
                {"$project": _CURSOR_PROJECTION},
            ]
            page = _cursors(
                await self._store.aggregate(pipeline, limit=min(size, missing_count) + 1)
            )
            cursors += page
            if len(cursors) == limit or len(page) == size:
                return Listed(cursors, cursors[-1])
            # Without `other_tests`, a page of fewer than `size` tasks is the last of the range.
            if (
                other_tests
                and size < MAX_LIMIT
                and (last := await self._nth(range_filter, order, size))
            ):
                return Listed(cursors, last)
        return Listed(cursors, None)

    async def _nth(
        self, range_filter: Document, order: list[tuple[str, int]], number: int
    ) -> Cursor | None:
        """Return the cursor of task *number* (from 1) in *order*; None if no such task exists."""
        with mapped():
            cursor = (
                self.collection.find(range_filter, _CURSOR_PROJECTION).sort(order).hint(BY_STATUS)
            )
            tasks = await all_of(cursor.skip(number - 1).limit(1), 1)
        return _cursors(tasks)[0] if tasks else None

    async def by_index(
        self, where: Where, *, by: Path, limit: int, cursor: Cursor | None = None
    ) -> list[Cursor]:
        """See `port.Tasks.by_index`."""
        parts = [self.filter(where)]
        if cursor is not None:
            earlier = {"update_time": {"$lt": cursor.update_time}}
            equal = {"update_time": cursor.update_time, "_id": {"$lt": cursor.id}}
            parts.append({"$or": [earlier, equal]})
        pipeline: list[Any] = [
            {"$match": {"$and": parts}},
            {"$project": _CURSOR_PROJECTION},
            {"$sort": dict(ORDER)},
            {"$limit": limit},
        ]
        return _cursors(
            await self._store.aggregate(pipeline, hint=_INDEX_BY_PATH[by], limit=limit + 1)
        )

    async def count(self, where: Where, *, by: Path, limit: int = MAX_LIMIT) -> int:
        """See `port.Tasks.count`."""
        return await self._store.count(self.filter(where), hint=_INDEX_BY_PATH[by], limit=limit)

    async def count_by_index(self, where: Where) -> int | None:
        """See `port.Tasks.count_by_index`; each branch below reads one index range."""
        statuses = {Status(status_case) for status_case in where["status"].values}
        tests = self.filter({name: test for name, test in where.items() if name != "status"})
        match sorted(tests):
            case [] | ["update_time"]:
                wheres = [{**tests, "status": int(status_case)} for status_case in statuses]
                return sum([await self._of_status(status_case) for status_case in wheres])
            case ["reason"]:
                return await self._store.count(self.filter(where), hint=BY_REASON)
            case ["host" | "callback" as name] if statuses == set(Status):
                return await self._store.count(tests, hint=_INDEX_BY_PATH[Path(name)])
            case ["host" | "callback" as name] if statuses <= set(DONE):
                return await self._store.count(self.filter(where), hint=_INDEX_OF_DONE_TASKS[name])
        return None

    async def _of_status(self, where: Document) -> int:
        """Return the number of tasks of one status in a period; count them in batches.

        To count an index range takes a quarter of the time that `$group` takes. To find the start
        of the next batch takes about as long as to count the batch.
        """
        total, cursor = 0, None
        while True:
            limit = COUNT_BATCH_SIZE
            for range_filter, order in after_cursor(where, cursor):
                number = await self._store.count(range_filter, hint=BY_STATUS, limit=limit)
                total += number
                limit -= number
                if not limit:
                    cursor = await self._nth(range_filter, order, number)
                    break
            if limit or cursor is None:
                return total

    async def change_all(self, keys: Sequence[Key], where: Where, edit: Edit) -> int:
        """See `port.Tasks.change_all`."""
        update = self.operators(edit, {})
        chosen = self.filter({"_id": Among(keys), **where})
        with mapped():
            result = await self.collection.update_many(chosen, update, hint="_id_")
        return int(result.matched_count)

    def operators(self, edit: Edit, new: Document) -> Document:
        """Return MongoDB's operators for *edit*; an edit that sets `due` also notifies workers."""
        update = super().operators(edit, new)
        if edit.set.get("due") is not None:
            update["$set"] |= self._store.wake_field(self._store.now())
        return update

    async def delete_all(self, keys: Sequence[Key], where: Where) -> int:
        """See `port.Tasks.delete_all`; delete the tasks before their data (items and blobs).

        If the ledger becomes unavailable, the next call deletes the remaining items and blobs.
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
        """Delete the items and blobs of those tasks in *keys* that no longer exist."""
        if not keys:
            return
        existing_tasks = await self.read(keys, ("_id",))
        deleted_keys = [key for key in keys if key not in existing_tasks]
        with mapped():
            await self._store.items.delete_many({"_id.task": {"$in": deleted_keys}}, hint=BY_TASK)
            if self._store.kind.tracked:
                await self._blobs.drop_of(deleted_keys)
        self._half_deleted.difference_update(keys)

    async def counts(self) -> Counts:
        """See `port.Tasks.counts`."""
        counts = {status: await self._of_status({"status": int(status)}) for status in Status}
        return Counts(
            by_status={status: number for status, number in counts.items() if number},
            # Count redirects by one command, because their index cannot be read in batches.
            redirects=await self._store.count(IS_REDIRECT, hint=BY_REASON),
        )


class Results:
    """The items of tasks; each item is in its task's document or in a separate document."""

    def __init__(self, store: MongoStore, tasks: TaskTable, items: Items) -> None:
        self._store = store
        self._tasks = tasks
        self._items = items

    async def count(self, *, scan_limit: int | None = None) -> Count:
        """See `port.Results.count`."""
        number, remaining = 0, MAX_LIMIT if scan_limit is None else scan_limit
        for status in _ITEMS_FIRST:
            where = {"status": Among([int(status)])}
            next_cursor: Cursor | None = None
            while True:
                limit = min(remaining, _MAX_TASKS_PER_READ)
                cursors, next_cursor = await self._tasks.listed(
                    where, limit=limit, scan_limit=limit, cursor=next_cursor
                )
                ids = [entry.id for entry in cursors]
                sums = await self._store.aggregate(
                    [
                        {"$match": {"_id": {"$in": ids}}},
                        {"$group": {"_id": None, "items": _NUMBER_OF_ITEMS}},
                    ],
                    hint="_id_",
                )
                number += sum(int(entry["items"]) for entry in sums)
                remaining -= len(ids)
                if not remaining:
                    return Count(number=number, is_exact=False)
                if next_cursor is None:
                    break
        return Count(number=number)

    async def of(self, keys: Sequence[Key]) -> tuple[list[ItemRow], int]:
        """See `port.Results.of`."""
        while True:
            tasks = await self._reply({"_id": {"$in": keys}}, _ITEM_FIELDS, limit=len(keys))
            if len(tasks) == len(keys) or len(keys) <= 1:
                break
            # The server cuts a reply at 16 MiB. A cut reply has the tasks with the lowest ids,
            # perhaps not the first of *keys*, so read fewer keys. A reply is also short if a task
            # was deleted; in this case a few needless reads do no harm.
            keys = keys[: max(1, min(len(tasks), len(keys) // 2))]
        by_key = {task["_id"]: task for task in tasks}
        return await self._first(self._items.rows, [by_key.get(key) for key in keys])

    async def items(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """See `port.Results.items`."""
        return await self._results("items", _ITEM_FIELDS, self._items.rows, last_key)

    async def versions(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """See `port.Results.versions`."""
        return await self._results("versions", ("url", "versions"), self._items.versions, last_key)

    async def _results(
        self, field: str, fields: Sequence[str], read: _Reading, last_id: Key
    ) -> tuple[list[ItemRow], Key | None]:
        query = {"_id": {"$gt": last_id}, field: {"$exists": True}}
        tasks = await self._reply(query, fields, limit=_WITH_ITEMS)
        rows, number = await self._first(read, tasks)
        return rows, tasks[number - 1]["_id"] if tasks else None

    async def _reply(
        self, chosen: Document, fields: Sequence[str], *, limit: int
    ) -> Sequence[Document]:
        """Return the tasks with the lowest ids, at most *limit* tasks and at most 16 MiB."""
        with mapped():
            cursor = self._tasks.collection.find(chosen, dict.fromkeys(fields, 1))
            # With a negative limit the server sends one reply and closes the cursor. Without
            # `batch_size` this reply would have at most 101 documents.
            cursor = cursor.sort([("_id", 1)]).hint("_id_").limit(-limit).batch_size(limit)
            tasks: list[Document] = await cursor.to_list(None)
        return tasks

    async def _first(
        self, read: _Reading, tasks: Sequence[Document | None]
    ) -> tuple[list[ItemRow], int]:
        """Read *tasks* until a batch of items is full; return the items and the number of tasks."""
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


def after_cursor(
    where: Mapping[str, Any], cursor: Cursor | None
) -> list[tuple[dict[str, Any], list[tuple[str, int]]]]:
    """Return one or two pairs of filter and sort order that find the tasks after a cursor.

    The first filter selects tasks with the cursor's time, and the second filter earlier tasks.
    """
    if cursor is None:
        return [(dict(where), ORDER)]
    time_tests = where.get("update_time", {})
    cursor_time = cursor.update_time
    earlier = {
        **where,
        "update_time": {**time_tests, "$lt": min(cursor_time, time_tests.get("$lt", cursor_time))},
    }
    if (
        not time_tests.get("$gte", cursor_time)
        <= cursor_time
        < time_tests.get("$lt", datetime.max.replace(tzinfo=UTC))
    ):
        # *where* excludes tasks with the cursor's time. A filter for this time would force the
        # server to sort the result.
        return [(earlier, ORDER)]
    equal = {**where, "update_time": cursor_time, "_id": {"$lt": cursor.id}}
    return [(equal, _ORDER_OF_EQUALS), (earlier, ORDER)]


def _cursors(tasks: Iterable[Mapping[str, Any]]) -> list[Cursor]:
    return [Cursor(update_time=task["update_time"], id=bytes(task["_id"])) for task in tasks]


class Raw:
    """Reads documents as they are stored; their values may have any type."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def read(
        self, part: Part, *, cursor: Any = None, wanted_ids: Collection[Any] | None = None
    ) -> tuple[list[Document], Any]:
        """See `port.Raw.read`."""
        match part:
            case Part.TASKS:
                tasks, last_id = await read_batch(
                    self._store.tasks, _TASK, last_id=cursor, wanted_ids=wanted_ids
                )
                return [await self._with_lost_items(task) for task in tasks], last_id
            case Part.HOSTS:
                return await read_batch(
                    self._store.hosts, {"robots": 0}, last_id=cursor, wanted_ids=wanted_ids
                )
            case Part.BLOBS:
                fields = {"task_id": "$metadata.task", "create_time": "$uploadDate"}
                return await read_batch(
                    self._store.blob_files, fields, last_id=cursor, wanted_ids=wanted_ids
                )

    async def _with_lost_items(self, task: Document) -> Document:
        """Return a task with its number of items, and with the positions of its missing items."""
        if "items" not in task:
            return task
        outside_numbers = [number for number, is_outside in enumerate(task["items"]) if is_outside]
        task = {**task, "items": len(task["items"]), "items_lost": []}
        if outside_numbers:
            source = task.get("items_from")
            fence = source["fence"] if isinstance(source, Mapping) else task.get("settled")
            ids = [{"task": task["_id"], "fence": fence, "n": number} for number in outside_numbers]
            with mapped():
                cursor = self._store.items.find({"_id": {"$in": ids}}, {"_id": 1})
                existing_numbers = {
                    item["_id"]["n"]
                    for item in await all_of(cursor.hint("_id_"), len(outside_numbers))
                }
            task["items_lost"] = [
                number for number in outside_numbers if number not in existing_numbers
            ]
        return task
