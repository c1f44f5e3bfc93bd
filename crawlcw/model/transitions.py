"""Transitions: the events of a task, and its status after each.

This file contains every change of a task's status, as a table. The ledgers apply the decisions made
in this file and decide nothing themselves. The diagram in the manual is drawn from the table.

A `Change` has the task's new fields. A ledger applies it only if the task still has the id, the
status and the fence on which the decision was based.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never

from crawlcw.errors import FAILURE_REASONS, Reason
from crawlcw.model.page_value import page_value
from crawlcw.model.retry import KEPT_ERRORS, RetryPolicy, backoff
from crawlcw.model.sanitize import printable, printable_block
from crawlcw.model.task import (
    DONE,
    WAITING,
    AttemptError,
    AttemptRecord,
    BlobRef,
    Lease,
    ResponseInfo,
    Status,
    StoredPage,
    Task,
)
from crawlcw.model.visits import Visit

#: The number of last claims in a tracked task's trace.
KEPT_TRACE = 20
_MESSAGE_LIMIT = 500
#: The waits of a task after the crash of a worker that worked on it alone; they double. Meanwhile
#: an accidental cause of the crash ends, and all other tasks run.
_FIRST_REST = timedelta(seconds=1)
_LONGEST_REST = timedelta(minutes=5)


class Event(StrEnum):
    """The events of a task."""

    ADD = "add"
    CLAIM = "claim"
    TAKE_OVER = "take over"  #: claimed after another worker's lease has expired
    LOSE = "lose"  #: its worker crashed while it ran this task alone
    ABANDON = "abandon"  #: its worker crashed like this as often as allowed
    FINISH = "finish"
    CONFIRM = "confirm"  #: visited again, and unchanged
    FAIL = "fail"  #: another attempt follows
    GIVE_UP = "give up"  #: failed for good, or unwanted
    RELEASE = "release"
    GIVE_UP_HOST = "give up host"  #: its host was given up
    RETRY = "retry-failed"
    ADVANCE = "advance"  #: the next stage begins
    WITHDRAW = "withdraw"  #: no worker may work on it any more
    REOPEN = "reopen"  #: it must be done again, possibly in another stage
    REVISIT = "revisit"  #: its page is visited again; its results stay until then
    REPARSE = "reparse"  #: its stored body was parsed again
    ADMIT = "admit"  #: its link was too deep before, and is within the limit now


#: status x event -> the possible statuses after it. No other event can happen.
TABLE: Mapping[tuple[Status | None, Event], tuple[Status, ...]] = {
    # A link that is too deep is stored as ignored, for a later crawl that goes deeper.
    (None, Event.ADD): (Status.TODO, Status.IGNORED),
    (Status.TODO, Event.CLAIM): (Status.PROCESSING,),
    (Status.FAILED, Event.CLAIM): (Status.PROCESSING,),
    (Status.PROCESSING, Event.TAKE_OVER): (Status.PROCESSING,),
    (Status.PROCESSING, Event.LOSE): (Status.TODO, Status.FAILED),
    (Status.PROCESSING, Event.ABANDON): (Status.IGNORED,),
    (Status.PROCESSING, Event.FINISH): (Status.FINISHED,),
    (Status.PROCESSING, Event.CONFIRM): (Status.FINISHED,),
    (Status.PROCESSING, Event.FAIL): (Status.FAILED,),
    (Status.PROCESSING, Event.GIVE_UP): (Status.IGNORED,),
    # Return to the status before the claim.
    (Status.PROCESSING, Event.RELEASE): WAITING,
    (Status.TODO, Event.GIVE_UP_HOST): (Status.IGNORED,),
    (Status.FAILED, Event.GIVE_UP_HOST): (Status.IGNORED,),
    (Status.FAILED, Event.RETRY): (Status.TODO,),
    (Status.IGNORED, Event.RETRY): (Status.TODO,),
    (Status.PROCESSING, Event.ADVANCE): (Status.TODO,),
    (Status.TODO, Event.WITHDRAW): (Status.IGNORED,),
    (Status.FAILED, Event.WITHDRAW): (Status.IGNORED,),
    # A leased task is withdrawn only after its lease has expired.
    (Status.PROCESSING, Event.WITHDRAW): (Status.IGNORED,),
    (Status.TODO, Event.REOPEN): (Status.TODO,),
    (Status.FAILED, Event.REOPEN): (Status.TODO,),
    (Status.FINISHED, Event.REOPEN): (Status.TODO,),
    (Status.IGNORED, Event.REOPEN): (Status.TODO,),
    (Status.PROCESSING, Event.REOPEN): (Status.TODO,),  # as for a withdrawal
    (Status.IGNORED, Event.ADMIT): (Status.TODO,),
    (Status.FINISHED, Event.REVISIT): (Status.TODO,),
    # The task was once a page, and may be one again.
    (Status.IGNORED, Event.REVISIT): (Status.TODO,),
    (Status.FINISHED, Event.REPARSE): (Status.FINISHED,),
    # For example, the callback raised an error in the first run.
    (Status.IGNORED, Event.REPARSE): (Status.FINISHED,),
}
#: The status after an event that has only one result.
_ONLY_RESULT = {pair: after[0] for pair, after in TABLE.items() if len(after) == 1}

#: The fields that a task has only during a lease.
LOCK = ("lock", "lock_time")

#: `retry-failed` brings back ignored tasks only if they have one of these reasons.
RETRIED_REASONS = FAILURE_REASONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The data that an attempt at a tracked task adds to it."""

    worker: str  #: the holder of its lease, for the trace
    started_at: datetime
    stage: str | None = None  #: the stage of the attempt, for the trace; None: the task's
    data: Mapping[str, Any] | BlobRef | None = None  #: None: unchanged
    results: Mapping[str, Any] = field(default_factory=dict)  #: by stage; added to earlier results


