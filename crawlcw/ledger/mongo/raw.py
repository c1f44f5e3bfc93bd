"""Documents of a ledger as they are, for `doctor`."""

from collections.abc import Collection, Mapping
from typing import Any

from crawlcw.ledger.documents import Document
from crawlcw.ledger.examination import TASK_STATE
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore, all_of, some
from crawlcw.ledger.port import Part

#: Of a task's items which of them are elsewhere; of its values the references to blobs.
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


class Raw:
    """Documents whose values may be of any types."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def read(
        self, part: Part, *, after: Any = None, only: Collection[Any] | None = None
    ) -> tuple[list[Document], Any]:
        """See `port.Raw.read`."""
        match part:
            case Part.TASKS:
                found, place = await some(self._store.tasks, _TASK, after=after, only=only)
                return [await self._with_lost_items(each) for each in found], place
            case Part.HOSTS:
                return await some(self._store.hosts, {"robots": 0}, after=after, only=only)
            case Part.BLOBS:
                fields = {"task_id": "$metadata.task", "create_time": "$uploadDate"}
                return await some(self._store.blob_files, fields, after=after, only=only)

    async def _with_lost_items(self, task: Document) -> Document:
        """Return a task with the number of its items, and those that are nowhere."""
        if "items" not in task:
            return task
        outside = [number for number, is_outside in enumerate(task["items"]) if is_outside]
        task = {**task, "items": len(task["items"]), "items_lost": []}
        if outside:
            source = task.get("items_from")
            fence = source["fence"] if isinstance(source, Mapping) else task.get("settled")
            places = [{"task": task["_id"], "fence": fence, "n": number} for number in outside]
            with mapped():
                cursor = self._store.items.find({"_id": {"$in": places}}, {"_id": 1})
                there = {
                    each["_id"]["n"] for each in await all_of(cursor.hint("_id_"), len(outside))
                }
            task["items_lost"] = [number for number in outside if number not in there]
        return task
