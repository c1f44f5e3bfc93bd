"""Define the events of a task, and the task's status after each event.

`TABLE` contains every possible change of a task's status. The functions of this file decide the
changes, and the ledgers only apply them. The diagram in the manual is generated from `TABLE`.

A `Change` has the new fields of a task. This module computes a change from a task's status and
fence. A ledger applies the change only if the task still has this status and this fence.
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

#: The number of last claims that a tracked task's trace keeps.
KEPT_TRACE = 20
_MESSAGE_LIMIT = 500
#: The shortest and the longest wait of a task after it crashed a worker. The wait doubles with each
#: crash. During the wait other tasks run, and a temporary problem that caused the crash may end.
_FIRST_REST = timedelta(seconds=1)
_LONGEST_REST = timedelta(minutes=5)


class Event(StrEnum):
    """An event of a task, which may change the task's status."""

    ADD = "add"
    CLAIM = "claim"
    TAKE_OVER = "take over"  #: a worker claims the task after another worker's lease expired
    LOSE = "lose"  #: the worker crashed while it ran only this task
    ABANDON = "abandon"  #: workers crashed `max_lost` times, so the crawl gives up the task
    FINISH = "finish"
    CONFIRM = "confirm"  #: visited again, and unchanged
    FAIL = "fail"  #: another attempt follows
    GIVE_UP = "give up"  #: no attempt follows, because the task failed or is unwanted
    RELEASE = "release"
    GIVE_UP_HOST = "give up host"  #: the crawl gave up the task's host
    RETRY = "retry-failed"
    ADVANCE = "advance"  #: the next stage begins
    WITHDRAW = "withdraw"  #: the user withdraws the task from the workers
    REOPEN = "reopen"  #: the task must be done again, possibly in another stage
    REVISIT = "revisit"  #: the page must be visited again; it keeps its results until the visit
    REPARSE = "reparse"  #: the page's stored body was parsed again
    ADMIT = "admit"  #: a link that was too deep is now within the limit


#: Maps a status and an event to the possible next statuses. Events without an entry cannot occur.
TABLE: Mapping[tuple[Status | None, Event], tuple[Status, ...]] = {
    # A link that is too deep becomes an ignored task, because a later crawl may go deeper.
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
    # The release of a task restores the status that the task had before the claim.
    (Status.PROCESSING, Event.RELEASE): WAITING,
    (Status.TODO, Event.GIVE_UP_HOST): (Status.IGNORED,),
    (Status.FAILED, Event.GIVE_UP_HOST): (Status.IGNORED,),
    (Status.FAILED, Event.RETRY): (Status.TODO,),
    (Status.IGNORED, Event.RETRY): (Status.TODO,),
    (Status.PROCESSING, Event.ADVANCE): (Status.TODO,),
    (Status.TODO, Event.WITHDRAW): (Status.IGNORED,),
    (Status.FAILED, Event.WITHDRAW): (Status.IGNORED,),
    # `withdraw` changes a leased task only after the lease has expired.
    (Status.PROCESSING, Event.WITHDRAW): (Status.IGNORED,),
    (Status.TODO, Event.REOPEN): (Status.TODO,),
    (Status.FAILED, Event.REOPEN): (Status.TODO,),
    (Status.FINISHED, Event.REOPEN): (Status.TODO,),
    (Status.IGNORED, Event.REOPEN): (Status.TODO,),
    (Status.PROCESSING, Event.REOPEN): (Status.TODO,),
    (Status.IGNORED, Event.ADMIT): (Status.TODO,),
    (Status.FINISHED, Event.REVISIT): (Status.TODO,),
    # An ignored task may be visited again if it was a good page earlier.
    (Status.IGNORED, Event.REVISIT): (Status.TODO,),
    (Status.FINISHED, Event.REPARSE): (Status.FINISHED,),
    # The page is ignored because its callback failed. A `reparse` without an error finishes the
    # page.
    (Status.IGNORED, Event.REPARSE): (Status.FINISHED,),
}
#: Maps a status and an event to the next status, if only one next status is possible.
_ONLY_RESULT = {pair: after[0] for pair, after in TABLE.items() if len(after) == 1}

