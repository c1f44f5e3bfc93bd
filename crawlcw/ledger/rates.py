"""Points of the workers' counters, minute by minute, for the last week.

A point is the document

    kept     for how many days
    minute   the minute it is of: a worker has one point in each
    worker   its name
    started  when the worker began to count
    time     when exactly
    vitals   as of a worker, see `documents`

and its key is the first three. So each read, and each deletion, is one range of keys.
"""

from dataclasses import asdict
from datetime import datetime, timedelta

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import RATE_KEY, AtMost, Edit, Key, Store, Unit, Within, Write
from crawlcw.model.rates import (
    COARSE,
    EVERY,
    FINE_DAYS,
    KEPT_DAYS,
    Point,
    Span,
    Vitals,
    first_read,
    minute_of,
    spans,
)

#: How many points are read at a time.
_READ = 5_000


class Rates:
    """What workers have shown of themselves, minute by minute, for the last week."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, point: Point) -> None:
        """Keep a point of a worker, and drop those that are too old.

        A worker has one point a minute, the latest. A week of them is kept: of the last
        day all, of the days before one in ten minutes, and each worker's last one. Not
        durable: the next point makes up for one that a crash takes away.
        """
        await self._store.writing(_record, point)

    async def between(
        self, since: datetime, until: datetime, *, step: timedelta = EVERY
    ) -> list[Span]:
        """Return what each worker did from point to point, ended in [since, until), in order.

        *step* is how finely they are wanted: for ten minutes or more only as many
        points are read.
        """
        days = [KEPT_DAYS] if step >= COARSE else [KEPT_DAYS, FINE_DAYS]
        found = await self._store.reading(_between, since, until, days)
        return spans(found, since=since, until=until)


async def _record(unit: Unit, point: Point) -> None:
    document: Document = {
        "kept": point.kept_days,
        "minute": minute_of(point.time),
        "worker": point.worker,
        "started": point.started,
        "time": point.time,
        "vitals": asdict(point.vitals),
    }
    # One that was delayed on its way must not take back a later one.
    earlier = {"time": AtMost(point.time)}
    await unit.rates.change([Write(_key(document), earlier, Edit(set=document), new=document)])
    for days in (KEPT_DAYS, FINE_DAYS):
        outdated = Within((days,), (days, minute_of(point.time) - timedelta(days=days)))
        await unit.rates.delete({"_id": outdated})


async def _between(unit: Unit, since: datetime, until: datetime, kept: list[int]) -> list[Point]:
    points: dict[Key, Point] = {}
    for days in kept:
        first: Key = (days, minute_of(first_read(since)))
        end = (days, minute_of(until + EVERY))
        while some := await unit.rates.scan({"_id": Within(first, end)}, limit=_READ):
            points |= {_key(each): _point(each) for each in some}
            if len(some) < _READ:
                break
            # It is read once more: a range begins with a key.
            first = _key(some[-1])
    return [*points.values()]


def _point(found: Document) -> Point:
    return Point(
        worker=found["worker"],
        started=found["started"],
        time=found["time"],
        vitals=Vitals(**found["vitals"]),
    )


def _key(document: Document) -> tuple[object, ...]:
    return tuple(document[name] for name in RATE_KEY)
