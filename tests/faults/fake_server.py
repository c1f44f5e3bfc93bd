"""A document store in virtual time, behind a network that loses, delays and repeats.

It understands the commands of the ledger on MongoDB, with the guarantees of a real
server only: a write of one document is atomic, a command with many is not.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Self

from pymongo import UpdateOne, WriteConcern
from pymongo.errors import AutoReconnect, NetworkTimeout

from tests.faults.virtual import Process, Signal, Timeline

Document = dict[str, Any]
Filter = Mapping[str, Any]

#: Seconds until a driver gives up a command, like `timeoutMS`.
TIMEOUT = 10.0
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Statement:
    """One update of a command."""

    wanted: Filter
    update: Mapping[str, Any]
    many: bool = False
    upsert: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command from a process to the server."""

    sender: Process
    name: str  #: find, update, findAndModify
    collection: str
    statements: tuple[Statement, ...] = ()
    durable: bool = True
    wanted: Filter | None = None
    order: Sequence[tuple[str, int]] = ()
    skip: int = 0
    limit: int = 0


@dataclass(slots=True)
class Reply:
    """The reply to a command."""

    matched_count: int = 0
    modified_count: int = 0
    upserted_count: int = 0
    found: Sequence[Document] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The probability of each fault of a message, from 0 to 1."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    delayed: float = 0.0
    repeated: float = 0.0  #: delivered once more, much later
    torn: float = 0.0  #: the server stops halfway


CALM = Weather()


class Server:
    """The collections, and a watcher of every write."""

    def __init__(self, watch: Callable[[Command, Document | None, Document], None]) -> None:
        self.collections: dict[str, dict[Any, Document]] = {}
        self._watch = watch
        #: Writes without a later durable one: collection, id, and the document before.
        self._undurable: list[tuple[str, Any, Document | None]] = []

    def documents(self, collection: str) -> dict[Any, Document]:
        return self.collections.setdefault(collection, {})

    def find(self, command: Command) -> Reply:
        assert command.wanted is not None
        found = list(self._matching(command.collection, command.wanted))
        for name, direction in reversed(command.order):
            # Null is less than any value.
            found.sort(key=lambda each: (each[name] is not None, each[name]), reverse=direction < 0)
        end = command.skip + command.limit if command.limit else None
        return Reply(found=[dict(each) for each in found[command.skip : end]])

    def steps(self, command: Command) -> list[tuple[Statement, Any]]:
        """Return the statements of a command, each with its document."""
        return [
            (statement, key)
            for statement in command.statements
            for key in self._keys(command.collection, statement)
        ]

    def _keys(self, collection: str, statement: Statement) -> list[Any]:
        if statement.many:
            return [each["_id"] for each in self._matching(collection, statement.wanted)]
        return [statement.wanted["_id"]]

    def _matching(self, collection: str, wanted: Filter) -> Iterator[Document]:
        documents = self.documents(collection)
        identity = wanted.get("_id")
        if isinstance(identity, bytes | str):
            chosen = [documents[identity]] if identity in documents else []
        else:
            chosen = list(documents.values())
        return (each for each in chosen if matches(each, wanted))

    def apply(self, command: Command, step: tuple[Statement, Any], reply: Reply) -> bool:
        """Do one atomic write if the document exists and still matches; return whether it did."""
        statement, key = step
        documents = self.documents(command.collection)
        before = documents.get(key)
        if before is None and statement.upsert:
            # Equality conditions of the filter become fields of the new document, as on a server.
            equal = {n: v for n, v in statement.wanted.items() if not isinstance(v, Mapping)}
            inserted = equal | statement.update.get("$setOnInsert", {})
            documents[key] = updated(inserted, statement.update)
            reply.upserted_count += 1
        elif before is None or not matches(before, statement.wanted):
            return False
        else:
            documents[key] = updated(before, statement.update)
            reply.matched_count += 1
            reply.modified_count += documents[key] != before
        if command.durable:
            # A majority has this write, and all writes before it.
            self._undurable.clear()
        else:
            self._undurable.append((command.collection, key, before))
        reply.found = [] if before is None else [dict(before)]
        self._watch(command, before, documents[key])
        return True

    def roll_back(self, share: float) -> list[tuple[Document, Document | None]]:
        """Undo a share of the last writes, as if a new primary had never received them.

        Returns each old document with its present version.
        """
        kept = len(self._undurable) - round(share * len(self._undurable))
        forgotten, self._undurable = self._undurable[kept:], []
        changes = []
        for collection, key, before in reversed(forgotten):
            documents = self.documents(collection)
            changes.append((documents.pop(key), before))
            if before is not None:
                documents[key] = before
        return changes


