"""Invariants of tasks and hosts: a violation of each is found, and no transition violates any."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.doctor import ADVICE, invariants
from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.examination import HOST_STATE, TASK_STATE, Kind, Violation
from crawlcw.model import transitions
from crawlcw.model.hosts import Host
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import Change, Failed, Succeeded, Unchanged
from crawlcw.model.visits import Visit
from tests.support.ledgers import LEASE, START, make_task

pytestmark = pytest.mark.quick

NOW = START + timedelta(hours=1)
URL = "http://example.com/"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


#: A document of each status, as a crawl writes it.
STATES: Mapping[Status, dict[str, Any]] = {
    Status.TODO: {"due": START},
    Status.FAILED: {
        "due": at(5),
        "fence": 1,
        "settled": 1,
        "retry": 1,
        "reason": str(Reason.CONNECT),
    },
    Status.PROCESSING: {"due": at(30), "lock": "a:1", "lock_time": NOW, "fence": 1},
    Status.FINISHED: {"fence": 1, "settled": 1, "items": 2},
    Status.IGNORED: {"fence": 1, "settled": 1, "reason": str(Reason.REFUSED_SCOPE)},
}


def document(status: Status, /, **fields: Any) -> dict[str, Any]:
    """Return a task's document; a field that is `...` is absent."""
    found = documents.document(make_task(URL))
    del found["due"]
    found |= {"status": int(status), **STATES[status], **fields}
    return {name: value for name, value in found.items() if value is not ...}


def violations(found: Mapping[str, Any]) -> list[Violation]:
    return list(invariants.task_violations(found, now=NOW))


def kinds(found: Mapping[str, Any]) -> list[Kind]:
    return [violation.kind for violation in violations(found)]


def mended(found: Mapping[str, Any], broken: list[Violation]) -> dict[str, Any]:
    """Return the document after all repairs, as both stores show it."""
    after = dict(found)
    for violation in broken:
        after |= violation.mend or {}
    return {k: v for k, v in after.items() if v is not None or k in ("lock", "lock_time")}


@pytest.mark.parametrize("status", list(Status))
def test_nothing_is_wrong_with_what_a_crawl_leaves(status: Status):
    assert violations(document(status)) == []


TODO, FAILED, PROCESSING, FINISHED, IGNORED = Status


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (document(PROCESSING, lock=None), Kind.LEASE_INCOMPLETE),
        (document(PROCESSING, lock_time=None), Kind.LEASE_INCOMPLETE),
        (document(PROCESSING, due=...), Kind.LEASE_INCOMPLETE),
        (document(TODO, lock="a:1"), Kind.FIELD_LEFT),
        (document(FINISHED, lock_time=START), Kind.FIELD_LEFT),
        (document(IGNORED, due=START), Kind.FIELD_LEFT),
        (document(TODO, reason="connect"), Kind.FIELD_LEFT),
        (document(FAILED, due=...), Kind.DUE_MISSING),
        (document(FINISHED, fence=0), Kind.FENCE_BEHIND),
        (document(FINISHED, quarantine_fence=2), Kind.FENCE_BEHIND),
        # A claim with the fence of an outcome would be mistaken for the claim of that outcome.
        (document(PROCESSING, fence=1, settled=1), Kind.FENCE_BEHIND),
        (document(FINISHED, items_lost=[1]), Kind.ITEM_LOST),
        (document(FINISHED, blobs_lost=["x"]), Kind.BLOB_LOST),
        (document(TODO, status=33), Kind.MALFORMED),
        (document(TODO, retry=-1), Kind.MALFORMED),
        (document(TODO, url=...), Kind.MALFORMED),
        (document(TODO, fence="1"), Kind.MALFORMED),
        (document(IGNORED, reason="bad weather"), Kind.MALFORMED),
        (document(TODO, _id="x"), Kind.MALFORMED),
        (document(FINISHED, due=None), Kind.MALFORMED),
    ],
)
def test_what_no_crawl_leaves_is_a_violation(found: dict[str, Any], kind: Kind):
    assert kinds(found) == [kind]


def test_a_due_that_is_no_time_counts_as_none():
    assert kinds(document(TODO, due=None)) == [Kind.MALFORMED, Kind.DUE_MISSING]


