"""Examining the ledger for `doctor`: the server, and its collections."""

from collections.abc import Iterator, Mapping
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

from crawlcw.ledger import examination
from crawlcw.ledger.examination import Health, Kind, Violation
from crawlcw.ledger.format import FORMAT
from crawlcw.ledger.mongo.connection import ACCESS_CODES, FIRST_ANSWER, mapped, sentence
from crawlcw.ledger.mongo.indexes import Indexes
from crawlcw.ledger.mongo.privileges import WRITING, lacking_sentence
from crawlcw.ledger.mongo.schema import Schema, is_as_designed
from crawlcw.ledger.mongo.store import MongoStore


class Inspection(examination.Inspection):
    """The server as well."""

    _store: MongoStore

    def __init__(self, store: MongoStore, schema: Schema) -> None:
        super().__init__(store)
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
                detail = "the note of its format is missing"
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
                "format": str(FORMAT),
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


def _index_violations(
    collection: str, found: Mapping[str, Any], indexes: Indexes
) -> Iterator[Violation]:
    for name, design in indexes.items():
        if name not in found:
            detail = f"index {name} of {collection} is missing"
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=detail)
        elif not is_as_designed(found[name], design):
            detail = f"db[{collection!r}].dropIndex({name!r}) drops an index that is not crawlcw's"
            yield Violation(kind=Kind.STORE_DIFFERENT, detail=detail)


def topology_of(hello: Mapping[str, Any]) -> tuple[str, list[Violation]]:
    """Return what answered *hello*, and what that means for the ledger."""
    if hello.get("msg") == "isdbgrid":
        return "sharded cluster", []
    if "setName" not in hello:
        return "standalone", [Violation(kind=Kind.STANDALONE, detail="one mongod, no replica set")]
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    number = "1 member" if members == 1 else f"{members} members"
    return f"replica set {hello['setName']} of {number}", []
