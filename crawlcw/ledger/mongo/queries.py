"""Questions on all the tasks: which there are, how many, what they gave, when the next is due.

What counts goes through the index of statuses some ten thousand tasks at a time:
one command for a million of them would run into the driver's time limit where
the server is slow, and be sent again, and again.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from pymongo.errors import OperationFailure

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.counting import among_all, by_index, of_status, redirects
from crawlcw.ledger.mongo.finding import found_tasks
from crawlcw.ledger.mongo.indexes import (
    ANY_PRIORITY,
    BY_PRIORITY,
    BY_STATUS,
    HAS_DUE,
)
from crawlcw.ledger.mongo.items import Items
from crawlcw.ledger.mongo.store import BATCH, MongoStore, resumed
from crawlcw.ledger.mongo.walks import conditions, found_behind, hosts_too
from crawlcw.ledger.prefixes import simplified
from crawlcw.ledger.protocol import (
    Counts,
    Cursor,
    Dimension,
    Groups,
    ItemCount,
    ItemRow,
    TaskFilter,
)
from crawlcw.model.task import DONE, Record, Status

#: How many tasks one command counts by the index alone, and how many it reads.
_COUNTED = 50_000
_READ = 5_000
#: The server's BadValue: nothing else in a look for a task can be one.
_NO_SUCH_INDEX = 2
#: How many tasks are read at once with their items.
_WITH_ITEMS = 100
_NUMBER_OF_ITEMS = {"$sum": {"$size": {"$ifNull": ["$items", []]}}}
#: Those first that have items, and those last that may only wait for another visit.
_ITEMS_FIRST = (*DONE, Status.FAILED, Status.PROCESSING, Status.TODO)
_ITEM_FIELDS = ("url", "items", "items_from", "settled", "update_time", "response.final_url")
#: The order of the index of statuses.
_ORDER = {"status": 1, "update_time": -1, "_id": -1}


class _Cursor(NamedTuple):
    """Where a walk through the index has come to."""

    status: int
    time: datetime  # without its zone, as a command answers
    id: bytes


class Queries:
    """Answers by the indexes alone, but for the reasons and the items."""

    def __init__(self, store: MongoStore, items: Items, groups: Groups) -> None:
        self._store = store
        self._by = groups
        self._items = items

    async def horizon(self) -> datetime | None:
        """Seek the earliest `due` of each priority there is; there are few."""
        earliest: datetime | None = None
        below = ANY_PRIORITY
        while True:
            with mapped():
                cursor = self._store.tasks.find(
                    {"priority": {"$lt": below}, **HAS_DUE}, {"_id": 0, "priority": 1, "due": 1}
                )
                cursor = cursor.sort([("priority", -1), ("due", 1)]).limit(1).hint(BY_PRIORITY)
                found = await cursor.to_list(1)
            if not found:
                return earliest
            due, below = found[0]["due"], found[0]["priority"]
            earliest = due if earliest is None else min(due, earliest)

    async def has(self, statuses: Collection[Status]) -> bool:
        """Read one key of the index."""
        among = {"status": {"$in": [int(status) for status in statuses]}}
        with mapped():
            cursor = self._store.tasks.find(among, {"_id": 0, "status": 1}).limit(1).hint(BY_STATUS)
            try:
                return bool(await cursor.to_list(1))
            except OperationFailure as error:
                if error.code != _NO_SUCH_INDEX:
                    raise
                # Somebody is just making the collection, and its indexes come next: a ledger with
                # tasks has them when it is opened.
                return False

    async def counts(self) -> Counts:
        """Count by the status index alone."""
        moved = await redirects(self._store)
        counts: Counter[Status] = Counter()
        async with aclosing(self._groups(list(Status), by="$status", at_once=_COUNTED)) as groups:
            async for group in groups:
                counts[Status(group["_id"])] += group["n"]
                if counts.total() >= _COUNTED:
                    break
            else:
                return Counts(by_status=dict(counts), redirects=moved)
        for status in Status:
            counts[status] = await of_status(self._store, {"status": int(status)})
        return Counts(by_status=dict(+counts), redirects=moved)

    async def item_count(self) -> int:
        """Sum the items of every task that may have some."""
        # What is to be visited again has items as well, whatever its status.
        walk = self._groups(list(Status), by="$status", at_once=_READ, items=_NUMBER_OF_ITEMS)
        async with aclosing(walk) as groups:
            return sum([group["items"] async for group in groups])

    async def items_among(self, *, look_at: int) -> ItemCount:
        """Sum the items of so many tasks, of those statuses first that have most of them."""
        number, left = 0, look_at
        for status in _ITEMS_FIRST:
            walk = self._groups([status], by="$status", at_once=left, items=_NUMBER_OF_ITEMS)
            async with aclosing(walk) as groups:
                async for group in groups:
                    number += group["items"]
                    left -= group["n"]
                    break
            if not left:
                return ItemCount(number=number, whole=False)
        return ItemCount(number=number, whole=True)

    async def reasons(self) -> dict[str, int]:
        """Count them by their index."""
        groups = await self._by.by(Dimension.REASON)
        return {str(group.value): group.total for group in groups}

    async def items(self, chosen: TaskFilter | None = None) -> AsyncIterator[ItemRow]:
        """Stream the tasks that have items, or walk through the chosen ones by their index."""
        if chosen is None:
            have_items = {"items": {"$exists": True}}
            fields = dict.fromkeys(_ITEM_FIELDS, 1)
            stream = self._store.stream(self._store.tasks, have_items, fields, self._items.rows)
            async with aclosing(stream):
                async for row in stream:
                    yield row
            return
        place: Cursor | None = None
        while True:
            rows, place = await resumed(partial(self._some_items, conditions(chosen), place))
            for row in rows:
                yield row
            if place is None:
                return

    async def versions(self) -> AsyncIterator[ItemRow]:
        """Stream the tasks whose versions are kept."""
        have_versions = {"versions": {"$exists": True}}
        fields = {"url": 1, "versions": 1}
        stream = self._store.stream(self._store.tasks, have_versions, fields, self._items.versions)
        async with aclosing(stream):
            async for row in stream:
                yield row

    async def _some_items(
        self, where: documents.Document, place: Cursor | None
    ) -> tuple[list[ItemRow], Cursor | None]:
        """Return the items of the next tasks, and where to go on, unless that was all."""
        fields = dict.fromkeys(_ITEM_FIELDS, 1)
        with mapped():
            found = await found_behind(self._store, where, _WITH_ITEMS, place, fields)
            rows = [row for each in found for row in await self._items.rows(each)]
        if len(found) < _WITH_ITEMS:
            return rows, None
        last = found[-1]
        return rows, Cursor(update_time=last["update_time"], id=bytes(last["_id"]))

    async def find(
        self, chosen: TaskFilter, *, limit: int, after: Cursor | None = None
    ) -> list[Record]:
        """See `finding`."""
        with mapped():
            found = await found_tasks(self._store, chosen, limit=limit, after=after)
        return [documents.record(each) for each in found]

    async def count(self, chosen: TaskFilter) -> int:
        """Let an index tell, or the server look at the tasks of these statuses; or look up ids."""
        chosen = simplified(chosen.counted_at(self._store.now()), self._store.kind)
        where = conditions(chosen)
        if chosen.ids is not None:
            ids = list(set(chosen.ids))
            total = 0
            for start in range(0, len(ids), BATCH):
                some = {**where, "_id": {"$in": ids[start : start + BATCH]}}
                with mapped():
                    total += await self._store.tasks.count_documents(some, hint="_id_")
            return total
        narrowed = hosts_too(where, chosen, self._store.kind)
        number = await by_index(self._store, where, narrowed)
        if number is None:
            number = await among_all(self._store, [where])
        if number is not None:
            return number
        matching = {"$sum": {"$cond": [_expression(where), 1, 0]}}
        walk = self._groups(chosen.statuses, by="$status", at_once=_READ, matching=matching)
        async with aclosing(walk) as groups:
            return sum([group["matching"] async for group in groups])

    async def _groups(
        self, statuses: Collection[Status], *, by: str, at_once: int, **sums: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield groups of the tasks of some statuses, *at_once* tasks by a command."""
        among = sorted(int(status) for status in statuses)
        place: _Cursor | None = None
        while True:
            room = at_once
            last = place
            for where, order in _behind(among, place):
                groups = await self._store.aggregate(
                    [
                        {"$match": where},
                        {"$sort": order},
                        {"$limit": room},
                        {
                            "$group": {
                                "_id": by,
                                "n": {"$sum": 1},
                                "status": {"$last": "$status"},
                                "update_time": {"$last": "$update_time"},
                                "id": {"$last": "$_id"},
                                **sums,
                            }
                        },
                    ]
                )
                for group in groups:
                    yield group
                room -= sum(group["n"] for group in groups)
                last = _furthest(groups) or last
                if not room:
                    break
            if room:
                return
            place = last


