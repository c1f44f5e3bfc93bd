"""Many stretches of indexes, counted by few commands.

A command costs the server as much as 500 keys of an index, and the driver more. So one command
counts many stretches: a pipeline for each, one behind the other (`$unionWith`).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from crawlcw.ledger.mongo.store import MongoStore

_T = TypeVar("_T")
#: So many are counted by one command at most: small clusters at Atlas take 50 stages. 100 or
#: 900 save nothing more.
_TOGETHER = 40


def commands(things: list[_T], *, each: int, at_once: int) -> list[list[_T]]:
    """Split what has *each* stretches into the commands that count it.

    They are *at_once*, or more where that were too many stretches for one.
    """
    size = max(1, min(_TOGETHER // each, len(things) // at_once))
    return [things[n : n + size] for n in range(0, len(things), size)]


async def counted(
    store: MongoStore, stretches: Sequence[tuple[Mapping[str, Any], ...]], *, hint: str
) -> list[tuple[int, ...]]:
    """Return how many tasks each filter matches, counted by one command in their order.

    Each filter is one stretch of an index; *hint* is that of the first one. The server takes none
    for the others, and finds the index that counts without reading by itself.
    """
    found = await store.aggregate(_pipeline(store.name, stretches), hint=hint)
    # A stretch without any task has no group.
    numbers = {group["_id"]: group["n"] for group in found}
    all_numbers = iter(numbers.get(n, 0) for n in range(1, 1 + sum(map(len, stretches))))
    return [tuple(islice(all_numbers, len(each))) for each in stretches]


def _pipeline(collection: str, stretches: Iterable[Iterable[Mapping[str, Any]]]) -> list[Any]:
    wheres = (where for each in stretches for where in each)
    # Known by its place, and not by a host's name: that might begin with a dollar.
    first, *others = (
        [{"$match": dict(where)}, {"$group": {"_id": n, "n": {"$sum": 1}}}]
        for n, where in enumerate(wheres, start=1)
    )
    return [*first, *({"$unionWith": {"coll": collection, "pipeline": p}} for p in others)]
