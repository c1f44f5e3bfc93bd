"""Queries on tasks and items: find, count, the next due time.

There are two access paths to chosen tasks. If the filter has a host, reason or callback with few
tasks, the index of that field is read. Otherwise the index of statuses is read in the order of
the result, up to a bound.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.choosing import SCAN_LIMIT, batches, listed, resumed, walk, where_of
from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import Among, LedgerTables, Path, Store, Where, Within
from crawlcw.ledger.values import (
    Count,
    Counts,
    Cursor,
    Dimension,
    Group,
    ItemRow,
    TaskFilter,
    largest_first,
)
from crawlcw.model.task import Record, Status

#: Number of tasks that a count examines if no index has all the tested fields.
COUNT_LIMIT = 500_000
#: Number of tasks in one page of a walk.
_PAGE = 200
#: Number of tasks in one read by ids, and in one read with items.
_BATCH_SIZE = 5_000
_WITH_ITEMS = 100
#: The indexes of single fields, the most selective first.
_SELECTIVE_INDEXES = (Path.HOST, Path.REASON, Path.CALLBACK)


class Groups:
    """Counts of tasks with a common value."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def by(self, dimension: Dimension) -> list[Group]:
        """Return how many tasks each value has, the largest group first.

        - By host, callback and depth: all tasks.
        - By reason: failed tasks that wait, and ignored tasks.
        - By status code: done tasks, with None for tasks that never had a response.

        It reads only indexes. SQLite counts at one moment. MongoDB counts the indexes in sequence,
        0.3 s for a million tasks. A task that changes meanwhile counts as it was, as it is, as
        both, or not at all. A number is wrong by at most the number of such tasks.
        """
        return largest_first(await self._store.reading(lambda tables: tables.groups.by(dimension)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing."""

    records: tuple[Record, ...]  #: the last changed first, without their items
    cursor: Cursor | None  #: where to continue; None: there are no more


class Queries:
    """Questions about all the tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(
        self, selection: TaskFilter, *, limit: int, cursor: Cursor | None = None
    ) -> list[Record]:
        """Return up to *limit* tasks, the last changed first, all statuses in one order.

        The records are without their items. There are fewer than *limit* only if no more tasks
        follow *cursor*. Equal times are ordered by id. It reads as many pages as necessary, see
        `page`.
        """
        records: list[Record] = []
        while (remaining := limit - len(records)) > 0 and selection.statuses:
            page = await self.page(selection, limit=remaining, scan_limit=SCAN_LIMIT, cursor=cursor)
            records += page.records
            if (cursor := page.cursor) is None:
                break
        return records

    async def walk(self, selection: TaskFilter) -> AsyncGenerator[Record, None]:
        """Yield the chosen tasks in the order of `find`, in flat memory, as they are found.

        A task that changes meanwhile may be missed, because it moves to the beginning, which was
        already yielded.
        """
        next_cursor: Cursor | None = None
        while True:
            page = await self.page(
                selection, limit=_PAGE, scan_limit=SCAN_LIMIT, cursor=next_cursor
            )
            for record in page.records:
                yield record
            if (next_cursor := page.cursor) is None:
                return

    async def page(
        self,
        selection: TaskFilter,
        *,
        limit: int,
        scan_limit: int,
        cursor: Cursor | None = None,
    ) -> Page:
        """Return up to *limit* of the next tasks, in bounded time.

        If a host, reason or callback of the filter has at most *scan_limit* tasks, it examines
        these tasks. Otherwise it examines *scan_limit* tasks of the statuses and times, or a few
        times as many. A URL prefix with its path counts as a host. Both limits are at least 1.
        """
        where = where_of(selection, self._store.kind)
        return await self._store.reading(_page, where, selection.ids, limit, scan_limit, cursor)

    async def count(self, selection: TaskFilter) -> Count:
        """Return the number of chosen tasks, or a lower bound; nothing is written.

        `with_statuses` with the `from_statuses` of a bulk change gives the number that the change
        would affect. An index counts tasks by times, by reason, by callback or by host; on MongoDB,
        by callback or host only for all tasks or for done tasks. Otherwise it examines 500,000
        tasks.
        """
        return await counted(self._store, [selection])

    async def next_due(self, *, due_by: datetime | None = None) -> datetime | None:
        """Return when the next task is due, live leases included; None: no task will ever be due.

        None means drained: every task is finished or ignored. If tasks are due by *enough*, it
        returns the time of any such task, which is cheaper.
        """
        return await self._store.reading(_next_due, due_by)

    async def has(self, statuses: Collection[Status]) -> bool:
        """Return whether any task has one of *statuses*, by one index seek."""
        where = {"status": Among(tuple(map(int, statuses)))}
        return bool(
            await self._store.reading(
                lambda tables: tables.tasks.count(where, by=Path.STATUS, limit=1)
            )
        )

    async def counts(self) -> Counts:
        """Return how many tasks each status has, and how many redirects there are.

        SQLite counts at one moment. MongoDB counts the statuses in sequence, two million tasks at a
        time, so that it never reaches its time limit. A task that changes meanwhile may count
        twice, or not at all.
        """
        return await self._store.reading(lambda tables: tables.tasks.counts())

    async def item_count(self) -> int:
        """Return how many items are recorded.

        SQLite counts them by an index. MongoDB reads every task, which takes seconds for a
        million.
        """
        return (await self._store.reading(lambda tables: tables.results.count())).number

    async def item_count_within(self, *, scan_limit: int) -> Count:
        """Return how many items are recorded, or at least how many, in bounded time.

        MongoDB examines *scan_limit* tasks (at least 1), finished tasks first.
        """
        return await self._store.reading(lambda tables: tables.results.count(scan_limit=scan_limit))

    async def reasons(self) -> dict[str, int]:
        """Return how many failed and ignored tasks each reason has, most first.

        They are counted as by `Groups.by`.
        """
        groups = await Groups(self._store).by(Dimension.REASON)
        return {str(group.value): group.total for group in groups}

    async def versions(self) -> AsyncIterator[ItemRow]:
        """Yield the items of all kept visits, page by page, the earliest visit first.

        It yields them in the order of task ids, in flat memory. A visit without new items adds
        none.
        """
        async for row in self._rows(lambda tables, last_id: tables.results.versions(last_id)):
            yield row

    async def items(self, selection: TaskFilter | None = None) -> AsyncIterator[ItemRow]:
        """Yield every recorded item, page by page in the order of task ids, in flat memory.

        With *selection*, it yields only items of its tasks, the last changed first; it ignores the
        ids of *selection*.
        """
        if selection is None:
            async for row in self._rows(lambda tables, last_id: tables.results.items(last_id)):
                yield row
            return
        where = where_of(selection, self._store.kind)
        async with aclosing(
            walk(partial(resumed, self._store), where, batch_size=_WITH_ITEMS)
        ) as batches:
            async for ids in batches:
                while ids:
                    rows, number = await resumed(
                        self._store, lambda tables, ids: tables.results.of(ids), ids
                    )
                    for row in rows:
                        yield row
                    ids = ids[number:]

    async def _rows(
        self,
        read: Callable[
            [LedgerTables, bytes], Coroutine[Any, Any, tuple[list[ItemRow], bytes | None]]
        ],
    ) -> AsyncGenerator[ItemRow, None]:
        last_id: bytes | None = b""
        while last_id is not None:
            rows, last_id = await resumed(self._store, read, last_id)
            for row in rows:
                yield row


async def _next_due(tables: LedgerTables, threshold: datetime | None) -> datetime | None:
    first: datetime | None = None
    where: Where = {}
    # The index begins with the earliest due task of each priority.
    while tasks := await tables.tasks.scan(where, by=Path.DUE, limit=1, fields=("priority", "due")):
        due: datetime = tasks[0]["due"]
        first = due if first is None else min(first, due)
        if threshold is not None and first <= threshold:
            break
        where = {"priority": Within(None, tasks[0]["priority"])}
    return first


async def counted(store: Store, choices: Iterable[TaskFilter]) -> Count:
    """Return how many tasks pass one of the filters, each of which has different statuses."""
    total = Count(number=0)
    for selection in choices:
        # Only the index of statuses has times. A `changed_before` in the future excludes no task,
        # so drop it.
        is_future = selection.changed_before is not None and selection.changed_before > store.now()
        where = where_of(
            replace(selection, changed_before=None) if is_future else selection, store.kind
        )
        if selection.ids is not None:
            total += Count(number=len(await store.reading(_among, where, selection.ids)))
        elif (number := await store.reading(_counted_by_index, where)) is not None:
            total += Count(number=number)
        else:
            total += await _examined(store, where)
    return total


async def _counted_by_index(tables: LedgerTables, where: Where) -> int | None:
    number = await tables.tasks.count_by_index(where)
    if number is None and (by := await _narrowed(tables, where, SCAN_LIMIT)) is not None:
        return await tables.tasks.count(where, by=by)
    return number


async def _examined(store: Store, where: Where) -> Count:
    number, next_cursor = 0, None
    for _ in range(0, COUNT_LIMIT, SCAN_LIMIT):
        cursors, next_cursor = await store.reading(
            listed, where, SCAN_LIMIT, SCAN_LIMIT, next_cursor
        )
        number += len(cursors)
        if next_cursor is None:
            return Count(number=number)
    return Count(number=number, is_exact=False)


async def _page(
    tables: LedgerTables,
    where: Where,
    ids: Collection[bytes] | None,
    limit: int,
    scan_limit: int,
    start: Cursor | None,
) -> Page:
    if ids is not None:
        selection = await _among(tables, where, ids)
        cursors = [cursor for cursor in selection if start is None or cursor < start][:limit]
        start = cursors[-1] if len(cursors) == limit else None
    elif (by := await _narrowed(tables, where, scan_limit)) is not None:
        cursors = await tables.tasks.by_index(where, by=by, limit=limit, cursor=start)
        start = cursors[-1] if len(cursors) == limit else None
    else:
        cursors, start = await listed(tables, where, limit, scan_limit, start)
    return Page(records=tuple(await _records(tables, cursors, where)), cursor=start)


async def _narrowed(tables: LedgerTables, where: Where, limit: int) -> Path | None:
    """Return the first index whose value in *where* has at most *limit* tasks."""
    for by in _SELECTIVE_INDEXES:
        if by in where:
            tests = {by.value: where[by]}
            if await tables.tasks.count(tests, by=by, limit=limit + 1) <= limit:
                return by
    return None


async def _among(tables: LedgerTables, where: Where, ids: Collection[bytes]) -> list[Cursor]:
    """Return the cursors of the tasks that pass, the last changed first."""
    cursors = [
        Cursor(update_time=task["update_time"], id=task["_id"])
        for batch in batches(set(ids), _BATCH_SIZE)
        for task in (await tables.tasks.read(batch, ("update_time",), where)).values()
    ]
    return sorted(cursors, reverse=True)


async def _records(tables: LedgerTables, cursors: Sequence[Cursor], where: Where) -> list[Record]:
    """Return the tasks at the cursors that still pass, the last changed first."""
    tasks: list[Document] = []
    for batch in batches((task.id for task in cursors), _BATCH_SIZE):
        tasks += (await tables.tasks.read(batch, where=where)).values()
    tasks.sort(key=lambda task: (task["update_time"], task["_id"]), reverse=True)
    return [documents.record(task) for task in tasks]
