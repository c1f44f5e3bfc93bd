"""Check the server's version, collections and indexes before a crawl and for `crawlcw doctor`."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pymongo
from pymongo.errors import (
    CollectionInvalid,
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    WriteConcernError,
    WTimeoutError,
)

from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerError,
    LedgerUnavailableError,
    UnknownNameError,
)
from crawlcw.ledger import examination
from crawlcw.ledger.examination import Health, Kind, Violation
from crawlcw.ledger.kind import FORMAT, LedgerKind, check_format, check_kind
from crawlcw.ledger.mongo.connection import ACCESS_CODES, CONNECT_TIMEOUT, mapped, sentence
from crawlcw.ledger.mongo.diagnosis import WRITING, lacking, lacking_sentence, misconfiguration
from crawlcw.ledger.mongo.store import Index, Indexes, MongoStore
from crawlcw.model.task import Status

#: Maximum seconds to create an index; the limit for other commands is shorter.
_INDEXED_WITHIN = 3600.0
OLDEST_SERVER = (5, 0)
#: Error code IndexOptionsConflict: the index exists under another name.
_UNDER_ANOTHER_NAME = 85
#: Validator by which the server refuses a task with an unknown status.
_VALIDATOR = {
    "$jsonSchema": {"properties": {"status": {"enum": [int(status) for status in Status]}}}
}


class Schema:
    """Creates missing collections, indexes and notes of a ledger, and checks those that exist."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store
        #: Whether neither the caller nor the database tells the kind of the ledger.
        self._is_undecided = False

    async def read_marker(self, kind: LedgerKind | None) -> Mapping[str, Any] | None:
        """Return the document that notes the kind of the collections, if it exists.

        If *kind* is None, the store uses the recorded kind, or `SPIDER` if no kind is recorded.
        Raises an error if the collections have a different kind or format.
        """
        with mapped():
            marker: Mapping[str, Any] | None = await self._store.schema.find_one(
                {"_id": self._store.name}
            )
        if kind is None:
            self._store.kind = LedgerKind.of((marker or {}).get("tracked"))
            self._is_undecided = marker is None
        if marker is not None:
            self._check(marker)
        return marker

    async def prepare(self) -> None:
        """Create the collection and its indexes if they are missing, and check existing indexes.

        Raises `LedgerConfigurationError` if the user lacks a privilege that a crawl needs.
        """
        if actions := await self.lacking(WRITING):
            raise LedgerConfigurationError(lacking_sentence(actions, self._store.database.name))
        with mapped():
            await self._check_schema()
            try:
                await self._store.database.create_collection(self._store.name, validator=_VALIDATOR)
                # Delete notes about dropped tasks: the user may have dropped the old collection.
                await self._store.schema.update_one(
                    {"_id": self._store.name}, {"$unset": {"state": "", "control": ""}}
                )
            except CollectionInvalid:
                pass  # the collection exists already, as in most cases
            except OperationFailure as error:
                if error.code != 48:  # NamespaceExists: another process has created the collection
                    raise
            await self._prepare_indexes()

    async def lacking(self, actions: frozenset[str]) -> list[str]:
        """Return those *actions* which the MongoDB user may not do on the ledger's collections."""
        try:
            with mapped():
                status = await self._store.database.command(
                    {"connectionStatus": 1, "showPrivileges": True}
                )
        except LedgerUnavailableError:
            raise
        except LedgerError:
            # Ignore the error, because a server of another vendor may not report privileges.
            return []
        collections = [*(collection for collection, _ in self._store.parts()), self._store.schema]
        return lacking(
            status,
            database=self._store.database.name,
            collections=[collection.name for collection in collections],
            actions=actions,
        )

    async def is_complete(self, marker: Mapping[str, Any] | None) -> bool:
        """Return whether the collections and indexes that a reader needs exist.

        Raises `UnknownNameError` for a name without a collection.
        """
        with mapped():
            if await self._store.tasks.find_one({}, {"_id": 1}) is None:
                # A collection that exists has an index of its ids, even if the collection is empty.
                if not await self._store.tasks.index_information():
                    raise UnknownNameError(self._store.name)
                return True
            if marker is None:
                return False
            for collection, indexes in self.indexes():
                index_info = await collection.index_information()
                if not all(is_as_designed(index_info.get(n, {}), d) for n, d in indexes.items()):
                    return False
        return True

    async def _prepare_indexes(self) -> None:
        for collection, indexes in self.indexes():
            index_info = await collection.index_information()
            missing = {name: indexes[name] for name in indexes if name not in index_info}
            if missing:
                models = [_model(name, design) for name, design in missing.items()]
                try:
                    # Create all indexes by one command, so that the server reads the tasks only
                    # once.
                    with pymongo.timeout(_INDEXED_WITHIN):
                        await collection.create_indexes(models)
                except OperationFailure as error:
                    if error.code != _UNDER_ANOTHER_NAME:
                        raise
                    existing_name = _under_another_name(index_info, missing)
                    raise _wrong_index(collection.name, existing_name) from error
                index_info = await collection.index_information()
            for name, design in indexes.items():
                if not is_as_designed(index_info.get(name, {}), design):
                    raise _wrong_index(collection.name, name)

    def indexes(self) -> list[tuple[Any, Indexes]]:
        """Return the collections that need indexes, each with its indexes."""
        return [(collection, indexes) for collection, indexes in self._store.parts() if indexes]

    async def _check_schema(self) -> None:
        """Note the kind and the format of the ledger if there is no note yet."""
        new: dict[str, Any] = {"version": FORMAT}
        if not self._is_undecided:
            new["tracked"] = self._store.kind.tracked
        marker = await self._store.schema.find_one_and_update(
            {"_id": self._store.name}, {"$setOnInsert": new}, upsert=True, return_document=True
        )
        if (
            self._store.kind.tracked
            and "tracked" not in marker
            and await self._store.tasks.find_one({}) is None
        ):
            # A process that only read has created the note without a kind, so add the kind.
            query = {"_id": self._store.name, "tracked": {"$exists": False}}
            await self._store.schema.update_one(query, {"$set": {"tracked": True}})
            marker = await self._store.schema.find_one({"_id": self._store.name})
        self._check(marker)

    def _check(self, marker: Mapping[str, Any]) -> None:
        """Raise an error if the collections have a different format or kind."""
        name = self._store.name
        check_format(marker["version"], name)
        check_kind(LedgerKind.of(marker.get("tracked")), self._store.kind, name)

    async def check_server(self) -> None:
        """Read the server's version and time; raise an error if crawlcw cannot use the server."""
        # Use only operations that the driver does not retry. A retry would double the time until
        # crawlcw reports that no server answers.
        try:
            with mapped(), pymongo.timeout(CONNECT_TIMEOUT):
                info = await self._store.client.server_info()
                await self._store.set_clock()
        except LedgerUnavailableError as error:
            problem = await misconfiguration(self._store.client, self._store.url or "")
            if problem is not None:
                raise LedgerConfigurationError(f"MongoDB: {problem}") from error
            raise
        version = tuple(info["versionArray"][:2])
        if version < OLDEST_SERVER:
            oldest_version = ".".join(map(str, OLDEST_SERVER))
            raise LedgerConfigurationError(
                f"the server is MongoDB {info['version']}, but crawlcw needs {oldest_version} or "
                "later"
            )


