"""Looking for tasks among so many of those last changed, see `searching`."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.indexes import BY_STATUS
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.mongo.walks import behind, conditions, found_among
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.ledger.searching import Found, Wanted


class Search:
    """Lets the server look at a stretch of the index of statuses, and pick from it."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def find(
        self, wanted: Wanted, *, limit: int, look_at: int, after: Cursor | None = None
    ) -> Found:
        """See `searching.Search.find`."""
        chosen = wanted.chosen
        if not chosen.statuses:
            return Found(records=(), after=None)
        indexed = conditions(
            TaskFilter(statuses=chosen.statuses, since=chosen.since, until=chosen.until)
        )
        picked: list[Cursor] = []
        # What is of the time of the place, and then what is earlier: each is one stretch.
        for part, order in behind(indexed, after):
            missing = limit - len(picked)
            picked += await self._picked(part, order, wanted, look_at=look_at, limit=missing)
            place = picked[-1] if len(picked) == limit else await self._nth(part, order, look_at)
            if place is not None:
                return await self._found(picked, wanted, place)
        return await self._found(picked, wanted, None)

    async def _picked(
        self,
        part: Mapping[str, Any],
        order: Sequence[tuple[str, int]],
        wanted: Wanted,
        *,
        look_at: int,
        limit: int,
    ) -> list[Cursor]:
        """Return where those that are wanted are, of the first *look_at* tasks of a stretch."""
        picked = await self._store.aggregate(
            [
                {"$match": part},
                {"$sort": dict(order)},
                {"$limit": look_at},
                {"$match": _conditions(wanted)},
                {"$limit": limit},
                {"$project": {"update_time": 1}},
            ],
            most=limit + 1,
        )
        return [
            # A command answers without a time zone.
            Cursor(update_time=each["update_time"].replace(tzinfo=UTC), id=bytes(each["_id"]))
            for each in picked
        ]

    async def _nth(
        self, part: Mapping[str, Any], order: Sequence[tuple[str, int]], number: int
    ) -> Cursor | None:
        """Return the place of the last task of so many, by the index alone; None: there are not."""
        with mapped():
            cursor = self._store.tasks.find(part, {"update_time": 1}).sort(list(order))
            found = await cursor.skip(number - 1).limit(1).hint(BY_STATUS).to_list(1)
        if not found:
            return None
        return Cursor(update_time=found[0]["update_time"], id=bytes(found[0]["_id"]))

    async def _found(self, picked: Sequence[Cursor], wanted: Wanted, place: Cursor | None) -> Found:
        """Return the tasks at those places that are still as they were wanted."""
        ids = [each.id for each in picked]
        with mapped():
            found = await found_among(
                self._store, ids, conditions(wanted.chosen), max(len(ids), 1), None
            )
        return Found(records=tuple(documents.record(each) for each in found), after=place)


def _conditions(wanted: Wanted) -> dict[str, Any]:
    """Return the filter of what is wanted."""
    where = conditions(wanted.chosen)
    if wanted.reasons is not None:
        given = {"reason": {"$in": sorted(map(str, wanted.reasons))}}
        where = {"$and": [where, given]}
    if wanted.containing:
        # Escaped: what somebody types is no pattern.
        where = {"$and": [where, {"url": {"$regex": re.escape(wanted.containing)}}]}
    return where
