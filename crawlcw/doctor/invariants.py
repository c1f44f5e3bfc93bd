"""Invariants of every task and host in a ledger, whatever happened to the processes on it.

Given a document's fields, name each invariant that it violates, and the fields that
would mend it. Nothing here reads or writes a ledger: `examination` does, and each store
checks itself.

A mend changes only fields that have lost their meaning, or that let the protocol go on:
a lease is ended, never a status decided. What cannot be mended without a guess is left.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.examination import Kind, Violation
from crawlcw.model.task import DONE, WAITING, Status

#: A worker that lives renews a lease sooner; a dead one has lost it by then.
_RENEWED_WITHIN = timedelta(seconds=60)
#: The token of a lease that was mended; no worker has such a name.
_MENDED = "doctor:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The meaning of a kind of finding to the person who reads it."""

    meaning: str
    todo: str
    note: bool = False  #: worth knowing, and no violation


ADVICE: Mapping[Kind, Advice] = {
    Kind.MALFORMED: Advice(
        meaning="a task or a host lacks a field, or has one that crawlcw writes in no case",
        todo="look at it in the database; --repair takes away a `due` or `ready_at` that is no "
        "time. Until it is mended, lost wake-ups are not looked for",
    ),
    Kind.LEASE_INCOMPLETE: Advice(
        meaning="a lease of a task or a host has no holder or no end, so no other worker gets it",
        todo="--repair lets the lease end",
    ),
    Kind.FIELD_LEFT: Advice(
        meaning="a task has a lock, a `due` or a reason that its status does not have",
        todo="--repair takes it away",
    ),
    Kind.DUE_MISSING: Advice(
        meaning="a task that waits has no `due`, so no worker claims it",
        todo="--repair makes it due now",
    ),
    Kind.FENCE_BEHIND: Advice(
        meaning="a task or a host has an outcome or a lease that its fence does not know",
        todo="was a part of the database restored from a backup? Restore the whole of it",
    ),
    Kind.ITEM_LOST: Advice(
        meaning="an item that was recorded is not there",
        todo="restore `<spider>.items` from a backup, or let the task be crawled again",
    ),
    Kind.BLOB_LOST: Advice(
        meaning="a blob that a task refers to is not there",
        todo="restore `<use case>.blobs` from a backup, or let the task begin anew",
    ),
    Kind.BLOB_LEFT: Advice(
        meaning="no task refers to this blob",
        todo="nothing: a process ended, or lost the ledger, between two writes; --repair deletes "
        "it after a day",
        note=True,
    ),
    Kind.HOST_ASLEEP: Advice(
        meaning="a host has tasks and is not ready in time for them: a wake-up was lost",
        todo="nothing: idle workers find it; --repair wakes it at once",
        note=True,
    ),
    Kind.WORKER_DEAD: Advice(
        meaning="a worker is dead and still on the list of those at work",
        todo="nothing: the next crawl ends its leases; --repair does so at once",
        note=True,
    ),
    Kind.STORE_INCOMPLETE: Advice(
        meaning="a table, an index or the note of the format is missing: the rest was not examined",
        todo="--repair makes it, and so does the next crawl",
    ),
    Kind.STORE_DIFFERENT: Advice(
        meaning="a table or an index is not as crawlcw makes it: the rest was not examined",
        todo="drop the index and use --repair; a table has to come from a backup",
    ),
    Kind.STORE_DAMAGED: Advice(
        meaning="the file is damaged",
        todo="bring back a copy, or recover it with `sqlite3 FILE .recover`",
    ),
    Kind.STORE_READ_ONLY: Advice(
        meaning="the file, the -wal or -shm beside it, or its folder is read-only for this user",
        todo="give this user the right to write to the files and to their folder",
    ),
    Kind.NOT_WAL: Advice(
        meaning="the file is not in WAL mode: readers and the writer wait for each other",
        todo="--repair switches it, and so does the next crawl",
    ),
    Kind.NOT_DURABLE: Advice(
        meaning="the server does not confirm a write as `w: majority, j: true` asks it to",
        todo="bring back a majority of the replica set's members, with their journals on",
    ),
    Kind.MAY_NOT_WRITE: Advice(
        meaning="this user may look, and lacks privileges that a crawl and --repair need",
        todo="nothing if it only reads; otherwise give it the role in `crawlcw guide deploying`",
        note=True,
    ),
    Kind.STANDALONE: Advice(
        meaning="the server is no replica set: a kill may lose acknowledged writes",
        todo="make it a replica set, of one member if need be",
        note=True,
    ),
}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: object) -> bool:
    return isinstance(value, datetime)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0


