"""Record the outcomes of tasks, and release tasks without an outcome."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.blobs import Items, OutsideItem, placed
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.ledger.mongo.table import UNENCODABLE, Update, send
from crawlcw.ledger.mongo.updates import lease_guard, unchanged_guard, update_of
from crawlcw.ledger.protocol import Committed
from crawlcw.model import transitions
from crawlcw.model.task import Lease
from crawlcw.model.transitions import Settlement


class Outcomes:
    """Writes the outcomes of leased tasks, and releases leased tasks without an outcome."""

    def __init__(self, store: MongoStore, items: Items) -> None:
        self._store = store
        self._items = items

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """Write all outcomes in one unordered bulk of updates, each of which tests the fence."""
        with mapped():
            matched_count, refusals = await self._record(settlements, lease_guard)
            rejections = [_rejection(settlements[index], why) for index, why in refusals.items()]
            rejection_reply = await send(self._store.durable, rejections)
            leases = [settlement.lease for settlement in settlements]
            is_all = matched_count + rejection_reply.matched == len(leases)
            lost = [] if is_all else await self._not_settled(leases)
        rejected = tuple((leases[index], why) for index, why in refusals.items())
        return Committed(lost=tuple(lost), rejected=rejected)

    async def _record(
        self, settlements: Sequence[Settlement], guard: Callable[[Lease], dict[str, Any]]
    ) -> tuple[int, dict[int, str]]:
        """Write the outcomes; return the number of matched tasks, and error messages by index.

        `_record` writes the outcomes without large items first. Then it writes the large items to
        their own collection, and at last the outcomes with large items. Only the fence in a task's
        outcome makes its large items visible.
        """
        refusals: dict[int, str] = {}
        updates: dict[int, Update] = {}
        outside_items: list[OutsideItem] = []
        owners: list[int] = []  #: index of the outcome of each item in `outside_items`
        for index, settlement in enumerate(settlements):
            try:
                change, large = await _update(settlement)
            except UNENCODABLE as error:
                refusals[index] = str(error)
            else:
                updates[index] = Update(guard(settlement.lease), change)
                outside_items += large
                owners += [index] * len(large)
        # Send the outcomes without large items first, because many large items may take long.
        last = set(owners)
        matched = await self._send(updates, updates.keys() - last, refusals)
        if outside_items:
            for number, why in (await self._items.write(outside_items)).items():
                refusals[owners[number]] = why
            matched += await self._send(updates, last - refusals.keys(), refusals)
        await self._items.forget_replaced(settlements)
        return matched, refusals

    async def _send(
        self, updates: Mapping[int, Update], indexes: Collection[int], refusals: dict[int, str]
    ) -> int:
        """Send the updates with *indexes*; return how many matched; put errors in *refusals*."""
        order = sorted(indexes)
        send_result = await send(self._store.durable, [updates[index] for index in order])
        refusals |= {order[n]: why for n, why in send_result.refused.items()}
        return send_result.matched

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """Write the outcomes in bulk; an update matches only if fence and status are unchanged."""
        with mapped():
            matched, refusals = await self._record(
                settlements, lambda lease: unchanged_guard(lease.task)
            )
            leases = [settlement.lease for settlement in settlements]
            sent = [lease for index, lease in enumerate(leases) if index not in refusals]
            lost = [] if matched == len(sent) else await self._not_settled(sent)
        rejected = tuple((leases[index], why) for index, why in refusals.items())
        return Committed(lost=tuple(lost), rejected=rejected)

    async def _not_settled(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases whose outcome is not recorded as the last outcome of the task."""
        ids = [lease.task.id for lease in leases]
        cursor = self._store.tasks.find({"_id": {"$in": ids}}, {"settled": 1}).hint("_id_")
        settled_fences = {
            bytes(task["_id"]): task["settled"] for task in await all_of(cursor, len(ids))
        }
        return [lease for lease in leases if settled_fences.get(lease.task.id) != lease.fence]

    async def release(self, leases: Sequence[Lease]) -> int:
        """Write all releases in one unordered bulk of updates, each of which tests the fence."""
        now = self._store.now()
        changes = [transitions.release(lease, now=now).change for lease in leases]
        updates = [
            Update(lease_guard(lease), update_of(change))
            for lease, change in zip(leases, changes, strict=True)
        ]
        with mapped():
            return (await send(self._store.durable, updates)).matched


def _rejection(settlement: Settlement, message: str) -> Update:
    """Return the update that gives up a task whose outcome the store cannot hold."""
    rejection = transitions.rejected(settlement, reason=Reason.STORE_REJECTED, message=message)
    return Update(lease_guard(settlement.lease), update_of(rejection.change))


async def _update(settlement: Settlement) -> tuple[dict[str, Any], list[OutsideItem]]:
    """Return the update that records an outcome, and the items to store outside of the task.

    Raises one of `UNENCODABLE` for an item that the store cannot hold.
    """
    update = update_of(settlement.change)
    items = settlement.change.items
    if not items:
        if items is not None and settlement.lease.task.settled:
            # The new outcome has no items, so remove the items of the earlier outcome.
            update.setdefault("$unset", {}).update(items="", items_from="")
        return update, []
    lease, versions = settlement.lease, settlement.change.kept_versions
    escaped = (documents.escaped(item) for item in items)
    inside, outside_items = await placed(
        lease.task.id, lease.fence, escaped, all_outside=versions > 0
    )
    source = documents.source_document(settlement)
    update["$set"] |= {"items": inside, "items_from": source}
    if versions:
        pushes = update.setdefault("$push", {})
        pushes["versions"] = {"$each": [source], "$slice": -versions}
    return update, outside_items
