"""Transitions: the events of a task, and its status after each.

Everything that changes a task's status lives in this file, as a table; the
ledgers apply the decisions made here and decide nothing themselves. The diagram in
the manual is drawn from the table.

A `Change` has the task's new fields. It is applied where the task still is what
the decision was made on (its id, status and fence), else it is not applied.
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

#: The number of claims of a tracked task that are remembered.
KEPT_TRACE = 20
_MESSAGE_LIMIT = 500
#: After a crash beside nothing else a task waits, doubling: whatever crashed the
#: worker by chance is over by then, and all other tasks have had their turn.
_FIRST_REST = timedelta(seconds=1)
_LONGEST_REST = timedelta(minutes=5)


class Event(StrEnum):
    """What can happen to a task."""

    ADD = "add"
    CLAIM = "claim"
    TAKE_OVER = "take over"  #: claimed from a holder whose lease ran out
    LOSE = "lose"  #: its holder crashed while it worked on it alone: it comes back later
    ABANDON = "abandon"  #: that has happened for the last time allowed
    FINISH = "finish"
    CONFIRM = "confirm"  #: visited again, and found unchanged
    FAIL = "fail"  #: will be tried again
    GIVE_UP = "give up"  #: failed for good, or unwanted
    RELEASE = "release"
    GIVE_UP_HOST = "give up host"  #: its host is asked no more
    RETRY = "retry-failed"
    ADVANCE = "advance"  #: on to the next stage
    WITHDRAW = "withdraw"  #: no worker is to work on it any more
    REOPEN = "reopen"  #: once more, or in another stage
    REVISIT = "revisit"  #: to be visited again, its results kept until then
    REPARSE = "reparse"  #: its stored body was parsed anew
    ADMIT = "admit"  #: refused for depth before, and within the limit now


#: status x event -> the possible statuses after it. No other event can happen.
TABLE: Mapping[tuple[Status | None, Event], tuple[Status, ...]] = {
    # A link that lies too deep is kept, for a crawl that goes deeper.
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
    # Back to its status before the claim.
    (Status.PROCESSING, Event.RELEASE): WAITING,
    (Status.TODO, Event.GIVE_UP_HOST): (Status.IGNORED,),
    (Status.FAILED, Event.GIVE_UP_HOST): (Status.IGNORED,),
    (Status.FAILED, Event.RETRY): (Status.TODO,),
    (Status.IGNORED, Event.RETRY): (Status.TODO,),
    (Status.PROCESSING, Event.ADVANCE): (Status.TODO,),
    (Status.TODO, Event.WITHDRAW): (Status.IGNORED,),
    (Status.FAILED, Event.WITHDRAW): (Status.IGNORED,),
    # Its holder's lease has run out.
    (Status.PROCESSING, Event.WITHDRAW): (Status.IGNORED,),
    (Status.TODO, Event.REOPEN): (Status.TODO,),
    (Status.FAILED, Event.REOPEN): (Status.TODO,),
    (Status.FINISHED, Event.REOPEN): (Status.TODO,),
    (Status.IGNORED, Event.REOPEN): (Status.TODO,),
    (Status.PROCESSING, Event.REOPEN): (Status.TODO,),  # as for a withdrawal
    (Status.IGNORED, Event.ADMIT): (Status.TODO,),
    (Status.FINISHED, Event.REVISIT): (Status.TODO,),
    # It was a page once, and may be one again.
    (Status.IGNORED, Event.REVISIT): (Status.TODO,),
    (Status.FINISHED, Event.REPARSE): (Status.FINISHED,),
    # Its callback had raised, for example.
    (Status.IGNORED, Event.REPARSE): (Status.FINISHED,),
}
#: The status after an event that leads to one only.
_AFTER = {pair: after[0] for pair, after in TABLE.items() if len(after) == 1}

#: The fields of a task while it is held, and not afterwards.
LOCK = ("lock", "lock_time")

#: `retry-failed` brings back ignored tasks with these reasons, and no others.
RETRIED_REASONS = FAILURE_REASONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What an attempt at a tracked task leaves in it."""

    worker: str  #: who held it, for the trace
    started_at: datetime
    stage: str | None = None  #: which one it was, for the trace; None: the task's
    data: Mapping[str, Any] | BlobRef | None = None  #: None: unchanged
    results: Mapping[str, Any] = field(default_factory=dict)  #: by stage; added to those there


