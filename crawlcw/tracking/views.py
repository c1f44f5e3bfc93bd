"""Show a tracked task of the ledger as its users see it."""

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
#: Fields that a tracked task and the ledger's task have in common.
_TASK_FIELDS = (
    *("status", "reason", "context", "priority", "retry", "lost", "due"),
    *("create_time", "update_time"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTask:
    """One tracked task, as it was when it was read."""

    key: str
    stage: str
    status: Status
    reason: Reason | None  #: why it failed or is ignored
    data: Mapping[str, Any] | BlobRef  #: a `BlobRef` if it is large and was not loaded
    results: Mapping[str, Any]  #: stage -> its result
    context: Mapping[str, Any] | BlobRef | None
    priority: int
    retry: int  #: failed attempts at this stage
    lost: int  #: workers lost while they worked on it
    due: datetime | None  #: when a worker may claim it, or the end of its lease; None: never
    holder: str | None  #: name of the worker that leases it
    create_time: datetime
    update_time: datetime  #: of the last change of its status
    errors: tuple[AttemptError, ...]
    trace: tuple[AttemptRecord, ...]

    @classmethod
    def of(cls, record: Record, *, stage: str) -> Self:
        """Return the view of a record; *stage* is its stage as the use case calls it."""
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
    """Some of the tasks that match."""

    tasks: tuple[TrackedTask, ...]
    next_cursor: str | None  #: argument of `find` for the next page; None: no next page


def holder_of(task: Task) -> str | None:
    """Return the holder of a task, whose token is `holder:n`."""
    return None if task.lock is None else task.lock.partition(":")[0]


def cursor_text(position: Cursor | Task) -> str:
    """Return the position of a task as text."""
    milliseconds = (position.update_time - _EPOCH) // _MILLISECOND
    raw = milliseconds.to_bytes(8, "big", signed=True) + position.id
    return base64.urlsafe_b64encode(raw).decode("ascii")


def parse_cursor(text: str) -> Cursor:
    """Return the position that `cursor_text` encoded; raises `UsageError` for any other text."""
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