def is_as_designed(index: Mapping[str, Any], design: Index) -> bool:
    """Return whether an existing index equals the index that `prepare` creates."""
    keys = [(field, int(direction)) for field, direction in index.get("key", [])]
    return (keys, dict(index.get("partialFilterExpression", {}))) == design


def _under_another_name(index_info: Mapping[str, Mapping[str, Any]], missing: Indexes) -> str:
    """Return the name of an existing index with the same keys and filter as a missing index."""
    designs = missing.values()
    names = (n for n, info in index_info.items() if any(is_as_designed(info, d) for d in designs))
    return next(names, min(missing))


def _model(name: str, design: Index) -> pymongo.IndexModel:
    keys, partial = design
    options = {"partialFilterExpression": partial} if partial else {}
    return pymongo.IndexModel(keys, name=name, **options)


def _wrong_index(collection: str, name: str) -> LedgerConfigurationError:
    return LedgerConfigurationError(
        f"index {name} of collection {collection} differs from the one that crawlcw creates: drop "
        f"it (db[{collection!r}].dropIndex({name!r})) and start again"
    )


class Inspection(examination.Inspection):
    """Reads the ledger and the state of the server for `crawlcw doctor`."""

    _store: MongoStore

    def __init__(self, store: MongoStore, schema: Schema) -> None:
        super().__init__(store)
        self._schema = schema

    async def prepare(self) -> None:
        """Create missing indexes, and check existing indexes."""
        await self._schema.prepare()

    async def write_refusal(self) -> str | None:
        """See `examination.Inspection.write_refusal`."""
        if actions := await self._schema.lacking(WRITING):
            return lacking_sentence(actions, self._store.database.name)
        with mapped():
            refusal = await self._durable_refusal()
        return None if refusal is None else f"a write was not confirmed: {refusal}"

    async def health(self) -> Health:
        """Read the server's version and topology, and try a write that changes nothing."""
        violations: list[Violation] = []
        with mapped():
            info = await self._store.client.server_info()
            await self._store.set_clock()
            offset = self._store.clock.now() - datetime.now(UTC)
            hello = await self._store.database.command("hello")
            marker = await self._store.schema.find_one({"_id": self._store.name})
            if marker is None:
                detail = "the number of its format is missing"
                violations.append(Violation(kind=Kind.STORE_INCOMPLETE, detail=detail))
            for collection, indexes in self._schema.indexes():
                index_info = await collection.index_information()
                violations += _index_violations(collection.name, index_info, indexes)
            recorded = await self._store.tasks.find_one({}, {"_id": 1}) is not None
        topology, server_violations = topology_of(hello)
        confirmed = "confirmed"
        if actions := await self._schema.lacking(WRITING):
            # Do not try a write, because the user lacks a privilege.
            confirmed = "not asked"
            server_violations.append(Violation(kind=Kind.MAY_NOT_WRITE, detail=", ".join(actions)))
        elif (refusal := await self._durable_refusal()) is not None:
            confirmed = "not confirmed"
            server_violations.append(Violation(kind=Kind.NOT_DURABLE, detail=refusal))
        return Health(
            recorded=recorded,
            facts={
                "store": f"MongoDB {info['version']}",
                "topology": topology,
                "w: majority, j: true": confirmed,
                "format": str(FORMAT),
            },
            violations=(*violations, *server_violations),
            clock_offset=offset,
        )

    async def _durable_refusal(self) -> str | None:
        """Return why the server does not confirm a durable write, or None if it is confirmed."""
        try:
            # The update matches no task; the server confirms it only after all earlier writes.
            with pymongo.timeout(CONNECT_TIMEOUT):
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
    collection: str, index_info: Mapping[str, Any], indexes: Indexes
) -> Iterator[Violation]:
    for name, design in indexes.items():
        if name not in index_info:
            detail = f"index {name} of {collection} is missing"
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=detail)
        elif not is_as_designed(index_info[name], design):
            detail = f"db[{collection!r}].dropIndex({name!r}) drops the different index"
            yield Violation(kind=Kind.STORE_DIFFERENT, detail=detail)


def topology_of(hello: Mapping[str, Any]) -> tuple[str, list[Violation]]:
    """Return the topology in the reply to `hello`, and the violations of the topology."""
    if hello.get("msg") == "isdbgrid":
        return "sharded cluster", []
    if "setName" not in hello:
        return "standalone", [
            Violation(kind=Kind.STANDALONE, detail="one mongod without a replica set")
        ]
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    number = "1 member" if members == 1 else f"{members} members"
    return f"replica set {hello['setName']} of {number}", []
