"""How tasks are written down: the document's field names, and values in a store's terms.

Both ledgers use these names, so a task reads the same in mongosh and in
sqlite3. Keys that a spider or a page chose are escaped (`$`, `.`, NUL and `%`
as `%24`, ...), so they can neither become operators nor field paths.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from crawlcw.errors import Reason
from crawlcw.task import AttemptError, Record, ResponseInfo, Status, Task
from crawlcw.transitions import Change

#: What `page` reads of a task: all but what grows with its results.
TASK_FIELDS = tuple(field.name for field in fields(Task) if field.name != "id")

Document = dict[str, Any]


def document(task: Task) -> Document:
    """Return a new task as its document; what is a default or nothing is left out."""
    found: Document = {
        "_id": task.id,
        "url": task.url,
        "host": task.host,
        "callback": task.callback,
        "depth": task.depth,
        "priority": task.priority,
        "status": int(task.status),
        "due": task.due,
        "update_time": task.update_time,
        "create_time": task.create_time,
        "lock": task.lock,
        "lock_time": task.lock_time,
        "fence": task.fence,
        "settled": task.settled,
        "retry": task.retry,
        "lost": task.lost,
    }
    if task.method != "GET":
        found["method"] = task.method
    if task.headers:
        found["headers"] = [list(pair) for pair in task.headers]
    if task.body is not None:
        found["body"] = task.body
    if task.errback is not None:
        found["errback"] = task.errback
    if task.context is not None:
        found["context"] = escaped(task.context)
    if task.parent is not None:
        found["parent"] = task.parent
    return found


def task(found: Mapping[str, Any]) -> Task:
    """Return the task that a document holds."""
    context = found.get("context")
    reason = found.get("reason")
    return Task(
        id=bytes(found["_id"]),
        url=found["url"],
        host=found["host"],
        method=found.get("method") or "GET",
        headers=tuple((name, value) for name, value in found.get("headers") or ()),
        body=found.get("body"),
        callback=found["callback"],
        errback=found.get("errback"),
        context=unescaped(context) if context is not None else None,
        depth=found["depth"],
        parent=found.get("parent"),
        priority=found["priority"],
        status=Status(found["status"]),
        due=found.get("due"),
        update_time=found["update_time"],
        create_time=found["create_time"],
        lock=found.get("lock"),
        lock_time=found.get("lock_time"),
        fence=found["fence"],
        settled=found["settled"],
        retry=found["retry"],
        lost=found["lost"],
        reason=Reason(reason) if reason is not None else None,
    )


def changed(change: Change) -> Document:
    """Return the fields of a task that *change* sets, without what it appends or keeps.

    `due` and `reason` are None where they are to be absent.
    """
    return {
        "status": int(change.status),
        "due": change.due,
        "update_time": change.update_time,
        "lock": change.lock,
        "lock_time": change.lock_time,
        "fence": change.fence,
        "settled": change.settled,
        "retry": change.retry,
        "lost": change.lost,
        "reason": str(change.reason) if change.reason is not None else None,
    }


def error_document(error: AttemptError) -> Document:
    """Return one entry of a task's `errors`."""
    found: Document = {
        "time": error.time,
        "kind": str(error.kind),
        "message": error.message,
        "attempt": error.attempt,
    }
    if error.traceback is not None:
        found["traceback"] = error.traceback
    return found


def response_document(response: ResponseInfo) -> Document:
    """Return a task's `response`, without what is not known."""
    found = {name: getattr(response, name) for name in ResponseInfo.__dataclass_fields__}
    return {name: value for name, value in found.items() if value is not None}


def record(found: Mapping[str, Any]) -> Record:
    """Return everything a whole document holds; its `items` must be complete."""
    response = found.get("response")
    return Record(
        task=task(found),
        errors=tuple(
            AttemptError(
                time=e["time"],
                kind=Reason(e["kind"]),
                message=e["message"],
                attempt=e["attempt"],
                traceback=e.get("traceback"),
            )
            for e in found.get("errors") or ()
        ),
        response=ResponseInfo(**response) if response else None,
        items=tuple(unescaped(item) for item in found.get("items") or ()),
    )


def escaped(value: Any) -> Any:
    """Return a clean value with its keys such that no store reads anything into them."""
    if isinstance(value, dict):
        return {_escaped_key(k): escaped(v) for k, v in value.items()}
    if isinstance(value, list):
        return [escaped(each) for each in value]
    return value


def unescaped(value: Any) -> Any:
    """Return what `escaped` was given."""
    if isinstance(value, dict):
        return {_unescaped_key(k): unescaped(v) for k, v in value.items()}
    if isinstance(value, list):
        return [unescaped(each) for each in value]
    return value


def _escaped_key(key: str) -> str:
    if key.isidentifier():
        return key
    if not key:
        return "%"
    key = key.replace("%", "%25").replace(".", "%2E").replace("\0", "%00")
    return "%24" + key[1:] if key[0] == "$" else key


def _unescaped_key(key: str) -> str:
    if "%" not in key:
        return key
    if key == "%":
        return ""
    for code, character in (("%24", "$"), ("%00", "\0"), ("%2E", "."), ("%25", "%")):
        key = key.replace(code, character)
    return key
