"""The port's tables in MongoDB: what they are asked for, as commands."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawlcw.errors import LedgerError
from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.connection import mapped, refusals
from crawlcw.ledger.port import AtMost, Key, Where, Within, Write


class Table:
    """A collection of documents."""

    def __init__(self, collection: Any, *, key: tuple[str, ...]) -> None:
        self.collection = collection
        self._key = key

    async def scan(
        self, where: Where, *, limit: int, after: Key | None = None
    ) -> Sequence[Document]:
        """See `port.Table.scan`: one stretch of the index of keys."""
        chosen = _filter(where, after)
        with mapped():
            cursor = self.collection.find(chosen, {"_id": 0}).sort([("_id", 1)]).hint("_id_")
            # The server's first reply is of 101 documents if it is not told.
            found: list[Document] = await cursor.limit(limit).batch_size(limit + 1).to_list(None)
        return found

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Table.change`: one command for all."""
        if not writes:
            return 0
        updates = [_update(write) for write in writes]
        with mapped():
            try:
                done = await self.collection.bulk_write(updates, ordered=False)
            except BulkWriteError as error:
                if refused := refusals(error):
                    raise LedgerError(f"MongoDB: {next(iter(refused.values()))}") from error
                # A new document whose key is there, and the other one is not as it is to be.
                return int(error.details["nMatched"] + error.details["nUpserted"])
        return int(done.matched_count + done.upserted_count)

    async def delete(self, where: Where) -> int:
        """See `port.Table.delete`."""
        with mapped():
            deleted = await self.collection.delete_many(_filter(where), hint="_id_")
        return int(deleted.deleted_count)


def _update(write: Write) -> UpdateOne:
    update: dict[str, Document] = {"$set": dict(write.edit.set)}
    if write.new is not None:
        update["$setOnInsert"] = {n: v for n, v in write.new.items() if n not in write.edit.set}
    chosen = _filter({"_id": write.key, **write.where})
    return UpdateOne(chosen, update, upsert=write.new is not None, hint="_id_")


def _filter(where: Where, after: Key | None = None) -> Document:
    """Return the filter of documents that pass all tests."""
    found: Document = {}
    if after is not None:
        found["_id"] = {"$gt": _text(after)}
    for name, test in where.items():
        match test:
            case Within(first, end):
                found[name] = found.get(name, {"$gte": _text(first)}) | {"$lt": _text(end)}
            case AtMost(value):
                found[name] = {"$lte": value}
            case tuple():
                found[name] = _text(test)
            case _:
                found[name] = test
    return found


def _text(key: tuple[Any, ...]) -> str:
    """Return the `_id` of a key of several fields, ordered as they are."""
    moment = "%Y-%m-%dT%H:%M"
    return " ".join(f"{part:{moment}}" if isinstance(part, datetime) else f"{part}" for part in key)
