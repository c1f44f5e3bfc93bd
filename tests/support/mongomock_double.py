"""mongomock with additions for MongoLedger that mongomock 4.3 lacks.

It replays a bulk one operation at a time (its own `bulk_write` does not know
PyMongo's `sort`), encodes written values as the real driver does, runs
`aggregate` sent as a command, and ignores hints and the server-side validator. Plans, write
concerns and races need the real server.
"""

from collections.abc import Sequence
from typing import Any

import bson
from gridfs.errors import NoFile
from mongomock_motor import AsyncMongoMockClient
from pymongo import IndexModel, UpdateOne
from pymongo.errors import (
    BulkWriteError,
    CollectionInvalid,
    DocumentTooLarge,
    DuplicateKeyError,
    OperationFailure,
)
from pymongo.results import BulkWriteResult, DeleteResult, UpdateResult

from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.store import MongoStore

_MAX_DOCUMENT = 16 << 20


def database(name: str = "tests") -> "Database":
    """Return an empty database in memory."""
    return Database(AsyncMongoMockClient(tz_aware=True)[name])


class Database:
    """The methods of a database that `MongoLedger` uses."""

    def __init__(self, mocked: Any) -> None:
        self._mocked = mocked
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, name: str) -> "Bucket":
        return self._buckets.setdefault(name, Bucket(self[f"{name}.files"]))

    def __getitem__(self, name: str) -> "Collection":
        return Collection(self._mocked[name])

    @property
    def name(self) -> str:
        name: str = self._mocked.name
        return name

    def get_collection(self, name: str, **_: Any) -> "Collection":
        return self[name]

    async def create_collection(self, name: str, **_: Any) -> None:
        if name in await self._mocked.list_collection_names():
            raise CollectionInvalid(f"collection {name} already exists")
        await self._mocked.create_collection(name)

    async def command(self, command: dict[str, Any]) -> dict[str, Any]:
        if "connectionStatus" in command:
            return {"authInfo": {"authenticatedUsers": []}}
        if "count" in command:
            number = await self._mocked[command["count"]].count_documents(command.get("query", {}))
            return {"n": min(number, command.get("limit", number))}
        raise NotImplementedError(command)


class Bucket:
    """The methods of a GridFS bucket that `MongoLedger` uses; contents are not in the database."""

    def __init__(self, files: "Collection") -> None:
        self._files = files
        self._contents: dict[str, bytes] = {}

    async def upload_from_stream_with_id(
        self, file_id: str, filename: str, source: bytes, *, metadata: dict[str, Any]
    ) -> None:
        self._contents[file_id] = source
        await self._files.insert_one({"_id": file_id, "filename": filename, "metadata": metadata})

    async def open_download_stream(self, file_id: str) -> "Download":
        if await self._files.find_one({"_id": file_id}) is None:
            raise NoFile(file_id)
        return Download(self._contents[file_id])


class Download:
    """A file for reading."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read(self) -> bytes:
        return self._content


class Found:
    """A cursor over the found documents."""

    def __init__(self, found: list[dict[str, Any]]) -> None:
        self.found = found

    async def to_list(self, _: None) -> list[dict[str, Any]]:
        return self.found


class DoubleStore(MongoStore):
    """The store under the ledger's facets, on the double."""

    def bucket(self) -> Bucket:
        bucket: Bucket = self.database.bucket(f"{self.name}.blobs")
        return bucket


def ledger(database: Database, name: str, **options: Any) -> MongoLedger:
    """Return the ledger on the double."""
    return MongoLedger(DoubleStore(database, name, **options))


class Collection:
    """The methods of a collection that `MongoLedger` uses."""

    def __init__(self, mocked: Any) -> None:
        self._mocked = mocked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mocked, name)

    async def create_indexes(self, indexes: Sequence[IndexModel]) -> None:
        # mongomock's own ignores partial filters.
        for each in indexes:
            options = dict(each.document)
            await self._mocked.create_index(list(options.pop("key").items()), **options)

    async def aggregate(self, pipeline: Sequence[dict[str, Any]], **_: Any) -> "Found":
        # mongomock has no `$unionWith`: each part runs alone, with the stages after all parts.
        unions = [n for n, stage in enumerate(pipeline) if "$unionWith" in stage]
        if not unions:
            return Found(await self._mocked.aggregate(list(pipeline)).to_list())
        parts = [pipeline[: unions[0]], *(pipeline[n]["$unionWith"]["pipeline"] for n in unions)]
        found = []
        for part in parts:
            found += (await self.aggregate([*part, *pipeline[unions[-1] + 1 :]])).found
        return Found(found)

    async def bulk_write(
        self, operations: Sequence[UpdateOne], *, ordered: bool
    ) -> BulkWriteResult:
        # The driver has no public names for the fields of an operation.
        for operation in operations:
            _encode(operation._doc)
        answer = {"nMatched": 0, "nModified": 0, "nInserted": 0, "nRemoved": 0, "nUpserted": 0}
        upserted = []
        errors = []
        for index, operation in enumerate(operations):
            try:
                result = await self._mocked.update_one(
                    operation._filter, operation._doc, upsert=bool(operation._upsert)
                )
            except DuplicateKeyError as error:
                errors.append({"index": index, "code": 11000, "errmsg": str(error)})
                continue
            if result.upserted_id is not None:
                upserted.append({"index": index, "_id": result.upserted_id})
            else:
                answer["nMatched"] += result.matched_count
                answer["nModified"] += result.modified_count
        answer["nUpserted"] = len(upserted)
        if errors:
            raise BulkWriteError({**answer, "upserted": upserted, "writeErrors": errors})
        return BulkWriteResult({**answer, "upserted": upserted}, acknowledged=True)

    async def replace_one(self, where: dict[str, Any], document: dict[str, Any], **_: Any) -> None:
        _encode(document)
        await self._mocked.replace_one(where, document, upsert=True)

    async def update_one(self, where: dict[str, Any], update: Any, **_: Any) -> UpdateResult:
        _encode(update)
        result: UpdateResult = await self._mocked.update_one(where, update)
        return result

    async def update_many(self, where: dict[str, Any], update: Any, **_: Any) -> UpdateResult:
        result: UpdateResult = await self._mocked.update_many(where, update)
        return result

    async def delete_many(self, where: dict[str, Any], **_: Any) -> DeleteResult:
        result: DeleteResult = await self._mocked.delete_many(where)
        return result

    async def watch(self, *_: Any, **__: Any) -> Any:
        raise OperationFailure("The $changeStream stage is only supported on replica sets", 40573)

    async def count_documents(self, where: dict[str, Any], **_: Any) -> int:
        count: int = await self._mocked.count_documents(where)
        return count


def _encode(document: Any) -> None:
    size = len(bson.encode(document))
    if size > _MAX_DOCUMENT:
        raise DocumentTooLarge(f"a document of {size} bytes")
