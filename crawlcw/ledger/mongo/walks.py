"""Tasks that are chosen: found in one order, and walked through some thousand at a time."""

from collections.abc import AsyncGenerator, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.indexes import BY_STATUS, LONG_AGO
from crawlcw.ledger.mongo.store import BATCH, MongoStore, all_of
from crawlcw.ledger.prefixes import Range, beginning_with, hosts_within
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.model.task import Status

#: The order of what is found, and what of a task tells its place in it.
ORDER = [("update_time", -1), ("_id", -1)]
#: Of tasks of one time: the server would sort them if it were told more.
_ORDER_OF_EQUALS = [("_id", -1)]
PLACE = {"update_time": 1}
_IN_NO_INDEX = ("url", "callback", "due")


async def place_of(
    store: MongoStore, where: Mapping[str, Any], order: list[tuple[str, int]], *, number: int
) -> Cursor | None:
    """Return the place of the task of that *number*, from 1, by the index alone; None: too few."""
    cursor = store.tasks.find(where, PLACE).sort(order)
    with mapped():
        found = await all_of(cursor.skip(number - 1).limit(1).hint(BY_STATUS), 1)
    return _cursor(found[0]) if found else None


async def found_behind(
    store: MongoStore,
    where: Mapping[str, Any],
    limit: int,
    after: Cursor | None,
    fields: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return the next tasks behind a place, in the order of the index."""
    found: list[dict[str, Any]] = []
    # Each of the ranges is one of the index for every status; one filter that
    # says both would not be.
    for part, order in behind(where, after):
        missing = limit - len(found)
        cursor = store.tasks.find(part, fields).sort(order).limit(missing).hint(BY_STATUS)
        found += await all_of(cursor, missing)
        if len(found) == limit:
            break
    return found


async def found_among(
    store: MongoStore, ids: list[bytes], where: Mapping[str, Any], limit: int, after: Cursor | None
) -> list[dict[str, Any]]:
    """Return the next tasks of those ids: what they hold is read only of what is returned."""
    places: list[tuple[datetime, bytes]] = []
    for some in _batches(ids, BATCH):
        cursor = store.tasks.find({**where, "_id": {"$in": some}}, PLACE).hint("_id_")
        places += [_place(each) for each in await all_of(cursor, len(some))]
    if after is not None:
        places = [place for place in places if place < (after.update_time, after.id)]
    places.sort(reverse=True)
    wanted = [task_id for _, task_id in places[:limit]]
    cursor = store.tasks.find({**where, "_id": {"$in": wanted}}, {"items": 0}).hint("_id_")
    return sorted(await all_of(cursor, len(wanted)), key=_place, reverse=True)


async def walk(
    store: MongoStore, chosen: TaskFilter, statuses: Collection[Status], *, size: int = BATCH
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield filters for writes, each of some of the chosen tasks by their ids.

    Each repeats all that was chosen: a task may have changed since it was read.
    What changes from now on is left alone, unless `chosen.until` is later.
    """
    where = conditions(chosen, now=store.now())
    among = [status for status in statuses if status in chosen.statuses]
    if chosen.ids is not None:
        where["status"] = {"$in": [int(status) for status in among]}
        for some in _batches(list(chosen.ids), size):
            yield {**where, "_id": {"$in": some}}
        return
    for status in among:
        where["status"] = int(status)
        async for ids in places(store, where, size):
            yield {**where, "_id": {"$in": ids}}


async def places(
    store: MongoStore, where: Mapping[str, Any], size: int
) -> AsyncGenerator[list[Any], None]:
    """Yield the ids of what may match, of one status, *size* at a time, the last changed first.

    What no index has is left to the writes: a command that looked for it might read
    millions of tasks and run into its time limit.
    """
    read = {name: value for name, value in where.items() if name not in _IN_NO_INDEX}
    after: Cursor | None = None
    while True:
        with mapped():
            found = await found_behind(store, read, size, after, PLACE)
        if not found:
            return
        yield [each["_id"] for each in found]
        after = _cursor(found[-1])


def behind(
    where: Mapping[str, Any], after: Cursor | None
) -> list[tuple[dict[str, Any], list[tuple[str, int]]]]:
    """Return the filters of what comes behind a place, each with its order.

    What is of the same time comes first, and then the earlier.
    """
    if after is None:
        return [(dict(where), ORDER)]
    times = where.get("update_time", {})
    time = after.update_time
    earlier = {**where, "update_time": {**times, "$lt": min(time, times.get("$lt", time))}}
    if not times.get("$gte", time) <= time < times.get("$lt", datetime.max.replace(tzinfo=UTC)):
        # Nothing is of that time; the server would look for it, and sort it.
        return [(earlier, ORDER)]
    equal = {**where, "update_time": time, "_id": {"$lt": after.id}}
    return [(equal, _ORDER_OF_EQUALS), (earlier, ORDER)]


def conditions(chosen: TaskFilter, *, now: datetime | None = None) -> dict[str, Any]:
    """Return the filter of what is chosen, without the ids."""
    where: dict[str, Any] = {"status": {"$in": [int(status) for status in chosen.statuses]}}
    times = {}
    if chosen.since is not None:
        times["$gte"] = chosen.since
    if chosen.until is not None:
        times["$lt"] = chosen.until
    elif now is not None:
        times["$lte"] = now
    if times:
        where["update_time"] = times
    if chosen.reason is not None:
        where["reason"] = str(chosen.reason)
    if chosen.host is not None:
        where["host"] = chosen.host
    if chosen.url_prefix:
        where["url"] = _within(beginning_with(chosen.url_prefix))
    if chosen.callback is not None:
        where["callback"] = chosen.callback
    if chosen.due_by is not None:
        # In an expression what is missing is before all times.
        where["due"] = {"$gt": LONG_AGO, "$lte": chosen.due_by}
    return where


def hosts_too(where: Mapping[str, Any], chosen: TaskFilter, kind: LedgerKind) -> dict[str, Any]:
    """Return the filter with the hosts as well that a prefix leaves, so that their index answers.

    For what is found by an index; where all are read, it says the same twice.
    """
    hosts = hosts_within(chosen, kind)
    return dict(where) if hosts is None else {**where, "host": _within(hosts)}


def _within(texts: Range) -> dict[str, str]:
    return {"$gte": texts.first} | ({} if texts.end is None else {"$lt": texts.end})


def _cursor(found: Mapping[str, Any]) -> Cursor:
    update_time, task_id = _place(found)
    return Cursor(update_time=update_time, id=task_id)


def _place(found: Mapping[str, Any]) -> tuple[datetime, bytes]:
    return found["update_time"], bytes(found["_id"])


def _batches(ids: list[bytes], size: int) -> list[list[bytes]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
