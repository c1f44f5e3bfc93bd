"""Invariants of tasks and hosts that hold in a ledger even after crashes of processes.

The functions return the invariants that a document violates, and the fields that would mend the
document. This module does no I/O: `examination` reads and writes the ledger.

A mend clears a field that has lost its meaning, or completes a lease so that workers can go on. A
mend may end a lease, but never decides a status. A violation that needs a guess is not mended.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from crawlcw.errors import Reason
from crawlcw.ledger.examination import Kind, Violation
from crawlcw.model.task import DONE, WAITING, Status

#: Time until a mended lease expires; if the lease's worker is alive, it can renew the lease.
_RENEWED_WITHIN = timedelta(seconds=60)
#: Name of the holder of a mended lease; no worker has this name.
_MENDER = "doctor:0"


class Advice(NamedTuple):
    """The meaning of a kind of finding for the user, and the user's remedy."""

    meaning: str
    todo: str


ADVICE: Mapping[Kind, Advice] = {
    Kind.MALFORMED: Advice(
        "a task or a host lacks a field, or has a value that crawlcw never writes",
        "examine it in the database; --repair removes a `due` or `ready_at` that is not a time. "
        "doctor finds lost wake-ups only after that",
    ),
    Kind.LEASE_INCOMPLETE: Advice(
        "the lease of a task or a host has no holder or no end, so no other worker can claim it",
        "--repair ends the lease",
    ),
    Kind.FIELD_LEFT: Advice(
        "a task has a lock, a `due` or a reason that its status does not allow",
        "--repair removes the field",
    ),
    Kind.DUE_MISSING: Advice(
        "a waiting task has no `due`, so no worker claims it",
        "--repair makes the task due now",
    ),
    Kind.FENCE_BEHIND: Advice(
        "a task or a host has an outcome or a lease with a higher number than its fence",
        "if you restored a part of the database from a backup, restore the whole database",
    ),
    Kind.ITEM_LOST: Advice(
        "a recorded item is missing",
        "restore `<spider>.items` from a backup, or crawl the task again",
    ),
    Kind.BLOB_LOST: Advice(
        "a blob to which a task refers is missing",
        "restore `<use case>.blobs` from a backup, or start the task again",
    ),
    Kind.BLOB_LEFT: Advice(
        "no task refers to this blob",
        "nothing: a process ended, or lost its connection, between two writes; --repair "
        "deletes the blob after a day",
    ),
    Kind.HOST_ASLEEP: Advice(
        "a host has due tasks but is not ready for them: a wake-up was lost",
        "nothing: idle workers find the host; --repair wakes it at once",
    ),
    Kind.WORKER_DEAD: Advice(
        "a dead worker is still in the list of active workers",
        "nothing: the next crawl ends its leases; --repair ends them at once",
    ),
    Kind.STORE_INCOMPLETE: Advice(
        "a table, an index or the number of the format is missing, so doctor did not examine the "
        "rest",
        "--repair creates the missing part, and so does the next crawl",
    ),
    Kind.STORE_DIFFERENT: Advice(
        "a table or an index differs from the one that crawlcw creates, so doctor did not examine "
        "the rest",
        "drop an index and run doctor with --repair; restore a table from a backup",
    ),
    Kind.STORE_DAMAGED: Advice(
        "the file is damaged",
        "restore a copy, or recover the file with `sqlite3 FILE .recover`",
    ),
    Kind.STORE_READ_ONLY: Advice(
        "the file, the -wal or -shm beside it, or its folder is read-only for this user",
        "give this user the right to write to the files and to their folder",
    ),
    Kind.NOT_WAL: Advice(
        "the file is not in WAL mode: readers and the writer wait for each other",
        "--repair switches the file to WAL mode, and so does the next crawl",
    ),
    Kind.NOT_DURABLE: Advice(
        "the server does not confirm a write with `w: majority, j: true`",
        "start a majority of the replica set's members, with journaling on",
    ),
    Kind.MAY_NOT_WRITE: Advice(
        "this user may read, but lacks privileges that a crawl and --repair need",
        "nothing if it only reads; otherwise give it the role in `crawlcw guide deploying`",
    ),
    Kind.STANDALONE: Advice(
        "the server is not a replica set, so a crash may lose acknowledged writes",
        "make it a replica set; one member is enough",
    ),
}
#: Kinds of findings that are worth knowing, but are not violations.
NOTES = frozenset(
    {Kind.BLOB_LEFT, Kind.HOST_ASLEEP, Kind.WORKER_DEAD, Kind.MAY_NOT_WRITE, Kind.STANDALONE}
)

