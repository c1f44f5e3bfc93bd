"""What workers have shown of themselves: a document for each worker and minute."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from pymongo.errors import DuplicateKeyError

from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.ledger.rate_documents import kept_for, outdated, point, point_document
from crawlcw.model.rates import EVERY, Point, Span, first_read, minute_of, spans

#: How many points are read by one command.
_READ = 5_000


class Rates:
    """Keeps the points under names that are ordered by how long they are kept, and by time.

    So one range of the one index that every collection has is what is read, or dropped.
    """

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def record(self, point: Point) -> None:
        """Write the point unless a later one of its minute is there, and drop the old ones."""
        document = point_document(point)
        name = f"{_place(point.kept_days, point.time)} {point.worker}"
        # One that was delayed on its way must not take back a later one.
        earlier = {"_id": name, "time": {"$lte": point.time}}
        with mapped():
            with suppress(DuplicateKeyError):
                await self._store.rates.replace_one(earlier, document, upsert=True)
            for days, until in outdated(point.time).items():
                old = {"_id": {"$gte": f"{days} ", "$lt": _place(days, until)}}
                await self._store.rates.delete_many(old, hint="_id_")

    async def between(
        self, since: datetime, until: datetime, *, step: timedelta = EVERY
    ) -> list[Span]:
        """Walk through the names of those minutes, some thousand points a command."""
        found: list[Point] = []
        for days in kept_for(step):
            place = {"$gte": _place(days, first_read(since))}
            end = {"$lt": _place(days, until + EVERY)}
            while some := await self._some({**place, **end}):
                found += [point(each) for each in some]
                place = {"$gt": some[-1]["_id"]}
        return spans(found, since=since, until=until)

    async def _some(self, places: dict[str, str]) -> list[dict[str, Any]]:
        with mapped():
            cursor = self._store.rates.find({"_id": places}).sort([("_id", 1)]).hint("_id_")
            return await all_of(cursor.limit(_READ), _READ)


def _place(days: int, moment: datetime) -> str:
    """Return what the names of the points of a minute begin with."""
    return f"{days} {minute_of(moment):%Y-%m-%dT%H:%M}"
