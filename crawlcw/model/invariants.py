"""Invariants of every task and host in a ledger, whatever happened to the processes on it.

Given a document's fields, name each invariant that it violates, and the fields that
would mend it. Nothing here reads or writes a ledger: `doctor` does, and each ledger
checks its own store.

A mend changes only fields that have lost their meaning, or that let the protocol go on:
a lease is ended, never a status decided; a lock that nothing compares with any
more is taken away. What cannot be mended without a guess is left.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from crawlcw.errors import FAILURE_REASONS, FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.task import DONE, HOST_BYTES, WAITING, Status, ids_of_host, key_id, task_id

#: A worker that lives renews a lease sooner; a dead one has lost it by then.
_RENEWED_WITHIN = timedelta(seconds=60)
#: The token of a lease that was mended; no worker has such a name.
_DOCTOR = "doctor:0"
#: So begins the name of a worker that asks for its share, and of no process.
_ASKING = "@"
_LARGEST_OFFSET = timedelta(seconds=1)
_REASONS = frozenset(Reason)


class Kind(StrEnum):
    """What may be found. The values are part of the command's JSON."""

    # A task.
    MALFORMED = "malformed"
    STATUS_UNKNOWN = "status-unknown"
    LEASE_INCOMPLETE = "lease-incomplete"
    LOCK_LEFT = "lock-left"
    DUE_MISSING = "due-missing"
    DUE_LEFT = "due-left"
    COUNTER_NEGATIVE = "counter-negative"
    BOUND_EXCEEDED = "bound-exceeded"
    FENCE_BEHIND = "fence-behind"
    NEVER_SETTLED = "never-settled"
    REASON_UNKNOWN = "reason-unknown"
    REASON_MISSING = "reason-missing"
    REASON_LEFT = "reason-left"
    REASON_UNFOUNDED = "reason-unfounded"
    ITEM_LOST = "item-lost"
    ITEM_WITHOUT_TASK = "item-without-task"
    ID_OF_OTHER_HOST = "id-of-other-host"
    HOST_OF_OTHER_URL = "host-of-other-url"
    ID_OF_OTHER_REQUEST = "id-of-other-request"
    # A tracked task.
    ID_OF_OTHER_KEY = "id-of-other-key"
    HOST_OF_OTHER_STAGE = "host-of-other-stage"
    BLOB_LOST = "blob-lost"
    BLOB_LEFT = "blob-left"
    # A host.
    HOST_MALFORMED = "host-malformed"
    HOST_LEASE_ENDLESS = "host-lease-endless"
    HOST_EPOCH_BEHIND = "host-epoch-behind"
    HOST_ASLEEP = "host-asleep"
    # A worker.
    WORKER_DEAD = "worker-dead"
    LEASE_ORPHANED = "lease-orphaned"
    # The store.
    STORE_INCOMPLETE = "store-incomplete"
    STORE_DIFFERENT = "store-different"
    STORE_DAMAGED = "store-damaged"
    STORE_READ_ONLY = "store-read-only"
    NOT_WAL = "not-wal"
    NOT_DURABLE = "not-durable"
    MAY_NOT_WRITE = "may-not-write"
    STANDALONE = "standalone"
    SHARDED = "sharded"
    CLOCK_OFFSET = "clock-offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The meaning of a kind of finding to the person who reads it."""

    meaning: str
    todo: str
    note: bool = False  #: worth knowing, and no violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Something that does not hold of one document, or of the store."""

    kind: Kind
    detail: str  #: may hold text of the ledger
    mend: Mapping[str, Any] | None = None
    """The fields that mend it, None for absent; no field if another write does.

    None where no write would do so safely.
    """