def matches(document: Document, wanted: Filter) -> bool:
    """Return whether a document matches a filter."""
    for name, condition in wanted.items():
        if name == "$or":
            if not any(matches(document, each) for each in condition):
                return False
        elif isinstance(condition, dict) and all(each.startswith("$") for each in condition):
            value = document.get(name, _MISSING)
            if not all(_holds(value, *each) for each in condition.items()):
                return False
        elif document.get(name) != condition:
            return False
    return True


def _holds(value: Any, operator: str, operand: Any) -> bool:
    there = value is not _MISSING and value is not None
    match operator:
        case "$in":
            return value in operand
        case "$eq":
            return (None if value is _MISSING else value) == operand
        case "$lte":
            return there and value <= operand
        case "$lt":
            return there and value < operand
        case "$gte":
            return there and value >= operand
        case "$gt":
            return there and value > operand
        case "$ne":
            return (None if value is _MISSING else value) != operand
        case "$exists":
            return (value is not _MISSING) == operand
        case "$regex":
            return isinstance(value, str) and re.search(operand, value) is not None
    raise NotImplementedError(operator)


def updated(before: Document, update: Mapping[str, Any]) -> Document:
    """Return a document after an update."""
    after = dict(before)
    for operator, values in update.items():
        match operator:
            case "$set":
                after.update(values)
            case "$unset":
                for name in values:
                    after.pop(name, None)
            case "$inc":
                for name, number in values.items():
                    after[name] = after.get(name, 0) + number
            case "$max" | "$min":
                chosen = max if operator == "$max" else min
                for name, value in values.items():
                    after[name] = chosen(after[name], value) if name in after else value
            case "$push":
                for name, pushed in values.items():
                    after[name] = [*after.get(name, ()), *pushed["$each"]][pushed["$slice"] :]
            case "$setOnInsert":
                pass
            case _:
                raise NotImplementedError(operator)
    return after


class Network:
    """The network between the processes and the server."""

    def __init__(
        self,
        timeline: Timeline,
        server: Server,
        *,
        chance: Random,
        trace: Callable[[str, str, object], None],
    ) -> None:
        self.weather = CALM
        self.away_until = 0.0  #: no message reaches the server before this time
        self._timeline = timeline
        self._server = server
        self._chance = chance
        self._trace = trace

    async def call(self, command: Command) -> Reply:
        """Send a command and wait for its reply; raise the errors of a driver."""
        timeline, chance, weather = self._timeline, self._chance.random, self.weather
        answered = Signal()
        timeline.after(TIMEOUT, answered.fail, NetworkTimeout("timed out"))
        delay = self._latency()
        if chance() < weather.delayed:
            delay = chance() * 4.0 * TIMEOUT
        lost = chance() < weather.request_lost
        sender = command.sender.name
        self._trace(sender, "sends (lost)" if lost else "sends", command)
        if lost:
            self._break(answered)
        else:
            timeline.after(delay, self._arrive, command, answered)
        if chance() < weather.repeated:
            late = chance() * (TIMEOUT, 300.0, 3600.0)[int(chance() * 3)]
            timeline.after(delay + late, self._arrive, command, None)
        reply: Reply = await answered
        return reply

    def _latency(self) -> float:
        return 0.001 + 0.01 * self._chance.random()

    def _break(self, answered: Signal) -> None:
        """Break the connection: the sender gets an error at once, or never."""
        if self._chance.random() < 0.5:
            self._timeline.after(self._latency(), answered.fail, AutoReconnect("closed"))

    def _arrive(self, command: Command, answered: Signal | None) -> None:
        if answered is None:
            self._trace(command.sender.name, "comes once more", command)
        elif self._timeline.now < self.away_until:
            self._break(answered)
            return
        if command.name == "find":
            self._answer(self._server.find(command), answered)
            return
        steps = self._server.steps(command)
        if len(steps) > 1 and self._chance.random() < self.weather.torn:
            steps = steps[: int(self._chance.random() * len(steps))]
            if answered is not None:
                self._break(answered)
            answered = None
        self._proceed(command, steps, Reply(), answered)

    def _proceed(
        self,
        command: Command,
        steps: list[tuple[Statement, Any]],
        reply: Reply,
        answered: Signal | None,
    ) -> None:
        for number, step in enumerate(steps, 1):
            if not self._server.apply(command, step, reply):
                self._trace(command.sender.name, "has no effect on", step[1])
            if number < len(steps) and self._chance.random() < 0.2:
                # Commands of other processes may come between two steps.
                rest = steps[number:]
                self._timeline.after(self._latency(), self._proceed, command, rest, reply, answered)
                return
        self._answer(reply, answered)

    def _answer(self, reply: Reply, answered: Signal | None) -> None:
        if answered is None:
            return
        if self._chance.random() < self.weather.reply_lost or (
            self._timeline.now < self.away_until
        ):
            self._break(answered)
            return
        late = self._chance.random() < self.weather.delayed
        delay = self._chance.random() * 2.0 * TIMEOUT if late else self._latency()
        self._timeline.after(delay, answered.send, reply)


