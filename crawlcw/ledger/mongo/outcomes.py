"""Recording the outcomes of tasks, and giving tasks back without one."""

from collections.abc import Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped, refusals
from crawlcw.ledger.mongo.encoding import UNENCODABLE, encoding_error
from crawlcw.ledger.mongo.items import Items
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.ledger.mongo.updates import mine, unmoved, update_of
from crawlcw.ledger.protocol import Committed
from crawlcw.model import transitions
from crawlcw.model.task import Lease
from crawlcw.model.transitions import Settlement


class Outcomes:
    """Writes the outcomes of leases, and releases them."""

    def __init__(self, store: MongoStore, items: Items) -> None:
        self._store = store
        self._items = items

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """Write all outcomes in one unordered bulk of fenced updates."""
        if not settlements:
            return Committed()
        rejected: list[tuple[Lease, str]] = []
        with mapped():
            writes = [await self._outcome_write(s, rejected) for s in settlements]
            try:
                matched = await self._write(writes)
            except UNENCODABLE:
                # The driver encodes a bulk as a whole; find out which it was.
                writes = [
                    _storable(*each, rejected) for each in zip(settlements, writes, strict=True)
                ]
                matched = await self._write(writes)
            except BulkWriteError as error:
                refused = refusals(error)
                again = [_rejection(settlements[n], text, rejected) for n, text in refused.items()]
                matched = (error.details or {}).get("nMatched", 0) + await self._write(again)
            await self._items.forget_replaced(settlements)
            if matched == len(writes):
                return Committed(rejected=tuple(rejected))
            lost = await self._not_settled([settlement.lease for settlement in settlements])
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    async def _outcome_write(
        self, settlement: Settlement, rejected: list[tuple[Lease, str]]
    ) -> UpdateOne:
        """Return the fenced update that records an outcome.

        Large items are written to their own collection first; the fence makes
        them visible when the update is applied.
        """
        try:
            update = await self._update(settlement)
        except UNENCODABLE as error:
            return _rejection(settlement, str(error), rejected)
        return UpdateOne(mine(settlement.lease), update, hint="_id_")

    async def _update(self, settlement: Settlement) -> dict[str, Any]:
        """Return what records an outcome, its large items being set aside.

        Raises one of `UNENCODABLE` for an item that the store cannot hold.
        """
        update = update_of(settlement.change)
        items = settlement.change.items
        if not items:
            if items is not None and settlement.lease.task.settled:
                # An earlier outcome may have left some.
                update.setdefault("$unset", {}).update(items="", items_from="")
            return update
        lease, versions = settlement.lease, settlement.change.kept_versions
        escaped = (documents.escaped(item) for item in items)
        kept = await self._items.placed(lease.task.id, lease.fence, escaped, all_aside=versions > 0)
        source = documents.source_document(settlement)
        update["$set"] |= {"items": kept, "items_from": source}
        if versions:
            pushed = update.setdefault("$push", {})
            pushed["versions"] = {"$each": [source], "$slice": -versions}
        return update

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """Write all of them in one unordered bulk of guarded updates."""
        writes: list[UpdateOne] = []
        tried: list[Lease] = []
        rejected: list[tuple[Lease, str]] = []
        with mapped():
            for settlement in settlements:
                lease = settlement.lease
                try:
                    update = await self._update(settlement)
                except UNENCODABLE as error:
                    rejected.append((lease, str(error)))
                    continue
                if (refusal := encoding_error({"update": update})) is not None:
                    rejected.append((lease, refusal))
                    continue
                writes.append(UpdateOne(unmoved(lease.task), update, hint="_id_"))
                tried.append(lease)
            try:
                matched = await self._write(writes)
            except BulkWriteError as error:
                refused = refusals(error)
                rejected += [(tried[n], text) for n, text in refused.items()]
                tried = [lease for n, lease in enumerate(tried) if n not in refused]
                matched = (error.details or {}).get("nMatched", 0)
            await self._items.forget_replaced(settlements)
            lost = await self._not_settled(tried) if matched < len(tried) else []
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    async def _write(self, writes: Sequence[UpdateOne]) -> int:
        if not writes:
            return 0
        result = await self._store.durable.bulk_write(writes, ordered=False)
        matched: int = result.matched_count
        return matched

    async def _not_settled(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases whose outcome is not the last one recorded for the task."""
        ids = [lease.task.id for lease in leases]
        cursor = self._store.tasks.find({"_id": {"$in": ids}}, {"settled": 1}).hint("_id_")
        settled = {bytes(each["_id"]): each["settled"] for each in await all_of(cursor, len(ids))}
        return [lease for lease in leases if settled.get(lease.task.id) != lease.fence]

    async def release(self, leases: Sequence[Lease]) -> int:
        """Write all releases in one unordered bulk of fenced updates."""
        if not leases:
            return 0
        now = self._store.now()
        with mapped():
            changes = [transitions.release(lease, now=now).change for lease in leases]
            return await self._write(
                [
                    UpdateOne(mine(lease), update_of(change), hint="_id_")
                    for lease, change in zip(leases, changes, strict=True)
                ]
            )


def _storable(
    settlement: Settlement, write: UpdateOne, rejected: list[tuple[Lease, str]]
) -> UpdateOne:
    error = encoding_error({"update": update_of(settlement.change)})
    return write if error is None else _rejection(settlement, error, rejected)


def _rejection(
    settlement: Settlement, message: str, rejected: list[tuple[Lease, str]]
) -> UpdateOne:
    """Return the write that gives a task up because its outcome cannot be stored."""
    rejected.append((settlement.lease, message))
    given_up = transitions.rejected(settlement, reason=Reason.STORE_REJECTED, message=message)
    return UpdateOne(mine(settlement.lease), update_of(given_up.change), hint="_id_")
