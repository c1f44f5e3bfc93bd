"""Define the endings of tracked tasks, decide whether to accept an ending, and settle the task."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never

from crawlcw.errors import Reason, UsageError
from crawlcw.model import transitions, values
from crawlcw.model.task import BlobRef, Lease, Payload, Record, Status, Task
from crawlcw.model.transitions import (
    Advanced,
    Event,
    Failed,
    Outcome,
    Progress,
    Settlement,
    Succeeded,
)
from crawlcw.tracking import keys
from crawlcw.tracking.session import Session
from crawlcw.tracking.use_case import UseCase

_IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A successful end of a stage; the task finishes, or goes to the next stage of its chain."""

    result: Any = None
    data: Mapping[str, Any] | None = None  #: None: unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """A successful end of a stage; the task goes to a stage that the worker chooses."""

    stage: str
    result: Any = None
    data: Mapping[str, Any] | None = None  #: None: unchanged
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The end of a failed attempt; if `may_retry` is false, crawlcw does not try again."""

    error: str
    may_retry: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """The ending of a task that the worker has found to be unwanted."""

    message: str


@dataclass(frozen=True, slots=True)
class Release:
    """The end of an attempt without an outcome; the unchanged task waits again for a worker."""


Ending = Finish | Advance | Fail | Ignore | Release


def check_ending(ending: Ending) -> None:
    """Raise `UsageError` for an ending with an invalid stage or delay."""
    if isinstance(ending, Advance):
        keys.stage(ending.stage)
        keys.delay(ending.delay)


#: Maps a type of ending to the events that such an ending may add to a task's trace.
_EVENTS: Mapping[type[Ending], frozenset[Event]] = {
    Finish: frozenset({Event.FINISH, Event.ADVANCE}),
    Advance: frozenset({Event.ADVANCE}),
    Fail: frozenset({Event.FAIL, Event.GIVE_UP}),
    Ignore: frozenset({Event.GIVE_UP}),
    Release: frozenset(),
}


class Refusal(StrEnum):
    """The reason why an ending of a task was not accepted."""

    NOT_FOUND = "not-found"
    NOT_LEASED = "not-leased"  #: the worker does not have the task's lease
    NOT_STORABLE = "not-storable"  #: the ledger cannot store the result, and gives up the task


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """The keys of tasks with accepted endings, and the reasons for refused endings by key."""

    accepted: frozenset[str] = frozenset()
    refused: Mapping[str, Refusal] = field(default_factory=dict)


def has_lease(holder: str, task: Task, fence: int | None) -> bool:
    """Return whether *holder* leases *task* under the fence *fence*, or under any if it is None.

    An expired lease is a lease too, as long as no other worker has claimed the task.
    """
    return (
        task.status is Status.PROCESSING
        and task.lock is not None
        and task.lock.startswith(f"{holder}:")
        and fence in (None, task.fence)
    )


def refusal_of(
    holder: str, record: Record | None, ending: Ending, fence: int | None
) -> Refusal | None:
    """Return why *ending* of a *holder* without a lease is refused; None if it is accepted."""
    if record is None:
        return Refusal.NOT_FOUND
    task = record.task
    if fence is None:
        # Without a fence, the only candidate is the last event, if no claim followed the event.
        trace_entries = [
            entry for entry in record.trace if entry.fence == task.settled == task.fence
        ]
    else:
        trace_entries = [entry for entry in record.trace if entry.fence == fence]
    own_entries = [entry for entry in trace_entries if entry.worker == holder]
    if isinstance(ending, Release):
        return Refusal.NOT_LEASED if own_entries and fence is not None else None
    if any(entry.event in _EVENTS[type(ending)] for entry in own_entries):
        return None
    if task.reason is Reason.STORE_REJECTED and task.settled == fence:
        return Refusal.NOT_STORABLE
    return Refusal.NOT_LEASED


def holder_name(worker: object) -> str:
    """Return the prefix of the tokens of a worker's leases; raises `UsageError`."""
    return f"@{_check_identifier(worker, 'worker name')}"