_Types = Mapping[str, type]
#: Fields of a task and their types: first the required fields, then the optional fields.
_TASK: tuple[_Types, _Types] = (
    {
        "_id": bytes,
        **dict.fromkeys(("url", "host", "callback"), str),
        **dict.fromkeys(("depth", "priority", "fence", "settled", "retry", "lost"), int),
        "status": Status,
        **dict.fromkeys(("update_time", "create_time"), datetime),
    },
    {
        **dict.fromkeys(("method", "lock"), str),
        "body": bytes,
        **dict.fromkeys(("lock_time", "revisit"), datetime),
        "quarantine_fence": int,
        "reason": Reason,
        "options": Mapping,
    },
)
_HOST: tuple[_Types, _Types] = (
    {
        "_id": str,
        **dict.fromkeys(("epoch", "failures", "page_failures", "finished"), int),
        "delay": float,
    },
    {"owner": str, "released": int, "not_before": datetime, "given_up": Reason},
)
#: Fields whose numbers may be negative.
_MAY_BE_NEGATIVE = ("depth", "priority")


def task_violations(document: Mapping[str, Any], *, now: datetime) -> Iterator[Violation]:
    """Yield the violations of a task.

    *document* has the fields that `ledger.documents` names, except the items. The field `items` is
    the number of the items, `items_lost` lists missing items, and `blobs_lost` lists missing blobs.
    """
    if malformed := [*_malformed(document, *_TASK)]:
        yield from malformed
        return
    status = Status(int(document["status"]))
    due, lock, lock_time = document.get("due"), document.get("lock"), document.get("lock_time")
    if "due" in document and not isinstance(due, datetime):
        # A null `due` is a violation, because MongoDB's index sorts null before all times.
        yield Violation(kind=Kind.MALFORMED, detail=f"due is {due!r}", mend={"due": None})
        due = None
    state_text = f"{status.name.lower()}, lock {lock!r}, lock_time {lock_time}, due {due}"
    if status is Status.PROCESSING:
        if lease_change := _mend_of_lease(document, now=now, due=due):
            yield Violation(kind=Kind.LEASE_INCOMPLETE, detail=state_text, mend=lease_change)
    elif stale_fields := _stale_fields(document, status, due=due):
        detail = f"{state_text}, reason {document.get('reason')}"
        yield Violation(kind=Kind.FIELD_LEFT, detail=detail, mend=dict.fromkeys(stale_fields))
    if status in WAITING and due is None:
        yield Violation(kind=Kind.DUE_MISSING, detail=state_text, mend={"due": now})
    fence, settled = document["fence"], document["settled"]
    quarantine_fence = document.get("quarantine_fence") or 0
    # Each claim raises the fence, so `settled` and `quarantine_fence` cannot exceed the fence.
    if fence < max(settled + (status is Status.PROCESSING), quarantine_fence):
        detail = f"fence {fence}, settled {settled}, quarantine_fence {quarantine_fence}"
        yield Violation(kind=Kind.FENCE_BEHIND, detail=f"{status.name.lower()}, {detail}")
    if missing := document.get("items_lost"):
        detail = f"item {', '.join(map(str, missing))} of {document.get('items')}"
        yield Violation(kind=Kind.ITEM_LOST, detail=detail)
    if missing := document.get("blobs_lost"):
        yield Violation(kind=Kind.BLOB_LOST, detail=", ".join(map(str, missing)))


