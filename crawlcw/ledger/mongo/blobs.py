"""Store large items and blobs of tracked tasks outside of the documents of the tasks.

A large item is a document of `<spider>.items`, whose key is the task, the fence and the number of
the item. The task's document has null in place of the item, and the item's fence in `items_from`.
If the ledger keeps items of earlier visits, `<spider>.items` contains every item, and the task's
`versions` has the fences of these items. A blob is a file of the GridFS bucket `<name>.blobs`.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import bson
import pymongo
from anyio.lowlevel import checkpoint
from bson.codec_options import CodecOptions

from crawlcw.errors import LedgerError
from crawlcw.ledger import documents
from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import BATCH, BY_TASK, MongoStore, all_of
from crawlcw.ledger.mongo.table import LARGEST_ITEM, UNENCODABLE, Update, send
from crawlcw.ledger.protocol import ItemRow
from crawlcw.model.task import BlobRef
from crawlcw.model.transitions import Settlement

_LARGE_ITEM_BYTES = 1 << 20  #: maximum size of an item in a task's document
_MAX_INSIDE_BYTES = 8 << 20  #: maximum size of all items in a task's document
#: Maximum bytes and number of items in one command, so that the command ends in time.
_BATCH_BYTES = 4 << 20
_BATCH_ITEMS = 1_000
#: Seconds for the transfer of a value; each MiB of the value adds one second.
_REPLY_WITHIN = 10.0
_MIN_BYTES_PER_SECOND = 1 << 20
_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)


class OutsideItem(NamedTuple):
    """An item that is stored outside of its task's document."""

    key: Document
    item: Document
    size: int  #: in bytes


async def placed(
    task_id: bytes, fence: int, items: Iterable[Document], *, all_outside: bool = False
) -> tuple[list[Document | None], list[OutsideItem]]:
    """Return a task's items with null for each large item, and the items for `<spider>.items`.

    With *all_outside* the small items are in `<spider>.items` too, so that all items remain when a
    later visit replaces the task's items. Raises one of the exceptions `UNENCODABLE` for an item
    that the store cannot hold.
    """
    inside_bytes = 0
    inside: list[Document | None] = []
    outside_items = []
    for number, item in enumerate(items):
        if number % _BATCH_ITEMS == _BATCH_ITEMS - 1:
            await checkpoint()  # encoding many items would block the event loop
        size = len(bson.encode(item))
        if size > LARGEST_ITEM:
            raise bson.errors.InvalidDocument(f"an item of {size} bytes, too large")
        is_large = size > _LARGE_ITEM_BYTES or inside_bytes + size > _MAX_INSIDE_BYTES
        if is_large or all_outside:
            key = {"task": task_id, "fence": fence, "n": number}
            outside_items.append(OutsideItem(key, item, size))
        inside_bytes += 0 if is_large else size
        inside.append(None if is_large else item)
    return inside, outside_items