#: The fields of a task that have a value only while a worker leases the task.
LOCK = ("lock", "lock_time")

#: The reasons of ignored tasks that `retry-failed` tries again.
RETRIED_REASONS = FAILURE_REASONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The data that one attempt at a tracked task adds to the task."""

    worker: str  #: name of the worker that had the lease
    started_at: datetime
    stage: str | None = None  #: stage of the attempt; if None, the task's `callback` is the stage
    data: Mapping[str, Any] | BlobRef | None = None  #: None: unchanged
    results: Mapping[str, Any] = field(default_factory=dict)  #: new results by stage


@page_value(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The outcome of a page that was fetched and whose callback ended without an error."""

    response: ResponseInfo | None = None
    items: tuple[Mapping[str, Any], ...] = ()
    visit: Visit | None = None  #: the visit of the page
    revisit: datetime | None = None  #: time of the next visit, if any
    kept_versions: int = 0  #: number of the latest visits whose items the ledger keeps
    stored: StoredPage | None = None  #: position of the stored body, if any
    progress: Progress | None = None


@page_value(frozen=True, slots=True, kw_only=True)
class Moved(Succeeded):
    """The outcome of a redirect to a URL that has its own task; that other task stores the page."""


@page_value(frozen=True, slots=True, kw_only=True)
class Unchanged(Succeeded):
    """The outcome of a visit that found the page unchanged; the ledger keeps the old items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The outcome of a failed attempt, or of a task that turned out to be unwanted."""

    reason: Reason
    message: str = ""
    traceback: str | None = None
    status: int | None = None  #: HTTP status that caused the failure
    retry_after: float | None = None  #: seconds
    response: ResponseInfo | None = None
    progress: Progress | None = None
    last: bool = False  #: whether no attempt may follow, even if the policy allows one
    tried: bool = True  #: whether a request was sent; if not, the attempt does not count
    revisit: datetime | None = None  #: time of the next visit, if the page was ever finished
    stored: StoredPage | None = None  #: position of the failed page's stored body


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """The outcome of a tracked task whose stage is done and whose next stage follows."""

    stage: str
    progress: Progress
    context: Mapping[str, Any] | BlobRef | None = None  #: context for the next stage
    delay: timedelta = timedelta(0)  #: wait before the next stage is due


Outcome = Succeeded | Failed | Advanced


@page_value(frozen=True, slots=True, kw_only=True)
class Change:
    """The new fields of a task after an event."""

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
    error: AttemptError | None = None  #: error to add to the task's `errors`
    kept_errors: int = KEPT_ERRORS  #: number of last errors to keep
    response: ResponseInfo | None = None  #: None: unchanged
    items: tuple[Mapping[str, Any], ...] | None = None  #: None: unchanged
    visit: Visit | None = None  #: None: unchanged
    revisit: datetime | None = None  #: time of the next visit of a done task
    kept_versions: int = 0  #: number of the latest visits whose items the ledger keeps
    stored: StoredPage | None = None  #: None: unchanged
    fetched: datetime | None = None  #: fetch time of the items; None means the `update_time`
    progress: Progress | None = None  #: new data and results of a tracked task
    trace: AttemptRecord | None = None  #: entry to add to the task's `trace`
    next: Advanced | None = None  #: new stage and context; None: unchanged