def _is_whole(value: object) -> bool:
    # The database's own shells write whole numbers as floats.
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_count(value: object) -> bool:
    return _is_whole(value) and _is_number(value)


def _is_id(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == 16


def _is_reason(value: object) -> bool:
    return isinstance(value, str) and value in frozenset(Reason)


def _is_status(value: object) -> bool:
    return _is_whole(value) and value in tuple(Status)


_Checks = Mapping[str, Callable[[object], bool]]
_NEEDED: _Checks = {
    "_id": _is_id,
    **dict.fromkeys(("url", "host", "callback"), _is_text),
    **dict.fromkeys(("depth", "priority"), _is_whole),
    "status": _is_status,
    **dict.fromkeys(("update_time", "create_time"), _is_time),
    **dict.fromkeys(("fence", "settled", "retry", "lost"), _is_count),
}
_OPTIONAL: _Checks = {
    **dict.fromkeys(("method", "lock"), _is_text),
    "body": lambda value: isinstance(value, bytes),
    **dict.fromkeys(("lock_time", "revisit"), _is_time),
    "quarantine_fence": _is_count,
    "reason": _is_reason,
    "options": lambda value: isinstance(value, Mapping),
}
_HOST_NEEDED: _Checks = {
    "_id": _is_text,
    **dict.fromkeys(("epoch", "failures", "page_failures", "finished"), _is_count),
    "delay": _is_number,
}
_HOST_OPTIONAL: _Checks = {
    "owner": _is_text,
    "released": _is_count,
    "not_before": _is_time,
    "given_up": _is_reason,
}


def of_task(found: Mapping[str, Any], *, now: datetime) -> Iterator[Violation]:
    """Yield what does not hold of a task.

    *found* are its fields as `ledger.documents` names them, and of its results
    `items` (how many there are), `items_lost` (which of them are not there) and
    `blobs_lost` (which blobs are not there).
    """
    if malformed := list(_malformed(found, _NEEDED, _OPTIONAL)):
        yield from malformed
        return
    status = Status(int(found["status"]))
    due, lock, lock_time = found.get("due"), found.get("lock"), found.get("lock_time")
    if "due" in found and not _is_time(due):
        # In MongoDB null is no absence: the index has it, before all times.
        yield Violation(kind=Kind.MALFORMED, detail=f"due is {due!r}", mend={"due": None})
        due = None
    says = f"{status.name.lower()}, lock {lock!r}, lock_time {lock_time}, due {due}"
    if status is Status.PROCESSING:
        if mend := _mend_of_lease(found, now=now, due=due):
            yield Violation(kind=Kind.LEASE_INCOMPLETE, detail=says, mend=mend)
    elif left := _left(found, status, due=due):
        detail = f"{says}, reason {found.get('reason')}"
        yield Violation(kind=Kind.FIELD_LEFT, detail=detail, mend=dict.fromkeys(left))
    if status in WAITING and due is None:
        yield Violation(kind=Kind.DUE_MISSING, detail=says, mend={"due": now})
    fence, settled = found["fence"], found["settled"]
    quarantine_fence = found.get("quarantine_fence") or 0
    # A claim raises the fence, its work begins, and its outcome ends the claim.
    if fence < max(settled + (status is Status.PROCESSING), quarantine_fence):
        detail = f"fence {fence}, settled {settled}, quarantine_fence {quarantine_fence}"
        yield Violation(kind=Kind.FENCE_BEHIND, detail=f"{status.name.lower()}, {detail}")
    if lost := found.get("items_lost"):
        detail = f"item {', '.join(map(str, lost))} of {found.get('items')}"
        yield Violation(kind=Kind.ITEM_LOST, detail=detail)
    if lost := found.get("blobs_lost"):
        yield Violation(kind=Kind.BLOB_LOST, detail=", ".join(map(str, lost)))


def _mend_of_lease(
    found: Mapping[str, Any], *, now: datetime, due: datetime | None
) -> dict[str, Any]:
    """Return the fields that complete a lease of a task; empty if it is complete."""
    mend: dict[str, Any] = {}
    if found.get("lock_time") is None:
        mend["lock_time"] = found["update_time"]
    if found.get("lock") is None:
        # No worker can hold it, since every write of a holder compares the
        # lock: it becomes a lease that has run out.
        mend |= {"lock": _MENDED, "due": now if due is None else min(due, now)}
    elif due is None:
        # Its holder renews it, and may still commit.
        mend["due"] = now + _RENEWED_WITHIN
    return mend


def _left(found: Mapping[str, Any], status: Status, *, due: datetime | None) -> list[str]:
    """Return the fields of a task without a lease that have lost their meaning."""
    left = [name for name in ("lock", "lock_time") if found.get(name) is not None]
    if status in DONE and due is not None:
        left.append("due")
    reason = found.get("reason")
    is_redirect = status is Status.FINISHED and reason == Reason.REDIRECT
    if status in (Status.TODO, Status.FINISHED) and reason is not None and not is_redirect:
        left.append("reason")
    return left


def _malformed(found: Mapping[str, Any], needed: _Checks, optional: _Checks) -> Iterator[Violation]:
    for name, is_right in needed.items():
        if name not in found:
            yield Violation(kind=Kind.MALFORMED, detail=f"{name} is missing")
        elif not is_right(found[name]):
            yield Violation(kind=Kind.MALFORMED, detail=f"{name} is {found[name]!r}")
    for name, is_right in optional.items():
        if (value := found.get(name)) is not None and not is_right(value):
            yield Violation(kind=Kind.MALFORMED, detail=f"{name} is {value!r}")


def of_host(found: Mapping[str, Any], *, now: datetime) -> Iterator[Violation]:
    """Yield what does not hold of a host, its fields as `ledger.documents` names them."""
    if malformed := list(_malformed(found, _HOST_NEEDED, _HOST_OPTIONAL)):
        yield from malformed
        return
    owner, ready_at = found.get("owner"), found.get("ready_at")
    if "ready_at" in found and not _is_time(ready_at):
        detail = f"ready_at is {ready_at!r}"
        yield Violation(kind=Kind.MALFORMED, detail=detail, mend={"ready_at": None})
        ready_at = None
    if owner is not None and ready_at is None:
        mend = {"ready_at": now + _RENEWED_WITHIN}
        yield Violation(kind=Kind.LEASE_INCOMPLETE, detail=f"owner {owner}", mend=mend)
    epoch, released = found["epoch"], found.get("released") or 0
    # A lease raises the epoch, and its end writes the epoch down.
    if epoch < released + (owner is not None):
        detail = f"epoch {epoch}, released {released}, owner {owner}"
        yield Violation(kind=Kind.FENCE_BEHIND, detail=detail)


def is_awake(found: Mapping[str, Any], *, now: datetime) -> bool:
    """Return whether a host is held, or may be leased at once: no wake-up is lost to it."""
    ready_at = found.get("ready_at")
    return found.get("owner") is not None or (isinstance(ready_at, datetime) and ready_at <= now)


def of_wake_up(found: Mapping[str, Any] | None, *, due: datetime) -> Iterator[Violation]:
    """Yield the broken invariants of a host without an owner, whose first task is *due*.

    *found* is None where the host is not known. One that was given up is no
    other case: its next owner ignores the tasks that have come since.
    """
    ready_at = None if found is None else found.get("ready_at")
    not_before = None if found is None else found.get("not_before")
    if ready_at is None or ready_at > max(due, not_before or due):
        when = "never ready" if ready_at is None else f"ready at {ready_at}"
        detail = f"a task is due at {due}, it is {'not known' if found is None else when}"
        yield Violation(kind=Kind.HOST_ASLEEP, detail=detail, mend={"ready_at": due})
