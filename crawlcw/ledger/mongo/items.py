"""The items of tasks: inside their documents, or, where they are large, set aside.

A large item is written to `<spider>.items` under its task, fence and number; the
task has null in its place, and `settled` names the fence to read.
"""

from collections.abc import Mapping
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import ItemRow
from crawlcw.model.task import Lease


class Items:
    """Sets large items aside, and reads all of them."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def rows(self, found: Mapping[str, Any]) -> list[ItemRow]:
        """Return the items of a task's document."""
        response = found.get("response") or {}
        url = response.get("final_url") or found["url"]
        return [
            ItemRow(item=item, url=url, fetched_at=found["update_time"])
            for item in await self.whole(found)
        ]

    async def whole(self, found: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the items of a task's document, as they were yielded."""
        items = []
        for number, item in enumerate(found.get("items") or ()):
            if item is None:
                place = {"task": found["_id"], "fence": found["settled"], "n": number}
                blob = await self._store.items.find_one({"_id": place})
                items.append(documents.unescaped(blob["item"]))
            else:
                items.append(documents.unescaped(item))
        return items

    async def put(self, lease: Lease, number: int, item: documents.Document) -> None:
        """Set an item aside; seen once the task says that it was settled by the lease."""
        place = {"task": lease.task.id, "fence": lease.fence, "n": number}
        await self._store.items.replace_one({"_id": place}, {"item": item}, upsert=True)
