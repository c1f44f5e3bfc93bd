"""Values that are too large for a task's document: each is a file of the bucket `<name>.blobs`."""

import uuid
from collections.abc import Collection
from typing import Any

import bson
import pymongo
from bson.codec_options import CodecOptions

from crawlcw.errors import LedgerError
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.encoding import UNENCODABLE
from crawlcw.ledger.mongo.indexes import BY_TASK
from crawlcw.ledger.mongo.store import BATCH, MongoStore
from crawlcw.model.task import BlobRef

#: A value takes as many seconds longer than other operations as it has MiB.
_ANSWER_WITHIN = 10.0
_SLOWEST = 1 << 20
_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)


class Blobs:
    """Stores, reads and drops large values."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """Upload the value as a file that names its task."""
        return await self.upload(uuid.uuid4().hex, task_id, documents.escaped(value))

    async def upload(self, identity: str, task_id: bytes, escaped: Any) -> BlobRef:
        """Store a value under a name that no other has; its keys are escaped."""
        try:
            content = bson.encode({"value": escaped})
        except UNENCODABLE as error:
            raise LedgerError(f"the value cannot be stored: {error}") from error
        blob = BlobRef(id=identity, size=len(content))
        with mapped(), pymongo.timeout(_ANSWER_WITHIN + blob.size / _SLOWEST):
            await self._store.bucket().upload_from_stream_with_id(
                blob.id, blob.id, content, metadata={"task": task_id}
            )
        return blob

    async def read(self, blob: BlobRef) -> Any:
        """Download the file."""
        return documents.unescaped(await self.escaped(blob))

    async def escaped(self, blob: BlobRef) -> Any:
        """Return a value as it is written down."""
        with mapped(), pymongo.timeout(_ANSWER_WITHIN + blob.size / _SLOWEST):
            stream = await self._store.bucket().open_download_stream(blob.id)
            content = await stream.read()
        return bson.decode(content, _OPTIONS)["value"]

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """Delete the files, and then their chunks."""
        with mapped():
            await self._drop([blob.id for blob in blobs])

    async def drop_of(self, tasks: list[bytes]) -> None:
        """Delete all files of those tasks."""
        cursor = self._store.blob_files.find({"metadata.task": {"$in": tasks}}, {"_id": 1}).hint(
            BY_TASK
        )
        await self._drop([each["_id"] for each in await cursor.to_list(None)])

    async def _drop(self, files: list[str]) -> None:
        for start in range(0, len(files), BATCH):
            some = {"$in": files[start : start + BATCH]}
            # The chunks last: without its chunks a file would be there, and broken.
            # They are deleted even where the file is gone, for the first call may
            # not have come so far.
            await self._store.blob_files.delete_many({"_id": some}, hint="_id_")
            await self._store.blob_chunks.delete_many({"files_id": some})