class Database:
    """The server, as seen through the driver of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def get_collection(self, name: str, *, write_concern: WriteConcern) -> "Collection":
        durable = write_concern.document.get("w") == "majority"
        return Collection(self._network, self._process, name, durable=durable)


class Collection:
    """The methods of a driver's collection that the ledger uses."""

    def __init__(self, network: Network, process: Process, name: str, *, durable: bool) -> None:
        self.name = name
        self._network = network
        self._process = process
        self._durable = durable

    def find(self, wanted: Filter, projection: object = None) -> "Cursor":
        return Cursor(self._network, self._process, self.name, wanted)

    def aggregate(self, pipeline: Sequence[Mapping[str, Any]], **_: object) -> "Picked":
        first, order, most, *stages = pipeline
        cursor = self.find(first["$match"]).sort(list(order["$sort"].items()))
        return Picked(cursor.limit(most["$limit"]), stages)

    async def find_one_and_update(
        self, wanted: Filter, update: Mapping[str, Any], **_: object
    ) -> Document | None:
        reply = await self._write("findAndModify", Statement(wanted, update))
        return reply.found[0] if reply.matched_count else None

    async def update_one(self, wanted: Filter, update: Mapping[str, Any], **_: object) -> Reply:
        return await self._write("update", Statement(wanted, update))

    async def update_many(self, wanted: Filter, update: Mapping[str, Any], **_: object) -> Reply:
        return await self._write("update", Statement(wanted, update, many=True))

    async def delete_many(self, wanted: Filter, **_: object) -> Reply:
        # It deletes offloaded items, which the model does not have: any command will do.
        return await self._write("update", Statement(wanted, {"$set": {}}, many=True))

    async def bulk_write(self, writes: Sequence[UpdateOne], **_: object) -> Reply:
        # The driver has no public names for the parts of a write.
        statements = (
            Statement(write._filter, write._doc, upsert=bool(write._upsert)) for write in writes
        )
        return await self._write("update", *statements)

    async def _write(self, name: str, *statements: Statement) -> Reply:
        command = Command(self._process, name, self.name, statements, durable=self._durable)
        return await self._network.call(command)


class Cursor:
    """A query, which is sent when its rows are read."""

    def __init__(self, network: Network, process: Process, name: str, wanted: Filter) -> None:
        self._network = network
        self._process = process
        self._name = name
        self._wanted = wanted
        self._order: Sequence[tuple[str, int]] = ()
        self._skip = self._limit = 0

    def sort(self, order: Sequence[tuple[str, int]]) -> Self:
        self._order = order
        return self

    def skip(self, number: int) -> Self:
        self._skip = number
        return self

    def limit(self, number: int) -> Self:
        self._limit = number
        return self

    def hint(self, _: str) -> Self:
        return self

    def batch_size(self, _: int) -> Self:
        return self

    async def to_list(self, _: int | None) -> list[Document]:
        command = Command(
            self._process,
            "find",
            self._name,
            wanted=self._wanted,
            order=self._order,
            skip=self._skip,
            limit=self._limit,
        )
        return list((await self._network.call(command)).found)


class Picked:
    """A query that leaves out some of its rows."""

    def __init__(self, cursor: Cursor, stages: Sequence[Mapping[str, Any]]) -> None:
        self._cursor = cursor
        self._stages = stages

    async def to_list(self, _: int | None) -> list[Document]:
        found = await self._cursor.to_list(None)
        for stage in self._stages:
            wanted = stage.get("$match", {})
            found = [each for each in found if matches(each, wanted)]
            found = found[: stage.get("$limit", len(found))]
        return found
