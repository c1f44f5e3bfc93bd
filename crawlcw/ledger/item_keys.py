"""Reserve the keys of items, so that only one task records an item with the same key.

A key is reserved before the outcome with its item is committed:

    _id       digest of the key, in hex
    task      id of the task that has the key, in hex
    fence     fence of the lease under which the task reserved the key
    previous  id of the task that had the key before, if that task had recorded an item

The task has the key if it has committed a later outcome, or still has the lease with this fence. A
reservation whose worker has crashed is free, so that another task may reserve the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import AtMost, Edit, LedgerTables, Store, Write
from crawlcw.model.task import Lease, Status


@dataclass(slots=True)
class Reserved:
    """Result of a reservation: the keys that other tasks keep, and the keys that they lost."""

    refused: set[str] = field(default_factory=set)  #: keys that stay with other tasks
    #: Maps the id of each task that had recorded an item to the keys that were taken from the task.
    replaced: dict[bytes, set[str]] = field(default_factory=dict)


class ItemKeys:
    """Reserves the keys of items for tasks, durably and for all processes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reserve(self, lease_by_key: Mapping[str, Lease], *, replace: bool) -> Reserved:
        """Reserve keys for the leased tasks; return which keys other tasks have.

        With *replace*, `reserve` also takes a key from a task that has recorded an item with this
        key; the caller must then remove this item. A task keeps its keys while its worker may be
        committing the task's outcome. The call is idempotent.
        """
        return await self._store.writing(_reserve, lease_by_key, replace)

    async def release(self, lease: Lease) -> int:
        """Release the keys that the task reserved under leases before *lease*."""
        return await self._store.writing(_release, lease)


async def _reserve(
    tables: LedgerTables, lease_by_key: Mapping[str, Lease], replace: bool
) -> Reserved:
    reserved = Reserved()
    pending = dict(lease_by_key)
    while pending:
        new = [_document(key, lease) for key, lease in pending.items()]
        if await tables.item_keys.insert(new) == len(new):
            break
        stored = await tables.item_keys.read([*pending])
        task_ids = [bytes.fromhex(task_id) for task_id in {d["task"] for d in stored.values()}]
        tasks = await tables.tasks.read(task_ids, fields=("fence", "settled", "status"))
        writes = dict[str, Write]()
        for key, document in stored.items():
            lease, task_id = pending[key], bytes.fromhex(document["task"])
            if task_id != lease.task.id:
                holds, has_recorded = _holds(document, tasks.get(task_id))
                if holds and not (replace and has_recorded):
                    reserved.refused.add(key)
                    continue
                previous = document["task"] if has_recorded else document.get("previous")
            else:
                # A worker may have crashed between the reservation and the removal of the item.
                previous = document.get("previous")
            if previous is not None:
                reserved.replaced.setdefault(bytes.fromhex(previous), set()).add(key)
            new_document = _document(key, lease) | {"previous": previous}
            if any(document.get(name) != value for name, value in new_document.items()):
                unchanged = {"task": document["task"], "fence": document["fence"]}
                writes[key] = Write(key, unchanged, Edit(set=_without_key(new_document)))
        if not writes or await tables.item_keys.change([*writes.values()]) == len(writes):
            break
        # Another process has taken a key since the read, so read the keys again.
        pending = {key: lease for key, lease in pending.items() if key in writes}
    return reserved


def _holds(document: Document, task: Document | None) -> tuple[bool, bool]:
    """Return whether the task of a key still has the key, and whether it has recorded an item."""
    if task is None:
        return False, False
    has_recorded = task["settled"] >= document["fence"]
    may_commit = task["fence"] == document["fence"] and task["status"] == Status.PROCESSING
    return has_recorded or may_commit, has_recorded


def _document(key: str, lease: Lease) -> Document:
    return {"_id": key, "task": lease.task.id.hex(), "fence": lease.fence}


def _without_key(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "_id"}


async def _release(tables: LedgerTables, lease: Lease) -> int:
    earlier = {"task": lease.task.id.hex(), "fence": AtMost(lease.fence - 1)}
    return await tables.item_keys.delete(earlier)
