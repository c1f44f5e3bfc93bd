"""Record the outcomes of tasks, and apply the conditional writes of claims and outcomes.

For each step of an SQL statement, the thread releases Python's GIL. To get the GIL back, the thread
may have to wait for the event loop. Therefore one statement writes many rows with the same columns.
"""

# ruff: noqa: S608  # no SQL injection: names of tables are quoted, values are parameters

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Committed
from crawlcw.ledger.sql.database import Database, Row
from crawlcw.ledger.sql.rows import (
    UNSTORABLE_ERRORS,
    describe_unholdable,
    from_json,
    milliseconds,
    row_of,
    to_json,
)
from crawlcw.ledger.sql.schema import Dialect
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model import transitions
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import KEPT_TRACE, Change, Settlement

#: Since version 3.33 one SQLite statement can update many rows from a list of values. These
#: versions accept 2,000 parameters.
_UPDATES_MANY_ROWS = sqlite3.sqlite_version_info >= (3, 33)
_MAX_PARAMETERS = 2_000 if _UPDATES_MANY_ROWS else 999
_MAX_ROWS = 64
#: Size of a value in characters or bytes; a row with a larger value is written alone.
_LARGE_VALUE_SIZE = 1 << 16
_MAY_BE_LARGE = ("body", "context", "item")

_T = TypeVar("_T")
Values = Mapping[str, Any]  #: by column
#: Columns of a statement: those of its guard (values that must match), and those that it sets.
Shape = tuple[tuple[str, ...], tuple[str, ...]]


class Growth(NamedTuple):
    """Values that a change appends to the values in the task's row."""

    error: str | None  #: error as JSON, to append to the stored errors
    kept_errors: int
    values: Values  #: stage, context and data of a tracked task
    results: documents.Document  #: results by stage, to add to the stored results
    trace: documents.Document | None  #: entry to append to the stored trace


class Write(NamedTuple):
    """A change of a task, converted to values for the columns of the task's row."""

    task: Task  #: before the change
    values: Values  #: values of the columns that the change sets
    items: list[dict[str, Any]] | None  #: rows of the new items; None keeps the stored items
    version: int  #: fence of the lease whose visit found the items
    kept_versions: int  #: number of visits whose items are kept
    growth: Growth | None


class Outcomes:
    """Writes the outcomes of leases, and releases leases without an outcome."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """See `protocol.Outcomes.commit`."""
        return await self._store.writer.run(self._commit, settlements)

    def _commit(self, db: Database, settlements: Sequence[Settlement]) -> Committed:
        lost: list[Lease] = []
        rejected: list[tuple[Lease, str]] = []
        # Encode the values before the transaction begins, because other writers wait for its end.
        writes: list[tuple[Write, Values]] = []
        refusals: list[str | None] = []
        for settlement in settlements:
            lease, refusal = settlement.lease, None
            try:
                write = written(lease.task, settlement.change)
            except UNSTORABLE_ERRORS as error:
                write, refusal = _write_of_rejection(settlement, error)
            writes.append((write, lease_guard(lease)))
            refusals.append(refusal)
        with db.transaction(durable=True):
            settled = apply_each(db, self._store.sql, writes)
            for settlement, refusal, result in zip(settlements, refusals, settled, strict=True):
                lease = settlement.lease
                if isinstance(result, Exception):
                    # The row cannot hold the new outcome together with the stored results.
                    rejection, refusal = _write_of_rejection(settlement, result)
                    (result,) = apply_each(db, self._store.sql, [(rejection, lease_guard(lease))])
                if not result and not self._was_settled(db, lease):
                    lost.append(lease)
                elif refusal is not None:
                    rejected.append((lease, refusal))
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    def _was_settled(self, db: Database, lease: Lease) -> bool:
        """Return whether the lease was settled by an earlier call whose reply was lost."""
        row = db.execute(self._store.sql.settled, (lease.task.id,)).fetchone()
        return row is not None and row["settled"] == lease.fence

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """See `protocol.Outcomes.replace`."""
        writes: list[tuple[Lease, Write]] = []
        rejected: list[tuple[Lease, str]] = []
        for settlement in settlements:
            lease = settlement.lease
            try:
                writes.append((lease, written(lease.task, settlement.change)))
            except UNSTORABLE_ERRORS as error:
                rejected.append((lease, describe_unholdable(error)))
        lost = await self._store.writer.run(self._replace, writes)
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    def _replace(self, db: Database, writes: Sequence[tuple[Lease, Write]]) -> list[Lease]:
        """Replace each row that is unchanged since its read; return the other writes' leases."""
        guarded_writes = []
        for _, write in writes:
            task = write.task
            as_read = {"id": task.id, "status": int(task.status), "fence": task.fence}
            guarded_writes.append((write, as_read))
        with db.transaction(durable=True):
            results = apply_each(db, self._store.sql, guarded_writes)
            return [
                lease
                for (lease, _), is_replaced in zip(writes, results, strict=True)
                if is_replaced is not True and not self._was_settled(db, lease)
            ]

    async def release(self, leases: Sequence[Lease]) -> int:
        """See `protocol.Outcomes.release`."""
        now = self._store.now()
        settlements = [transitions.release(lease, now=now) for lease in leases]
        return await self._store.writer.run(self._release, settlements)

    def _release(self, db: Database, settlements: Sequence[Settlement]) -> int:
        writes = [(written(s.lease.task, s.change), lease_guard(s.lease)) for s in settlements]
        with db.transaction(durable=True):
            return apply_each(db, self._store.sql, writes).count(True)


