"""Prepare tasks for the page: a row of a list, or a task's details with its related pages.

The page does not show headers, bodies and private values of requests, because they may hold
passwords.
"""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from crawlcw.ledger.documents import error_document, part_document, trace_document
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import BlobRef, Record, Task
from crawlcw.model.values import to_json
from crawlcw.tracking.views import holder_of

_MAX_CHARACTERS = 20_000  #: maximum number of characters that are shown of an item or a result
_MAX_ITEMS = 50  #: maximum number of items that are shown of a task
#: Maximum lengths of the chain of links, and of the chain of redirects.
_MAX_PAGES = 50


def task_row(record: Record) -> dict[str, Any]:
    """Return the fields of a task that a list of tasks shows."""
    task = record.task
    last_error = record.errors[-1] if record.errors else None
    return {
        **link_to(task),
        **fields(task, "host", "reason", "update_time", "retry"),
        "status": task.status.name.lower(),
        "holder": holder_of(task),
        "status_code": record.response.status if record.response else None,
        "error": last_error.message if last_error is not None and task.reason is not None else None,
    }


async def task_details(ledger: Ledger, record: Record) -> dict[str, Any]:
    """Return all fields of a task, and the chain of pages that links to the task."""
    task, tracked_fields = record.task, record.task.carried
    details: dict[str, Any] = {
        **task_row(record),
        "tracked": tracked_fields is not None,
        **fields(task, "method", "callback", "depth", "priority", "lost", "due", "create_time"),
        "body_bytes": len(task.body or b""),
        "context": _json_text(task.shown_context) if task.shown_context else None,
        "errors": [error_document(error) for error in reversed(record.errors)],
        "response": part_document(record.response) if record.response else None,
        "stored": asdict(task.stored) if task.stored else None,
        **items_of(record),
        "linked_from": [link_to(page) async for page in pages_above(ledger, task)],
        "leads_to": [
            {**link_to(next_record.task), "status": next_record.task.status.name.lower()}
            | {"reason": next_record.task.reason}
            async for next_record in pages_ahead(ledger, record)
        ],
        "trace": [trace_document(attempt) for attempt in reversed(record.trace)],
    }
    if tracked_fields is not None:
        details["data"] = _json_text(tracked_fields.data)
        details["results"] = {
            stage: _json_text(result) for stage, result in tracked_fields.results.items()
        }
    return details


async def pages_above(ledger: Ledger, task: Task) -> AsyncIterator[Task]:
    """Yield the chain of pages that links to *task*, from the nearest page up to a start URL."""
    for _ in range(_MAX_PAGES):
        if task.parent is None or (record := await ledger.tasks.get(task.parent)) is None:
            return
        task = record.task
        yield task


async def pages_ahead(ledger: Ledger, record: Record) -> AsyncIterator[Record]:
    """Follow the redirects from *record*, and yield the target of each redirect.

    If the redirects form a loop, the last target is *record* or a target yielded earlier.
    """
    seen_ids = {record.task.id}
    while (target_id := record.leads_to) is not None and (
        target_record := await ledger.tasks.get(target_id)
    ):
        yield target_record
        if target_id in seen_ids or len(seen_ids) >= _MAX_PAGES:
            return
        seen_ids.add(target_id)
        record = target_record


def fields(value: object, *names: str) -> dict[str, Any]:
    """Return a dictionary with those attributes of *value* that *names* lists."""
    return {name: getattr(value, name) for name in names}


def items_of(record: Record) -> dict[str, Any]:
    """Return the first items of a task as JSON texts, and the number of all its items."""
    return {
        "items": [_json_text(item) for item in record.items[:_MAX_ITEMS]],
        "item_count": len(record.items),
    }


def link_to(task: Task) -> dict[str, Any]:
    """Return the id and the URL of a task, for a link to the task's details."""
    return {"id": task.id.hex(), "url": task.url}


def _json_text(value: Any) -> str:
    """Return a value as JSON, cut to `_MAX_CHARACTERS`."""
    if isinstance(value, BlobRef):
        return f"{value.size:,} bytes, stored outside of the task"
    text = to_json(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
