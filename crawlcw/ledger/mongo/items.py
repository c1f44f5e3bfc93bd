"""The items of tasks: inside their documents, or, where they are large, set aside.

A large item is written to `<spider>.items` under its task, fence and number; the
task has null in its place, and `settled` names the fence to read.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import ItemRow
from crawlcw.model.task import Lease

_ITEM_FIELDS = ("url", "items", "settled", "update_time", "response.final_url")


class Items(MongoStore):
    """Sets large items aside, and reads all of them."""

    async def items(self) -> AsyncIterator[ItemRow]:
        """Stream the tasks that have items."""
        chosen = {"items": {"$exists": True}}
        stream = self._stream(self._tasks, chosen, dict.fromkeys(_ITEM_FIELDS, 1), self._rows)
        async with aclosing(stream):
            async for row in stream:
                yield row

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
                blob = await self._items.find_one({"_id": place})
                items.append(documents.unescaped(blob["item"]))
            else:
                items.append(documents.unescaped(item))
        return items

    async def _put_blob(self, lease: Lease, number: int, item: documents.Document) -> None:
        place = {"task": lease.task.id, "fence": lease.fence, "n": number}
        await self._items.replace_one({"_id": place}, {"item": item}, upsert=True)
