"""Walking through the tasks that somebody has chosen, and changing them a batch at a time.

They are looked up without the file's write lock, and changed where they still
are as they were chosen: others write in between, and what they claim is left alone.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from crawlcw.ledger.prefixes import Range, beginning_with
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.ledger.sqlite.connection import Database, transaction
from crawlcw.ledger.sqlite.rows import INT64, milliseconds
from crawlcw.ledger.sqlite.store import SqliteStore

#: One transaction changes this many tasks: others wait meanwhile.
BATCH = 2_000

Row = Mapping[str, Any]
T = TypeVar("T")


async def change_chosen(
    store: SqliteStore,
    chosen: TaskFilter,
    *,
    walk: str,
    change: Callable[[Database, Row], int],
    **values: Any,
) -> int:
    """Let *change* be made with every task that is chosen; return how many it has changed."""
    total = 0
    bounds = bounds_of(chosen)
    async for ids in _batches(store, chosen, bounds, walk):
        rows = [{**bounds, **values, "id": identity} for identity in ids]
        total += await store.writer.run(_change_some, change, rows)
    return total


async def _batches(
    store: SqliteStore, chosen: TaskFilter, bounds: Row, walk: str
) -> AsyncIterator[Sequence[bytes]]:
    if chosen.ids is not None:
        for some in in_batches(list(dict.fromkeys(chosen.ids))):
            yield some
        return
    # Those that become `todo` are not to be met there again, so that comes first.
    for status in sorted(set(chosen.statuses)):
        place = {**bounds, "status": status, "limit": BATCH}
        while rows := await store.reader.run(_some, walk, place):
            yield [row["id"] for row in rows]
            last = rows[-1]
            place |= {"before": last["update_time"], "before_id": last["id"]}


def bounds_of(chosen: TaskFilter, after: Cursor | None = None) -> dict[str, Any]:
    """Return what is chosen as the values of a statement, the statuses and ids apart."""
    # Before a time is before the first id there would be of that time.
    until = INT64 - 1 if chosen.until is None else milliseconds(chosen.until)
    before = until, b""
    if after is not None:
        before = min(before, (milliseconds(after.update_time), after.id))
    urls = Range("", None) if chosen.url_prefix is None else beginning_with(chosen.url_prefix)
    return {
        "reason": chosen.reason,
        "host": chosen.host,
        "url": urls.first or None,
        "url_end": urls.end,
        "callback": chosen.callback,
        "due_by": None if chosen.due_by is None else milliseconds(chosen.due_by),
        "since": -INT64 if chosen.since is None else milliseconds(chosen.since),
        "before": before[0],
        "before_id": before[1],
    }


def in_batches(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield as many at a time as one transaction takes."""
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _some(db: sqlite3.Connection, statement: str, values: Row) -> list[sqlite3.Row]:
    return db.execute(statement, values).fetchall()


def _change_some(db: Database, change: Callable[[Database, Row], int], rows: Sequence[Row]) -> int:
    """Make a change with each row, in one durable transaction; return how many were changed."""
    with transaction(db, durable=True):
        return sum(change(db, row) for row in rows)


def executing(statement: str) -> Callable[[Database, Row], int]:
    """Return what executes a statement with a task's values, and says how many it changed."""
    return lambda db, row: db.execute(statement, row).rowcount
