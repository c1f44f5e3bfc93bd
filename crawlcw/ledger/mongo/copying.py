"""All documents of a ledger, read and written as they are, to copy it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import bson

from crawlcw.ledger import documents
from crawlcw.ledger.copying import Part
from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.blobs import Blobs
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.items import Items, source_of
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.model.task import BlobRef

#: So much at a time.
_DOCUMENTS = 500
_BYTES = 4 << 20
#: What only this store writes down, and for its own use.
_OWN = ("woken",)


class Copying:
    """Reads whole collections, and fills those that are empty."""

    def __init__(self, store: MongoStore, items: Items, blobs: Blobs) -> None:
        self._store = store
        self._items = items
        self._blobs = blobs
        self._collections = {
            Part.TASKS: store.durable,
            Part.HOSTS: store.hosts,
            Part.WORKERS: store.workers,
            Part.SESSIONS: store.sessions.collection,
            Part.STATE: store.state.collection,
            Part.BLOBS: store.blob_files,
        }

    async def read(self, part: Part) -> AsyncIterator[Sequence[Document]]:
        """See `copying.Copying.read`."""
        changed = {Part.TASKS: self._task, Part.BLOBS: self._blob, Part.WORKERS: _counted}
        whole = changed.get(part, _as_it_is)
        some: list[Document] = []
        size = 0
        async with aclosing(self._store.stream(self._collections[part], {}, None, whole)) as all_:
            async for found in all_:
                some.append(found)
                size += len(bson.encode(found))
                if len(some) >= _DOCUMENTS or size >= _BYTES:
                    yield some
                    some, size = [], 0
        if some:
            yield some

    async def _task(self, found: Mapping[str, Any]) -> Sequence[Document]:
        task = {name: value for name, value in found.items() if name not in _OWN}
        if "items" in task:
            task["items"] = [documents.escaped(item) for item in await self._items.whole(found)]
            task["items_from"] = source_of(found)
            # Where large items are is this store's own affair.
            del task["items_from"]["fence"]
        if "versions" in task:
            task["versions"] = [
                {**source, "items": await self._items.of_version(found["_id"], source["fence"])}
                for source in task["versions"]
            ]
        return [task]

    async def _blob(self, found: Mapping[str, Any]) -> Sequence[Document]:
        value = await self._blobs.escaped(BlobRef(id=found["_id"], size=found["length"]))
        return [{"_id": found["_id"], "task_id": found["metadata"]["task"], "value": value}]

    async def write(self, part: Part, documents: Sequence[Document]) -> None:
        """See `copying.Copying.write`."""
        if part is Part.BLOBS:
            for each in documents:
                await self._blobs.upload(each["_id"], each["task_id"], each["value"])
            return
        with mapped():
            if part is Part.TASKS:
                documents = [await self._placed(each) for each in documents]
            await self._collections[part].insert_many(documents, ordered=False)

    async def _placed(self, task: Document) -> Document:
        """Return a task with those of its items in it that have room there."""
        task = dict(task)
        if "items" in task:
            fence = task["settled"]
            task["items"] = await self._items.placed(task["_id"], fence, task["items"])
            task["items_from"] = {**task["items_from"], "fence": fence}
        versions = []
        for version in task.get("versions", ()):
            source = {name: value for name, value in version.items() if name != "items"}
            aside = version["items"]
            await self._items.placed(task["_id"], source["fence"], aside, all_aside=True)
            versions.append(source)
        return {**task, "versions": versions} if versions else task


async def _counted(worker: Mapping[str, Any]) -> Sequence[Document]:
    # Its vitals are of now, and of this ledger.
    return [{name: value for name, value in worker.items() if name != "vitals"}]


async def _as_it_is(found: Mapping[str, Any]) -> Sequence[Document]:
    return [dict(found)]