def request_holder_name(worker: object, request: object) -> str:
    """Return the prefix of lease tokens that one *request* of a worker gets."""
    return f"{holder_name(worker)}:~{_check_identifier(request, 'request token')}"


def _check_identifier(value: object, label: str) -> str:
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise UsageError(
            f"{value!r} is not a valid {label}: write 1 to 100 letters, digits, '.', '_' or '-'"
        )
    return value


class Settlements:
    """Converts endings of a use case's tasks to settlements, and deletes replaced blobs."""

    def __init__(self, session: Session, use_case: UseCase) -> None:
        self._session = session
        self._use_case = use_case

    async def of(
        self,
        lease: Lease,
        ending: Ending,
        *,
        worker: str,
        started_at: datetime,
        traceback: str | None = None,
    ) -> Settlement:
        """Return the settlement for a task's *ending*; a failure may have a *traceback*."""
        stage = self._use_case.resolve_stage(lease.task.callback)
        trace = Progress(stage=stage, worker=worker, started_at=started_at)
        return transitions.settle(
            lease,
            await self._outcome(lease, ending, trace, traceback),
            now=self._session.ledger.now(),
            policy=self._session.policy.retries,
            chance=random.random(),
        )

    async def _outcome(
        self, lease: Lease, ending: Ending, trace: Progress, traceback: str | None
    ) -> Outcome:
        task = lease.task
        match ending:
            case Finish():
                progress = await self._progress(lease, ending, trace)
                next_stage = self._use_case.next_stage(task.callback)
                if next_stage is None:
                    return Succeeded(progress=progress)
                return Advanced(stage=next_stage, progress=progress, context=task.context)
            case Advance():
                stage, delay = keys.stage(ending.stage), keys.delay(ending.delay)
                new_context = keys.data(ending.context) if ending.context else None
                context = await self._session.store_value(task.id, new_context)
                progress = await self._progress(lease, ending, trace)
                return Advanced(stage=stage, progress=progress, context=context, delay=delay)
            case Fail():
                return Failed(
                    reason=Reason.TASK_ERROR,
                    message=ending.error,
                    traceback=traceback,
                    progress=trace,
                    last=not ending.may_retry,
                )
            case Ignore():
                return Failed(reason=Reason.UNWANTED, message=ending.message, progress=trace)
            case Release():
                raise AssertionError("a release is no outcome")
            case _:
                assert_never(ending)

    async def _progress(self, lease: Lease, ending: Finish | Advance, trace: Progress) -> Progress:
        store_value, task_id = self._session.store_value, lease.task.id
        results = {}
        if ending.result is not None:
            results[self._use_case.resolve_stage(lease.task.callback)] = await store_value(
                task_id, values.clean(ending.result)
            )
        data = None if ending.data is None else await store_value(task_id, keys.data(ending.data))
        return replace(trace, data=data, results=results)

    async def drop_replaced(self, settlement: Settlement, *, is_recorded: bool) -> None:
        """Delete the task's old blobs, or the new blobs if *settlement* was not recorded."""
        task, change = settlement.lease.task, settlement.change
        progress = change.progress
        old_values = {"data": (task.carried or Payload()).data, "context": task.context}
        new_values: dict[str, Any] = {}
        if progress is not None and progress.data is not None:
            new_values["data"] = progress.data
        if change.next is not None:
            new_values["context"] = change.next.context
        if is_recorded:
            unused_values = [
                old_values[name] for name in new_values if old_values[name] != new_values[name]
            ]
        else:
            # Keep the context's blob if the next stage gets the same context.
            unused_values = [value for value in new_values.values() if value != task.context]
            unused_values += progress.results.values() if progress is not None else ()
        await self._session.delete_blobs(
            *(value for value in unused_values if isinstance(value, BlobRef))
        )
