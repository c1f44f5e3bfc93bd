"""Filters of tasks, by the state that they must still have or by their hosts, and updates."""

from collections.abc import Iterable, Sequence
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.kind import LedgerKind
from crawlcw.model.task import Lease, Status, Task, ids_of_host
from crawlcw.model.transitions import KEPT_TRACE, Change

_MAY_BE_ABSENT = ("due", "quarantine_fence", "reason", "context", "revisit")


def lease_guard(lease: Lease) -> dict[str, Any]:
    """Return the filter of a task that the lease still holds."""
    return {
        "_id": lease.task.id,
        "lock": lease.token,
        "fence": lease.fence,
        "status": int(Status.PROCESSING),
    }


def unchanged_guard(task: Task) -> dict[str, Any]:
    """Return the filter of a task that has not changed since it was read."""
    return {"_id": task.id, "fence": task.fence, "status": int(task.status)}


def locked(ids: Iterable[bytes], tokens: Iterable[str]) -> dict[str, Any]:
    """Return the filter of the tasks that are leased under one of the tokens."""
    return {
        "_id": {"$in": list(ids)},
        # Send each token once, in an order that does not depend on the hashes of strings.
        "lock": {"$in": list(dict.fromkeys(tokens))},
        "status": int(Status.PROCESSING),
    }


def of_host(host: str, kind: LedgerKind) -> documents.Document:
    """Return the filter of a host's tasks, with the host's range of ids.

    The range lets a sharded collection ask one shard only. A tracked task's id is the digest of
    its key, and does not depend on its stage.
    """
    return {"host": host} if kind.tracked else {"host": host, **_ids(host)}


def of_hosts(hosts: Sequence[str], kind: LedgerKind) -> documents.Document:
    """Return the filter of the tasks of some hosts, with their ranges of ids."""
    chosen: documents.Document = {"host": {"$in": hosts}}
    return chosen if kind.tracked else {**chosen, "$or": [_ids(host) for host in hosts]}


def _ids(host: str) -> documents.Document:
    first, last = ids_of_host(host)
    return {"_id": {"$gte": first, "$lte": last}}


def update_of(change: Change) -> dict[str, Any]:
    """Return the update that sets a task's fields; for `_MAY_BE_ABSENT` None means absent."""
    fields = documents.changed(change) | documents.progressed(change)
    # Set each result by its own path. A stage's name is an identifier, so it is one step of the
    # path.
    results = fields.pop("results", {})
    fields |= {f"results.{stage}": result for stage, result in results.items()}
    unset_fields = {name: "" for name in _MAY_BE_ABSENT if name in fields and fields[name] is None}
    for name in unset_fields:
        del fields[name]
    update: dict[str, Any] = {"$set": fields}
    if unset_fields:
        update["$unset"] = unset_fields
    if change.error is not None:
        errors = [documents.error_document(change.error)]
        update["$push"] = {"errors": {"$each": errors, "$slice": -change.kept_errors}}
    if change.trace is not None:
        trace = [documents.trace_document(change.trace)]
        pushes = update.setdefault("$push", {})
        pushes["trace"] = {"$each": trace, "$slice": -KEPT_TRACE}
    return update
