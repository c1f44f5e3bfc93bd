"""Add tasks, read due tasks, and read the whole record of a task."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.admin import Reopening
from crawlcw.ledger.item_files import fill_files
from crawlcw.ledger.mongo.blobs import Items
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import ANY_PRIORITY, BY_HOST, BY_PRIORITY, MongoStore, all_of
from crawlcw.ledger.mongo.table import Update, send
from crawlcw.ledger.mongo.updates import of_host
from crawlcw.ledger.protocol import Added
from crawlcw.model.task import Record, Task

#: Number of tasks in one bulk; a slow server must write them within the driver's time limit.
_ADD_BATCH_SIZE = 1_000
#: Number of pipelines in one `$unionWith`, because small clusters at Atlas accept only 50 stages.
_PIPELINES_PER_UNION = 40
#: Projection that leaves out the errors, the response and the items of a task.
_HIDDEN_RESULTS = dict.fromkeys(("errors", "response", "items"), 0)
#: Projection that leaves out the payload of a tracked task.
_CARRIED = dict.fromkeys(("trace", *documents.CARRIED_FIELDS), 0)


class Tasks(Reopening):
    """Adds tasks to a MongoDB ledger and reads tasks."""

    def __init__(self, store: MongoStore, items: Items) -> None:
        super().__init__(store)
        self._store = store
        self._items = items

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add tasks by bulk upserts; an upsert never changes an existing task."""
        added = Added()
        for start in range(0, len(tasks), _ADD_BATCH_SIZE):
            added += await self._add_some(tasks[start : start + _ADD_BATCH_SIZE])
        return added

    async def _add_some(self, tasks: Sequence[Task]) -> Added:
        with mapped():
            sent = await send(self._store.durable, [_insertion(task) for task in tasks])
        return Added(
            new=sent.inserted,
            existing=len(tasks) - sent.inserted - len(sent.refused),
            rejected=tuple((tasks[index], why) for index, why in sent.refused.items()),
        )

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """See `Tasks.page`; the query reads one range of one index."""
        if limit < 1:
            return []  # because MongoDB reads limit 0 as no limit
        due, hint = self._due(), BY_PRIORITY
        if hosts is not None:
            due = {"host": {"$in": list(hosts)}, **due}
            hint = BY_HOST
        with mapped():
            # Copy the projection for each call, because a driver may add fields to the dictionary.
            cursor = self._store.tasks.find(due, {**self._hidden_fields()})
            cursor = cursor.sort([("priority", -1), ("due", 1)]).limit(limit).hint(hint)
            return [documents.task(document) for document in await all_of(cursor, limit)]

    async def page_each(self, limit_by_host: Mapping[str, int]) -> list[Task]:
        """Read the due tasks of all hosts by one command, with one index seek for each host.

        The command joins one pipeline for each host. A `find` for each host would take three times
        the CPU of this command. One `$lookup` for all hosts would query every shard.
        """
        due = self._due()
        pages: list[list[dict[str, Any]]] = [
            [
                {"$match": {**of_host(host, self._store.kind), **due}},
                # Sort by host too, because the index by host sorts by these three fields.
                {"$sort": {"host": 1, "priority": -1, "due": 1}},
                {"$limit": limit},
            ]
            for host, limit in limit_by_host.items()
            if limit > 0
        ]
        if not pages:
            return []
        name = self._store.name
        parts = range(0, len(pages), _PIPELINES_PER_UNION)
        pipeline = union_of(
            name, [union_of(name, pages[n : n + _PIPELINES_PER_UNION]) for n in parts]
        )
        pipeline.append({"$project": self._hidden_fields()})
        limit = sum(limit_by_host.values()) + 1
        tasks = await self._store.aggregate(pipeline, hint=BY_HOST, limit=limit)
        return [documents.task(task) for task in tasks]

    def _due(self) -> dict[str, Any]:
        return {"priority": {"$lte": ANY_PRIORITY}, "due": {"$lte": self._store.now()}}

    def _hidden_fields(self) -> dict[str, int]:
        return _HIDDEN_RESULTS | _CARRIED if self._store.kind.tracked else _HIDDEN_RESULTS

    async def get(self, task_id: bytes) -> Record | None:
        """Read one whole document."""
        with mapped():
            document = await self._store.tasks.find_one({"_id": task_id})
            if document is None:
                return None
            document["items"] = await self._items.stored_items(document)
        record = documents.record(document)
        await fill_files(self._store, record.items)
        return record


def union_of(collection: str, pipelines: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return one pipeline that yields the results of all *pipelines* one after the other."""
    first, *rest = pipelines
    return [*first, *({"$unionWith": {"coll": collection, "pipeline": p}} for p in rest)]


def _insertion(task: Task) -> Update:
    document = documents.document(task)
    return Update({"_id": document.pop("_id")}, {"$setOnInsert": document}, upsert=True)