def _mend_of_lease(
    document: Mapping[str, Any], *, now: datetime, due: datetime | None
) -> dict[str, Any]:
    """Return the fields that complete a lease of a task; empty if the lease is complete."""
    mend: dict[str, Any] = {}
    if document.get("lock_time") is None:
        mend["lock_time"] = document["update_time"]
    if document.get("lock") is None:
        # The lease has no holder (`lock`), so no worker can use it. Let the lease expire now.
        mend |= {"lock": _MENDER, "due": now if due is None else min(due, now)}
    elif due is None:
        # The lease has a holder, so leave the holder time to renew the lease or to commit.
        mend["due"] = now + _RENEWED_WITHIN
    return mend


def _stale_fields(
    document: Mapping[str, Any], status: Status, *, due: datetime | None
) -> list[str]:
    """Return the names of fields that a task with *status* and no lease must not have."""
    stale_fields = [name for name in ("lock", "lock_time") if document.get(name) is not None]
    if status in DONE and due is not None:
        stale_fields.append("due")
    reason = document.get("reason")
    is_redirect = status is Status.FINISHED and reason == Reason.REDIRECT
    if status in (Status.TODO, Status.FINISHED) and reason is not None and not is_redirect:
        stale_fields.append("reason")
    return stale_fields


def _malformed(
    document: Mapping[str, Any], required: _Types, optional: _Types
) -> Iterator[Violation]:
    for name, kind in {**required, **optional}.items():
        value = document.get(name)
        if name not in document and name in required:
            yield Violation(kind=Kind.MALFORMED, detail=f"{name} is missing")
        elif (value is not None or name in required) and not _has_type(name, value, kind):
            yield Violation(kind=Kind.MALFORMED, detail=f"{name} is {value!r}")


def _has_type(name: str, value: object, kind: type) -> bool:
    if issubclass(kind, Enum):
        return value in [*kind]
    if isinstance(value, int | float) and kind in (int, float):
        # Accept a float for a whole number, because the shells of databases write floats.
        has_number_type = kind is float or isinstance(value, int) or value.is_integer()
        return has_number_type and (value >= 0 or name in _MAY_BE_NEGATIVE)
    if (name, kind) == ("_id", bytes):
        return isinstance(value, bytes) and len(value) == 16
    return isinstance(value, kind)


def host_violations(document: Mapping[str, Any], *, now: datetime) -> Iterator[Violation]:
    """Yield the violations of a host, whose fields `ledger.documents` names."""
    if malformed := [*_malformed(document, *_HOST)]:
        yield from malformed
        return
    owner, ready_at = document.get("owner"), document.get("ready_at")
    if "ready_at" in document and not isinstance(ready_at, datetime):
        detail = f"ready_at is {ready_at!r}"
        yield Violation(kind=Kind.MALFORMED, detail=detail, mend={"ready_at": None})
        ready_at = None
    if owner is not None and ready_at is None:
        mend = {"ready_at": now + _RENEWED_WITHIN}
        yield Violation(kind=Kind.LEASE_INCOMPLETE, detail=f"owner {owner}", mend=mend)
    epoch, released = document["epoch"], document.get("released") or 0
    # Each lease of a host raises `epoch`, and the end of a lease copies `epoch` to `released`.
    if epoch < released + (owner is not None):
        detail = f"epoch {epoch}, released {released}, owner {owner}"
        yield Violation(kind=Kind.FENCE_BEHIND, detail=detail)


def is_awake(document: Mapping[str, Any], *, now: datetime) -> bool:
    """Return whether a host needs no wake-up, because it is leased or can be leased now."""
    ready_at = document.get("ready_at")
    return document.get("owner") is not None or (isinstance(ready_at, datetime) and ready_at <= now)


def wake_up_violations(document: Mapping[str, Any] | None, *, due: datetime) -> Iterator[Violation]:
    """Yield the violations of a host without an owner; the host's first task is due at *due*.

    *document* is None if the host is unknown. A given-up host needs a wake-up too, because the
    host's next owner must mark new tasks as ignored.
    """
    ready_at = None if document is None else document.get("ready_at")
    not_before = None if document is None else document.get("not_before")
    if ready_at is None or ready_at > max(due, not_before or due):
        readiness = "never ready" if ready_at is None else f"ready at {ready_at}"
        detail = (
            f"a task is due at {due}, the host is {'unknown' if document is None else readiness}"
        )
        yield Violation(kind=Kind.HOST_ASLEEP, detail=detail, mend={"ready_at": due})
