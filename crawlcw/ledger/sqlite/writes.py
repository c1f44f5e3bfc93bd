"""Changes of tasks as their rows take them, and their writing where a task still is as expected."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.sqlite.rows import from_json, milliseconds, row_of, to_json
from crawlcw.ledger.sqlite.statements import Statements
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import KEPT_TRACE, Change

#: Of a row, what a change keeps that has no visit, and no progress.
_NOT_VISITED: Mapping[str, Any] = {
    **dict.fromkeys(("errors", "response", "visit", "stored", "revisit")),
    "has_revisit": False,
}
_NOTHING_ADDED: Mapping[str, Any] = {
    **dict.fromkeys(("errors", "host", "callback", "context", "data", "results", "trace")),
    "moved": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A change of a task as its row takes it."""

    task_id: bytes
    values: dict[str, Any]
    error: str | None  #: JSON, to be added to those there
    kept_errors: int
    progress: "Progressed | None"  #: what only a tracked task has
    items: list[tuple[bytes, int, str, str, int]] | None  #: rows; None keeps those there
    kept_versions: int  #: the items of so many visits are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """What a change sets and adds of a tracked task besides."""

    values: dict[str, Any]  #: stage, context, data: None keeps what is there
    results: documents.Document  #: by stage, to be added to those there
    trace: documents.Document | None  #: to be added to those there


def apply(
    db: sqlite3.Connection, sql: Statements, statement: str, write: Write, guard: Mapping[str, Any]
) -> bool:
    """Change a task where it still is what *guard* says; say whether it was.

    Within a transaction. Raises one of `UNHOLDABLE`, and changes nothing,
    where a task cannot hold what is added together with what is there.
    """
    values = {**write.values, **guard, "id": write.task_id}
    if write.error is not None or write.progress is not None:
        values |= _added(db, sql, write)
    return bool(db.execute(statement, values).rowcount)


def _added(db: sqlite3.Connection, sql: Statements, write: Write) -> dict[str, Any]:
    """Return what of a task grows, together with what is there; None keeps that."""
    row = db.execute(sql.added_to, (write.task_id,)).fetchone()
    if row is None:
        return dict(_NOTHING_ADDED)
    values = dict(_NOTHING_ADDED)
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
    values = {**row_of(documents.changed(change)), **_NOT_VISITED}
    if response is not None:
        values["response"] = to_json(documents.response_document(response))
    if visited := documents.visited(change):
        values |= row_of(visited)
        values["has_revisit"] = "revisit" in visited
    return Write(
        task_id=task.id,
        values=values,
        error=to_json(documents.error_document(change.error)) if change.error else None,
        kept_errors=change.kept_errors,
        progress=_progressed(change),
        items=items,
        kept_versions=change.kept_versions,
    )


def _progressed(change: Change) -> Progressed | None:
    if change.progress is None and change.next is None:
        return None
    values = documents.progressed(change)
    results = values.pop("results", {})
    if results:
        # What none holds is to be refused before the transaction begins.
        to_json(results)
    return Progressed(
        values={**row_of(values), "moved": change.next is not None},
        results=results,
        trace=documents.trace_document(change.trace) if change.trace else None,
    )


def unmoved(task: Task) -> dict[str, Any]:
    """Return what a task's row must still say, where nobody has changed it since it was read."""
    return {"from_status": int(task.status), "from_fence": task.fence}


def mine(lease: Lease) -> dict[str, Any]:
    """Return what a task's row must still say, where it is held by the lease."""
    return {"token": lease.token, "held_fence": lease.fence}
