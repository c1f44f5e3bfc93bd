"""Changes of tasks as their rows take them, and their writing where a task still is as expected."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.sqlite.rows import milliseconds, row_of, to_json
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.task import Lease, Task
from crawlcw.transitions import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A change of a task as its row takes it."""

    task_id: bytes
    values: dict[str, Any]
    error: str | None  #: JSON, to be added to those there
    kept_errors: int
    items: list[tuple[bytes, int, str, str, int]] | None  #: rows; None keeps those there


class Changes(SqliteStore):
    """Writes the changes that `transitions` has decided."""

    def _apply(
        self, db: sqlite3.Connection, statement: str, write: Write, guard: Mapping[str, Any]
    ) -> bool:
        """Change a task where it still is what *guard* says; say whether it was."""
        errors = None
        if write.error is not None:
            row = db.execute(self._sql.errors, (write.task_id,)).fetchone()
            kept = json.loads(row["errors"]) if row and row["errors"] else []
            errors = to_json([*kept, json.loads(write.error)][-write.kept_errors :])
        values = {**write.values, **guard, "id": write.task_id, "errors": errors}
        return db.execute(statement, values).rowcount == 1


def written(task: Task, change: Change) -> Write:
    """Return the change as its row takes it; raises one of `UNHOLDABLE` for what none holds."""
    response = change.response
    items = None
    if change.items is not None:
        url = response.final_url if response else task.url
        fetched = milliseconds(change.update_time)
        items = [
            (task.id, n, to_json(documents.escaped(item)), url, fetched)
            for n, item in enumerate(change.items)
        ]
    return Write(
        task_id=task.id,
        values=row_of(
            {
                **documents.changed(change),
                "response": documents.response_document(response) if response else None,
            }
        ),
        error=to_json(documents.error_document(change.error)) if change.error else None,
        kept_errors=change.kept_errors,
        items=items,
    )


def mine(lease: Lease) -> dict[str, Any]:
    """Return what a task's row must still say, where it is held by the lease."""
    return {"token": lease.token, "held_fence": lease.fence}