@page_value(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The page was fetched and its callback ran to the end."""

    response: ResponseInfo | None = None
    items: tuple[Mapping[str, Any], ...] = ()
    visit: Visit | None = None  #: the visit of a crawl's page
    revisit: datetime | None = None  #: when to visit it again, if ever
    kept_versions: int = 0  #: number of visits whose items stay, including this one
    stored: StoredPage | None = None  #: the place of its body, if it is stored
    progress: Progress | None = None


@page_value(frozen=True, slots=True, kw_only=True)
class Moved(Succeeded):
    """The page belongs to another task, which has the URL of the response; the body is empty."""


@page_value(frozen=True, slots=True, kw_only=True)
class Unchanged(Succeeded):
    """The page was visited again and has not changed: its response and items stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt failed, or the task is unwanted."""

    reason: Reason
    message: str = ""
    traceback: str | None = None
    status: int | None = None  #: HTTP status, if the response is the failure
    retry_after: float | None = None  #: seconds
    response: ResponseInfo | None = None
    progress: Progress | None = None
    last: bool = False  #: whether to make no other attempt, even if the policy allows one
    tried: bool = True  #: whether a request was sent: otherwise no attempt counts
    revisit: datetime | None = None  #: the next visit of a page that was once finished
    stored: StoredPage | None = None  #: the place of the body of a failed page


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """A stage of a tracked task is done, and the next one follows."""

    stage: str
    progress: Progress
    context: Mapping[str, Any] | BlobRef | None = None  #: context of the next stage
    delay: timedelta = timedelta(0)  #: until the next stage is due


Outcome = Succeeded | Failed | Advanced


@page_value(frozen=True, slots=True, kw_only=True)
class Change:
    """The new fields of a task."""

    event: Event
    status: Status
    due: datetime | None = None
    update_time: datetime
    lock: str | None = None
    lock_time: datetime | None = None
    fence: int
    settled: int
    retry: int = 0
    lost: int = 0
    quarantine_fence: int | None = None  #: see `Task.quarantine_fence`
    reason: Reason | None = None
    error: AttemptError | None = None  #: added to the errors
    kept_errors: int = KEPT_ERRORS  #: the maximum number of errors
    response: ResponseInfo | None = None  #: None: unchanged
    items: tuple[Mapping[str, Any], ...] | None = None  #: None: unchanged
    visit: Visit | None = None  #: None: unchanged
    revisit: datetime | None = None  #: the next visit of a done task; otherwise unchanged
    kept_versions: int = 0  #: the maximum number of visits whose items stay
    stored: StoredPage | None = None  #: None: unchanged
    fetched: datetime | None = None  #: when the page of the items was fetched; None: just now
    progress: Progress | None = None  #: its new data and results, if there are any
    trace: AttemptRecord | None = None  #: added to the trace, which keeps the last `KEPT_TRACE`
    next: Advanced | None = None  #: the new stage and context; None: unchanged


@page_value(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A lease, and the change of its task at the end of the lease."""

    lease: Lease
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChange:
    """One change for many tasks.

    A ledger applies it in batches, to the tasks that still have one of the given statuses. Each
    gets `update_time`. A task that becomes `todo` is due now and has no reason. A task that becomes
    ignored is never due, and its reason is an argument of the ledger's method.
    """

    event: Event
    from_statuses: tuple[Status, ...]  #: only tasks with one of these statuses
    to_status: Status
    from_reason: Reason | None = None  #: only tasks with this reason; None: with any
    resets: tuple[str, ...] = ()  #: counters that begin at 0 again
    forgets: tuple[str, ...] = ()  #: fields that are absent afterwards
    raises_fence: bool = False  #: makes earlier reads and claims invalid
    wakes_hosts: bool = False  #: make the hosts of a spider's pages ready for the tasks
    ends_leases: bool = False  #: applies to expired leases; `quarantine_fence` becomes at least 0
    for_leased: "BulkChange | None" = None  #: change of leased tasks; None: they stay

    @property
    def parts(self) -> tuple["BulkChange", ...]:
        """The change, and any change of leased tasks: their statuses differ."""
        return (self,) if self.for_leased is None else (self, self.for_leased)


def _bulk(event: Event, **fields: Any) -> BulkChange:
    """Return the bulk change for an event that has only one result in the table."""
    from_statuses = tuple(status for status in Status if (status, event) in TABLE)
    (target_status,) = {
        new_status for status in from_statuses for new_status in TABLE[status, event]
    }
    free_statuses = tuple(status for status in from_statuses if status is not Status.PROCESSING)
    change = BulkChange(event=event, from_statuses=free_statuses, to_status=target_status, **fields)
    if Status.PROCESSING not in from_statuses:
        return change
    leased_change = replace(
        change,
        from_statuses=(Status.PROCESSING,),
        forgets=(*change.forgets, *LOCK),
        # Later writes of the last holder must not match.
        raises_fence=True,
        ends_leases=True,
    )
    return replace(change, for_leased=leased_change)


#: Counters to reset, as if the task was never tried.
_ATTEMPT_COUNTERS = ("retry", "lost")
#: The change of `retry-failed`; for ignored tasks only if `retries` allows it.
RETRY = _bulk(Event.RETRY, resets=_ATTEMPT_COUNTERS, wakes_hosts=True)
#: Tasks that no worker may work on any more.
WITHDRAW = _bulk(Event.WITHDRAW)
#: Tasks to do again, possibly in another stage. A claim based on the old state must fail, hence
#: the new fence. The validators are dropped, because a 304 would leave the page unparsed.
REOPEN = _bulk(
    Event.REOPEN,
    resets=_ATTEMPT_COUNTERS,
    forgets=("visit", "revisit"),
    raises_fence=True,
    wakes_hosts=True,
)
#: Changed pages with these statuses are reopened; ignored pages only for one of the reasons. None:
#: for any reason.
REOPENED_CHANGED: Mapping[Status, frozenset[Reason] | None] = {
    Status.FINISHED: None,
    Status.IGNORED: RETRIED_REASONS,
}
#: Pages to visit again; their items stay until the visit.
REVISIT = _bulk(Event.REVISIT, resets=_ATTEMPT_COUNTERS, raises_fence=True, wakes_hosts=True)
#: Links that were too deep, if the crawl now goes deeper or a shorter path was found.
ADMIT = _bulk(
    Event.ADMIT, from_reason=Reason.REFUSED_DEPTH, resets=_ATTEMPT_COUNTERS, wakes_hosts=True
)
#: Tasks that wait for a given-up host.
GIVE_UP_HOST = _bulk(Event.GIVE_UP_HOST)
#: One claim of many new tasks; the ledger adds the lease, which differs between claims.
CLAIM = _bulk(Event.CLAIM, raises_fence=True)


def too_deep(task: Task) -> Task:
    """Return a new task whose link is deeper than the crawl goes, as an ignored task."""
    assert Status.IGNORED in TABLE[None, Event.ADD]
    return replace(task, status=Status.IGNORED, due=None, reason=Reason.REFUSED_DEPTH)


def claim(
    task: Task, *, token: str, now: datetime, lease: timedelta, max_lost: int
) -> Change | None:
    """Decide a claim of *task*: it becomes processing.

    If its last worker has crashed while it worked on the task alone, the task is due later
    instead. After *max_lost* such crashes the crawl gives it up. Returns None if the task cannot
    be claimed at *now*: it is not due, or never will be.
    """
    if task.due is None or task.due > now or task.status in DONE:
        return None
    loss_count = losses(task)
    if loss_count > task.lost:
        return _change_of_lost_task(task, lost=loss_count, now=now, is_last=loss_count >= max_lost)
    event = Event.TAKE_OVER if task.status is Status.PROCESSING else Event.CLAIM
    return Change(
        event=event,
        status=_ONLY_RESULT[task.status, event],
        due=now + lease,
        update_time=now,
        lock=token,
        lock_time=now,
        fence=task.fence + 1,
        settled=task.settled,
        retry=task.retry,
        lost=loss_count,
        quarantine_fence=_quarantine_fence(task),
        reason=task.reason,
    )


def losses(task: Task) -> int:
    """Return the number of workers that count as lost on *task* when it is claimed next.

    A worker counts only if it had begun to work on the task alone, see `Leases.begin`. Otherwise
    another task may have crashed the worker while *task* waited in its queue, or ran at the same
    time.
    """
    return task.lost + (task.status is Status.PROCESSING and task.quarantine_fence == task.fence)


def began_alone(lease: Lease) -> bool:
    """Return whether the worker has begun with a lease alone, for leases of `Leases.leases_of`."""
    return lease.task.quarantine_fence == lease.fence


def is_quarantined(task: Task) -> bool:
    """Return whether a worker must work on *task* alone; *task* is its state before the claim.

    This begins when two workers in a row were lost while they had a lease on it, and ends when it
    is finished. A single lost worker proves nothing: it may have been killed, with hundreds of
    leases.
    """
    return bool(task.quarantine_fence) or (
        task.quarantine_fence is not None and task.status is Status.PROCESSING
    )


def _quarantine_fence(task: Task) -> int | None:
    """Return the `quarantine_fence` of a claimed *task*: 0 after the first lost worker."""
    lost_before = task.quarantine_fence is not None or task.status is Status.PROCESSING
    return task.quarantine_fence or 0 if lost_before else None


def _change_of_lost_task(task: Task, *, lost: int, now: datetime, is_last: bool) -> Change:
    """Return the change of a task that is not claimed, because it has crashed another worker."""
    rest = backoff(lost, base=_FIRST_REST, ceiling=_LONGEST_REST)
    if is_last:
        status = _ONLY_RESULT[task.status, Event.ABANDON]
        message = f"{lost} workers crashed while they ran it alone, "
        message += f"the last one was {task.lock}"
    else:
        status = _waiting_status(task)
        assert status in TABLE[Status.PROCESSING, Event.LOSE]
        message = f"{task.lock} crashed while it ran it alone"
    attempt = task.retry + lost
    error = AttemptError(time=now, kind=Reason.CRASHED_WORKER, message=message, attempt=attempt)
    return Change(
        event=Event.ABANDON if is_last else Event.LOSE,
        status=status,
        due=None if is_last else now + rest,
        update_time=now,
        # Raise the fence as for a claim, because later writes of the last holder must not match.
        fence=task.fence + 1,
        settled=task.settled,
        retry=task.retry,
        lost=lost,
        quarantine_fence=_quarantine_fence(task),
        reason=Reason.CRASHED_WORKER if is_last else task.reason,
        error=error,
    )


def settle(
    lease: Lease, outcome: Outcome, *, now: datetime, policy: RetryPolicy, chance: float
) -> Settlement:
    """Decide the change of the task for *outcome*; *chance* in [0, 1) is the backoff's jitter."""
    match outcome:
        case Moved():
            change = replace(
                _change_of_finished_page(lease, outcome, now=now), reason=Reason.REDIRECT
            )
        case Unchanged():
            status = _ONLY_RESULT[Status.PROCESSING, Event.CONFIRM]
            finished = _change_of_finished_page(lease, outcome, now=now)
            change = replace(finished, event=Event.CONFIRM, status=status, items=None)
        case Succeeded():
            change = _change_of_finished_page(lease, outcome, now=now)
        case Failed():
            change = _change_of_failed_attempt(
                lease, outcome, now=now, policy=policy, chance=chance
            )
        case Advanced():
            change = _advanced(lease, outcome, now=now)
        case _:
            assert_never(outcome)
    return Settlement(lease=lease, change=change)


def _change_of_finished_page(lease: Lease, outcome: Succeeded, *, now: datetime) -> Change:
    return Change(
        event=Event.FINISH,
        status=_ONLY_RESULT[Status.PROCESSING, Event.FINISH],
        update_time=now,
        fence=lease.fence,
        settled=lease.fence,
        retry=lease.task.retry,
        lost=losses(lease.task),
        # `quarantine_fence` becomes None, because the worker survived this task: another task
        # caused any earlier crash.
        response=outcome.response,
        items=outcome.items,
        visit=outcome.visit,
        revisit=outcome.revisit,
        kept_versions=outcome.kept_versions,
        stored=outcome.stored,
        progress=outcome.progress,
        trace=_trace(lease, outcome, Event.FINISH, now=now) if outcome.progress else None,
    )


def _advanced(lease: Lease, outcome: Advanced, *, now: datetime) -> Change:
    # Each stage counts its attempts from 0.
    return Change(
        event=Event.ADVANCE,
        status=_ONLY_RESULT[Status.PROCESSING, Event.ADVANCE],
        due=now + outcome.delay,
        update_time=now,
        fence=lease.fence,
        settled=lease.fence,
        progress=outcome.progress,
        trace=_trace(lease, outcome, Event.ADVANCE, now=now),
        next=outcome,
    )


def _trace(
    lease: Lease, outcome: Succeeded | Failed | Advanced, event: Event, *, now: datetime
) -> AttemptRecord:
    progress = outcome.progress
    assert progress is not None
    return AttemptRecord(
        fence=lease.fence,
        stage=progress.stage or lease.task.callback,
        worker=progress.worker,
        started_at=progress.started_at,
        ended_at=now,
        event=event,
    )


def _change_of_failed_attempt(
    lease: Lease, outcome: Failed, *, now: datetime, policy: RetryPolicy, chance: float
) -> Change:
    failure = outcome.reason in FAILURE_REASONS
    attempt = lease.task.retry + 1
    tries_again = not outcome.last and policy.tries_again(
        outcome.reason, attempt=attempt, status=outcome.status
    )
    event = Event.FAIL if tries_again else Event.GIVE_UP
    retry_delay = policy.wait(attempt, chance=chance, retry_after=outcome.retry_after)
    return Change(
        event=event,
        status=_ONLY_RESULT[Status.PROCESSING, event],
        due=now + retry_delay if tries_again else None,
        update_time=now,
        fence=lease.fence,
        settled=lease.fence,
        # An unwanted task is not a failed attempt.
        retry=min(attempt, policy.max_retry) if failure and outcome.tried else lease.task.retry,
        lost=losses(lease.task),
        quarantine_fence=_quarantine_fence(lease.task),
        reason=outcome.reason,
        error=AttemptError(
            time=now,
            kind=outcome.reason,
            message=printable(outcome.message, limit=_MESSAGE_LIMIT),
            attempt=attempt,
            traceback=printable_block(outcome.traceback) if outcome.traceback else None,
        ),
        kept_errors=policy.kept_errors,
        response=outcome.response,
        revisit=None if tries_again else outcome.revisit,
        stored=outcome.stored,
        progress=outcome.progress,
        trace=_trace(lease, outcome, event, now=now) if outcome.progress else None,
    )


def release(lease: Lease, *, now: datetime) -> Settlement:
    """Return the task to its former status: keep its `due` and count no attempt.

    `deferred_lease` may have set a later `due` in the lease's task.
    """
    task = lease.task
    status, due = task.status, task.due
    if status is Status.PROCESSING:
        # This claim took the task over, so its status before the earlier claim is not known.
        status = _waiting_status(task)
        due = now if due is None else max(now, due)
    assert status in TABLE[Status.PROCESSING, Event.RELEASE]
    change = Change(
        event=Event.RELEASE,
        status=status,
        due=due,
        update_time=now,
        fence=lease.fence,
        settled=task.settled,
        retry=task.retry,
        lost=losses(lease.task),
        # A quarantined task stays quarantined, although this worker has not begun with it.
        quarantine_fence=lease.fence if is_quarantined(task) else _quarantine_fence(task),
        reason=task.reason,
    )
    return Settlement(lease=lease, change=change)


def reparse(
    task: Task,
    *,
    response: ResponseInfo | None,
    items: tuple[Mapping[str, Any], ...],
    now: datetime,
    kept_versions: int = 0,
) -> Settlement | None:
    """Decide the new *items* of a page after its stored body was parsed again.

    *response* is the stored response. Returns None if the task is open or leased. The lease of
    the settlement has no owner: the change applies if the task still has its status and fence.
    """
    if (task.status, Event.REPARSE) not in TABLE:
        return None
    # If the status stays, keep the time: the page was not visited, and `recrawl` uses the time.
    update_time = task.update_time if task.status is Status.FINISHED else now
    fetched = task.update_time if task.visit is None else task.visit.changed
    change = Change(
        event=Event.REPARSE,
        status=_ONLY_RESULT[task.status, Event.REPARSE],
        update_time=update_time,
        # Raise the fence as for a claim: the items' blobs have it, and no other outcome matches
        # now.
        fence=task.fence + 1,
        settled=task.fence + 1,
        retry=task.retry,
        lost=task.lost,
        response=response,
        items=items,
        visit=task.visit or Visit(time=fetched, changed=fetched),
        revisit=task.revisit,
        kept_versions=kept_versions,
        fetched=fetched,
    )
    unheld_lease = Lease(task=task, token="", fence=change.fence, expires=now)
    return Settlement(lease=unheld_lease, change=change)


def deferred_lease(lease: Lease, *, due: datetime) -> Lease:
    """Return *lease* changed so that its release makes the task due at *until*."""
    return replace(lease, task=replace(lease.task, due=due))


def ended_since(task: Task, moment: datetime | None) -> bool:
    """Return whether the lease of a task ends, or has ended, at *moment* or later.

    If the task is already due, its lease has expired since *moment*. With None the result is
    False.
    """
    if moment is None or task.due is None:
        return False
    return task.status is Status.PROCESSING and task.due >= moment


def lease_of(task: Task) -> Lease:
    """Return the lease of a leased task, in the same form as its holder has it.

    The ledger does not store the status before the claim, so this function derives the status that
    `release` must restore, due since the claim.
    """
    assert task.lock is not None
    assert task.due is not None
    former_status, fence = _waiting_status(task), task.fence - 1
    unclaimed_task = replace(
        task, status=former_status, due=task.lock_time, lock=None, lock_time=None, fence=fence
    )
    return Lease(task=unclaimed_task, token=task.lock, fence=task.fence, expires=task.due)


def _waiting_status(task: Task) -> Status:
    return Status.FAILED if task.retry else Status.TODO


def rejected(settlement: Settlement, *, reason: Reason, message: str) -> Settlement:
    """Decide an outcome that the store cannot hold: only this task fails, without a retry."""
    lease, change = settlement.lease, settlement.change
    failure = Failed(reason=reason, message=message, stored=change.stored, last=True)
    failed_change = _change_of_failed_attempt(
        lease, failure, now=change.update_time, policy=RetryPolicy(), chance=0.0
    )
    final_change = replace(
        failed_change,
        retry=change.retry,
        lost=change.lost,
        quarantine_fence=change.quarantine_fence,
    )
    return Settlement(lease=lease, change=final_change)


def retries(status: Status, reason: Reason | None) -> bool:
    """Return whether `retry-failed` brings back a task of this *status* and *reason*."""
    if status not in RETRY.from_statuses:
        return False
    return status is Status.FAILED or reason in RETRIED_REASONS