@page_value(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The page was fetched and its callback ran to the end."""

    response: ResponseInfo | None = None
    items: tuple[Mapping[str, Any], ...] = ()
    visit: Visit | None = None  #: of a crawl's page
    revisit: datetime | None = None  #: when to visit it again, if ever
    kept_versions: int = 0  #: number of visits whose items are kept, this one's included
    stored: StoredPage | None = None  #: where its body is kept, if it is
    progress: Progress | None = None


@page_value(frozen=True, slots=True, kw_only=True)
class Moved(Succeeded):
    """The page is another task's: the response, with that task's URL, led there and was empty."""


@page_value(frozen=True, slots=True, kw_only=True)
class Unchanged(Succeeded):
    """The page was visited again and is unchanged: its response and items stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt came to nothing, or the task turned out to be unwanted."""

    reason: Reason
    message: str = ""
    traceback: str | None = None
    status: int | None = None  #: of the HTTP answer, where that is the failure
    retry_after: float | None = None  #: seconds
    response: ResponseInfo | None = None
    progress: Progress | None = None
    last: bool = False  #: whether no other attempt is wanted, whatever the policy says
    tried: bool = True  #: whether anything was asked for: else it is no attempt
    revisit: datetime | None = None  #: of a page that was finished once: when it is asked for again
    stored: StoredPage | None = None  #: the place of the body of a failed page


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """A stage of a tracked task is done, and the next one is to be."""

    stage: str
    progress: Progress
    context: Mapping[str, Any] | BlobRef | None = None  #: the next stage's, whatever was there
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
    kept_errors: int = KEPT_ERRORS  #: the most of them that are kept
    response: ResponseInfo | None = None  #: None: unchanged
    items: tuple[Mapping[str, Any], ...] | None = None  #: None: unchanged
    visit: Visit | None = None  #: None: unchanged
    revisit: datetime | None = None  #: of a task that is done; else unchanged
    kept_versions: int = 0  #: the most visits whose items are kept
    stored: StoredPage | None = None  #: None: unchanged
    fetched: datetime | None = None  #: when the page of the items was fetched; None: just now
    progress: Progress | None = None  #: its data and results, where there are some
    trace: AttemptRecord | None = None  #: added to the trace; the last `KEPT_TRACE` are kept
    next: Advanced | None = None  #: to its stage and context; None keeps those there


@page_value(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A lease and what its task becomes at its end."""

    lease: Lease
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChange:
    """What many tasks become at once, decided for all of them alike.

    A ledger applies it to those that still have one of the statuses named, a batch
    at a time. Each gets `update_time`. What becomes `todo` is due now and has no
    reason; what becomes ignored is never due and gets the reason that is given.
    """

    event: Event
    from_statuses: tuple[Status, ...]  #: only those that have one of these
    to: Status
    from_reason: Reason | None = None  #: only those that are so for this reason; None: for any
    resets: tuple[str, ...] = ()  #: counters that begin at 0 again
    forgets: tuple[str, ...] = ()  #: fields that are absent afterwards
    raises_fence: bool = False  #: no page or claim that was read before fits afterwards
    wakes_hosts: bool = False  #: the hosts of a spider's pages are to be ready for them
    ends_leases: bool = False  #: only of leases that ran out; `quarantine_fence` is at least 0 then
    of_held: "BulkChange | None" = None  #: the same of tasks that are held; None: they are left

    @property
    def parts(self) -> tuple["BulkChange", ...]:
        """The change, and that of held tasks if there is one: each has other statuses."""
        return (self,) if self.of_held is None else (self, self.of_held)


def _bulk(event: Event, **fields: Any) -> BulkChange:
    """Return the bulk change that the table has for an event: whatever it is, it becomes one."""
    from_statuses = tuple(status for status in Status if (status, event) in TABLE)
    (to,) = {after for status in from_statuses for after in TABLE[status, event]}
    free = tuple(status for status in from_statuses if status is not Status.PROCESSING)
    change = BulkChange(event=event, from_statuses=free, to=to, **fields)
    if Status.PROCESSING not in from_statuses:
        return change
    held = replace(
        change,
        from_statuses=(Status.PROCESSING,),
        forgets=(*change.forgets, *LOCK),
        # Whatever the last holder still sends must not match.
        raises_fence=True,
        ends_leases=True,
    )
    return replace(change, of_held=held)


#: As if it was never tried.
_TRIED = ("retry", "lost")
#: What `retry-failed` does; of ignored tasks only to those that `retries` names.
RETRY = _bulk(Event.RETRY, resets=_TRIED, wakes_hosts=True)
#: Tasks that no worker is to work on any more.
WITHDRAW = _bulk(Event.WITHDRAW)
#: Once more, or in another stage: a task as it was read before must not be claimed.
#: Without the validators of the last visit: the page is to be parsed.
REOPEN = _bulk(
    Event.REOPEN, resets=_TRIED, forgets=("visit", "revisit"), raises_fence=True, wakes_hosts=True
)
#: Of which pages that have changed are reopened: by status, those ignored for one of the
#: reasons; None: whatever the reason.
REOPENED_CHANGED: Mapping[Status, frozenset[Reason] | None] = {
    Status.FINISHED: None,
    Status.IGNORED: RETRIED_REASONS,
}
#: Pages that are to be visited again; their items stay until they were.
REVISIT = _bulk(Event.REVISIT, resets=_TRIED, raises_fence=True, wakes_hosts=True)
#: Links that were refused for depth, where the crawl goes deeper or a shorter way was found.
ADMIT = _bulk(Event.ADMIT, from_reason=Reason.REFUSED_DEPTH, resets=_TRIED, wakes_hosts=True)
#: Tasks that wait for a host that is asked no more.
GIVE_UP_HOST = _bulk(Event.GIVE_UP_HOST)
#: A claim of many fresh tasks at once; the lease, which is each claim's own, comes with it.
CLAIM = _bulk(Event.CLAIM, raises_fence=True)


def too_deep(task: Task) -> Task:
    """Return a new task as it is kept where its link lies deeper than the crawl goes."""
    assert Status.IGNORED in TABLE[None, Event.ADD]
    return replace(task, status=Status.IGNORED, due=None, reason=Reason.REFUSED_DEPTH)


def claim(
    task: Task, *, token: str, now: datetime, lease: timedelta, max_lost: int
) -> Change | None:
    """Decide a claim of *task*: it becomes processing.

    Where its holder has crashed while it worked on it alone, it comes back later
    instead, or is given up if that were *max_lost* times.
    None where it cannot be claimed at *now*: it is not due, or never will be.
    """
    if task.due is None or task.due > now or task.status in DONE:
        return None
    lost = losses(task)
    if lost > task.lost:
        return _lost(task, lost=lost, now=now, is_last=lost >= max_lost)
    event = Event.TAKE_OVER if task.status is Status.PROCESSING else Event.CLAIM
    return Change(
        event=event,
        status=_AFTER[task.status, event],
        due=now + lease,
        update_time=now,
        lock=token,
        lock_time=now,
        fence=task.fence + 1,
        settled=task.settled,
        retry=task.retry,
        lost=lost,
        quarantine_fence=_quarantine_fence(task),
        reason=task.reason,
    )


def losses(task: Task) -> int:
    """Return how many leases count as lost on *task* as soon as it is claimed.

    One counts only where its holder had begun with the task alone, see
    `Leases.begin`: else the task waited in the queue of a worker that something
    else has crashed, or was under way beside what did.
    """
    return task.lost + (task.status is Status.PROCESSING and task.quarantine_fence == task.fence)


def is_alone(lease: Lease) -> bool:
    """Return whether the holder of a lease has begun alone, by what `Leases.held` returns."""
    return lease.task.quarantine_fence == lease.fence


def is_quarantined(task: Task) -> bool:
    """Return whether a worker is to work on *task* alone, as it is before it is claimed.

    So it is once two workers in a row were lost that held it, until it is finished. One
    says nothing: it may have been killed, and held hundreds of tasks.
    """
    return bool(task.quarantine_fence) or (
        task.quarantine_fence is not None and task.status is Status.PROCESSING
    )


def _quarantine_fence(task: Task) -> int | None:
    """Return the `quarantine_fence` of a claimed *task*: 0 after the first lost worker."""
    lost_before = task.quarantine_fence is not None or task.status is Status.PROCESSING
    return task.quarantine_fence or 0 if lost_before else None


def _lost(task: Task, *, lost: int, now: datetime, is_last: bool) -> Change:
    """Return the change of a task that is not claimed, for it has cost another worker."""
    rest = backoff(lost, base=_FIRST_REST, ceiling=_LONGEST_REST)
    if is_last:
        status = _AFTER[task.status, Event.ABANDON]
        message = f"{lost} workers were lost while they worked on nothing else, "
        message += f"the last was {task.lock}"
    else:
        status = _waiting(task)
        assert status in TABLE[Status.PROCESSING, Event.LOSE]
        message = f"{task.lock} was lost while it worked on nothing else"
    attempt = task.retry + lost
    error = AttemptError(time=now, kind=Reason.CRASHED_WORKER, message=message, attempt=attempt)
    return Change(
        event=Event.ABANDON if is_last else Event.LOSE,
        status=status,
        due=None if is_last else now + rest,
        update_time=now,
        # As at a claim: whatever the last holder still sends must not match.
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
    """Decide the change of the task by *outcome*. *chance* in [0, 1) is the backoff's jitter."""
    match outcome:
        case Moved():
            change = replace(_finished(lease, outcome, now=now), reason=Reason.REDIRECT)
        case Unchanged():
            status = _AFTER[Status.PROCESSING, Event.CONFIRM]
            found = _finished(lease, outcome, now=now)
            change = replace(found, event=Event.CONFIRM, status=status, items=None)
        case Succeeded():
            change = _finished(lease, outcome, now=now)
        case Failed():
            change = _failed(lease, outcome, now=now, policy=policy, chance=chance)
        case Advanced():
            change = _advanced(lease, outcome, now=now)
        case _:
            assert_never(outcome)
    return Settlement(lease=lease, change=change)


def _finished(lease: Lease, outcome: Succeeded, *, now: datetime) -> Change:
    return Change(
        event=Event.FINISH,
        status=_AFTER[Status.PROCESSING, Event.FINISH],
        update_time=now,
        fence=lease.fence,
        settled=lease.fence,
        retry=lease.task.retry,
        lost=losses(lease.task),
        # A worker has lived through it: the crash was another task's doing, no `quarantine_fence`.
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
    # A stage has attempts of its own.
    return Change(
        event=Event.ADVANCE,
        status=_AFTER[Status.PROCESSING, Event.ADVANCE],
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


def _failed(
    lease: Lease, outcome: Failed, *, now: datetime, policy: RetryPolicy, chance: float
) -> Change:
    failure = outcome.reason in FAILURE_REASONS
    attempt = lease.task.retry + 1
    again = not outcome.last and policy.tries_again(
        outcome.reason, attempt=attempt, status=outcome.status
    )
    event = Event.FAIL if again else Event.GIVE_UP
    wait = policy.wait(attempt, chance=chance, retry_after=outcome.retry_after)
    return Change(
        event=event,
        status=_AFTER[Status.PROCESSING, event],
        due=now + wait if again else None,
        update_time=now,
        fence=lease.fence,
        settled=lease.fence,
        # Being unwanted is not a failed attempt.
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
        revisit=None if again else outcome.revisit,
        stored=outcome.stored,
        progress=outcome.progress,
        trace=_trace(lease, outcome, event, now=now) if outcome.progress else None,
    )


def release(lease: Lease, *, now: datetime) -> Settlement:
    """Decide a return of the task to its former status, its attempts unspent and its place kept.

    A later `due` of the lease's task counts, see `put_off`.
    """
    before = lease.task
    status, due = before.status, before.due
    if status is Status.PROCESSING:
        # It was taken over, and its status before that is not known.
        status = _waiting(before)
        due = now if due is None else max(now, due)
    assert status in TABLE[Status.PROCESSING, Event.RELEASE]
    change = Change(
        event=Event.RELEASE,
        status=status,
        due=due,
        update_time=now,
        fence=lease.fence,
        settled=before.settled,
        retry=before.retry,
        lost=losses(lease.task),
        # A quarantined task stays so, although this holder has not begun with it.
        quarantine_fence=lease.fence if is_quarantined(before) else _quarantine_fence(before),
        reason=before.reason,
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
    """Decide that *items* are those of a page whose stored body was parsed anew.

    *response* is the remembered answer. None if the task is open or leased. The lease of the
    settlement has no owner: the change applies to a task that still has its status and fence.
    """
    if (task.status, Event.REPARSE) not in TABLE:
        return None
    # A page whose status stays was not visited again: `recrawl` goes by that time.
    moment = task.update_time if task.status is Status.FINISHED else now
    fetched = task.update_time if task.visit is None else task.visit.changed
    change = Change(
        event=Event.REPARSE,
        status=_AFTER[task.status, Event.REPARSE],
        update_time=moment,
        # As at a claim: large items lie under it, and no other outcome fits any more.
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
    nobodys = Lease(task=task, token="", fence=change.fence, expires=now)
    return Settlement(lease=nobodys, change=change)


def put_off(lease: Lease, *, until: datetime) -> Lease:
    """Return *lease* such that its release leaves the task due at *until*, its attempts unspent."""
    return replace(lease, task=replace(lease.task, due=until))


def ended_since(task: Task, moment: datetime | None) -> bool:
    """Return whether a task is held by a lease that ends or has ended at *moment* or later.

    Of one that is due already: it ran out since then. None: never.
    """
    if moment is None or task.due is None:
        return False
    return task.status is Status.PROCESSING and task.due >= moment


def lease_of(task: Task) -> Lease:
    """Return the lease of a task that is held, as its holder would have it.

    The task's former status is not written down: it is as `release` is to leave
    it, due since it was claimed.
    """
    assert task.lock is not None
    assert task.due is not None
    former, fence = _waiting(task), task.fence - 1
    before = replace(
        task, status=former, due=task.lock_time, lock=None, lock_time=None, fence=fence
    )
    return Lease(task=before, token=task.lock, fence=task.fence, expires=task.due)


def _waiting(task: Task) -> Status:
    return Status.FAILED if task.retry else Status.TODO


def rejected(settlement: Settlement, *, reason: Reason, message: str) -> Settlement:
    """Decide for an outcome that the store cannot hold: the task alone fails, for good."""
    lease, change = settlement.lease, settlement.change
    failed = Failed(reason=reason, message=message, stored=change.stored, last=True)
    made = _failed(lease, failed, now=change.update_time, policy=RetryPolicy(), chance=0.0)
    kept = replace(
        made, retry=change.retry, lost=change.lost, quarantine_fence=change.quarantine_fence
    )
    return Settlement(lease=lease, change=kept)


def retries(status: Status, reason: Reason | None) -> bool:
    """Return whether `retry-failed` brings back a task of this *status* and *reason*."""
    if status not in RETRY.from_statuses:
        return False
    return status is Status.FAILED or reason in RETRIED_REASONS
