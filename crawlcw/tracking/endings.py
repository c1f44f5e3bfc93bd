"""Define the endings of tracked tasks, decide which are accepted, and make their settlements."""

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
    """The stage is done: the task is finished, or goes to the next stage of its chain."""

    result: Any = None
    data: Mapping[str, Any] | None = None  #: None: unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The stage is done, and a chosen stage follows."""

    stage: str
    result: Any = None
    data: Mapping[str, Any] | None = None  #: None: unchanged
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """An attempt failed; if *may_retry* is false, it was the last attempt."""

    error: str
    may_retry: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """The task turned out to be unwanted."""

    message: str


@dataclass(frozen=True, slots=True)
class Release:
    """The task returns to the pool unchanged."""


Ending = Finish | Advance | Fail | Ignore | Release


def check_ending(ending: Ending) -> None:
    """Raise `UsageError` for an ending with invalid values, before anything is recorded."""
    if isinstance(ending, Advance):
        keys.stage(ending.stage)
        keys.delay(ending.delay)


#: Events in a task's trace that show that an ending was recorded.
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
    NOT_LEASED = "not-leased"  #: another worker has the task's lease, or no worker has it
    NOT_STORABLE = "not-storable"  #: the ledger cannot store the outcome and gives up the task


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """Lists the accepted endings, and why the other endings are refused."""

    accepted: frozenset[str] = frozenset()
    refused: Mapping[str, Refusal] = field(default_factory=dict)


def has_lease(holder: str, task: Task, fence: int | None) -> bool:
    """Return whether a holder has the lease of a task, by the claim of *fence* if it is not None.

    An expired lease is valid until another worker claims the task.
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
    """Return why an ending without a lease is refused; None: an earlier request has recorded it."""
    if record is None:
        return Refusal.NOT_FOUND
    task = record.task
    if fence is None:
        # The task was not claimed since that event.
        entries = [entry for entry in record.trace if entry.fence == task.settled == task.fence]
    else:
        entries = [entry for entry in record.trace if entry.fence == fence]
    own_entries = [entry for entry in entries if entry.worker == holder]
    if isinstance(ending, Release):
        return Refusal.NOT_LEASED if own_entries and fence is not None else None
    if any(entry.event in _EVENTS[type(ending)] for entry in own_entries):
        return None
    if task.reason is Reason.STORE_REJECTED and task.settled == fence:
        return Refusal.NOT_STORABLE
    return Refusal.NOT_LEASED


def holder_name(worker: object) -> str:
    """Return the name that begins the tokens of a worker's leases; raises `UsageError`."""
    return f"@{_check_identifier(worker, 'worker name')}"


def request_holder_name(worker: object, request: object) -> str:
    """Return the name that begins the tokens of one request of a worker."""
    return f"{holder_name(worker)}:~{_check_identifier(request, 'request token')}"


def _check_identifier(value: object, label: str) -> str:
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise UsageError(
            f"{value!r} is not a valid {label}: write 1 to 100 letters, digits, '.', '_' or '-'"
        )
    return value


class Settlements:
    """Makes settlements for a use case, and deletes the large values that they replace."""

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
        """Return the settlement of *worker*'s ending; *traceback* is that of a failure."""
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
        """Delete the large values that *settlement* has replaced, or could not record."""
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
            # A chain passes the context on unchanged.
            unused_values = [value for value in new_values.values() if value != task.context]
            unused_values += progress.results.values() if progress is not None else ()
        await self._session.delete_blobs(
            *(value for value in unused_values if isinstance(value, BlobRef))
        )
