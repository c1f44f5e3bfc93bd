"""The transition table of tasks, and the decisions by it."""

import ast
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crawlcw
from crawlcw.errors import FAILURE_REASONS, POLICY_REASONS, Reason
from crawlcw.model import transitions
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import DONE, WAITING, Lease, Status, Task
from crawlcw.model.transitions import (
    TABLE,
    Advanced,
    BulkChange,
    Change,
    Event,
    Failed,
    Progress,
    Succeeded,
    Unchanged,
    is_quarantined,
    losses,
)
from crawlcw.model.visits import Visit
from tests.support.ledgers import LEASE, START, make_task
from tests.support.state_diagram import diagram

pytestmark = pytest.mark.quick

POLICY = RetryPolicy()
VISIT = Visit(time=START, changed=START, etag='"1"', interval=60.0)
#: A status that SQL sets by its name or number, outside of any condition.
_TARGET = re.compile(r"^(?:(?!\b(?:WHERE|AND|OR|WHEN)\b).)*\bstatus = (?:<Status>|\d)", re.DOTALL)
LEDGERS = Path(crawlcw.__file__).parent / "ledger"
BULK = [each for each in vars(transitions).values() if isinstance(each, BulkChange)]
PARTS = [part for bulk in BULK for part in bulk.parts]
LOCK = ("lock", "lock_time")


def lease_of(**fields) -> Lease:
    task = make_task(**fields)
    return Lease(task=task, token="w:1", fence=task.fence + 1, expires=START + LEASE)


def claim(task: Task, *, now=START, max_lost: int | None = 3) -> Change | None:
    return transitions.claim(task, token="w:1", now=now, lease=LEASE, max_lost=max_lost)


def settle(lease: Lease, outcome, *, policy=POLICY, chance=0.5) -> Change:
    settlement = transitions.settle(lease, outcome, now=START, policy=policy, chance=chance)
    assert settlement.lease is lease
    return settlement.change


def test_every_edge_can_be_reached():
    added = make_task(), transitions.too_deep(make_task())
    reached = {(None, Event.ADD, task.status) for task in added}
    for status in Status:
        for retry, lost, begun in ((0, 0, None), (1, 0, None), (0, 0, 0), (1, 0, 0), (0, 2, 0)):
            due = None if status in DONE else START
            task = make_task(status=status, retry=retry, lost=lost, due=due, quarantine_fence=begun)
            change = claim(task)
            if change is not None:
                reached.add((status, change.event, change.status))
                lease = lease_of(status=status, retry=retry, lost=lost)
                outcomes = (
                    Succeeded(),
                    Unchanged(visit=VISIT),
                    Failed(reason=Reason.CONNECT),
                    Failed(reason=Reason.TLS),
                )
                changes = [settle(lease, outcome) for outcome in outcomes]
                changes.append(transitions.release(lease, now=START).change)
                progress = Progress(worker="w", started_at=START)
                changes.append(settle(lease, Advanced(stage="next", progress=progress)))
                reached |= {(Status.PROCESSING, c.event, c.status) for c in changes}
        assert (status in transitions.RETRY.from_statuses) is any(
            transitions.retries(status, reason) for reason in Reason
        )
        done = transitions.reparse(make_task(status=status), response=None, items=(), now=START)
        if done is not None:
            reached.add((status, done.change.event, done.change.status))
    reached |= {
        (before, bulk.event, bulk.to_status) for bulk in PARTS for before in bulk.from_statuses
    }

    assert reached == {
        (before, event, after) for (before, event), afters in TABLE.items() for after in afters
    }


def test_a_task_is_claimed_from_the_moment_it_is_due():
    task = make_task(fence=4, settled=4, retry=1, reason=Reason.CONNECT, status=Status.FAILED)

    change = claim(task)

    assert claim(task, now=START - timedelta(milliseconds=1)) is None
    assert change == Change(
        event=Event.CLAIM,
        status=Status.PROCESSING,
        due=START + LEASE,
        update_time=START,
        lock="w:1",
        lock_time=START,
        fence=5,
        settled=4,
        retry=1,
        lost=0,
        quarantine_fence=None,
        reason=Reason.CONNECT,
    )