def _write_of_rejection(settlement: Settlement, error: Exception) -> tuple[Write, str]:
    """Return a write that ignores the task as `store-rejected`; also return the store's reason."""
    why = describe_unholdable(error)
    rejection = transitions.rejected(settlement, reason=Reason.STORE_REJECTED, message=why)
    return written(settlement.lease.task, rejection.change), why


def lease_guard(lease: Lease) -> dict[str, Any]:
    """Return values by column; the task's row has these values while the lease is valid."""
    return {
        "id": lease.task.id,
        "lock": lease.token,
        "fence": lease.fence,
        "status": int(Status.PROCESSING),
    }


def written(task: Task, change: Change) -> Write:
    """Return the write of a change; raises one of `UNSTORABLE_ERRORS` for a value of no column."""
    items = None
    if change.items is not None:
        url = change.response.final_url if change.response else task.url
        fetched = milliseconds(change.fetched or change.update_time)
        items = item_rows(task.id, map(documents.escaped, change.items), url, fetched)
    growth = None
    if change.error is not None or change.progress is not None or change.next is not None:
        growth = _growth(change)
    return Write(
        task=task,
        values=row_of(documents.changed(change)),
        items=items,
        version=change.fence,
        kept_versions=change.kept_versions,
        growth=growth,
    )


def item_rows(
    task_id: bytes, items: Iterable[Any], url: str, fetched_at: int
) -> list[dict[str, Any]]:
    """Return the rows for the items of one visit."""
    return [
        {"task_id": task_id, "n": n, "item": to_json(item), "url": url, "fetched_at": fetched_at}
        for n, item in enumerate(items)
    ]


def _growth(change: Change) -> Growth:
    values = documents.progressed(change)
    results = values.pop("results", {})
    # Raise an error for a value that no row can hold, before the transaction begins.
    to_json(results)
    return Growth(
        error=to_json(documents.error_document(change.error)) if change.error else None,
        kept_errors=change.kept_errors,
        values=row_of(values),
        results=results,
        trace=documents.trace_document(change.trace) if change.trace else None,
    )


