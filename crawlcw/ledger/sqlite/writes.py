"""Changes of tasks as their rows take them, and their writing where a task still is as expected.

A statement lets go of Python's lock at each step, and has to wait for it again while the event
loop works. So rows that are alike are written by one statement, many at a time.
"""

# ruff: noqa: S608  # the tables' names are quoted, columns are the schema's; values are parameters

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from crawlcw.ledger import documents
from crawlcw.ledger.sqlite.connection import begin_anew
from crawlcw.ledger.sqlite.rows import UNHOLDABLE, from_json, milliseconds, row_of, to_json
from crawlcw.ledger.sqlite.statements import Statements
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import KEPT_TRACE, Change

#: Whether an UPDATE takes its values from rows (since SQLite 3.33).
_UPDATES_FROM_ROWS = sqlite3.sqlite_version_info >= (3, 33)
#: SQLite's own limit was 999 parameters before 3.32.
_PARAMETERS = 999
_MOST_ROWS = 64
#: Characters, or bytes.
_LARGE = 1 << 16
_MAY_BE_LARGE = frozenset({"body", "context"})

Values = Mapping[str, Any]  #: by column


class Shape(NamedTuple):
    """The columns of rows that are alike, in the order of their parameters."""

    guard: tuple[str, ...]  #: must have the values given
    given: tuple[str, ...]
    null: tuple[str, ...]  #: have no parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A change of a task as its row takes it."""

    task_id: bytes
    values: dict[str, Any]  #: of the columns that it sets, and of no others
    error: str | None  #: JSON, to be added to those there
    kept_errors: int
    progress: "Progressed | None"  #: what only a tracked task has
    items: list[tuple[bytes, int, str, str, int]] | None  #: rows; None keeps those there
    kept_versions: int  #: the items of so many visits are kept
    grows: bool  #: adds to what the task has, which is to be read before


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """What a change sets and adds of a tracked task besides."""

    values: dict[str, Any]  #: stage, context, data
    results: documents.Document  #: by stage, to be added to those there
    trace: documents.Document | None  #: to be added to those there


def apply_each(
    db: sqlite3.Connection, sql: Statements, writes: Sequence[tuple[Write, Values]]
) -> list[bool | Exception]:
    """Change tasks, each where it still is what its guard says; say of each whether it was.

    The first in a transaction, which begins anew where some are not as they are to be. The answer
    is one of `UNHOLDABLE`, and the task is unchanged, where a task cannot hold what is added
    together with what is there.
    """
    plain = [(w.values, {"id": w.task_id, **guard}) for w, guard in writes if not w.grows]
    # Of several changes of one task the first one counts.
    together = len(plain) > 1 and len({write.task_id for write, _ in writes}) == len(writes)
    if together and _changed(db, sql.tables.tasks, plain) < len(plain):
        # Which ones they are is found out one by one: hardly ever.
        begin_anew(db)
        together = False
    return [
        (together and not write.grows) or _apply(db, sql, write, guard) for write, guard in writes
    ]


def _apply(
    db: sqlite3.Connection, sql: Statements, write: Write, guard: Values
) -> bool | Exception:
    try:
        values = write.values | _added(db, sql, write) if write.grows else write.values
    except UNHOLDABLE as error:
        return error
    return bool(_changed(db, sql.tables.tasks, [(values, {"id": write.task_id, **guard})]))


def _changed(db: sqlite3.Connection, table: str, changes: Iterable[tuple[Values, Values]]) -> int:
    """Set values of rows, each where it has those of its guard; return how many had them."""
    total = 0
    for shape, rows in _alike(changes).items():
        for lot in _in_lots(rows, most=_MOST_ROWS if _UPDATES_FROM_ROWS else 1):
            statement = _update(table, shape, len(lot))
            total += db.execute(statement, list(chain.from_iterable(lot))).rowcount
    return total


def insert(db: sqlite3.Connection, table: str, rows: Iterable[Values]) -> int:
    """Add rows, of which those with a known id are left as they are; return how many are new."""
    total = 0
    for shape, alike in _alike([(row, {}) for row in rows]).items():
        large = [n for n, name in enumerate(shape.given) if name in _MAY_BE_LARGE]
        for lot in _in_lots(alike, large=large):
            statement = _insertion(table, shape.given, len(lot))
            total += db.execute(statement, list(chain.from_iterable(lot))).rowcount
    return total


def add_items(
    db: sqlite3.Connection, table: str, rows: Sequence[tuple[bytes, int, str, str, int]]
) -> None:
    """Add rows of items, as `Write.items` has them."""
    for lot in _in_lots(rows, large=(2,)):
        places = _places(len(lot[0]), len(lot))
        db.execute(f"INSERT INTO {table} VALUES {places}", list(chain.from_iterable(lot)))


