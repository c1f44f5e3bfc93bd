"""The port's tables in MongoDB: what they are asked for, as commands."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawlcw.errors import LedgerError
from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.connection import mapped, refusals
from crawlcw.ledger.port import AtMost, Key, Not, Where, Within, Write


class Table:
    """A collection of documents."""

    def __init__(self, collection: Any, *, key: tuple[str, ...] = ("_id",)) -> None:
        self.collection = collection
        self._key = key

    async def insert(self, documents: Sequence[Document]) -> int:
        """See `port.Documents.insert`: one command for all."""
        updates = [
            UpdateOne({"_id": each["_id"]}, {"$setOnInsert": each}, upsert=True, hint="_id_")
            for each in documents
        ]
        _, inserted = await self._written(updates)
        return inserted

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """See `port.Documents.read`."""
        shown = dict.fromkeys(fields, 1)
        chosen = {"_id": {"$in": list(keys)}, **self._filter(where or {})}
        found = await self._found(chosen, shown, limit=len(keys))
        return {each["_id"]: each for each in found}

    async def scan(
        self, where: Where, *, limit: int, after: Key | None = None
    ) -> Sequence[Document]:
        """See `port.Table.scan`: one stretch of the index of keys."""
        # A key of several fields is in them as well.
        shown = {"_id": 0} if len(self._key) > 1 else {}
        return await self._found(self._filter(where, after), shown, limit=limit)

    async def _found(self, chosen: Document, shown: Document, *, limit: int) -> list[Document]:
        with mapped():
            cursor = self.collection.find(chosen, shown or None).sort([("_id", 1)]).hint("_id_")
            # The server's first reply is of 101 documents if it is not told.
            found: list[Document] = await cursor.limit(limit).batch_size(limit + 1).to_list(None)
        return found

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Documents.change`: one command for all."""
        return sum(await self._written([self._update(write) for write in writes]))

    def _update(self, write: Write) -> UpdateOne:
        update = _operators(write)
        chosen = self._filter({"_id": write.key, **write.where})
        return UpdateOne(chosen, update, upsert=write.new is not None, hint="_id_")

    async def _written(self, updates: Sequence[UpdateOne]) -> tuple[int, int]:
        """Return how many documents were changed, and how many inserted."""
        if not updates:
            return 0, 0
        with mapped():
            try:
                done = await self.collection.bulk_write(updates, ordered=False)
            except BulkWriteError as error:
                if refused := refusals(error):
                    raise LedgerError(f"MongoDB: {next(iter(refused.values()))}") from error
                # The key of a new document is there, and that one is not as it is to be.
                return error.details["nMatched"], error.details["nUpserted"]
        return done.matched_count, done.upserted_count

    async def delete(self, where: Where) -> int:
        """See `port.Table.delete`."""
        with mapped():
            deleted = await self.collection.delete_many(self._filter(where), hint="_id_")
        return int(deleted.deleted_count)

    def _filter(self, where: Where, after: Key | None = None) -> Document:
        """Return the filter of documents that pass all tests."""
        found: Document = {}
        if after is not None:
            found["_id"] = {"$gt": self._value("_id", after)}
        for name, test in where.items():
            match test:
                case Within(first, end):
                    begin = {"$gte": self._value(name, first)}
                    found[name] = found.get(name, begin) | {"$lt": self._value(name, end)}
                case Not(value):
                    found[name] = {"$ne": value}
                case AtMost(value):
                    found[name] = {"$lte": value}
                case _:
                    found[name] = self._value(name, test)
        return found

    def _value(self, name: str, value: Any) -> Any:
        """Return a field's value; of the fields of a key one text, which is ordered as they are."""
        if name != "_id" or len(self._key) == 1:
            return value
        moment = "%Y-%m-%dT%H:%M"
        return " ".join(f"{v:{moment}}" if isinstance(v, datetime) else f"{v}" for v in value)


def _operators(write: Write) -> Document:
    edit = write.edit
    # A name has no dot, so it is one step of a path.
    new = {f"{name}.{m}": v for name, members in edit.merge.items() for m, v in members.items()}
    new |= {name: value for name, value in edit.set.items() if value is not None}
    gone = [name for name, value in edit.set.items() if value is None]
    gone += [f"{name}.{member}" for name, members in edit.without.items() for member in members]
    added = {} if write.new is None else write.new
    update = {
        "$set": new,
        "$unset": dict.fromkeys(gone, ""),
        "$inc": dict(edit.inc),
        "$setOnInsert": {name: value for name, value in added.items() if name not in new},
    }
    return {operator: fields for operator, fields in update.items() if fields} or {"$set": {}}
