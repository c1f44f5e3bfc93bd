"""Convert the ledger's tracked tasks to the form that users of the API see."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from crawlcw.errors import Reason, UsageError
from crawlcw.ledger.protocol import Cursor
from crawlcw.model.task import AttemptError, AttemptRecord, BlobRef, Payload, Record, Status, Task

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
#: The fields that `TrackedTask` and the ledger's `Task` have in common.
_TASK_FIELDS = (
    *("status", "reason", "context", "priority", "retry", "lost", "due"),
    *("create_time", "update_time"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTask:
    """A tracked task, with the values at the time of the read."""

    key: str
    stage: str
    status: Status
    reason: Reason | None  #: why the task failed or is ignored
    data: Mapping[str, Any] | BlobRef  #: data, or a `BlobRef` if the data is large and not loaded
    results: Mapping[str, Any]  #: maps stages to results
    context: Mapping[str, Any] | BlobRef | None
    priority: int
    retry: int  #: number of failed attempts at the stage
    lost: int  #: number of workers that crashed while they ran the task
    due: datetime | None  #: time from which a worker may claim the task; None: never
    holder: str | None  #: name of the worker that leases the task
    create_time: datetime
    update_time: datetime  #: time of the last change of the status
    errors: tuple[AttemptError, ...]
    trace: tuple[AttemptRecord, ...]

    @classmethod
    def of(cls, record: Record, *, stage: str) -> Self:
        """Return the task in *record*; *stage* is the task's stage as the use case names it."""
        task = record.task
        payload = task.carried or Payload()
        return cls(
            key=task.url,
            stage=stage,
            data=payload.data,
            results=payload.results,
            holder=holder_of(task),
            errors=record.errors,
            trace=record.trace,
            **{name: getattr(task, name) for name in _TASK_FIELDS},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of the tasks that match a filter."""

    tasks: tuple[TrackedTask, ...]
    next_cursor: str | None  #: `cursor` for the next page; None: this is the last page


def holder_of(task: Task) -> str | None:
    """Return the worker that leases a task: the name in the lease's token `name:n`."""
    return None if task.lock is None else task.lock.partition(":")[0]


def cursor_text(position: Cursor | Task) -> str:
    """Return a text for the position of a task in a list of tasks."""
    milliseconds = (position.update_time - _EPOCH) // _MILLISECOND
    cursor_bytes = milliseconds.to_bytes(8, "big", signed=True) + position.id
    return base64.urlsafe_b64encode(cursor_bytes).decode("ascii")


def parse_cursor(text: str) -> Cursor:
    """Return the position that `cursor_text` encoded; raises `UsageError` for an invalid text."""
    try:
        if not isinstance(text, str):
            raise ValueError
        raw = base64.b64decode(text, altchars=b"-_", validate=True)
        if len(raw) != 24:
            raise ValueError
        update_time = _EPOCH + int.from_bytes(raw[:8], "big", signed=True) * _MILLISECOND
    except (ValueError, binascii.Error, OverflowError):
        raise UsageError(
            "the cursor is invalid: pass the `next_cursor` of an earlier page"
        ) from None
    return Cursor(update_time=update_time, id=raw[8:])