@page_value(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A lease, and the change with which the ledger updates the task and ends the lease."""

    lease: Lease
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChange:
    """One change for many tasks.

    A ledger applies a bulk change in batches, to tasks with a status in `from_statuses`. The ledger
    sets `update_time` of each changed task. A task that becomes `todo` is due now and has no
    reason. A task that becomes ignored is never due, and gets the reason that the ledger's caller
    passes.
    """

    event: Event
    from_statuses: tuple[Status, ...]  #: statuses of the tasks to change
    to_status: Status
    from_reason: Reason | None = None  #: reason of the tasks to change; None: any reason
    resets: tuple[str, ...] = ()  #: names of counters to set to 0
    forgets: tuple[str, ...] = ()  #: names of fields to delete
    raises_fence: bool = False  #: whether earlier reads and claims of the task become invalid
    wakes_hosts: bool = False  #: whether to note that the tasks' hosts have due tasks
    ends_leases: bool = False  #: whether the change ends expired leases of its tasks
    for_leased: "BulkChange | None" = None  #: change of leased tasks; None: no change

    @property
    def parts(self) -> tuple["BulkChange", ...]:
        """The bulk change itself, and then the change `for_leased` if `for_leased` is not None."""
        return (self,) if self.for_leased is None else (self, self.for_leased)


def _bulk(event: Event, **fields: Any) -> BulkChange:
    """Return the bulk change for *event*; `TABLE` has only one next status for this event."""
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
        # Raise the fence, so that the last lease holder cannot write any more.
        raises_fence=True,
        ends_leases=True,
    )
    return replace(change, for_leased=leased_change)


#: The counters that become 0, so that a task counts its attempts and crashes from the beginning.
_ATTEMPT_COUNTERS = ("retry", "lost")
#: The change that `retry-failed` makes; it changes only tasks for which `retries` returns True.
RETRY = _bulk(Event.RETRY, resets=_ATTEMPT_COUNTERS, wakes_hosts=True)
#: The change of waiting tasks that the user withdraws from the workers.
WITHDRAW = _bulk(Event.WITHDRAW)
#: The change of tasks to do again, possibly in another stage. The change raises the fence, so that
#: a worker that read the task before the change cannot claim it. The change drops the page's ETag
#: and Last-Modified, because after a 304 no page is parsed.
REOPEN = _bulk(
    Event.REOPEN,
    resets=_ATTEMPT_COUNTERS,
    forgets=("visit", "revisit"),
    raises_fence=True,
    wakes_hosts=True,
)
#: Maps each status from which a changed page becomes `todo` to the reasons that the task may have.
#: None means any reason.
REOPENED_CHANGED: Mapping[Status, frozenset[Reason] | None] = {
    Status.FINISHED: None,
    Status.IGNORED: RETRIED_REASONS,
}
#: The change that makes pages due for another visit. A page keeps its items until this visit.
REVISIT = _bulk(Event.REVISIT, resets=_ATTEMPT_COUNTERS, raises_fence=True, wakes_hosts=True)
#: The change of links that were too deep, if a deeper crawl or a shorter path now admits them.
ADMIT = _bulk(
    Event.ADMIT, from_reason=Reason.REFUSED_DEPTH, resets=_ATTEMPT_COUNTERS, wakes_hosts=True
)
#: The change of waiting tasks after the crawl has given up their host.
GIVE_UP_HOST = _bulk(Event.GIVE_UP_HOST)
#: The change that claims many new tasks. The ledger adds the fields of the leases to the change.
CLAIM = _bulk(Event.CLAIM, raises_fence=True)


def too_deep(task: Task) -> Task:
    """Return a new task as ignored, because its link is deeper than the crawl goes."""
    assert Status.IGNORED in TABLE[None, Event.ADD]
    return replace(task, status=Status.IGNORED, due=None, reason=Reason.REFUSED_DEPTH)


def claim(
    task: Task, *, token: str, now: datetime, lease: timedelta, max_lost: int
) -> Change | None:
    """Return the change with which a worker claims *task*; None if it is not due at *now*.

    If the last worker crashed while it ran only this task, the change postpones the task instead.
    After *max_lost* such crashes, the change gives up the task instead.
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
    """Return how many workers crashed while they ran only *task*, including the last holder.

    A crashed worker counts only if it ran *task* alone, because otherwise another task may have
    crashed the worker. See `Leases.begin`.
    """
    return task.lost + (task.status is Status.PROCESSING and task.quarantine_fence == task.fence)


def began_alone(lease: Lease) -> bool:
    """Return whether a worker runs only *lease*'s task; *lease* must be from `Leases.leases_of`."""
    return lease.task.quarantine_fence == lease.fence


def is_quarantined(task: Task) -> bool:
    """Return whether a worker must run *task* alone; pass the task as it was before the claim.

    The quarantine of a task begins after two workers in a row crashed with a lease of the task, and
    ends when the task is finished. After one crash the cause is unknown, because the worker may
    have had hundreds of other tasks, or the system may have killed the worker.
    """
    return bool(task.quarantine_fence) or (
        task.quarantine_fence is not None and task.status is Status.PROCESSING
    )


def _quarantine_fence(task: Task) -> int | None:
    """Return the `quarantine_fence` that *task* gets by a claim, see `Task.quarantine_fence`."""
    lost_before = task.quarantine_fence is not None or task.status is Status.PROCESSING
    return task.quarantine_fence or 0 if lost_before else None


def _change_of_lost_task(task: Task, *, lost: int, now: datetime, is_last: bool) -> Change:
    """Return the change that postpones or gives up *task*, because the task crashed a worker."""
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
        # Raise the fence, so that the last lease holder cannot write any more.
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
    """Return the settlement for *outcome*; *chance* in [0, 1) varies the wait before a retry."""
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
        # `quarantine_fence` becomes None, because the worker survived this task, so another task
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
    # `retry` and `lost` are 0 in the change, because each stage counts its attempts from 0.
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
        # An unwanted task does not count as a failed attempt.
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
    """Return the change that ends *lease*, restores the status and `due`, and counts no attempt.

    `deferred_lease` may have set a later `due` in the lease's task.
    """
    task = lease.task
    status, due = task.status, task.due
    if status is Status.PROCESSING:
        # The claim took over an expired lease. Restore the status before that lease.
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
        # A quarantined task stays quarantined, although this worker has not run the task.
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
    """Return the change that stores *items*, the result of parsing a stored page again.

    Returns None if the task is neither finished nor ignored. *response* is the stored response. No
    worker leases the task, so the ledger compares no token, but only the task's status and its
    fence.
    """
    if (task.status, Event.REPARSE) not in TABLE:
        return None
    # Keep the `update_time` of a finished page, because `recrawl` reads it as the last visit.
    update_time = task.update_time if task.status is Status.FINISHED else now
    fetched = task.update_time if task.visit is None else task.visit.changed
    change = Change(
        event=Event.REPARSE,
        status=_ONLY_RESULT[task.status, Event.REPARSE],
        update_time=update_time,
        # Raise the fence, so that the ledger refuses an outcome computed from the old fence.
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
    """Return a copy of *lease*; a release of the copy makes the task due at *due*."""
    return replace(lease, task=replace(lease.task, due=due))


def ended_since(task: Task, moment: datetime | None) -> bool:
    """Return whether *task* has a lease whose end is at *moment* or later.

    An expired lease is a lease. The result is False if *moment* is None, or if *task* has no lease.
    """
    if moment is None or task.due is None:
        return False
    return task.status is Status.PROCESSING and task.due >= moment


def lease_of(task: Task) -> Lease:
    """Return the lease of *task*, equal to the lease that the worker got by its claim.

    `release` must restore the status and the `due` that the task had before the claim. The ledger
    does not store these two former values, so this function derives them.
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
    """Return a settlement that fails the task for ever, because the store refused the outcome."""
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
    """Return whether `retry-failed` tries a task of this *status* and *reason* again."""
    if status not in RETRY.from_statuses:
        return False
    return status is Status.FAILED or reason in RETRIED_REASONS
