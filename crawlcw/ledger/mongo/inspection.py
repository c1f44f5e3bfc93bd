"""Examining the ledger for `doctor`: how the store is, raw documents, and their mending."""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pymongo
from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    WriteConcernError,
    WTimeoutError,
)

from crawlcw.ledger.examination import TASK_STATE, Health
from crawlcw.ledger.mongo.connection import ACCESS_CODES, FIRST_ANSWER, mapped, sentence
from crawlcw.ledger.mongo.indexes import Indexes
from crawlcw.ledger.mongo.privileges import WRITING, lacking_sentence
from crawlcw.ledger.mongo.schema import SCHEMA_VERSION, Schema, is_as_designed
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.model.invariants import Kind, Violation

#: What `examine` reads: of the results how many there are, and which are elsewhere.
_EXAMINED: Mapping[str, Any] = {
    **dict.fromkeys((*TASK_STATE, "url", "host", "method", "body", "callback"), 1),
    **dict.fromkeys(("depth", "priority", "options", "update_time", "create_time"), 1),
    **dict.fromkeys(("revisit", "items_from"), 1),
    "items": {"$cond": [{"$isArray": "$items"}, {"$size": "$items"}, "$$REMOVE"]},
    "items_aside": {
        "$cond": [
            {"$isArray": "$items"},
            {
                "$filter": {
                    "input": {"$range": [0, {"$size": "$items"}]},
                    "as": "n",
                    "cond": {"$eq": [{"$arrayElemAt": ["$items", "$$n"]}, None]},
                }
            },
            "$$REMOVE",
        ]
    },
}
#: Of tracked tasks, the ids of the values set aside that they refer to: no other
#: key begins like this.
_BLOBS: Mapping[str, Any] = {
    "asides": {
        "$filter": {
            "input": {
                "$concatArrays": [
                    ["$context.%aside", "$data.%aside"],
                    {
                        "$map": {
                            "input": {
                                "$objectToArray": {
                                    "$cond": [
                                        {"$eq": [{"$type": "$results"}, "object"]},
                                        "$results",
                                        {"$literal": {}},
                                    ]
                                }
                            },
                            "in": "$$this.v.%aside",
                        }
                    },
                ]
            },
            "cond": {"$eq": [{"$type": "$$this"}, "string"]},
        }
    },
}
#: So many tasks come in one reply at most.
_AT_ONCE = 2_000