def test_whole_numbers_may_be_floats_as_a_database_shell_writes_them():
    assert kinds(document(FINISHED, status=50.0, fence=1.0)) == []


def test_a_lease_that_nobody_can_hold_ends_now_and_one_that_may_be_held_a_minute_later():
    (unheld,) = violations(document(PROCESSING, lock=None))
    (endless,) = violations(document(PROCESSING, due=...))
    (undated,) = violations(document(PROCESSING, lock_time=None))

    assert unheld.mend == {"lock": "doctor:0", "due": NOW}
    assert endless.mend == {"due": at(60)}
    assert undated.mend == {"lock_time": START}


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_says_what_it_means_and_what_to_do(kind: Kind):
    assert ADVICE[kind].meaning
    assert ADVICE[kind].todo


# --- properties

#: Values to choose from, since to draw a text is slow enough to fail under load.
ODD = st.sampled_from([None, -2, 0, 1, 33, 1.5, "", "x", b"", b"x" * 16, START, {}, []])
FIELDS = st.sampled_from(
    [*TASK_STATE, "_id", "url", "host", "method", "body", "callback", "depth", "update_time"]
)


@given(st.sampled_from(Status), st.dictionaries(FIELDS, ODD, max_size=4))
def test_whatever_a_document_holds_can_be_examined(status: Status, odd: dict[str, Any]):
    kinds(document(status) | odd)


STATE = {
    "status": st.sampled_from([int(status) for status in Status]),
    "due": st.none() | st.just(...) | st.sampled_from([START, at(60)]),
    "lock": st.none() | st.just("a:1"),
    "lock_time": st.none() | st.just(START),
    "fence": st.integers(-1, 3),
    "quarantine_fence": st.integers(-1, 3),
    "settled": st.integers(-1, 3),
    "retry": st.integers(-1, 3),
    "lost": st.integers(-1, 3),
    "reason": st.just(...) | st.sampled_from(["connect", "refused-scope", "nonsense"]),
}


@given(st.fixed_dictionaries(STATE))
def test_what_is_mended_is_well_afterwards(state: dict[str, Any]):
    found = document(TODO, **state)

    broken = violations(found)
    after = violations(mended(found, broken))

    assert all(set(violation.mend or {}) <= set(TASK_STATE) for violation in broken)
    assert [violation for violation in after if violation.mend] == []
    unmended = [violation.kind for violation in broken if violation.mend is None]
    assert [violation.kind for violation in after] == unmended


#: Reasons of `settle`.
REASONS = st.sampled_from([reason for reason in Reason if reason is not Reason.CRASHED_WORKER])
STEPS = st.sampled_from(
    [
        *("claim", "begin", "finish", "confirm", "revisit", "fail", "convict", "release"),
        *("retry", "give up host"),
    ]
)
POLICY = RetryPolicy(max_retry=3)


@given(st.lists(st.tuples(STEPS, REASONS, st.booleans()), max_size=20))
def test_no_transition_breaks_anything(steps: list[tuple[str, Reason, bool]]):
    task, lease, now, items = make_task(URL), None, START, False
    for step, reason, late in steps:
        now += 2 * LEASE if late else timedelta(seconds=1)
        change: Change | None = None
        if step == "claim":
            change = transitions.claim(task, token="a:1", now=now, lease=LEASE, max_lost=3)
            lease = change and _leased(task, change)
        elif lease is not None and step == "finish":
            change, items = _settled(lease, Succeeded(), now), True
        elif lease is not None and step == "confirm" and lease.task.settled:
            visit = Visit(time=now, changed=START)
            change = _settled(lease, Unchanged(visit=visit, revisit=now), now)
        elif step == "revisit" and task.status in transitions.REVISIT.from_statuses:
            task = replace(task, status=Status.TODO, retry=0, lost=0, due=now, reason=None)
            task = replace(task, update_time=now, fence=task.fence + 1)
        elif lease is not None and step == "begin":
            task = replace(task, quarantine_fence=lease.fence)
        elif lease is not None and step == "convict" and transitions.is_quarantined(lease.task):
            change = _settled(lease, Failed(reason=Reason.CRASHED_WORKER, last=True), now)
        elif lease is not None and step == "fail":
            change = _settled(lease, Failed(reason=reason, status=500), now)
        elif lease is not None and step == "release":
            change = transitions.release(lease, now=now).change
        elif step == "retry" and transitions.retries(task.status, task.reason):
            task = replace(
                task, status=Status.TODO, retry=0, lost=0, due=now, update_time=now, reason=None
            )
        elif step == "give up host" and task.status in transitions.GIVE_UP_HOST.from_statuses:
            task = replace(task, status=Status.IGNORED, due=None, reason=Reason.HOST_UNREACHABLE)
        if change is not None:
            task = _after(task, change)
            lease = lease if task.status is Status.PROCESSING else None
        found = _found(task) | ({"items": 1} if items else {})
        assert kinds(found) == []