class Items:
    """Stores large items outside of the tasks' documents, and reads all items of a task."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def rows(self, task: Mapping[str, Any]) -> list[ItemRow]:
        """Return all items of a task as rows for a reader."""
        return _rows(task, task.get("items_from") or {}, await self.stored_items(task))

    async def versions(self, task: Mapping[str, Any]) -> list[ItemRow]:
        """Return the items of all kept visits of a task as rows, the earliest visit first."""
        return [
            row
            for source in task["versions"]
            for row in _rows(task, source, await self.of_version(task["_id"], source["fence"]))
        ]

    async def of_version(self, task_id: bytes, fence: int) -> list[Document]:
        """Return the items of the visit whose fence is *fence*, in their stored form."""
        query = _of_visits(task_id, fence, fence + 1)
        blobs = await self._store.items.find(query).hint("_id_").to_list(None)
        return [row["item"] for row in sorted(blobs, key=lambda row: row["_id"]["n"])]

    async def stored_items(self, task: Mapping[str, Any]) -> list[Document]:
        """Return all items of a task in their stored form."""
        items = list(task.get("items") or ())
        outside_numbers = [number for number, item in enumerate(items) if item is None]
        for start in range(0, len(outside_numbers), _BATCH_ITEMS):
            numbers = outside_numbers[start : start + _BATCH_ITEMS]
            source = {"task": task["_id"], "fence": task["items_from"]["fence"]}
            query = {"_id": {"$in": [{**source, "n": number} for number in numbers]}}
            cursor = self._store.items.find(query).hint("_id_")
            for document in await all_of(cursor, len(numbers)):
                items[document["_id"]["n"]] = document["item"]
        return items

    async def write(self, outside_items: Sequence[OutsideItem]) -> dict[int, str]:
        """Store items outside of tasks; return an error message by index for each refused item.

        A stored item is visible if the task's `items_from` or `versions` has the item's fence.
        """
        refused: dict[int, str] = {}
        start = 0
        while start < len(outside_items):
            end, size = start, 0
            while end < len(outside_items) and end - start < _BATCH_ITEMS and size < _BATCH_BYTES:
                size += outside_items[end].size
                end += 1
            updates = [
                Update({"_id": entry.key}, {"$set": {"item": entry.item}}, upsert=True)
                for entry in outside_items[start:end]
            ]
            sent = await send(self._store.items, updates)
            refused |= {start + n: why for n, why in sent.refused.items()}
            start = end
        return refused

    async def forget_replaced(self, settlements: Sequence[Settlement]) -> None:
        """Delete an item in `<spider>.items` if its task no longer keeps the items of that visit.

        If the process dies before the deletion, the next visit of the page deletes the items.
        """
        task_ids = [settlement.lease.task.id for settlement in settlements if _replaces(settlement)]
        if not task_ids:
            return
        projection = {"items_from": 1, "versions": 1, "settled": 1}
        cursor = self._store.tasks.find({"_id": {"$in": task_ids}}, projection).hint("_id_")
        deletion_filters = []
        for task in await all_of(cursor, len(task_ids)):
            sources = [*(task.get("versions") or ()), task.get("items_from") or {}]
            fences = [source["fence"] for source in sources if source]
            first_fence = min(fences, default=task["settled"])
            # Keep items with later fences, because a worker writes an outcome's items before the
            # outcome.
            deletion_filters.append(_of_visits(task["_id"], 0, first_fence))
        if deletion_filters:
            await self._store.items.delete_many({"$or": deletion_filters}, hint="_id_")


def _replaces(settlement: Settlement) -> bool:
    # Test `settled > 0`, because a reopened page has no visit but may still have items.
    return settlement.change.items is not None and settlement.lease.task.settled > 0


def _rows(
    task: Mapping[str, Any], source: Mapping[str, Any], items: Iterable[Document]
) -> list[ItemRow]:
    url = source.get("url") or task["url"]
    return [
        ItemRow(item=documents.unescaped(item), url=url, fetched_at=source["time"])
        for item in items
    ]


def _of_visits(task_id: bytes, first: int, end: int) -> Document:
    """Return a filter for a task's items whose fence is at least *first* and below *end*."""
    # The bounds have no `n` (number of the item), so they sort before all ids with an `n`.
    return {
        "_id": {"$gte": {"task": task_id, "fence": first}, "$lt": {"task": task_id, "fence": end}}
    }


class Blobs:
    """Stores, reads and deletes blobs, the large values of tracked tasks."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """Upload *value* as a GridFS file whose metadata names the task."""
        return await self.upload(uuid.uuid4().hex, task_id, documents.escaped(value))

    async def upload(self, identity: str, task_id: bytes, escaped_value: Any) -> BlobRef:
        """Upload a value with escaped keys as a GridFS file with the id *identity*."""
        try:
            content = bson.encode({"value": escaped_value})
        except UNENCODABLE as error:
            raise LedgerError(f"MongoDB cannot store the value: {error}") from error
        blob = BlobRef(id=identity, size=len(content))
        with mapped(), pymongo.timeout(_REPLY_WITHIN + blob.size / _MIN_BYTES_PER_SECOND):
            await self._store.bucket().upload_from_stream_with_id(
                blob.id, blob.id, content, metadata={"task": task_id}
            )
        return blob

    async def read(self, blob: BlobRef) -> Any:
        """Download the value of a blob."""
        return documents.unescaped(await self.escaped(blob))

    async def escaped(self, blob: BlobRef) -> Any:
        """Download the value of a blob in its stored form."""
        with mapped(), pymongo.timeout(_REPLY_WITHIN + blob.size / _MIN_BYTES_PER_SECOND):
            stream = await self._store.bucket().open_download_stream(blob.id)
            content = await stream.read()
        return bson.decode(content, _OPTIONS)["value"]

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """Delete the files of *blobs*, and then the chunks of these files."""
        with mapped():
            await self._drop([blob.id for blob in blobs])

    async def drop_of(self, tasks: list[bytes]) -> None:
        """Delete the blob files of *tasks*."""
        cursor = self._store.blob_files.find({"metadata.task": {"$in": tasks}}, {"_id": 1}).hint(
            BY_TASK
        )
        await self._drop([file["_id"] for file in await cursor.to_list(None)])

    async def _drop(self, files: list[str]) -> None:
        for start in range(0, len(files), BATCH):
            id_test = {"$in": files[start : start + BATCH]}
            # Delete the files before their chunks, because a file without chunks would be broken.
            # Delete the chunks even if the file is gone, because a process may have died between
            # the two deletions.
            await self._store.blob_files.delete_many({"_id": id_test}, hint="_id_")
            await self._store.blob_chunks.delete_many({"files_id": id_test})