_LOOK = "look at it in the database: crawlcw writes no such document"
ADVICE: Mapping[Kind, Advice] = {
    Kind.MALFORMED: Advice(
        meaning="a task lacks a field, or has one of another type",
        todo=f"{_LOOK}; --repair takes away a `due` that is no time. "
        "Until it is mended, lost wake-ups are not looked for",
    ),
    Kind.STATUS_UNKNOWN: Advice(meaning="a task has a status that does not exist", todo=_LOOK),
    Kind.LEASE_INCOMPLETE: Advice(
        meaning="a task is processing without lock, lock_time or the end of its lease",
        todo="--repair lets the lease end, so that the task is taken over",
    ),
    Kind.LOCK_LEFT: Advice(
        meaning="a task that no worker holds has a lock or a lock_time",
        todo="--repair takes it away; nothing compares with it any more",
    ),
    Kind.DUE_MISSING: Advice(
        meaning="a task that waits has no `due`: no worker would ever take it",
        todo="--repair makes it due now",
    ),
    Kind.DUE_LEFT: Advice(
        meaning="a finished or ignored task has a `due`: workers would stumble over it",
        todo="--repair takes it away",
    ),
    Kind.COUNTER_NEGATIVE: Advice(
        meaning="a counter of a task is negative",
        todo="--repair sets retry and lost to 0; a fence cannot be guessed",
    ),
    Kind.BOUND_EXCEEDED: Advice(
        meaning="a task was tried or lost more often than --max-retry or --max-lost say",
        todo="see whether the crawl ran with larger limits; else this is a bug of crawlcw",
    ),
    Kind.FENCE_BEHIND: Advice(
        meaning="a task has an outcome of a claim that its fence does not know",
        todo="was a part of the database restored from a backup? Restore the whole of it",
    ),
    Kind.NEVER_SETTLED: Advice(
        meaning="a task is finished or failed, or has items, and no outcome was ever recorded",
        todo="find out who wrote it: crawlcw records both in one write",
    ),
    Kind.REASON_UNKNOWN: Advice(
        meaning="a task has a reason that is not on the list",
        todo="a later crawlcw may have written it: use that one",
    ),
    Kind.REASON_MISSING: Advice(
        meaning="a failed or ignored task does not say why",
        todo="set a reason in the database; `retry-failed` asks for it",
    ),
    Kind.REASON_LEFT: Advice(
        meaning="a task that neither failed nor is ignored has a reason",
        todo="--repair takes it away",
    ),
    Kind.REASON_UNFOUNDED: Advice(
        meaning="a task's reason and its counters contradict each other",
        todo="find out who wrote it: crawlcw counts and records in one write",
    ),
    Kind.ITEM_LOST: Advice(
        meaning="an item that was recorded is not there",
        todo="restore `<spider>.items` from a backup, or let the task be crawled again",
    ),
    Kind.ITEM_WITHOUT_TASK: Advice(
        meaning="there are items of a task that does not exist",
        todo="delete them, or restore the task from a backup",
    ),
    Kind.ID_OF_OTHER_HOST: Advice(
        meaning="the first bytes of a task's id are not those of its host",
        todo="find out who wrote it: the same URL may be crawled a second time",
    ),
    Kind.HOST_OF_OTHER_URL: Advice(
        meaning="a task's host is not that of its URL: another host's limits would hold",
        todo="find out who wrote it: the same URL may be crawled a second time",
    ),
    Kind.ID_OF_OTHER_REQUEST: Advice(
        meaning="a task's id is not that of its URL, method and body alone",
        todo="nothing, where the spider yields requests with `dont_filter`: they have such ids",
        note=True,
    ),
    Kind.ID_OF_OTHER_KEY: Advice(
        meaning="a task's id is not that of its key: a search by the key would not find it",
        todo="find out who wrote it: the same key may be added a second time",
    ),
    Kind.HOST_OF_OTHER_STAGE: Advice(
        meaning="a task's host is not its stage: workers on that stage would not find it",
        todo="find out who wrote it: crawlcw sets both in one write",
    ),
    Kind.BLOB_LOST: Advice(
        meaning="a blob that a task refers to is not there",
        todo="restore `<use case>.blobs` from a backup, or let the task begin anew",
    ),
    Kind.BLOB_LEFT: Advice(
        meaning="no task refers to this blob",
        todo="nothing: a process ended, or lost the ledger, between two writes; --repair deletes "
        "values older than a day",
        note=True,
    ),
    Kind.HOST_MALFORMED: Advice(
        meaning="a host lacks a field, or has one of another type or below zero",
        todo=f"{_LOOK}; --repair takes away a `ready_at` that is no time",
    ),
    Kind.HOST_LEASE_ENDLESS: Advice(
        meaning="a host is held by a lease that has no end: no other worker would ever get it",
        todo="--repair lets the lease end in a minute",
    ),
    Kind.HOST_EPOCH_BEHIND: Advice(
        meaning="a host has a lease, or an end of one, that its epoch does not know",
        todo="was a part of the database restored from a backup? Restore the whole of it",
    ),
    Kind.HOST_ASLEEP: Advice(
        meaning="a host has tasks and is not ready in time for them: a wake-up was lost",
        todo="nothing: idle workers find it; --repair wakes it at once",
        note=True,
    ),
    Kind.WORKER_DEAD: Advice(
        meaning="a worker is dead and still on the list of those at work",
        todo="nothing: the next crawl takes back its tasks; --repair does so at once",
        note=True,
    ),
    Kind.LEASE_ORPHANED: Advice(
        meaning="a lease is held by a worker that is not on the list of those at work",
        todo="nothing: the lease runs out; --repair ends it at once",
        note=True,
    ),
    Kind.STORE_INCOMPLETE: Advice(
        meaning="a table, an index or the schema's version is missing: the rest was not examined",
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
        todo="nothing for those who only look; else give it the role in `crawlcw guide deploying`",
        note=True,
    ),
    Kind.STANDALONE: Advice(
        meaning="the server is no replica set: killed, it may forget acknowledged writes",
        todo="make it a replica set, of one member if need be",
        note=True,
    ),
    Kind.SHARDED: Advice(
        meaning="the ledger is on a sharded cluster, where only the shard key is unique",
        todo="leave its collections unsharded, or use the keys in `crawlcw guide deploying`",
        note=True,
    ),
    Kind.CLOCK_OFFSET: Advice(
        meaning="this machine's clock and the server's differ by more than a second",
        todo="nothing for the ledger, which goes by the server's; set the clock (NTP) for the logs",
        note=True,
    ),
}


