"""Queries that find and count tasks and items, and find the next due time.

A query on tasks reads one index. If the filter names a host, reason or callback that few tasks
have, the query reads the index of this field. Any other query reads the index of statuses, because
this index has the order of the result. Such a query stops after a number of rows.
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
from crawlcw.ledger.item_files import fill_files
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

#: Maximum number of tasks that `count` examines if no index has all fields of the filter.
COUNT_LIMIT = 500_000
#: Number of tasks in one batch of `Queries.walk`.
_PAGE = 200
#: Maximum number of tasks in one read by ids, and in one read of items.
_BATCH_SIZE = 5_000
_WITH_ITEMS = 100
#: Indexes of single fields, ordered from the most selective to the least selective index.
_SELECTIVE_INDEXES = (Path.HOST, Path.REASON, Path.CALLBACK)


class Groups:
    """Counts tasks with a common value, such as a host."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def by(self, dimension: Dimension) -> list[Group]:
        """Return the number of tasks for each value of *dimension*, the largest group first.

        - The group of a host, callback or depth counts all its tasks.
        - The group of a reason counts both ignored tasks and failed tasks that wait for a retry.
        - The group of a status code counts only done tasks. The group None counts done tasks that
        never had a response.

        `by` reads only indexes. SQL ledgers count in one snapshot. MongoDB counts one index range
        after the other, and needs 0.3 s for a million tasks. If a task changes during the count,
        MongoDB may count the task twice or not at all.
        """
        return largest_first(await self._store.reading(lambda tables: tables.groups.by(dimension)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One batch of a listing of tasks."""

    records: tuple[Record, ...]  #: tasks without their items, the latest change first
    cursor: Cursor | None  #: cursor of the next batch, or None at the end


class Queries:
    """Finds and counts tasks and items among all tasks of the ledger."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(
        self, selection: TaskFilter, *, limit: int, cursor: Cursor | None = None
    ) -> list[Record]:
        """Return up to *limit* tasks that pass *selection*, sorted by time, latest first.

        The returned records have no items. A list of fewer than *limit* records means that no more
        tasks follow. Tasks with equal times are ordered by id. `find` reads as many batches as
        necessary, see `page`.
        """
        records: list[Record] = []
        while (remaining := limit - len(records)) > 0 and selection.statuses:
            page = await self.page(selection, limit=remaining, scan_limit=SCAN_LIMIT, cursor=cursor)
            records += page.records
            if (cursor := page.cursor) is None:
                break
        return records

    async def walk(self, selection: TaskFilter) -> AsyncGenerator[Record, None]:
        """Yield the chosen tasks in the order of `find`, batch by batch, in constant memory.

        `walk` may miss a task that changes during the walk, because the task moves to the beginning
        of the order, which was already yielded.
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
        """Return up to *limit* chosen tasks after *cursor*, in bounded time.

        If at most *scan_limit* tasks have the filter's host, reason or callback, or its URL prefix
        with a path, `page` examines these tasks. Otherwise `page` examines tasks with the filter's
        statuses and times, but at most a few times *scan_limit* tasks. *limit* and *scan_limit* are
        at least 1.
        """
        where = where_of(selection, self._store.kind)
        return await self._store.reading(_page, where, selection.ids, limit, scan_limit, cursor)

    async def count(self, selection: TaskFilter) -> Count:
        """Return the number of chosen tasks, or a lower bound of this number.

        `with_statuses` with the `from_statuses` of a bulk change gives the number that the change
        would affect. For a filter by times, reason, callback or host, `count` reads only an index.
        In MongoDB, the indexes by callback and by host can count either all tasks or the done
        tasks. If no index has all fields of the filter, `count` examines at most 500,000 tasks.
        """
        return await counted(self._store, [selection])

    async def next_due(self, *, due_by: datetime | None = None) -> datetime | None:
        """Return the earliest due time of all tasks; a leased task is due when its lease ends.

        None means that every task is finished or ignored, so the ledger is drained. If some tasks
        are due by *due_by*, `next_due` may return the due time of any of these tasks.
        """
        return await self._store.reading(_next_due, due_by)

    async def has(self, statuses: Collection[Status]) -> bool:
        """Return whether any task has one of *statuses*; the query needs one index seek."""
        where = {"status": Among(tuple(map(int, statuses)))}
        return bool(
            await self._store.reading(
                lambda tables: tables.tasks.count(where, by=Path.STATUS, limit=1)
            )
        )

    async def counts(self) -> Counts:
        """Return the number of tasks in each status, and the number of redirects.

        SQL ledgers count in one snapshot. MongoDB counts one status after the other. Each command
        counts at most two million tasks, so that it ends within the time limit of a command. If a
        task changes meanwhile, MongoDB may count it twice or not at all.
        """
        return await self._store.reading(lambda tables: tables.tasks.counts())

    async def item_count(self) -> int:
        """Return the number of recorded items.

        SQL ledgers count the items by an index. MongoDB reads every task, and needs seconds for a
        million tasks.
        """
        return (await self._store.reading(lambda tables: tables.results.count())).number

    async def item_count_within(self, *, scan_limit: int) -> Count:
        """Return the number of recorded items, or a lower bound of this number, in bounded time.

        MongoDB examines *scan_limit* tasks (at least 1), finished tasks before other tasks.
        """
        return await self._store.reading(lambda tables: tables.results.count(scan_limit=scan_limit))

    async def reasons(self) -> dict[str, int]:
        """Return the number of failed and ignored tasks for each reason, most frequent first.

        `Groups.by` describes how each ledger counts.
        """
        groups = await Groups(self._store).by(Dimension.REASON)
        return {str(group.value): group.total for group in groups}

    async def versions(self) -> AsyncIterator[ItemRow]:
        """Yield the items of all kept visits; a task's earliest visit comes first.

        `versions` reads the items in the order of task ids, batch by batch, in constant memory.
        `versions` skips a visit that stored no new items. The files of an item are in the state of
        the last visits of the files.
        """
        async for row in self._rows(lambda tables, last_id: tables.results.versions(last_id)):
            yield row

    async def items(self, selection: TaskFilter | None = None) -> AsyncIterator[ItemRow]:
        """Yield every recorded item in the order of task ids, batch by batch, in constant memory.

        With *selection*, `items` yields only items of the selected tasks, and begins with the task
        that changed last. `items` does not use the field `ids` of *selection*.
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
                    await fill_files(self._store, (row.item for row in rows))
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
            await fill_files(self._store, (row.item for row in rows))
            for row in rows:
                yield row


async def _next_due(tables: LedgerTables, threshold: datetime | None) -> datetime | None:
    first: datetime | None = None
    where: Where = {}
    # Read only the first index entry of each priority: the task with the earliest due time.
    while tasks := await tables.tasks.scan(where, by=Path.DUE, limit=1, fields=("priority", "due")):
        due: datetime = tasks[0]["due"]
        first = due if first is None else min(first, due)
        if threshold is not None and first <= threshold:
            break
        where = {"priority": Within(None, tasks[0]["priority"])}
    return first


async def counted(store: Store, choices: Iterable[TaskFilter]) -> Count:
    """Return the number of tasks that pass any filter of *choices*; no status is in two filters."""
    total = Count(number=0)
    for selection in choices:
        # A time `changed_before` in the future excludes no task. Drop this time, because a count by
        # time can use only the index of statuses.
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
    """Return an index that has at most *limit* tasks with the value in *where*, or None."""
    for by in _SELECTIVE_INDEXES:
        if by in where:
            tests = {by.value: where[by]}
            if await tables.tasks.count(tests, by=by, limit=limit + 1) <= limit:
                return by
    return None


async def _among(tables: LedgerTables, where: Where, ids: Collection[bytes]) -> list[Cursor]:
    """Return a cursor for each task in *ids* that passes *where*, the latest change first."""
    cursors = [
        Cursor(update_time=task["update_time"], id=task["_id"])
        for batch in batches(set(ids), _BATCH_SIZE)
        for task in (await tables.tasks.read(batch, ("update_time",), where)).values()
    ]
    return sorted(cursors, reverse=True)


async def _records(tables: LedgerTables, cursors: Sequence[Cursor], where: Where) -> list[Record]:
    """Return the tasks of *cursors* that still pass *where*, the latest change first."""
    tasks: list[Document] = []
    for batch in batches((task.id for task in cursors), _BATCH_SIZE):
        tasks += (await tables.tasks.read(batch, where=where)).values()
    tasks.sort(key=lambda task: (task["update_time"], task["_id"]), reverse=True)
    return [documents.record(task) for task in tasks]