def apply_each(
    db: Database, sql: Statements, writes: Sequence[tuple[Write, Values]]
) -> list[bool | Exception]:
    """Apply each write if the task's row has its guard's values; return which writes were applied.

    `apply_each` must be the first call in a transaction, because it restarts the transaction if
    some tasks do not match. If a row cannot hold the added values together with the stored values,
    the result of the write is one of `UNSTORABLE_ERRORS`, and the task is unchanged.
    """
    ids = set()
    growing_ids: list[bytes] = []
    for write, _ in writes:
        ids.add(write.task.id)
        if write.growth is not None:
            growing_ids.append(write.task.id)
    # If writes change one task twice, apply the writes one by one, so that only the first write
    # matches its guard.
    one_by_one = len(ids) < len(writes)
    stored = _stored_values(db, sql, growing_ids) if growing_ids and not one_by_one else {}
    settings: list[Values | Exception] = []
    bulk: list[tuple[Values, Values]] = []
    for write, guard in writes:
        values = write.values if write.growth is None else _grown(write, stored)
        settings.append(values)
        if not isinstance(values, Exception):
            bulk.append((guard, values))
    matched_count = 0 if one_by_one else changed(db, sql, bulk)
    if 0 < matched_count < len(bulk):
        # Some rows do not match their guards, so apply the writes one by one to find these rows.
        db.restart()
        one_by_one = True
    applied: list[bool | Exception] = []
    items: list[dict[str, Any]] = []
    versions: list[Write] = []
    for (write, guard), values in zip(writes, settings, strict=True):
        if one_by_one:
            applied.append(_applied_alone(db, sql, write, guard))
        else:
            applied.append(values if isinstance(values, Exception) else matched_count > 0)
        if applied[-1] is True and write.items is not None:
            if write.task.settled:  # a task without an outcome has no items
                db.execute(sql.forget_items, (write.task.id,))
            items += write.items
            if write.kept_versions:
                versions.append(write)
    insert(db, sql.tables.items, items)
    for write in versions:
        db.execute(sql.add_version, {"id": write.task.id, "fence": write.version})
        parameters = {"id": write.task.id, "kept": write.kept_versions}
        db.execute(sql.forget_old_versions, parameters)
    return applied


def _applied_alone(db: Database, sql: Statements, write: Write, guard: Values) -> bool | Exception:
    values = write.values
    if write.growth is not None:
        grown_values = _grown(write, _stored_values(db, sql, [write.task.id]))
        if isinstance(grown_values, Exception):
            return grown_values
        values = grown_values
    return bool(changed(db, sql, [(guard, values)]))


def _stored_values(db: Database, sql: Statements, ids: Sequence[bytes]) -> dict[bytes, Row]:
    """Return the stored errors, results and trace of each task in *ids*, by task id."""
    stored: dict[bytes, Row] = {}
    for number, portion in portions(ids):
        stored |= {row["id"]: row for row in db.execute(sql.added_to(number), portion)}
    return stored


def _grown(write: Write, stored: Mapping[bytes, Row]) -> Values | Exception:
    """Return the values of a write; append its errors, results and trace to the stored values.

    If the row cannot hold the stored and the added values together, return the error.
    """
    row, growth = stored.get(write.task.id), write.growth
    if row is None or growth is None:
        return write.values
    values = {**write.values, **growth.values}
    try:
        if growth.error is not None:
            errors = json.loads(row["errors"]) if row["errors"] else []
            values["errors"] = to_json([*errors, json.loads(growth.error)][-growth.kept_errors :])
        if growth.results:
            results = from_json(row["results"]) if row["results"] else {}
            values["results"] = to_json({**results, **growth.results})
        if growth.trace is not None:
            claims = from_json(row["trace"]) if row["trace"] else []
            values["trace"] = to_json([*claims, growth.trace][-KEPT_TRACE:])
    except UNSTORABLE_ERRORS as error:
        return error
    return values


def portions(values: Sequence[_T], max_rows: int = _MAX_ROWS) -> Iterator[tuple[int, Sequence[_T]]]:
    """Yield portions of the values, as tuples (size, values); each size is a power of two."""
    start = 0
    while remaining := len(values) - start:
        size = 1 << min(remaining, max_rows).bit_length() - 1
        yield size, values[start : start + size]
        start += size