def _is_whole(value: object) -> bool:
    # The database's own shells write whole numbers as floats.
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: object) -> bool:
    return isinstance(value, datetime)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_id(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == 16


def _are_options(value: object) -> bool:
    return isinstance(value, Mapping) and _is_whole(value.get("max_retry", 1))


_Check = Callable[[object], bool]
_NEEDED: Mapping[str, tuple[_Check, str]] = {
    "_id": (_is_id, "16 bytes"),
    "url": (_is_text, "text"),
    "host": (_is_text, "text"),
    "callback": (_is_text, "text"),
    "depth": (_is_whole, "a whole number"),
    "priority": (_is_whole, "a whole number"),
    "status": (_is_whole, "a whole number"),
    "update_time": (_is_time, "a time"),
    "create_time": (_is_time, "a time"),
    "fence": (_is_whole, "a whole number"),
    "settled": (_is_whole, "a whole number"),
    "retry": (_is_whole, "a whole number"),
    "lost": (_is_whole, "a whole number"),
}
_OPTIONAL: Mapping[str, tuple[_Check, str]] = {
    "method": (_is_text, "text"),
    "body": (lambda value: isinstance(value, bytes), "bytes"),
    "lock": (_is_text, "text"),
    "lock_time": (_is_time, "a time"),
    "quarantine_fence": (_is_whole, "a whole number"),
    "reason": (_is_text, "text"),
    "options": (_are_options, "a document, its max_retry a whole number"),
    "revisit": (_is_time, "a time"),
}
_HOST_NEEDED: Mapping[str, tuple[_Check, str]] = {
    "_id": (_is_text, "text"),
    "epoch": (_is_whole, "a whole number"),
    "delay": (_is_number, "a number"),
    "failures": (_is_whole, "a whole number"),
    "page_failures": (_is_whole, "a whole number"),
    "finished": (_is_whole, "a whole number"),
}
_HOST_OPTIONAL: Mapping[str, tuple[_Check, str]] = {
    "owner": (_is_text, "text"),
    "released": (_is_whole, "a whole number"),
    "not_before": (_is_time, "a time"),
    "given_up": (_is_text, "text"),
}


def of_task(
    found: Mapping[str, Any],
    *,
    now: datetime,
    max_retry: int | None = None,
    max_lost: int | None = None,
    tracked: bool = False,
) -> Iterator[Violation]:
    """Yield what does not hold of a task, or of a *tracked* one.

    *found* are its fields as `ledger.documents` names them, and of its results
    `items` (how many there are), `items_lost` (which of them are not) and
    `blobs_lost` (which blobs are not there). The limits are those
    the crawl ran with, where they are known: a ledger does not record them, and
    a later crawl may have had others. A task's own `max_retry` counts instead.
    """
    if set(found) <= {"_id", "items"}:
        yield Violation(kind=Kind.ITEM_WITHOUT_TASK, detail=f"items: {found.get('items')}")
        return
    malformed = [
        Violation(kind=Kind.MALFORMED, detail=detail)
        for detail in _misshapen(found, _NEEDED, _OPTIONAL)
    ]
    yield from malformed
    if malformed:
        return
    if found["status"] not in tuple(Status):
        yield Violation(kind=Kind.STATUS_UNKNOWN, detail=f"status {found['status']}")
        return
    status = Status(int(found["status"]))
    yield from _of_lease(found, status, now=now)
    yield from _of_counters(found, status, max_retry=max_retry, max_lost=max_lost)
    yield from _of_reason(found, status)
    if tracked:
        yield from _of_key(found)
    else:
        yield from _of_identity(found)


def _misshapen(
    found: Mapping[str, Any],
    needed: Mapping[str, tuple[_Check, str]],
    optional: Mapping[str, tuple[_Check, str]],
) -> Iterator[str]:
    for name, (is_right, what) in needed.items():
        if name not in found:
            yield f"{name} is missing"
        elif not is_right(found[name]):
            yield f"{name} is {found[name]!r}, not {what}"
    for name, (is_right, what) in optional.items():
        value = found.get(name)
        if value is not None and not is_right(value):
            yield f"{name} is {value!r}, not {what}"


def _of_lease(found: Mapping[str, Any], status: Status, *, now: datetime) -> Iterator[Violation]:
    due = found.get("due")
    if "due" in found and not _is_time(due):
        # In MongoDB null is no absence: the index has it, before all times.
        yield Violation(kind=Kind.MALFORMED, detail=f"due is {due!r}", mend={"due": None})
        due = None
    lock, lock_time = found.get("lock"), found.get("lock_time")

    def says() -> str:
        return f"{status.name.lower()}, lock {lock!r}, lock_time {lock_time}, due {due}"

    if status is Status.PROCESSING:
        if lock is None or lock_time is None or due is None:
            mend: dict[str, Any] = {}
            if lock_time is None:
                mend["lock_time"] = found["update_time"]
            if lock is None:
                # No worker can hold it, for every write of a holder compares the
                # lock: it becomes a lease that has run out.
                mend |= {"lock": _DOCTOR, "due": now if due is None else min(due, now)}
            elif due is None:
                # Who holds it renews it, and may still commit.
                mend["due"] = now + _RENEWED_WITHIN
            yield Violation(kind=Kind.LEASE_INCOMPLETE, detail=says(), mend=mend)
        return
    if lock is not None or lock_time is not None:
        mend = {"lock": None, "lock_time": None}
        yield Violation(kind=Kind.LOCK_LEFT, detail=says(), mend=mend)
    if status in WAITING and due is None:
        yield Violation(kind=Kind.DUE_MISSING, detail=says(), mend={"due": now})
    if status in DONE and due is not None:
        yield Violation(kind=Kind.DUE_LEFT, detail=says(), mend={"due": None})


def _of_counters(
    found: Mapping[str, Any], status: Status, *, max_retry: int | None, max_lost: int | None
) -> Iterator[Violation]:
    own = found.get("options", {}).get("max_retry", max_retry)
    for name, limit in (("retry", own), ("lost", max_lost)):
        count = found[name]
        if count < 0:
            yield Violation(kind=Kind.COUNTER_NEGATIVE, detail=f"{name} is {count}", mend={name: 0})
        if limit is not None and count > limit:
            yield Violation(kind=Kind.BOUND_EXCEEDED, detail=f"{name} is {count}, of {limit}")
    fence, settled = found["fence"], found["settled"]
    quarantine_fence = found.get("quarantine_fence") or 0

    def says() -> str:
        return (
            f"{status.name.lower()}, fence {fence}, settled {settled}, "
            f"quarantine_fence {quarantine_fence}"
        )

    if settled < 0 or fence < 0 or quarantine_fence < 0:
        yield Violation(kind=Kind.COUNTER_NEGATIVE, detail=says())
    elif fence < settled + (status is Status.PROCESSING) or fence < quarantine_fence:
        # A claim raises the fence, its work begins, and its outcome ends the claim.
        yield Violation(kind=Kind.FENCE_BEHIND, detail=says())
    if settled == 0 and (status in (Status.FINISHED, Status.FAILED) or found.get("items")):
        detail = f"{says()}, items: {found.get('items', 0)}"
        yield Violation(kind=Kind.NEVER_SETTLED, detail=detail)
    if found.get("items_lost"):
        numbers = ", ".join(map(str, found["items_lost"]))
        detail = f"item {numbers} of {found.get('items')}"
        yield Violation(kind=Kind.ITEM_LOST, detail=detail)


def _of_reason(found: Mapping[str, Any], status: Status) -> Iterator[Violation]:
    reason = found.get("reason")

    def says() -> str:
        counted = f"retry {found['retry']}, lost {found['lost']}"
        return f"{status.name.lower()}, reason {reason}, {counted}"

    if reason is None:
        if status in (Status.FAILED, Status.IGNORED):
            yield Violation(kind=Kind.REASON_MISSING, detail=says())
        return
    if status is Status.FINISHED and reason == Reason.REDIRECT:
        return
    if status in (Status.TODO, Status.FINISHED):
        yield Violation(kind=Kind.REASON_LEFT, detail=says(), mend={"reason": None})
        return
    if reason not in _REASONS:
        yield Violation(kind=Kind.REASON_UNKNOWN, detail=f"reason {reason!r}")
        return
    unwanted = status is Status.FAILED and reason not in FAILURE_REASONS
    # Only a task that was tried is tried again.
    untried = status is Status.FAILED and found["retry"] < 1
    # Ledgers of earlier versions: there a child process died of the page, and no lease was lost.
    unlost = (
        reason == Reason.CRASHED_WORKER
        and found["lost"] < 1
        and found.get("quarantine_fence") is None
    )
    if unwanted or untried or (status is Status.IGNORED and unlost):
        yield Violation(kind=Kind.REASON_UNFOUNDED, detail=says())


def _of_identity(found: Mapping[str, Any]) -> Iterator[Violation]:
    identity, host = found["_id"], found["host"]
    try:
        location = urls.locate(found["url"])
    except FetchError as error:
        yield Violation(kind=Kind.MALFORMED, detail=str(error))
        return
    says = f"id {identity.hex()}, host {host}"
    if location.host != host:
        yield Violation(kind=Kind.HOST_OF_OTHER_URL, detail=says)
    if identity[:HOST_BYTES] != ids_of_host(host)[0][:HOST_BYTES]:
        yield Violation(kind=Kind.ID_OF_OTHER_HOST, detail=says)
        return
    if location.host != host:
        return
    method = found.get("method") or "GET"
    # What salted the id of a `dont_filter` request is recorded nowhere, so
    # this alone says nothing bad of it.
    if task_id(location, method=method, body=found.get("body") or b"") != identity:
        yield Violation(kind=Kind.ID_OF_OTHER_REQUEST, detail=says)


def _of_key(found: Mapping[str, Any]) -> Iterator[Violation]:
    if key_id(found["url"]) != found["_id"]:
        yield Violation(kind=Kind.ID_OF_OTHER_KEY, detail=f"id {found['_id'].hex()}")
    if found["host"] != found["callback"]:
        detail = f"host {found['host']}, stage {found['callback']}"
        yield Violation(kind=Kind.HOST_OF_OTHER_STAGE, detail=detail)
    if found.get("blobs_lost"):
        yield Violation(kind=Kind.BLOB_LOST, detail=", ".join(map(str, found["blobs_lost"])))


def of_host(found: Mapping[str, Any], *, now: datetime) -> Iterator[Violation]:
    """Yield what does not hold of a host, its fields as `ledger.documents` names them."""
    malformed = [
        Violation(kind=Kind.HOST_MALFORMED, detail=detail)
        for detail in _misshapen(found, _HOST_NEEDED, _HOST_OPTIONAL)
    ]
    yield from malformed
    if malformed:
        return
    owner, ready_at = found.get("owner"), found.get("ready_at")
    if "ready_at" in found and not _is_time(ready_at):
        yield Violation(
            kind=Kind.HOST_MALFORMED, detail=f"ready_at is {ready_at!r}", mend={"ready_at": None}
        )
        ready_at = None
    if owner is not None and ready_at is None:
        mend = {"ready_at": now + _RENEWED_WITHIN}
        yield Violation(kind=Kind.HOST_LEASE_ENDLESS, detail=f"owner {owner}", mend=mend)
    epoch, released = found["epoch"], found.get("released") or 0
    # A lease raises the epoch, and its end writes the epoch down.
    if epoch < released + (owner is not None):
        detail = f"epoch {epoch}, released {released}, owner {owner}"
        yield Violation(kind=Kind.HOST_EPOCH_BEHIND, detail=detail)
    numbers = {
        name: found[name] for name in ("epoch", "delay", "failures", "page_failures", "finished")
    }
    for name, number in numbers.items():
        if not _is_number(number) or number < 0:
            yield Violation(kind=Kind.HOST_MALFORMED, detail=f"{name} is {number!r}")
    given_up = found.get("given_up")
    if given_up is not None and given_up not in frozenset(Reason):
        yield Violation(kind=Kind.HOST_MALFORMED, detail=f"given_up is {given_up!r}")


def is_awake(found: Mapping[str, Any], *, now: datetime) -> bool:
    """Return whether a host is held, or may be leased at once: no wake-up is lost to it."""
    ready_at = found.get("ready_at")
    return found.get("owner") is not None or (isinstance(ready_at, datetime) and ready_at <= now)


def of_wake_up(found: Mapping[str, Any] | None, *, due: datetime) -> Iterator[Violation]:
    """Yield the broken invariants of a host without an owner, whose first task is *due*.

    *found* is None where the host is not known. One that was given up is no
    other case: its next owner ignores the tasks that have come since.
    """
    if found is None:
        detail = f"a task is due at {due}, it is not known"
        yield Violation(kind=Kind.HOST_ASLEEP, detail=detail, mend={"ready_at": due})
        return
    ready_at = found.get("ready_at")
    if ready_at is None or ready_at > max(due, found.get("not_before") or due):
        when = "never ready" if ready_at is None else f"ready at {ready_at}"
        detail = f"a task is due at {due}, it is {when}"
        yield Violation(kind=Kind.HOST_ASLEEP, detail=detail, mend={"ready_at": due})


def of_clock(offset: timedelta) -> Iterator[Violation]:
    """Yield what does not hold of a machine whose clock is *offset* behind the ledger's."""
    if abs(offset) > _LARGEST_OFFSET:
        seconds = offset.total_seconds()
        yield Violation(
            kind=Kind.CLOCK_OFFSET, detail=f"the server's is {seconds:+.1f} s from this machine's"
        )


def holder(found: Mapping[str, Any], *, now: datetime) -> str | None:
    """Return the worker whose live lease a task or a host shows, if there is one.

    A lease that has run out has no holder: the first claimer takes it over. A
    worker that asks for its share is on no list, and is not meant here.
    """
    token = found.get("lock") if "status" in found else found.get("owner")
    ends = found.get("due") if "status" in found else found.get("ready_at")
    if not isinstance(token, str) or not isinstance(ends, datetime) or ends <= now:
        return None
    if token.startswith(_ASKING):
        return None
    return token.rpartition(":")[0] or None
