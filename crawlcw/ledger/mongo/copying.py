"""Read and write unchanged tasks, their results and blobs for a copy of a ledger."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import bson

from crawlcw.errors import LedgerError
from crawlcw.ledger.choosing import resumed
from crawlcw.ledger.copying import Part
from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.blobs import Blobs, Items, OutsideItem, placed
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore, read_batch
from crawlcw.ledger.port import LedgerTables
from crawlcw.model.task import BlobRef

#: Maximum bytes in one batch, including the items outside of the tasks' documents.
_BYTES = 8 << 20
#: Names of task fields that only MongoDB has.
_MONGO_ONLY_FIELDS = ("woken",)


class LedgerContents:
    """Reads all tasks and blobs of a ledger, and writes them to an empty ledger."""

    def __init__(self, store: MongoStore, items: Items, blobs: Blobs) -> None:
        self._store = store
        self._items = items
        self._blobs = blobs

    async def read(self, part: Part) -> AsyncGenerator[Sequence[Document], None]:
        """See `copying.Contents.read`."""
        cursor = None
        while True:
            batch, cursor = await resumed(self._store, self._next, part, cursor)
            if batch:
                yield batch
            if cursor is None:
                return

    async def _next(
        self, _tables: LedgerTables, part: Part, cursor: Any
    ) -> tuple[list[Document], Any]:
        """Return a batch of documents, and the cursor for the next call (None: no next call)."""
        task_source, blob_source = (
            (self._store.durable, self._task),
            (self._store.blob_files, self._blob),
        )
        collection, load = task_source if part is Part.TASKS else blob_source
        batch, next_cursor = await read_batch(collection, None, last_id=cursor)
        documents: list[Document] = []
        size = 0
        for document in batch:
            with mapped():
                documents.append(await load(document))
            size += len(bson.encode(documents[-1]))
            if size >= _BYTES:
                return documents, document["_id"]
        return documents, next_cursor

    async def _task(self, document: Document) -> Document:
        task = {name: value for name, value in document.items() if name not in _MONGO_ONLY_FIELDS}
        if "items" in task:
            task["items"] = await self._items.stored_items(document)
            # Copy no fence of the visit, because only MongoDB needs the fence to find large items.
            source = document["items_from"]
            task["items_from"] = {name: source[name] for name in source if name != "fence"}
        if "versions" in task:
            task["versions"] = [
                {**source, "items": await self._items.of_version(document["_id"], source["fence"])}
                for source in task["versions"]
            ]
        return task

    async def _blob(self, file: Document) -> Document:
        value = await self._blobs.escaped(BlobRef(id=file["_id"], size=file["length"]))
        return {"_id": file["_id"], "task_id": file["metadata"]["task"], "value": value}

    async def write(self, part: Part, documents: Sequence[Document]) -> None:
        """See `copying.Contents.write`."""
        if part is Part.BLOBS:
            for blob in documents:
                await self._blobs.upload(blob["_id"], blob["task_id"], blob["value"])
            return
        with mapped():
            outside_items: list[OutsideItem] = []
            tasks = [await _placed(task, outside_items) for task in documents]
            for why in (await self._items.write(outside_items)).values():
                raise LedgerError(f"MongoDB: {why}")
            await self._store.durable.insert_many(tasks, ordered=False)


async def _placed(task: Document, outside_items: list[OutsideItem]) -> Document:
    """Return the task with its small items; add its large items to *outside_items*."""
    task = dict(task)
    if "items" in task:
        fence = task["settled"]
        task["items"], large_items = await placed(task["_id"], fence, task["items"])
        task["items_from"] = {**task["items_from"], "fence": fence}
        outside_items += large_items
    versions = []
    for version in task.get("versions", ()):
        source = {name: value for name, value in version.items() if name != "items"}
        items = version["items"]
        _, large_items = await placed(task["_id"], source["fence"], items, all_outside=True)
        outside_items += large_items
        versions.append(source)
    return {**task, "versions": versions} if versions else task