@pytest.mark.parametrize(
    ("lost", "event", "status", "rest"),
    [
        (0, Event.LOSE, Status.TODO, 1),
        (1, Event.LOSE, Status.TODO, 2),
        (2, Event.ABANDON, Status.IGNORED, None),
        (3, Event.ABANDON, Status.IGNORED, None),
    ],
)
def test_the_third_worker_that_crashes_on_a_task_alone_is_the_last(
    lost: int, event: Event, status: Status, rest: int | None
):
    task = make_task(status=Status.PROCESSING, lock="x:9", fence=7, quarantine_fence=7, lost=lost)

    change = claim(task)

    assert change is not None
    assert (change.event, change.status, change.lost) == (event, status, lost + 1)
    assert change.due == (None if rest is None else START + timedelta(seconds=rest))
    assert (change.fence, change.quarantine_fence, change.lock) == (8, 7, None)
    if rest is not None:
        assert change.error is not None
        assert change.error.message == "x:9 crashed while it ran it alone"


def test_what_failed_before_waits_as_a_failure_after_a_crash():
    task = make_task(
        status=Status.PROCESSING,
        lock="x:9",
        fence=7,
        quarantine_fence=7,
        retry=1,
        reason=Reason.CONNECT,
    )

    change = claim(task)

    assert change is not None
    assert (change.status, change.retry, change.reason) == (Status.FAILED, 1, Reason.CONNECT)


@pytest.mark.parametrize("quarantine_fence", [None, 0, 6])
def test_a_task_that_was_held_at_a_crash_is_quarantined_at_the_second_and_nothing_more(
    quarantine_fence: int | None,
):
    task = make_task(
        status=Status.PROCESSING, lock="x:9", fence=7, quarantine_fence=quarantine_fence, lost=2
    )

    change = claim(task)

    assert change is not None
    assert (change.event, change.status, change.lost) == (Event.TAKE_OVER, Status.PROCESSING, 2)
    assert change.quarantine_fence == (quarantine_fence or 0)
    assert is_quarantined(task) == (quarantine_fence is not None)


def test_a_lost_lease_counts_only_where_its_work_had_begun_alone():
    task = make_task(status=Status.PROCESSING, lock="x:9", fence=7, quarantine_fence=7, lost=1)

    assert losses(task) == 2
    assert losses(replace(task, quarantine_fence=6)) == 1
    assert losses(replace(task, status=Status.FAILED)) == 1


def test_a_quarantined_task_stays_so_until_it_is_finished():
    lease = lease_of(status=Status.PROCESSING, fence=3)
    again = settle(lease, Failed(reason=Reason.CONNECT))

    assert again.quarantine_fence == 0
    assert transitions.release(lease, now=START).change.quarantine_fence == 0
    twice = lease_of(status=Status.PROCESSING, fence=3, quarantine_fence=0)
    given_back = transitions.release(twice, now=START).change
    assert is_quarantined(
        replace(twice.task, status=given_back.status, quarantine_fence=given_back.quarantine_fence)
    )
    assert settle(lease_of(quarantine_fence=2), Failed(reason=Reason.TLS)).quarantine_fence == 2
    assert settle(lease, Succeeded()).quarantine_fence is None
    progress = Progress(worker="w", started_at=START)
    assert settle(lease, Advanced(stage="next", progress=progress)).quarantine_fence is None
    assert not is_quarantined(make_task())
    assert is_quarantined(make_task(status=Status.FAILED, quarantine_fence=2))
    assert not is_quarantined(make_task(status=Status.FAILED, quarantine_fence=0)), "one crash"


def test_an_unchanged_page_keeps_its_response_and_its_items():
    revisit = START + timedelta(days=1)

    change = settle(lease_of(retry=2, quarantine_fence=0), Unchanged(visit=VISIT, revisit=revisit))

    assert (change.event, change.status, change.due) == (Event.CONFIRM, Status.FINISHED, None)
    assert (change.response, change.items) == (None, None)
    assert (change.visit, change.revisit) == (VISIT, revisit)
    # A worker has survived the page.
    assert (change.quarantine_fence, change.fence, change.settled) == (None, 1, 1)