def changed(db: Database, sql: Statements, changes: Iterable[tuple[Values, Values]]) -> int:
    """Set the values of each row that matches its guard; return the number of changed rows."""
    total = 0
    tables = sql.tables
    for shape, number, parameters in _row_batches(
        changes, max_rows=_MAX_ROWS if _UPDATES_MANY_ROWS else 1
    ):
        statement = _update(tables.dialect, tables.tasks, shape, number)
        total += db.execute(statement, parameters).rowcount
    return total


def insert(db: Database, table: str, rows: Iterable[Values]) -> int:
    """Insert the rows whose keys are new; return the number of inserted rows."""
    total, max_rows = 0, _MAX_ROWS
    pairs: list[tuple[Values, Values]] = []
    for row in rows:
        pairs.append(({}, row))
        for name in _MAY_BE_LARGE:
            if len(row.get(name) or "") > _LARGE_VALUE_SIZE:
                # Write a large row alone, because a cached statement keeps its last rows in memory.
                max_rows = 1
    for (_, names), number, parameters in _row_batches(pairs, max_rows=max_rows):
        total += db.execute(_insertion(table, names, number), parameters).rowcount
    return total


def _row_batches(
    rows: Iterable[tuple[Values, Values]], *, max_rows: int
) -> Iterator[tuple[Shape, int, list[Any]]]:
    """Yield batches of rows with the same columns, as tuples (columns, row count, parameters).

    A batch has up to *max_rows* rows. The row counts are powers of two, because each different row
    count needs a separate statement.
    """
    parameters_by_shape: dict[Shape, list[list[Any]]] = {}
    for guard, values in rows:
        shape = (tuple(guard), tuple(values))
        parameters_by_shape.setdefault(shape, []).append([*values.values(), *guard.values()])
    for shape, parameters in parameters_by_shape.items():
        row_limit = min(max_rows, _MAX_PARAMETERS // len(parameters[0]))
        for size, portion in portions(parameters, row_limit):
            yield shape, size, list(chain.from_iterable(portion))


@cache
def _insertion(table: str, names: tuple[str, ...], number: int) -> str:
    placeholders = _placeholders(len(names), number)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES {placeholders} ON CONFLICT DO NOTHING"


@cache
def _update(dialect: Dialect, table: str, shape: Shape, number: int) -> str:
    """Return the UPDATE statement that changes *number* rows."""
    guard, names = shape
    # The parameters of a row are the values to set, and then the guard's values.
    columns = (*names, *guard)
    # A claim skips a row that another process has locked, because that process changes the task. If
    # a claim waited for a lock, two claims with the same tasks in different orders could deadlock.
    waits = "due" not in guard or not dialect.locks_rows
    is_plain = number == 1 and waits
    placeholders = ["?" if is_plain else f"v.column{n}" for n in range(1, len(columns) + 1)]
    placeholder_of = dict(zip(guard, placeholders[len(names) :], strict=True))
    changes = ", ".join(
        f"{name} = {placeholder}" for name, placeholder in zip(names, placeholders, strict=False)
    )
    condition = " AND ".join(
        f"{name} {'<=' if name == 'due' else '='} {placeholder}"
        for name, placeholder in placeholder_of.items()
    )
    if is_plain:
        return f"UPDATE {table} SET {changes} WHERE {condition}"
    first = ", ".join(f"?{dialect.cast(name)}" for name in columns)
    rows = ", ".join((f"({first})", *[_placeholders(len(columns), 1)] * (number - 1)))
    return dialect.update_many(
        table, changes, rows, condition, key=placeholder_of["id"], waits=waits
    )


@cache
def _placeholders(width: int, number: int) -> str:
    return ", ".join([f"({', '.join('?' * width)})"] * number)
