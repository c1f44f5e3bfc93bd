"""JSON form of a task, for `tasks --json` and `show --json`."""

from dataclasses import asdict
from typing import Any

from crawlcw.ledger.documents import error_document, known, trace_document
from crawlcw.model.task import BlobRef, Record


def whole(record: Record) -> dict[str, Any]:
    """Return all fields of a task, ready for JSON."""
    task = record.task
    carried = task.carried
    found: dict[str, Any] = {
        "id": task.id.hex(),
        "key" if carried else "url": task.url,
        "stage" if carried else "host": task.host,
        "status": task.status.name.lower(),
        "reason": task.reason,
        "priority": task.priority,
        "retry": task.retry,
        "lost": task.lost,
        "due": task.due,
        "lock": task.lock,
        "update_time": task.update_time,
        "create_time": task.create_time,
        "context": _shown(task.context),
        "errors": [error_document(error) for error in record.errors],
    }
    if carried:
        found["data"] = _shown(carried.data)
        found["results"] = {stage: _shown(result) for stage, result in carried.results.items()}
        found["trace"] = [trace_document(trace) for trace in record.trace]
        return found
    found |= {
        "method": task.method,
        "body_bytes": len(task.body or b""),
        "callback": task.callback,
        "errback": task.errback,
        "depth": task.depth,
        "hops": task.hops,
        "parent": None if task.parent is None else task.parent.hex(),
    }
    if record.response:
        found["response"] = known(record.response)
    if task.stored is not None:
        found["stored"] = asdict(task.stored)
    return found


def _shown(value: Any) -> Any:
    return {"blob": value.id, "size": value.size} if isinstance(value, BlobRef) else value