def _alike(rows: Iterable[tuple[Values, Values]]) -> dict[Shape, list[list[Any]]]:
    """Return the parameters of rows that are alike: those of the guard, then what is not null."""
    alike: dict[Shape, list[list[Any]]] = {}
    for values, guard in rows:
        given, null, parameters = [], [], [*guard.values()]
        for name, value in values.items():
            if value is None:
                null.append(name)
            else:
                given.append(name)
                parameters.append(value)
        alike.setdefault(Shape(tuple(guard), tuple(given), tuple(null)), []).append(parameters)
    return alike


def _in_lots(
    rows: Sequence[Sequence[Any]], *, most: int = _MOST_ROWS, large: Sequence[int] = ()
) -> list[Sequence[Sequence[Any]]]:
    """Return the rows by lots of few sizes, for each size has a statement of its own.

    *large* are the places of parameters that may be large. A statement keeps what it was given
    last, so that rows with such a one are alone.
    """
    lots: list[Sequence[Sequence[Any]]] = []
    start = 0
    if large and any(len(row[n]) > _LARGE for row in rows for n in large):
        most = 1
    while left := len(rows) - start:
        size = 1 << min(left, most, _PARAMETERS // len(rows[start])).bit_length() - 1
        lots.append(rows[start : start + size])
        start += size
    return lots


@cache
def _insertion(table: str, names: tuple[str, ...], number: int) -> str:
    places = _places(len(names), number)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES {places} ON CONFLICT (id) DO NOTHING"


@cache
def _update(table: str, shape: Shape, number: int) -> str:
    """Return the statement that changes so many rows."""
    width = len(shape.guard) + len(shape.given)
    # Of one row they are numbered, for what is set comes first in the statement.
    places = iter([f"?{n}" if number == 1 else f"v.column{n}" for n in range(1, width + 1)])
    wanted = [f"{name} {'<=' if name == 'due' else '='} {next(places)}" for name in shape.guard]
    values = [f"{name} = {next(places)}" for name in shape.given]
    values += [f"{name} = NULL" for name in shape.null]
    source = "" if number == 1 else f" FROM (VALUES {_places(width, number)}) AS v"
    return f"UPDATE {table} SET {', '.join(values)}{source} WHERE {' AND '.join(wanted)}"


@cache
def _places(width: int, number: int) -> str:
    return ", ".join([f"({', '.join('?' * width)})"] * number)


def _added(db: sqlite3.Connection, sql: Statements, write: Write) -> dict[str, Any]:
    """Return what of a task grows, together with what is there; nothing of one that is gone."""
    row = db.execute(sql.added_to, (write.task_id,)).fetchone()
    if row is None:
        return {}
    values: dict[str, Any] = {}
    errors, results, trace = row
    if write.error is not None:
        kept = json.loads(errors) if errors else []
        values["errors"] = to_json([*kept, json.loads(write.error)][-write.kept_errors :])
    if (progress := write.progress) is not None:
        values |= progress.values
        if progress.results:
            values["results"] = to_json(
                {**(from_json(results) if results else {}), **progress.results}
            )
        if progress.trace is not None:
            claims = from_json(trace) if trace else []
            values["trace"] = to_json([*claims, progress.trace][-KEPT_TRACE:])
    return values


def written(task: Task, change: Change) -> Write:
    """Return the change as its row takes it; raises one of `UNHOLDABLE` for what none holds."""
    response = change.response
    items = None
    if change.items is not None:
        url = response.final_url if response else task.url
        fetched = milliseconds(change.fetched or change.update_time)
        items = [
            (task.id, n, to_json(documents.escaped(item)), url, fetched)
            for n, item in enumerate(change.items)
        ]
    found = documents.changed(change) | documents.visited(change)
    if response is not None:
        found["response"] = documents.response_document(response)
    is_progress = change.progress is not None or change.next is not None
    progress = _progressed(change) if is_progress else None
    return Write(
        task_id=task.id,
        values=row_of(found),
        error=to_json(documents.error_document(change.error)) if change.error else None,
        kept_errors=change.kept_errors,
        progress=progress,
        items=items,
        kept_versions=change.kept_versions,
        grows=not (change.error is None and progress is None),
    )


def _progressed(change: Change) -> Progressed:
    values = documents.progressed(change)
    results = values.pop("results", {})
    if results:
        # What none holds is to be refused before the transaction begins.
        to_json(results)
    return Progressed(
        values=row_of(values),
        results=results,
        trace=documents.trace_document(change.trace) if change.trace else None,
    )


def unmoved(task: Task) -> dict[str, Any]:
    """Return what a task's row must still say, where nobody has changed it since it was read."""
    return {"status": int(task.status), "fence": task.fence}


def mine(lease: Lease) -> dict[str, Any]:
    """Return what a task's row must still say, where it is held by the lease."""
    return {"lock": lease.token, "fence": lease.fence, "status": int(Status.PROCESSING)}
