"""Queries on tasks and items: find, count, search, the next due time.

Three access paths find and count chosen tasks: an index of a given field with few entries; the
order of the answer, while few tasks fill it; a scan of all tasks as they lie in the store. A scan
costs an eighth to a tenth of a look-up of each task.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.choosing import batches, earliest, resumed, walk, where_of
from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import OR, Among, Containing, Path, Store, Unit, Where, Within
from crawlcw.ledger.values import (
    Counts,
    Cursor,
    Dimension,
    Group,
    ItemCount,
    ItemRow,
    TaskFilter,
    most_first,
)
from crawlcw.model.task import Record, Status

#: The most entries of an index that are read and sorted.
FEW = 50_000
#: The tasks that are examined in the order of the answer, at least, and for each wanted task.
LOOK_AT = 10_000
LOOK_AT_FOR_EACH = 50
#: The largest limit for a scan; more tasks are read in the order of the answer.
LARGEST_PAGE = 1_000
#: The tasks of one read by ids, and of one read with items.
_AT_ONCE = 5_000
_WITH_ITEMS = 100
#: The fields of the index of statuses, and the other indexes, the most selective first.
_IN_INDEX = {"status", "update_time"}
_NARROW = (Path.HOST, Path.REASON, Path.CALLBACK)


class Groups:
    """Numbers of tasks that have something in common."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def by(self, dimension: Dimension) -> list[Group]:
        """Return how many tasks there are of each value, those with the most first.

        By host, callback and depth all tasks; by reason those that failed and wait, and those
        that are ignored; by status code those that are done, with None for those that were
        never answered. Read from indexes alone. SQLite counts one moment. MongoDB counts one
        index after the other, 0.3 s for a million tasks: what changes meanwhile is counted as it
        was or as it is, as both, or not at all. A number is wrong by no more tasks than that.
        """
        return most_first(await self._store.reading(lambda unit: unit.groups.by(dimension)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which tasks a search looks for: those that match all that is given."""

    chosen: TaskFilter = TaskFilter()  #: its ids are not asked for
    reasons: Collection[Reason] | None = None  #: any of these
    containing: str = ""  #: their URL, or key, has this in it; the case of letters counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search."""

    records: tuple[Record, ...]  #: the last changed first, without their items
    after: Cursor | None  #: where to go on; None: nothing is left to look at


class Search:
    """Looking for tasks in bounded time, for people who wait for the answer.

    `Queries.find` reads on until it has found enough, and so a rare reason among a million
    tasks costs a million reads.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(
        self, wanted: Wanted, *, limit: int, look_at: int, after: Cursor | None = None
    ) -> Found:
        """Return up to *limit* tasks, the last changed first, of all statuses in one order.

        It looks at *look_at* tasks of those statuses and times, or a few times as many, and
        at no more. Both are at least 1. Equal times are ordered by id.
        """
        where = where_of(wanted.chosen, self._store.kind)
        if wanted.reasons is not None:
            chosen = {str(each) for each in wanted.reasons}
            where["reason"] = Among(sorted(chosen & {where.get("reason", each) for each in chosen}))
        if wanted.containing:
            where["url"] = Containing(wanted.containing, where.get("url", Within(None, None)))
        return await self._store.reading(_search, where, limit, look_at, after)


async def _search(
    unit: Unit, where: Where, limit: int, look_at: int, after: Cursor | None
) -> Found:
    places, after = await unit.tasks.look(where, limit=limit, look_at=look_at, after=after)
    return Found(records=tuple(await _records(unit, places, where)), after=after)


class Queries:
    """Questions about all the tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(
        self, chosen: TaskFilter, *, limit: int, after: Cursor | None = None
    ) -> list[Record]:
        """Return up to *limit* tasks, the last changed first, of all statuses in one order.

        Without their items. *after* is the place of the last one that is known
        already. Only the returned tasks are read, unless *reason*, *host*, *url_prefix*,
        *callback* or *ids* leave out what lies in between; of a reason, host or callback
        that has no more than 50,000 tasks those alone are read. A prefix names its host, or
        the hosts that begin like its end. Where there are more, the next 10,000 tasks are looked
        at, or 50 for each that is wanted; where these have too few, all tasks are read as they
        lie in the store. MongoDB does so with 5 million at most, and for 5 s, and else goes on
        looking; so do both for a *limit* of more than 1,000. Equal times are ordered by id.
        """
        if limit < 1 or not chosen.statuses:
            return []
        where = where_of(chosen, self._store.kind)
        return await self._store.reading(_find, where, chosen.ids, limit, after)

    async def count(self, chosen: TaskFilter) -> int:
        """Return how many tasks are chosen, in the way of `counts`; nothing is written.

        With the `from_statuses` of a bulk change, see `among`, this is the number that it would
        reach. It comes from an index if only a reason or a callback is given, on SQLite a host as
        well. Else the tasks are read that an index leaves, 50,000 at most, or all as in `find`.
        """
        if not chosen.statuses:
            return 0
        where = where_of(chosen.counted_at(self._store.now()), self._store.kind)
        return await counted(self._store, [where], chosen.ids)

    async def horizon(self, *, enough: datetime | None = None) -> datetime | None:
        """Return when the next task is due, live leases included; None when nothing ever will be.

        None means drained: everything is finished or ignored. If tasks are due by *enough*, the
        time of any of them is returned, which is cheaper.
        """
        return await self._store.reading(earliest, {}, by=Path.DUE, enough=enough)

    async def has(self, statuses: Collection[Status]) -> bool:
        """Return whether there is any task of one of these statuses. One seek."""
        return await self._store.reading(_has, {"status": Among(tuple(map(int, statuses)))})

    async def counts(self) -> Counts:
        """Return how many tasks there are of each status, and how many redirects.

        SQLite counts one moment. MongoDB counts some ten thousand at a time, or two million
        of a status, so that no number of them blocks the ledger or runs into its time limit; so is
        what `item_count` reads. Of more tasks than that what changes meanwhile may count twice, or
        not at all.
        """
        return await self._store.reading(lambda unit: unit.tasks.counts())

    async def item_count(self) -> int:
        """Return how many items are recorded.

        SQLite counts them by an index. MongoDB reads every task: seconds for a million.
        """
        return (await self._store.reading(lambda unit: unit.results.count())).number

    async def items_among(self, *, look_at: int) -> ItemCount:
        """Return how many items are recorded, or at least how many, in bounded time.

        MongoDB looks at *look_at* tasks, at least 1, the finished ones first.
        """
        return await self._store.reading(lambda unit: unit.results.count(look_at=look_at))

    async def reasons(self) -> dict[str, int]:
        """Return how many failed and ignored tasks there are for each reason, most first.

        As `Groups.by` counts them.
        """
        groups = await Groups(self._store).by(Dimension.REASON)
        return {str(group.value): group.total for group in groups}

    async def versions(self) -> AsyncIterator[ItemRow]:
        """Yield the items of all visits that are kept, page by page, the earliest visit first.

        In the order of task ids, in flat memory. A visit whose items are not new adds none.
        """
        async for row in self._rows(lambda unit, after: unit.results.versions(after)):
            yield row

    async def items(self, chosen: TaskFilter | None = None) -> AsyncIterator[ItemRow]:
        """Yield every recorded item, page by page in the order of task ids, in flat memory.

        With *chosen* those of its tasks alone, the last changed first; its ids are
        not asked for.
        """
        if chosen is None:
            async for row in self._rows(lambda unit, after: unit.results.items(after)):
                yield row
            return
        where = where_of(chosen, self._store.kind)
        async with aclosing(
            walk(partial(resumed, self._store), where, size=_WITH_ITEMS)
        ) as batches:
            async for ids in batches:
                while ids:
                    rows, number = await resumed(self._store, _items_of, ids)
                    for row in rows:
                        yield row
                    ids = ids[number:]

    async def _rows(
        self, read: Callable[[Unit, bytes], Coroutine[Any, Any, tuple[list[ItemRow], bytes | None]]]
    ) -> AsyncGenerator[ItemRow, None]:
        after: bytes | None = b""
        while after is not None:
            rows, after = await resumed(self._store, read, after)
            for row in rows:
                yield row


async def _items_of(unit: Unit, ids: Sequence[bytes]) -> tuple[list[ItemRow], int]:
    return await unit.results.of(ids)


async def _has(unit: Unit, where: Where) -> bool:
    return bool(await unit.tasks.at_most(where, by=Path.STATUS, most=1))


async def counted(
    store: Store, wheres: Sequence[Where], ids: Collection[bytes] | None = None
) -> int:
    """Return how many tasks pass one of the tests, each of which is of other statuses."""
    return await store.reading(_counted, wheres, ids)


async def _counted(unit: Unit, wheres: Sequence[Where], ids: Collection[bytes] | None) -> int:
    if ids is not None:
        return len([place for where in wheres for place in await _among(unit, where, ids)])
    total, untold = 0, list[Where]()
    for where in wheres:
        number = await _number(unit, where)
        if number is None:
            untold.append(where)
        else:
            total += number
    if not untold:
        return total
    number = await unit.tasks.count({OR: untold}, by=Path.AS_STORED)
    if number is not None:
        return total + number
    for where in untold:
        places, after = await unit.tasks.look(where, limit=FEW, look_at=FEW)
        total += len(places)
        while after is not None:
            places, after = await unit.tasks.look(where, limit=FEW, look_at=FEW, after=after)
            total += len(places)
    return total


async def _number(unit: Unit, where: Where) -> int | None:
    """Return how many tasks pass; None: no index tells, or leaves few."""
    number = await unit.tasks.told(where)
    if number is None:
        by = await _narrowed(unit, where) or await _few_by_status(unit, where)
        return None if by is None else await unit.tasks.count(where, by=by)
    return number


async def _narrowed(unit: Unit, where: Where) -> Path | None:
    """Return the first index of something given that has few tasks of it."""
    for by in _NARROW:
        if by in where and await _are_few(unit, {by.value: where[by]}, by):
            return by
    return None


async def _few_by_status(unit: Unit, where: Where) -> Path | None:
    stretch = {name: test for name, test in where.items() if name in _IN_INDEX}
    return Path.STATUS if await _are_few(unit, stretch, Path.STATUS) else None


async def _are_few(unit: Unit, where: Where, by: Path) -> bool:
    return await unit.tasks.at_most(where, by=by, most=FEW + 1) <= FEW


async def _find(
    unit: Unit, where: Where, ids: Collection[bytes] | None, limit: int, after: Cursor | None
) -> list[Record]:
    found: list[Record] = []
    while True:
        missing = limit - len(found)
        if ids is None:
            places = await _places(unit, where, missing, after)
        else:
            places = [p for p in await _among(unit, where, ids) if after is None or p < after]
            places = places[:missing]
        found += await _records(unit, places, where)
        # Where some have changed since, fewer than the limit would be taken for the last ones.
        if len(places) < missing or len(found) == limit:
            return found
        after = places[-1]


async def _places(unit: Unit, where: Where, limit: int, after: Cursor | None) -> list[Cursor]:
    """Return where the next tasks are."""
    tasks = unit.tasks
    if (by := await _narrowed(unit, where)) is not None:
        return await tasks.find(where, by=by, limit=limit, after=after) or []
    if not where.keys() <= _IN_INDEX and limit <= LARGEST_PAGE:
        look_at = max(LOOK_AT, LOOK_AT_FOR_EACH * limit)
        near, rest = await tasks.look(where, limit=limit, look_at=look_at, after=after)
        if len(near) == limit or rest is None:
            return near
        if await _few_by_status(unit, where) is None:
            # Those that are near are among all.
            found = await tasks.find(where, by=Path.AS_STORED, limit=limit, after=after)
            if found is not None:
                return found
    return (await tasks.look(where, limit=limit, after=after)).places


async def _among(unit: Unit, where: Where, ids: Collection[bytes]) -> list[Cursor]:
    """Return where those of some tasks are that pass, the last changed first."""
    places = [
        Cursor(update_time=each["update_time"], id=each["_id"])
        for some in batches(set(ids), _AT_ONCE)
        for each in (await unit.tasks.read(some, ("update_time",), where)).values()
    ]
    return sorted(places, reverse=True)


async def _records(unit: Unit, places: Sequence[Cursor], where: Where) -> list[Record]:
    """Return the tasks at those places that still pass, the last changed first."""
    found: list[Document] = []
    for some in batches((place.id for place in places), _AT_ONCE):
        found += (await unit.tasks.read(some, where=where)).values()
    found.sort(key=lambda each: (each["update_time"], each["_id"]), reverse=True)
    return [documents.record(each) for each in found]