def _expression(where: Mapping[str, Any]) -> dict[str, Any]:
    """Return a filter as an expression, in which no value is taken for a field or an operator."""
    parts = [
        {operator: [f"${name}", {"$literal": value}]}
        for name, condition in where.items()
        for operator, value in _operators(condition)
    ]
    return {"$and": parts}


def _operators(condition: Any) -> list[tuple[str, Any]]:
    return list(condition.items()) if isinstance(condition, dict) else [("$eq", condition)]


def _behind(among: list[int], place: _Cursor | None) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Return the filters of what comes behind a place, in their order, each with its own order.

    Each is one stretch of the index; one filter that says all three would not be.
    """
    if place is None:
        return [({"status": {"$in": among}}, _ORDER)]
    here = {"status": place.status}
    parts: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({**here, "update_time": place.time, "_id": {"$lt": place.id}}, {"_id": -1}),
        ({**here, "update_time": {"$lt": place.time}}, {"update_time": -1, "_id": -1}),
    ]
    if later := [status for status in among if status > place.status]:
        parts.append(({"status": {"$in": later}}, _ORDER))
    return parts


def _furthest(groups: list[dict[str, Any]]) -> _Cursor | None:
    """Return where a command has come to, which of its groups ever that was."""
    ends = [_Cursor(group["status"], group["update_time"], bytes(group["id"])) for group in groups]
    return min(ends, key=lambda end: (-end.status, end.time, end.id), default=None)