def test_a_failure_is_tried_again_until_the_attempts_are_spent():
    failed = Failed(reason=Reason.TIMEOUT_READ)

    changes = [settle(lease_of(retry=retry), failed) for retry in (0, 1, 2, 3)]

    assert [(c.status, c.retry) for c in changes] == [
        (Status.FAILED, 1),
        (Status.FAILED, 2),
        (Status.IGNORED, 3),
        (Status.IGNORED, 3),
    ]
    assert [c.due for c in changes] == [
        START + timedelta(seconds=2.5),
        START + timedelta(seconds=5),
        None,
        None,
    ]
    assert all(c.reason is Reason.TIMEOUT_READ for c in changes)


@pytest.mark.parametrize("reason", sorted(POLICY_REASONS))
def test_being_unwanted_is_no_failed_attempt(reason: Reason):
    change = settle(lease_of(retry=1), Failed(reason=reason))

    assert (change.status, change.retry, change.reason) == (Status.IGNORED, 1, reason)


def test_what_the_server_said_is_made_printable():
    outcome = Failed(
        reason=Reason.PARSE_ERROR, message="a\x1b[31m\n" + "x" * 600, traceback="one\n\x07two"
    )

    error = settle(lease_of(), outcome).error

    assert error is not None
    assert error.message.startswith(r"a\x1b[31m\n" + "x")
    assert len(error.message) == 500
    assert error.traceback == "one\n" + r"\x07two"


@pytest.mark.parametrize("status", [Status.TODO, Status.FAILED])
def test_a_release_restores_status_and_place(status: Status):
    lease = lease_of(status=status, retry=1, lost=1, settled=3, reason=Reason.CONNECT)

    change = transitions.release(lease, now=START + timedelta(seconds=9)).change

    assert (change.status, change.due) == (status, START)
    assert (change.retry, change.lost, change.settled) == (1, 1, 3)
    assert (change.lock, change.lock_time, change.fence) == (None, None, lease.fence)
    assert (change.reason, change.error, change.items) == (Reason.CONNECT, None, None)


@pytest.mark.parametrize(("retry", "status"), [(0, Status.TODO), (1, Status.FAILED)])
def test_a_release_of_a_task_taken_over_keeps_the_loss(retry: int, status: Status):
    lease = lease_of(status=Status.PROCESSING, retry=retry, fence=3, quarantine_fence=3, lost=1)
    now = START + timedelta(seconds=9)

    change = transitions.release(lease, now=now).change

    assert (change.status, change.due, change.lost) == (status, now, 2)


def test_a_rejected_outcome_is_given_up_alone():
    lease = lease_of(retry=1)
    settlement = transitions.settle(
        lease, Succeeded(items=({"n": 1},)), now=START, policy=POLICY, chance=0
    )

    change = transitions.rejected(settlement, reason=Reason.STORE_REJECTED, message="a\nb").change

    assert (change.status, change.due, change.reason) == (
        Status.IGNORED,
        None,
        Reason.STORE_REJECTED,
    )
    assert (change.fence, change.settled, change.items) == (lease.fence, lease.fence, None)
    assert change.error is not None
    assert (change.error.kind, change.error.message) == (Reason.STORE_REJECTED, r"a\nb")


def test_failures_are_retried_and_the_unwanted_are_not():
    assert all(transitions.retries(Status.FAILED, reason) for reason in (*Reason, None))
    assert {r for r in Reason if transitions.retries(Status.IGNORED, r)} == FAILURE_REASONS
    for status in (Status.TODO, Status.PROCESSING, Status.FINISHED):
        assert not any(transitions.retries(status, reason) for reason in (*Reason, None))


