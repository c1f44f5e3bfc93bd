"""Make MongoDB's filters for tasks (by expected state, by host), and its updates of tasks."""

from collections.abc import Iterable, Sequence
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.kind import LedgerKind
from crawlcw.model.task import Lease, Status, Task, ids_of_host
from crawlcw.model.transitions import KEPT_TRACE, Change

_MAY_BE_ABSENT = ("due", "quarantine_fence", "reason", "context", "revisit")


def lease_guard(lease: Lease) -> dict[str, Any]:
    """Return a filter that matches the task of *lease* while the lease is still valid."""
    return {
        "_id": lease.task.id,
        "lock": lease.token,
        "fence": lease.fence,
        "status": int(Status.PROCESSING),
    }


def unchanged_guard(task: Task) -> dict[str, Any]:
    """Return a filter that matches a task if the task has not changed since it was read."""
    return {"_id": task.id, "fence": task.fence, "status": int(task.status)}


def locked(ids: Iterable[bytes], tokens: Iterable[str]) -> dict[str, Any]:
    """Return the filter for the tasks that are leased under one of the tokens."""
    return {
        "_id": {"$in": list(ids)},
        # Remove duplicate tokens by a dict, because the order of a set depends on string hashes.
        "lock": {"$in": list(dict.fromkeys(tokens))},
        "status": int(Status.PROCESSING),
    }


def of_host(host: str, kind: LedgerKind) -> documents.Document:
    """Return a filter for a host's tasks, by the host's name and a range of ids.

    The range of ids lets MongoDB ask only one shard of a sharded collection. The id of a tracked
    task does not contain the host, so the filter for tracked tasks has no range.
    """
    return {"host": host} if kind.tracked else {"host": host, **_ids(host)}


def of_hosts(hosts: Sequence[str], kind: LedgerKind) -> documents.Document:
    """Return a filter for the tasks of *hosts*, by host names and ranges of ids."""
    chosen: documents.Document = {"host": {"$in": hosts}}
    return chosen if kind.tracked else {**chosen, "$or": [_ids(host) for host in hosts]}


def _ids(host: str) -> documents.Document:
    first, last = ids_of_host(host)
    return {"_id": {"$gte": first, "$lte": last}}


def update_of(change: Change) -> dict[str, Any]:
    """Return the update that sets a task's fields; it removes optional fields that are None."""
    fields = documents.changed(change) | documents.progressed(change)
    # Set a stage's result by its own path (`results.STAGE`), so that the results of other stages
    # stay.
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
