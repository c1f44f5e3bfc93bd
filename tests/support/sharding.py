"""Rules of a sharded cluster for commands: targeted ones name the ids of their documents.

The shard key of tasks and items is their `_id`, that of hosts is its hash. `mongos` sends a command
to the shards of the keys in its filter, and to all shards if the filter has none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Stages of a pipeline that read another collection and cannot name its key, or write.
_FOREIGN = {"$lookup", "$graphLookup", "$out", "$merge"}
_FILTERS = {"find": "filter", "findAndModify": "query", "count": "query"}
_WRITES = {"update": "updates", "delete": "deletes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One filter of a command."""

    verb: str
    collection: str  #: `tasks`, `hosts`, `items`, or the name of an unsharded collection
    chosen: Mapping[str, Any]
    is_one: bool  #: changes at most one document
    adds: bool  #: adds a missing document

    @property
    def shape(self) -> str:
        fields = sorted({*self.chosen, *(n for each in self.chosen.get("$or", ()) for n in each)})
        return f"{self.verb} {self.collection}: {', '.join(f for f in fields if f != '$or')}"

    @property
    def is_targeted(self) -> bool:
        """Whether it names documents, or ranges of ids within one host or task."""
        if (test := self.chosen.get("_id")) is not None:
            return self._names(test)
        alternatives = self.chosen.get("$or", ())
        return bool(alternatives) and all(self._names(each.get("_id")) for each in alternatives)

    @property
    def is_refused(self) -> bool:
        """Whether `mongos` refuses it: a change of one document without its key."""
        test = self.chosen.get("_id", {"$exists": True})
        is_key = not (isinstance(test, dict) and _operators(test))
        return (self.is_one or self.adds) and not is_key

    def _names(self, test: Any) -> bool:
        if test is None:
            return False
        if not isinstance(test, dict) or not (operators := _operators(test)):
            return True
        if operators == {"$in"}:
            return True
        if self.collection == "hosts" or len(operators) != 2:
            return False  # a hash has no order
        first, last = test["$gte"], test.get("$lte", test.get("$lt"))
        if self.collection == "items":
            return bool(first["task"] == last["task"])
        return bool(first[:6] == last[:6])


def _operators(test: Mapping[str, Any]) -> set[str]:
    return {name for name in test if name.startswith("$")}


def statements(command: Mapping[str, Any], *, spider: str) -> Iterator[Statement]:
    """Yield the filters of a command on the collections of a spider."""
    verb = next(iter(command))
    verb = "findAndModify" if verb == "findandmodify" else verb
    parts = {spider: "tasks", f"{spider}.hosts": "hosts", f"{spider}.items": "items"}
    collection = parts.get(command[verb], str(command[verb]))

    def of(chosen: Mapping[str, Any], *, is_one: bool = False, adds: bool = False) -> Statement:
        return Statement(verb=verb, collection=collection, chosen=chosen, is_one=is_one, adds=adds)

    if verb in _WRITES:
        for each in command[_WRITES[verb]]:
            is_one = each.get("limit") == 1 if verb == "delete" else not each.get("multi")
            yield of(each["q"], is_one=is_one, adds=bool(each.get("upsert")))
    elif verb == "aggregate":
        yield from (of(chosen) for chosen in _matched(command["pipeline"]))
    elif verb in _FILTERS:
        is_one = verb == "findAndModify"
        yield of(command.get(_FILTERS[verb], {}), is_one=is_one, adds=bool(command.get("upsert")))


def _matched(pipeline: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    yield pipeline[0].get("$match", {})
    for stage in pipeline:
        assert not _FOREIGN & set(stage), stage
        if "$unionWith" in stage:
            yield from _matched(stage["$unionWith"]["pipeline"])