outcomes = st.one_of(
    st.builds(Succeeded, revisit=st.none() | st.just(START + timedelta(days=1))),
    st.builds(Unchanged, visit=st.just(VISIT), revisit=st.none() | st.just(START)),
    st.builds(
        Failed,
        reason=st.sampled_from(Reason),
        message=st.text(),
        traceback=st.none() | st.text(),
        status=st.none() | st.integers(100, 599),
        retry_after=st.none() | st.floats(0, 3600),
    ),
)


@given(
    status=st.sampled_from([s for s in Status if s not in DONE]),
    retry=st.integers(0, 5),
    lost=st.integers(0, 5),
    max_retry=st.integers(1, 5),
    quarantine_fence=st.sampled_from([None, 0, 3]),
    max_lost=st.integers(1, 5),
    outcome=outcomes,
    chance=st.floats(0, 1, exclude_max=True),
)
def test_every_decision_is_in_the_table(
    status, retry, lost, quarantine_fence, max_retry, max_lost, outcome, chance
):
    task = make_task(
        status=status, retry=retry, lost=lost, quarantine_fence=quarantine_fence, fence=3, settled=2
    )
    change = claim(task, max_lost=max_lost)
    assert change is not None
    assert change.status in TABLE[status, change.event]
    assert change.fence == 4
    if change.status is not Status.PROCESSING:
        assert quarantine_fence == task.fence
        assert status is Status.PROCESSING
        assert (change.due is None) == (change.lost >= max_lost)
        return
    assert change.lost == lost
    lease = Lease(task=task, token="w:1", fence=change.fence, expires=START + LEASE)
    policy = RetryPolicy(max_retry=max_retry)
    settlements = [
        transitions.settle(lease, outcome, now=START, policy=policy, chance=chance),
        transitions.release(lease, now=START),
    ]
    settlements.append(
        transitions.rejected(settlements[0], reason=Reason.STORE_REJECTED, message="")
    )
    for after in (settlement.change for settlement in settlements):
        assert after.status in TABLE[Status.PROCESSING, after.event]
        assert (after.lock, after.lock_time, after.fence) == (None, None, 4)
        assert after.due is not None or after.status in DONE
        assert after.due is None or after.status not in DONE
        assert after.settled == (2 if after.event is Event.RELEASE else 4)


def test_the_diagram_has_every_edge():
    drawn = diagram()

    assert "    [*] --> todo: add\n" in drawn
    assert "    ignored --> todo: retry-failed\n" in drawn
    edges = sum(len(afters) for afters in TABLE.values())
    assert drawn.count(" --> ") == edges + 2


def test_what_each_bulk_change_does():
    waiting = (Status.TODO, Status.FAILED)
    anew = ("retry", "lost")

    assert sorted(BULK, key=lambda each: each.event) == [
        BulkChange(
            event=Event.ADMIT,
            from_statuses=(Status.IGNORED,),
            to_status=Status.TODO,
            from_reason=Reason.REFUSED_DEPTH,
            resets=anew,
            wakes_hosts=True,
        ),
        BulkChange(
            event=Event.CLAIM,
            from_statuses=waiting,
            to_status=Status.PROCESSING,
            raises_fence=True,
        ),
        BulkChange(event=Event.GIVE_UP_HOST, from_statuses=waiting, to_status=Status.IGNORED),
        BulkChange(
            event=Event.REOPEN,
            from_statuses=(*waiting, Status.FINISHED, Status.IGNORED),
            to_status=Status.TODO,
            resets=anew,
            # The next request is unconditional: it ignores the last visit.
            forgets=("visit", "revisit"),
            raises_fence=True,
            wakes_hosts=True,
            for_leased=BulkChange(
                event=Event.REOPEN,
                from_statuses=(Status.PROCESSING,),
                to_status=Status.TODO,
                resets=anew,
                forgets=("visit", "revisit", *LOCK),
                raises_fence=True,
                wakes_hosts=True,
                ends_leases=True,
            ),
        ),
        BulkChange(
            event=Event.RETRY,
            from_statuses=(Status.FAILED, Status.IGNORED),
            to_status=Status.TODO,
            resets=anew,
            wakes_hosts=True,
        ),
        BulkChange(
            event=Event.REVISIT,
            from_statuses=(Status.FINISHED, Status.IGNORED),
            to_status=Status.TODO,
            resets=anew,
            raises_fence=True,
            wakes_hosts=True,
        ),
        BulkChange(
            event=Event.WITHDRAW,
            from_statuses=waiting,
            to_status=Status.IGNORED,
            for_leased=BulkChange(
                event=Event.WITHDRAW,
                from_statuses=(Status.PROCESSING,),
                to_status=Status.IGNORED,
                forgets=LOCK,
                raises_fence=True,
                ends_leases=True,
            ),
        ),
    ]
    due = [Event.RETRY, Event.REOPEN, Event.REVISIT, Event.ADMIT]
    assert [each.event for each in BULK if each.to_status in WAITING] == due


