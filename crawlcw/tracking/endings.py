"""Endings of tasks by a worker that asked for its share, and the answers to them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from crawlcw.errors import Reason, UsageError
from crawlcw.model.task import Record, Status, Task
from crawlcw.model.transitions import Event
from crawlcw.tracking import keys

_WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The stage is done, and the task with it, or the next stage of its chain is to do."""

    result: Any = None
    data: Mapping[str, Any] | None = None  #: None: unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The stage is done, and another one is to do."""

    stage: str
    result: Any = None
    data: Mapping[str, Any] | None = None  #: None: unchanged
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """An attempt is spent; without *again* it was the last one."""

    error: str
    again: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """The task turned out to be unwanted."""

    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """The task goes back as it was."""


Ending = Finish | Advance | Fail | Ignore | Release


def check_ending(ending: Ending) -> None:
    """Raise `UsageError` where an ending names what cannot be, before anything is recorded."""
    if isinstance(ending, Advance):
        keys.stage(ending.stage)
        keys.delay(ending.delay)


#: The outcomes in a task's trace where an ending was recorded.
_EVENTS: Mapping[type[Ending], frozenset[Event]] = {
    Finish: frozenset({Event.FINISH, Event.ADVANCE}),
    Advance: frozenset({Event.ADVANCE}),
    Fail: frozenset({Event.FAIL, Event.GIVE_UP}),
    Ignore: frozenset({Event.GIVE_UP}),
    Release: frozenset(),
}


class Refusal(StrEnum):
    """Why an ending was not accepted."""

    NOT_FOUND = "not-found"
    NOT_HELD = "not-held"  #: another worker holds it, or none does
    NOT_STORABLE = "not-storable"  #: the ledger cannot hold the outcome: the task is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The answers to endings."""

    accepted: frozenset[str] = frozenset()
    refused: Mapping[str, Refusal] = field(default_factory=dict)


def holds(me: str, task: Task, fence: int | None) -> bool:
    """Return whether a holder holds a task, by the claim of that *fence* if one is given.

    A lease that ran out holds until the task is taken over.
    """
    return (
        task.status is Status.PROCESSING
        and task.lock is not None
        and task.lock.startswith(f"{me}:")
        and fence in (None, task.fence)
    )


def refusal_of(me: str, record: Record | None, ending: Ending, fence: int | None) -> Refusal | None:
    """Return why the ending of a task that is not held is refused; None: it is recorded already."""
    if record is None:
        return Refusal.NOT_FOUND
    task = record.task
    if fence is None:
        # It was not claimed since.
        entries = [each for each in record.trace if each.fence == task.settled == task.fence]
    else:
        entries = [each for each in record.trace if each.fence == fence]
    mine = [each for each in entries if each.worker == me]
    if isinstance(ending, Release):
        return Refusal.NOT_HELD if mine and fence is not None else None
    if any(each.event in _EVENTS[type(ending)] for each in mine):
        return None
    if task.reason is Reason.STORE_REJECTED and task.settled == fence:
        return Refusal.NOT_STORABLE
    return Refusal.NOT_HELD


def holder(worker: object) -> str:
    """Return the beginning of the tokens of a worker's leases; raises `UsageError`."""
    return f"@{_word(worker, 'name of a worker')}"


def request_holder(worker: object, request: object) -> str:
    """Return the beginning of the tokens that one request of a worker has got."""
    return f"{holder(worker)}:~{_word(request, 'token of a request')}"


def _word(given: object, what: str) -> str:
    if not isinstance(given, str) or not _WORD.fullmatch(given):
        raise UsageError(f"{given!r} is no {what}: write 1 to 100 letters, digits, '.', '_' or '-'")
    return given