class Inspection:
    """What `doctor` reads of the store."""

    def __init__(self, store: MongoStore, schema: Schema) -> None:
        self._store = store
        self._schema = schema

    async def prepare(self) -> None:
        """Make missing indexes, and check the others."""
        await self._schema.prepare()

    async def write_refusal(self) -> str | None:
        """See `examination.Inspection.write_refusal`."""
        if lacking := await self._schema.lacking(WRITING):
            return lacking_sentence(lacking, self._store.database.name)
        with mapped():
            refusal = await self._durable_refusal()
        return None if refusal is None else f"a write was not confirmed: {refusal}"

    async def health(self) -> Health:
        """Ask the server for its kind, and for one write that changes nothing."""
        violations: list[Violation] = []
        with mapped():
            info = await self._store.client.server_info()
            await self._store.set_clock()
            offset = self._store.clock.now() - datetime.now(UTC)
            hello = await self._store.database.command("hello")
            marker = await self._store.schema.find_one({"_id": self._store.name})
            if marker is None:
                detail = "the schema's version is missing"
                violations.append(Violation(kind=Kind.STORE_INCOMPLETE, detail=detail))
            for collection, indexes in self._schema.indexes():
                found = await collection.index_information()
                violations += _index_violations(collection.name, found, indexes)
            recorded = await self._store.tasks.find_one({}, {"_id": 1}) is not None
        topology, lacks = topology_of(hello)
        confirmed = "confirmed"
        if lacking := await self._schema.lacking(WRITING):
            # Not even a write that changes nothing is tried.
            confirmed = "not asked"
            lacks.append(Violation(kind=Kind.MAY_NOT_WRITE, detail=", ".join(lacking)))
        elif (refusal := await self._durable_refusal()) is not None:
            confirmed = "not confirmed"
            lacks.append(Violation(kind=Kind.NOT_DURABLE, detail=refusal))
        return Health(
            recorded=recorded,
            facts={
                "store": f"MongoDB {info['version']}",
                "topology": topology,
                "w: majority, j: true": confirmed,
                "schema version": str(SCHEMA_VERSION),
            },
            violations=(*violations, *lacks),
            clock_offset=offset,
        )

    async def _durable_refusal(self) -> str | None:
        """Return why the server does not confirm a write as the ledger wants it, if it does not."""
        try:
            # It matches nothing, and is confirmed when all writes before it are.
            with pymongo.timeout(FIRST_ANSWER):
                await self._store.durable.update_one(
                    {"_id": None}, {"$set": {"fence": 0}}, hint="_id_"
                )
        except (ConnectionFailure, ExecutionTimeout, WTimeoutError, WriteConcernError) as error:
            return sentence(error)
        except OperationFailure as error:
            if error.code in ACCESS_CODES:
                raise
            return sentence(error)
        return None

    async def examine(
        self, *, only: Collection[bytes] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Stream the tasks, their results left with the server."""
        chosen = _of_ids(only)
        fields = {**_EXAMINED, **_BLOBS} if self._store.kind.tracked else _EXAMINED
        stream = self._store.stream(
            self._store.tasks, chosen, fields, self._with_what_is_lost, at_once=_AT_ONCE
        )
        async with aclosing(stream):
            async for found in stream:
                yield found

    async def _with_what_is_lost(self, found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Add what of the task's large items and values is not where it was set aside."""
        if not found.get("items_aside") and not found.get("asides"):
            return [found]
        lost: dict[str, Any] = {}
        if found.get("items_aside"):
            lost["items_lost"] = await self._items_lost(found)
        if found.get("asides"):
            lost["asides_lost"] = await self._blobs_lost(found["asides"])
        return [{**found, **lost}]

    async def _items_lost(self, found: Mapping[str, Any]) -> list[int]:
        blob = found["items_aside"]
        source = found.get("items_from")
        fence = source["fence"] if isinstance(source, Mapping) else found.get("settled")
        places = [{"task": found["_id"], "fence": fence, "n": number} for number in blob]
        cursor = self._store.items.find({"_id": {"$in": places}}, {"_id": 1}).hint("_id_")
        there = {each["_id"]["n"] for each in await all_of(cursor, len(places))}
        return [number for number in blob if number not in there]

    async def _blobs_lost(self, wanted: Sequence[str]) -> list[str]:
        cursor = self._store.blob_files.find({"_id": {"$in": list(wanted)}}, {"_id": 1}).hint(
            "_id_"
        )
        there = {each["_id"] for each in await all_of(cursor, len(wanted))}
        return [each for each in wanted if each not in there]

    async def unreferenced_blobs(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Stream the files of values that were set aside, and look at the task of each."""
        fields = {"metadata": 1, "uploadDate": 1}
        stream = self._store.stream(
            self._store.blob_files, _of_ids(only), fields, self._if_unreferred
        )
        async with aclosing(stream):
            async for found in stream:
                yield found

    async def _if_unreferred(self, found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        identity = bytes(found["metadata"]["task"])
        with mapped():
            task = await self._store.tasks.find_one({"_id": identity}, _BLOBS, hint="_id_")
        if task is not None and found["_id"] in task["asides"]:
            return []
        return [{"_id": found["_id"], "task_id": identity, "create_time": found["uploadDate"]}]

    async def examine_hosts(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Stream the hosts without their robots.txt."""
        chosen = _of_ids(only)
        stream = self._store.stream(self._store.hosts, chosen, {"robots": 0}, _as_it_is)
        async with aclosing(stream):
            async for found in stream:
                yield found


def _index_violations(
    collection: str, found: Mapping[str, Any], indexes: Indexes
) -> Iterator[Violation]:
    for name, design in indexes.items():
        if name not in found:
            detail = f"index {name} of {collection} is missing"
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=detail)
        elif not is_as_designed(found[name], design):
            detail = f"db[{collection!r}].dropIndex({name!r}) drops what is no index of crawlcw"
            yield Violation(kind=Kind.STORE_DIFFERENT, detail=detail)


def topology_of(hello: Mapping[str, Any]) -> tuple[str, list[Violation]]:
    """Return what answered *hello*, and what that means for the ledger."""
    if hello.get("msg") == "isdbgrid":
        return "sharded cluster", [Violation(kind=Kind.SHARDED, detail="mongos answers")]
    if "setName" not in hello:
        return "standalone", [Violation(kind=Kind.STANDALONE, detail="one mongod, no replica set")]
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    number = "1 member" if members == 1 else f"{members} members"
    return f"replica set {hello['setName']} of {number}", []


def _of_ids(only: Collection[Any] | None) -> dict[str, Any]:
    # Under `$and`, for where a stream breaks it goes on with an `_id` of its own.
    return {} if only is None else {"$and": [{"_id": {"$in": list(only)}}]}


async def _as_it_is(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [found]