# --- no other module decides


def test_no_store_names_a_status_that_it_writes():
    found = [
        f"{path.relative_to(LEDGERS)}:{line}"
        for path in sorted(LEDGERS.rglob("*.py"))
        for line in target_statuses(path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_the_statuses_that_wait_are_named_in_one_place():
    """No other place has a tuple, list, set or sum of TODO and FAILED alone."""
    found = []
    for path in sorted(LEDGERS.parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not {"TODO", "FAILED"} <= {*re.findall(r"\w+", text)}:
            continue  # parsing all files would be slow
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.BinOp | ast.BoolOp):
                inside = (each for each in ast.walk(node) if _names_status(each, numbers=False))
                names = {each.attr for each in inside if isinstance(each, ast.Attribute)}
                if names == {"TODO", "FAILED"}:
                    found.append(path.relative_to(LEDGERS.parent).as_posix())

    # The second place is a row of the table: the task of a lost worker.
    assert found == ["model/task.py", "model/transitions.py"]


def target_statuses(source: str) -> list[int]:
    """Return the lines that write a status by its name or number.

    The search is for `Status.X`, or a number, in three places:

    1. as `status` of a document that is no filter: a filter has only the id, lock, fence
       and status of a task, and is not the value of `$set` (only there, a number counts);
    2. assigned to `[...]["status"]`, passed as `status=`, or as a variable's whole value;
    3. in SQL, after `status =` without a WHERE, AND, OR or WHEN before it.
    """
    lines = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Dict():
                written = _of_document(node)
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="status"))]):
                written = _names_status(node.value)
            case ast.Assign(targets=[ast.Name()]):
                written = _names_status(node.value, numbers=False)
            case ast.keyword(arg="status"):
                written = _names_status(node.value)
            case ast.JoinedStr() | ast.Constant(value=str()):
                written = _TARGET.search(_text(node)) is not None
            case _:
                written = False
        if written:
            lines.append(node.lineno if hasattr(node, "lineno") else node.value.lineno)
    return sorted(set(lines))


def _of_document(document: ast.Dict) -> bool:
    entries = {
        key.value: value
        for key, value in zip(document.keys, document.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    if isinstance(inner := entries.get("$set"), ast.Dict):
        return any(
            isinstance(key, ast.Constant) and key.value == "status" and _names_status(value)
            for key, value in zip(inner.keys, inner.values, strict=True)
        )
    is_filter = entries.keys() <= {"_id", "id", "lock", "fence", "status"}
    # A number is the direction of an index, or a projection.
    status = entries.get("status")
    return not is_filter and status is not None and _names_status(status, numbers=False)


def _names_status(value: ast.expr, *, numbers: bool = True) -> bool:
    match value:
        case ast.Attribute(value=ast.Name(id="Status")):
            return True
        case ast.Call(func=ast.Name(id="int"), args=[argument]):
            return _names_status(argument, numbers=numbers)
        case ast.Constant(value=int()):
            return numbers
        case _:
            return False


def _text(node: ast.expr) -> str:
    """Return the text of a string, with `<Status>` for a named status in an f-string."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    return "".join(
        _text(part)
        if isinstance(part, ast.Constant)
        else "<Status>"
        if isinstance(part, ast.FormattedValue) and _names_status(part.value)
        else "?"
        for part in node.values
    )
