"""Finding the tasks that somebody has chosen, by the way that reads fewest of them.

By an index of what is given, where it has few tasks of that. Else in the order of the answer, for
as long as that may fill it soon; and else as they lie in the collection, all of them.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any

from crawlcw.ledger.mongo.counting import FEW, IN_INDEX, are_few, few_in
from crawlcw.ledger.mongo.indexes import BY_STATUS
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.mongo.walks import (
    ORDER,
    PLACE,
    behind,
    conditions,
    found_among,
    found_behind,
    hosts_too,
)
from crawlcw.ledger.prefixes import simplified
from crawlcw.ledger.protocol import Cursor, TaskFilter

#: So many are looked at in the order of the answer, or so many for each that is wanted.
LOOK_AT = 10_000
LOOK_AT_FOR_EACH = 50
#: Who wants more at once has them looked for in their order alone.
LARGEST_PAGE = 1_000


async def found_tasks(
    store: MongoStore, chosen: TaskFilter, *, limit: int, after: Cursor | None
) -> list[dict[str, Any]]:
    """Return the next tasks behind a place, the last changed first, without their items."""
    chosen = simplified(chosen, store.kind)
    where = conditions(chosen)
    if limit < 1 or not chosen.statuses:
        return []  # to the server, no limit
    if chosen.ids is not None:
        return await found_among(store, list(chosen.ids), where, limit, after)
    places = await _places(store, chosen, where, limit, after)
    if places is None:
        return await found_behind(store, where, limit, after, {"items": 0})
    ids = [place.id for place in places]
    found = await found_among(store, ids, where, max(len(ids), 1), None)
    if len(found) < len(places) == limit:
        # Some have changed since; who gets fewer than the limit takes them for the last ones.
        missing = limit - len(found)
        found += await found_tasks(store, chosen, limit=missing, after=places[-1])
    return found


async def _places(
    store: MongoStore,
    chosen: TaskFilter,
    where: Mapping[str, Any],
    limit: int,
    after: Cursor | None,
) -> list[Cursor] | None:
    """Return where the next tasks are; None: they are to be read in their order."""
    narrowed = hosts_too(where, chosen, store.kind)
    index = await few_in(store, narrowed)
    if index is not None:
        pipeline = _pipeline(narrowed, limit, after)
        return _cursors(await store.aggregate(pipeline, hint=index, most=min(limit, FEW) + 1))
    if where.keys() <= IN_INDEX or limit > LARGEST_PAGE:
        return None
    near = await _near(store, where, limit, after)
    if len(near) == limit:
        return near
    if await are_few(store, where):
        return None
    # Those that are near are among all.
    found = await store.scan(_pipeline(where, limit, after), most=limit)
    return None if found is None else _cursors(found)


async def _near(
    store: MongoStore, where: Mapping[str, Any], limit: int, after: Cursor | None
) -> list[Cursor]:
    """Return the places of those that are among the next ones in the order of the answer."""
    indexed = {name: where[name] for name in IN_INDEX if name in where}
    look_at = max(LOOK_AT, LOOK_AT_FOR_EACH * limit)
    near: list[Cursor] = []
    for part, order in behind(indexed, after):
        pipeline: list[dict[str, Any]] = [
            {"$match": part},
            {"$sort": dict(order)},
            {"$limit": look_at},
            {"$match": dict(where)},
            {"$limit": limit - len(near)},
            {"$project": PLACE},
        ]
        near += _cursors(await store.aggregate(pipeline, most=limit + 1))
        if len(near) == limit:
            break
        if await store.count(part, hint=BY_STATUS, most=look_at) == look_at:
            # What comes behind them comes behind others as well, which were not looked at.
            break
    return near


def _cursors(found: Iterable[Mapping[str, Any]]) -> list[Cursor]:
    # A command answers without a time zone.
    return [
        Cursor(update_time=each["update_time"].replace(tzinfo=UTC), id=bytes(each["_id"]))
        for each in found
    ]


def _pipeline(where: Mapping[str, Any], limit: int, after: Cursor | None) -> list[dict[str, Any]]:
    """Return what sorts the places of all that match and come behind a place."""
    parts: list[Mapping[str, Any]] = [where]
    if after is not None:
        earlier = {"update_time": {"$lt": after.update_time}}
        equal = {"update_time": after.update_time, "_id": {"$lt": after.id}}
        parts.append({"$or": [earlier, equal]})
    return [
        {"$match": {"$and": parts}},
        {"$project": PLACE},
        {"$sort": dict(ORDER)},
        {"$limit": limit},
    ]