def _leased(task: Task, change: Change) -> Lease | None:
    if change.lock is None or change.due is None:
        return None
    return Lease(task=task, token=change.lock, fence=change.fence, expires=change.due)


def _settled(lease: Lease, outcome: transitions.Outcome, now: datetime) -> Change:
    return transitions.settle(lease, outcome, now=now, policy=POLICY, chance=0.5).change


def _after(task: Task, change: Change) -> Task:
    names = (
        "status",
        "due",
        "lock",
        "lock_time",
        "fence",
        "settled",
        "retry",
        "lost",
        "quarantine_fence",
    )
    changed = {name: getattr(change, name) for name in (*names, "reason")}
    return replace(task, **changed)


def _found(task: Task) -> dict[str, Any]:
    found = documents.document(task) | {"due": task.due, "reason": task.reason}
    return {name: value for name, value in found.items() if value is not None}


# --- hosts


def host(**fields: Any) -> dict[str, Any]:
    found = documents.host_document(Host(name="example.com", ready_at=START, epoch=3))
    found |= {"released": 3, **fields}
    return {name: value for name, value in found.items() if value is not ...}


HELD = {"owner": "a:4", "ready_at": at(30), "epoch": 4}


@pytest.mark.parametrize(
    "found", [host(), host(**HELD), host(ready_at=...), host(released=...), host(given_up="tls")]
)
def test_nothing_is_wrong_with_a_host_as_a_crawl_leaves_it(found: dict[str, Any]):
    assert list(invariants.host_violations(found, now=NOW)) == []


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (host(**HELD | {"ready_at": ...}), Kind.LEASE_INCOMPLETE),
        (host(released=4), Kind.FENCE_BEHIND),
        # A released host has no lease.
        (host(**HELD, released=4), Kind.FENCE_BEHIND),
        (host(ready_at=None), Kind.MALFORMED),
        (host(delay=-1.0), Kind.MALFORMED),
        (host(failures=-1), Kind.MALFORMED),
        (host(finished=...), Kind.MALFORMED),
        (host(given_up="nonsense"), Kind.MALFORMED),
        (host(owner=7), Kind.MALFORMED),
    ],
)
def test_what_no_crawl_leaves_of_a_host_is_a_violation(found: dict[str, Any], kind: Kind):
    broken = list(invariants.host_violations(found, now=NOW))

    assert [violation.kind for violation in broken] == [kind]
    assert all(set(violation.mend or {}) <= set(HOST_STATE) for violation in broken)


@pytest.mark.parametrize(
    ("found", "asleep"),
    [
        (None, True),
        (host(ready_at=...), True),
        (host(ready_at=at(11)), True),
        (host(ready_at=at(10)), False),
        (host(ready_at=at(20), not_before=at(20)), False),
        (host(ready_at=at(21), not_before=at(20)), True),
        (host(ready_at=..., given_up="dns-nxdomain"), True),
    ],
)
def test_a_host_is_asleep_that_is_not_ready_in_time(found: dict[str, Any] | None, asleep: bool):
    expected = [Kind.HOST_ASLEEP] if asleep else []

    assert [v.kind for v in invariants.wake_up_violations(found, due=at(10))] == expected


def test_a_host_that_is_held_or_ready_is_awake():
    assert invariants.is_awake(host(**HELD), now=NOW)
    assert invariants.is_awake(host(ready_at=NOW), now=NOW)
    assert not invariants.is_awake(host(ready_at=at(1)), now=NOW)
    assert not invariants.is_awake(host(ready_at=...), now=NOW)
