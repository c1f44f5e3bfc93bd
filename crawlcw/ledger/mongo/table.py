"""Implement the tables of `port` in MongoDB by one command for each operation."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import bson
from bson.errors import BSONError
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, DocumentTooLarge, OperationFailure

from crawlcw.errors import LedgerError
from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.connection import mapped, refusals
from crawlcw.ledger.port import (
    OR,
    After,
    Among,
    AtMost,
    Containing,
    Edit,
    Key,
    Not,
    Path,
    Unchanged,
    Where,
    Within,
    Write,
)

LARGEST_ITEM = 15 << 20
#: Code of BSONObjectTooLarge, which the server returns if the driver's own check passed.
TOO_LARGE = 10334
#: Errors that bson or Python raises for a value that BSON cannot encode.
UNENCODABLE = (BSONError, DocumentTooLarge, OverflowError, UnicodeError, ValueError, TypeError)
_OPERATORS = {AtMost: "$lte", After: "$gt", Not: "$ne"}


def encoding_error(document: Document) -> str | None:
    """Return why MongoDB cannot store a document, or None if it can."""
    try:
        size = len(bson.encode(document))
    except UNENCODABLE as error:
        return str(error) or type(error).__name__
    return f"a document of {size} bytes, too large" if size > LARGEST_ITEM else None


class Index(NamedTuple):
    """An index of a collection, by which a table reads documents."""

    name: str
    order: Sequence[tuple[str, int]]
    #: Filter that selects the documents of a partial index, so that MongoDB uses the index.
    condition: Document = {}


_BY_KEY = Index("_id_", [("_id", 1)])


class Update(NamedTuple):
    """An update of the document that a filter finds by its `_id`."""

    chosen: Document
    change: Document
    upsert: bool = False


class Sent(NamedTuple):
    """Result of `send`: the counts and the refusals of a bulk of updates."""

    matched: int = 0
    inserted: int = 0
    refused: Mapping[int, str] = {}  #: reason for each refused update, by the update's index


async def send(collection: Any, updates: Sequence[Update]) -> Sent:
    """Send updates in one unordered bulk; an update that cannot be stored stops no other update."""
    if not updates:
        return Sent()
    bulk = [
        UpdateOne(chosen, change, upsert=upsert, hint="_id_") for chosen, change, upsert in updates
    ]
    try:
        reply = await collection.bulk_write(bulk, ordered=False)
        return Sent(reply.matched_count, reply.upserted_count)
    except BulkWriteError as error:
        details = error.details or {}
        return Sent(details.get("nMatched", 0), details.get("nUpserted", 0), refusals(error))
    except (*UNENCODABLE, OperationFailure) as error:
        if isinstance(error, OperationFailure) and error.code != TOO_LARGE:
            raise
        # The server refuses the whole bulk if a document is too large, so leave that update out.
        errors = [encoding_error({"update": update.change}) for update in updates]
        failures = {index: error for index, error in enumerate(errors) if error is not None}
        if not failures:
            raise
    indexes = [index for index in range(len(updates)) if index not in failures]
    sent = await send(collection, [updates[index] for index in indexes])
    return sent._replace(refused=failures | {indexes[n]: why for n, why in sent.refused.items()})


class Table:
    """A collection of documents."""

    def __init__(
        self,
        collection: Any,
        *,
        key: tuple[str, ...] = ("_id",),
        nullable_fields: Collection[str] = (),
        hidden_fields: Collection[str] = (),
        indexes: Mapping[Path, Index] | None = None,
    ) -> None:
        """An insert stores null in missing *nullable_fields*; `read` omits *hidden_fields*."""
        self.collection = collection
        self._key = key
        self._nullable_fields = nullable_fields
        self._hidden_projection = dict.fromkeys(hidden_fields, 0)
        self._indexes = {Path.KEY: _BY_KEY, **(indexes or {})}

    async def insert(self, documents: Sequence[Document]) -> int:
        """See `port.Documents.insert`; one command inserts all documents."""
        updates = [
            Update({"_id": document["_id"]}, {"$setOnInsert": document}, upsert=True)
            for document in documents
        ]
        return (await self._sent(updates)).inserted

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """See `port.Documents.read`."""
        projection = dict.fromkeys(fields, 1) or self._hidden_projection
        chosen = self.filter({"_id": Among(keys), **(where or {})})
        documents = await self._find(chosen, projection, _BY_KEY, limit=len(keys)) if keys else []
        return {document["_id"]: document for document in documents}

    async def scan(
        self, where: Where, *, by: Path = Path.KEY, limit: int, fields: Collection[str] = ()
    ) -> Sequence[Document]:
        """See `port.Ordered.scan`; MongoDB reads one range of an index."""
        projection = dict.fromkeys(fields, 1)
        # If the key consists of several fields, omit `_id`, which only repeats these fields.
        if "_id" not in (fields or self._key):
            projection["_id"] = 0
        index = self._indexes[by]
        chosen = self._index_filter(index, where)
        return await self._find(chosen, projection, index, limit=limit)

    def _index_filter(self, index: Index, where: Where) -> Document:
        """Return MongoDB's filter for the documents of an index that pass all tests of *where*."""
        return index.condition | self.filter(where)

    async def _find(
        self, chosen: Document, projection: Document, index: Index, *, limit: int
    ) -> list[Document]:
        with mapped():
            cursor = (
                self.collection.find(chosen, projection or None).sort(index.order).hint(index.name)
            )
            # Set the reply's size, because by default the server's first reply has only 101
            # documents.
            cursor = cursor.limit(limit).batch_size(limit + 1)
            documents: list[Document] = await cursor.to_list(None)
        return documents

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Documents.change`; one command applies all writes."""
        reply = await self._sent([self._update(write) for write in writes])
        return reply.matched + reply.inserted

    def _update(self, write: Write) -> Update:
        change = self.operators(write.edit, write.new or {})
        chosen = self.filter({"_id": write.key, **write.where})
        return Update(chosen, change, upsert=write.new is not None)

    async def _sent(self, updates: Sequence[Update]) -> Sent:
        # If a document with the key exists but fails the tests, the upsert changes nothing, and
        # MongoDB reports a duplicate key.
        with mapped():
            sent = await send(self.collection, updates)
        for why in sent.refused.values():
            raise LedgerError(f"MongoDB: {why}")
        return sent

    async def change_where(self, where: Where, edit: Edit, *, by: Path = Path.KEY) -> int:
        """See `port.Table.change_where`."""
        chosen, update, index = self.filter(where), self.operators(edit, {}), self._indexes[by]
        with mapped():
            changed = await self.collection.update_many(chosen, update, hint=index.name)
        return int(changed.matched_count)

    async def delete(self, where: Where) -> int:
        """See `port.Table.delete`."""
        with mapped():
            deleted = await self.collection.delete_many(self.filter(where), hint="_id_")
        return int(deleted.deleted_count)

    def filter(self, where: Where) -> Document:
        """Return MongoDB's filter for the documents that pass all tests of *where*."""
        query: Document = {}
        for name, test in where.items():
            match test:
                case Within(first, end):
                    bound_by_operator = {"$gte": first, "$lt": end}
                    query[name] = {
                        o: self._value(name, v)
                        for o, v in bound_by_operator.items()
                        if v is not None
                    }
                case AtMost(value) | After(value) | Not(value):
                    query[name] = {_OPERATORS[type(test)]: value}
                case Among(values):
                    query[name] = {"$in": list(values)}
                case Unchanged(value):
                    # With `$eq` no value is read as an operator; null also matches an absent field.
                    query[name] = {"$eq": value}
                case Containing(text, within):
                    # Escape the user's text, because MongoDB would read the text as a regular
                    # expression. NUL is escaped too, because no regular expression may contain it.
                    pattern = re.escape(text).replace("\0", r"\x00")
                    query |= self.filter({name: within})
                    query[name] = {"$regex": pattern, **query[name]}
                case alternatives if name == OR:
                    query["$or"] = [self.filter(alternative) for alternative in alternatives]
                case _:
                    query[name] = self._value(name, test)
        return query

    def _value(self, name: str, value: Any) -> Any:
        """Return *value*, but a key of several fields as one text that sorts like the fields."""
        if name != "_id" or len(self._key) == 1:
            return value
        minute_format = "%Y-%m-%dT%H:%M"
        return " ".join(
            f"{v:{minute_format}}" if isinstance(v, datetime) else f"{v}" for v in value
        )

    def operators(self, edit: Edit, new: Document) -> Document:
        """Return the update operators for *edit*; for an inserted document they also set *new*."""
        # A key in a mapping contains no dot, so `field.key` is the path of the key in MongoDB.
        assignments = {
            f"{name}.{m}": v for name, additions in edit.merge.items() for m, v in additions.items()
        }
        absent = {
            n for n, value in edit.set.items() if value is None and n not in self._nullable_fields
        }
        assignments |= {name: value for name, value in edit.set.items() if name not in absent}
        removals = [*absent, *(f"{n}.{m}" for n, members in edit.without.items() for m in members)]
        update = {
            "$set": assignments,
            "$unset": dict.fromkeys(removals, ""),
            "$inc": dict(edit.inc),
            "$max": dict(edit.raise_to),
            "$setOnInsert": {name: value for name, value in new.items() if name not in assignments},
        }
        return {operator: fields for operator, fields in update.items() if fields} or {"$set": {}}
