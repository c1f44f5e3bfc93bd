"""How many tasks are chosen: an index tells it, or leaves few to be read, or all are read.

Of what is too much for one command the statuses are walked through by `queries`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crawlcw.ledger.mongo.indexes import (
    BY_CALLBACK,
    BY_HOST_NAME,
    BY_REASON,
    BY_STATUS,
    DONE_BY_CALLBACK,
    FAILED_BY_HOST,
    IS_REDIRECT,
)
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.mongo.walks import behind, place_of
from crawlcw.model.task import DONE, Status

#: What has an index of its own.
NARROW = {"host": BY_HOST_NAME, "reason": BY_REASON, "callback": BY_CALLBACK}
#: So many tasks that an index has are read, and sorted, for some of them.
FEW = 50_000
#: What the index of statuses answers alone.
IN_INDEX = {"status", "update_time"}
#: How many of one status are counted by one command: a second, where the server is slow.
COUNTED_AT_ONCE = 2_000_000


async def few_in(store: MongoStore, where: Mapping[str, Any]) -> str | None:
    """Return the index of a host, reason or callback of few tasks; None: there is none.

    The index of statuses would be read from its begin for them, and, where there are none, to
    its end.
    """
    for name, index in NARROW.items():
        if name in where:
            number = await store.count({name: where[name]}, hint=index, most=FEW + 1)
            if number <= FEW:
                return index
    return None


async def are_few(store: MongoStore, where: Mapping[str, Any]) -> bool:
    """Return whether few tasks have the statuses and times of a filter."""
    stretch = {name: where[name] for name in IN_INDEX if name in where}
    return await store.count(stretch, hint=BY_STATUS, most=FEW + 1) <= FEW


async def by_index(
    store: MongoStore, where: Mapping[str, Any], narrowed: Mapping[str, Any]
) -> int | None:
    """Return how many tasks match a filter of `walks.conditions`; None: no index tells.

    *narrowed* is the same filter by `walks.hosts_too`.
    """
    match sorted(where.keys() - {"status"}):
        case [] | ["update_time"]:
            return await _of_statuses(store, where)
        case ["reason"]:
            return await _of_reasons(store, where)
        case ["callback"]:
            return await _of_callback(store, where)
    index = await few_in(store, narrowed)
    if index is not None:
        return _sum(await store.aggregate(_counting(narrowed), hint=index))
    if await are_few(store, where):
        return _sum(await store.aggregate(_counting(where), hint=BY_STATUS))
    return None


async def among_all(store: MongoStore, wheres: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many tasks match one of the filters, all being read.

    None: they are too many, or one of the filters is answered by the index of statuses.
    """
    if any(where.keys() <= IN_INDEX for where in wheres):
        return None
    found = await store.scan(_counting({"$or": list(wheres)}), most=1)
    return None if found is None else _sum(found)


async def of_status(store: MongoStore, where: Mapping[str, Any]) -> int:
    """Return how many tasks there are of one status, and of some times: so many by a command.

    To count a stretch of the index takes a quarter of what it takes to group it, and to find
    where the next one begins about as long.
    """
    total, after = 0, None
    while True:
        room = COUNTED_AT_ONCE
        for part, order in behind(where, after):
            number = await store.count(part, hint=BY_STATUS, most=room)
            total += number
            room -= number
            if not room:
                after = await place_of(store, part, order, number=number)
                break
        if room or after is None:
            return total


async def redirects(store: MongoStore) -> int:
    """Return how many finished tasks are redirects, so many by a command.

    Their index has no order to go on behind; what was counted before is skipped.
    """
    total = 0
    while True:
        number = await store.count(IS_REDIRECT, hint=BY_REASON, most=COUNTED_AT_ONCE, skip=total)
        total += number
        if number < COUNTED_AT_ONCE:
            return total


async def _of_statuses(store: MongoStore, where: Mapping[str, Any]) -> int:
    return sum(
        [await of_status(store, {**where, "status": each}) for each in _values(where["status"])]
    )


async def _of_reasons(store: MongoStore, where: Mapping[str, Any]) -> int:
    # Each is one stretch of the index; a filter that says several would be grouped.
    return sum(
        [
            await store.count({"reason": reason, "status": status}, hint=BY_REASON)
            for reason in _values(where["reason"])
            for status in _values(where["status"])
        ]
    )


async def _of_callback(store: MongoStore, where: Mapping[str, Any]) -> int:
    """Count what is done and what failed; what waits is what is left of all."""
    name = where["callback"]
    wanted = {Status(status) for status in _values(where["status"])}
    known = wanted if Status.TODO not in wanted else set(Status) - {Status.TODO}
    counted = {status: await _of_callback_and(store, name, status) for status in sorted(known)}
    if Status.TODO in wanted:
        total = await store.count({"callback": name}, hint=BY_CALLBACK)
        # Counted one after the other: what changed in between is not counted twice.
        counted[Status.TODO] = max(total - sum(counted.values()), 0)
    return sum(counted[status] for status in wanted)


async def _of_callback_and(store: MongoStore, name: str, status: Status) -> int:
    where: dict[str, Any] = {"status": int(status), "callback": name}
    if status in DONE:
        return await store.count(where, hint=DONE_BY_CALLBACK)
    if status is Status.FAILED:
        # That index is of hosts first.
        index = FAILED_BY_HOST
        where["host"] = {"$gte": ""}
    else:
        # Of those that are leased, few at any time, each is read.
        index = BY_STATUS
    return _sum(await store.aggregate(_counting(where), hint=index))


def _counting(where: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"$match": dict(where)}, {"$count": "n"}]


def _sum(found: Iterable[Mapping[str, Any]]) -> int:
    return sum(int(each["n"]) for each in found)


def _values(condition: Any) -> list[Any]:
    return list(condition["$in"]) if isinstance(condition, dict) else [condition]
