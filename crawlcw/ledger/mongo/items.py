"""The items of tasks: inside their documents, or beside them if they are large.

A large item is written to `<spider>.items` under its task, fence and number; the
task has null in its place, and `items_from` names the fence to read. Where the
items of earlier visits are kept, all of each visit's are there, and `versions` has
their fences.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import bson

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.encoding import LARGEST_ITEM
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.ledger.protocol import ItemRow
from crawlcw.model.transitions import Settlement

#: Bytes of an item, and of all in a document, from which on one is stored outside.
_LARGE = 1 << 20
_INSIDE = 8 << 20


class Items:
    """Stores large items outside, and reads all of them."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def rows(self, found: Mapping[str, Any]) -> list[ItemRow]:
        """Return the items of a task's document."""
        return _rows(found, found.get("items_from") or {}, await self.whole(found))

    async def versions(self, found: Mapping[str, Any]) -> list[ItemRow]:
        """Return the items of all visits of a task that are kept, the earliest visit first."""
        return [
            row
            for source in found["versions"]
            for row in _rows(found, source, await self.of_version(found["_id"], source["fence"]))
        ]

    async def of_version(self, task_id: bytes, fence: int) -> list[documents.Document]:
        """Return the items of one visit that are kept, as they are stored."""
        kept = _of_visits(task_id, fence, fence + 1)
        blobs = await self._store.items.find(kept).hint("_id_").to_list(None)
        return [each["item"] for each in sorted(blobs, key=lambda each: each["_id"]["n"])]

    async def whole(self, found: Mapping[str, Any]) -> list[documents.Document]:
        """Return the items of a task's document, as they are stored."""
        items = []
        for number, item in enumerate(found.get("items") or ()):
            if item is None:
                place = {"task": found["_id"], "fence": found["items_from"]["fence"], "n": number}
                item = (await self._store.items.find_one({"_id": place}))["item"]
            items.append(item)
        return items

    async def placed(
        self,
        task_id: bytes,
        fence: int,
        items: Iterable[documents.Document],
        *,
        all_outside: bool = False,
    ) -> list[documents.Document | None]:
        """Return what of a task's items is to be in its document, with the large ones outside.

        Those are seen once the task says that its items are from *fence*. With *all_outside*
        the others are stored outside as well, to be kept when the task has other items. Raises one
        of `UNENCODABLE` for an item that the store cannot hold.
        """
        inside = 0
        kept: list[documents.Document | None] = []
        for number, item in enumerate(items):
            size = len(bson.encode(item))
            if size > LARGEST_ITEM:
                raise bson.errors.InvalidDocument(f"an item of {size} bytes, too large")
            is_large = size > _LARGE or inside + size > _INSIDE
            if is_large or all_outside:
                place = {"task": task_id, "fence": fence, "n": number}
                await self._store.items.replace_one({"_id": place}, {"item": item}, upsert=True)
            if is_large:
                kept.append(None)
            else:
                inside += size
                kept.append(item)
        return kept

    async def forget_replaced(self, settlements: Sequence[Settlement]) -> None:
        """Delete the offloaded items of visits that are no longer kept.

        Where this is left out, for its process has died, the page's next visit does it.
        """
        again = [s.lease.task.id for s in settlements if _replaces(s)]
        if not again:
            return
        kept = {"items_from": 1, "versions": 1, "settled": 1}
        cursor = self._store.tasks.find({"_id": {"$in": again}}, kept).hint("_id_")
        old = []
        for found in await all_of(cursor, len(again)):
            sources = [*(found.get("versions") or ()), found.get("items_from") or {}]
            fences = [source["fence"] for source in sources if source]
            first = min(fences, default=found["settled"])
            # Later ones may belong to a worker that is about to record them.
            old.append(_of_visits(found["_id"], 0, first))
        if old:
            await self._store.items.delete_many({"$or": old}, hint="_id_")


def _replaces(settlement: Settlement) -> bool:
    # A page that was reopened has no visit, and may have items all the same.
    return settlement.change.items is not None and settlement.lease.task.settled > 0


def _rows(
    found: Mapping[str, Any], source: Mapping[str, Any], items: Iterable[documents.Document]
) -> list[ItemRow]:
    url = source.get("url") or found["url"]
    return [
        ItemRow(item=documents.unescaped(item), url=url, fetched_at=source["time"])
        for item in items
    ]


def _of_visits(task_id: bytes, first: int, end: int) -> documents.Document:
    """Return the filter of a task's items of some visits: one stretch of the ids."""
    # Without a number the id comes before all that have one.
    return {
        "_id": {"$gte": {"task": task_id, "fence": first}, "$lt": {"task": task_id, "fence": end}}
    }
