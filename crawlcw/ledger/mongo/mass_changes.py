"""Changes of many tasks at once, by somebody who holds none of them.

Each goes some thousand tasks at a time, so that a million of them neither block
the ledger nor run into its time limit.
"""

from collections.abc import Mapping
from typing import Any

from pymongo import UpdateOne

from crawlcw.errors import LedgerUnavailableError, Reason
from crawlcw.ledger.mongo.blobs import Blobs
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.crawl_state import CrawlState
from crawlcw.ledger.mongo.hosts import Hosts
from crawlcw.ledger.mongo.indexes import BY_TASK
from crawlcw.ledger.mongo.selections import Selections
from crawlcw.ledger.mongo.store import BATCH, all_of
from crawlcw.ledger.mongo.updates import any_of, bulk_update
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model import transitions
from crawlcw.model.task import WAITING, Status
from crawlcw.model.transitions import BulkChange

_PURGED_AT_ONCE = 1_000


class MassChanges(Hosts, Selections, Blobs, CrawlState):
    """Withdraws, reopens, prioritises and purges tasks."""

    async def withdraw(self, chosen: TaskFilter, *, reason: Reason) -> int:
        """Ignore them by ids, where they still wait."""
        update = bulk_update(transitions.WITHDRAW, now=self.now(), reason=reason)
        return await self._change(chosen, transitions.WITHDRAW, update)

    async def reopen(
        self, chosen: TaskFilter, *, stage: str | None = None, anew: bool = False
    ) -> int:
        """Reset them by ids, and raise their fences.

        What was read of them before must not be claimed: it may be of another stage.
        """
        now = self.now()
        update = bulk_update(transitions.REOPEN, now=now)
        update["$set"] |= self._woken(now)
        # The host of a page is its URL's, and it has no results of stages.
        if stage is not None and self.tracked:
            update["$set"] |= {"host": stage, "callback": stage}
        if anew and self.tracked:
            update["$set"]["results"] = {}
        return await self._change(chosen, transitions.REOPEN, update)

    async def _change(
        self, chosen: TaskFilter, change: BulkChange, update: Mapping[str, Any]
    ) -> int:
        """Make a bulk change, by *update*, of the chosen tasks that it is for."""
        total = 0
        async for guard in self._walk(chosen, change.from_statuses):
            with mapped():
                result = await self._durable.update_many(guard, update, hint="_id_")
            total += result.modified_count
        if change.wakes_hosts and not self.tracked:
            await self.wake_all_hosts()
        return total

    async def prioritise(self, priorities: Mapping[bytes, int]) -> int:
        """Set each by an update of its own, many in one bulk."""
        # One that was delayed on its way must not change what has been claimed since.
        waiting = {
            "status": any_of(WAITING),
            "update_time": {"$lte": self.now()},
        }
        writes = [
            UpdateOne({"_id": task_id, **waiting}, {"$set": {"priority": number}}, hint="_id_")
            for task_id, number in priorities.items()
        ]
        total = 0
        for start in range(0, len(writes), BATCH):
            with mapped():
                result = await self._durable.bulk_write(
                    writes[start : start + BATCH], ordered=False
                )
            total += result.modified_count
        return total

    async def purge(self, chosen: TaskFilter) -> int:
        """Delete the tasks first, and then what belongs to them.

        A crash in between leaves what nothing refers to; where a reply is lost,
        the next call deletes it.
        """
        # First, for a crash must not leave seeds that are gone and taken to be there.
        await self.set_state({"seeds": None})
        await self._forget(list(self._half_purged))
        total = 0
        async for guard in self._walk(chosen, tuple(Status), size=_PURGED_AT_ONCE):
            ids = guard["_id"]["$in"]
            try:
                with mapped():
                    result = await self._durable.delete_many(guard, hint="_id_")
                total += result.deleted_count
                await self._forget(ids)
            except LedgerUnavailableError:
                self._half_purged.update(ids)
                raise
        return total

    async def _forget(self, ids: list[bytes]) -> None:
        """Delete what belongs to those of the tasks that are not there."""
        if not ids:
            return
        with mapped():
            cursor = self._tasks.find({"_id": {"$in": ids}}, {"_id": 1}).hint("_id_")
            there = {bytes(each["_id"]) for each in await all_of(cursor, len(ids))}
            gone = [task_id for task_id in ids if task_id not in there]
            await self._items.delete_many({"_id.task": {"$in": gone}}, hint=BY_TASK)
            if self.tracked:
                await self._drop_blobs_of(gone)
        self._half_purged.difference_update(ids)
