"""Bringing back what failed."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.hosts import Hosts
from crawlcw.ledger.mongo.indexes import BY_STATUS
from crawlcw.ledger.mongo.updates import bulk_update
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model import transitions
from crawlcw.model.transitions import RETRY

_RESETS_AT_ONCE = 5_000


class Failures(Hosts):
    """Resets failed tasks, and wakes the hosts for them."""

    async def retry_failed(self, selection: TaskFilter, *, dry_run: bool = False) -> int:
        """Reset the chosen failures a few thousand at a time, within the time limit of each."""
        now = self.now()
        total = 0
        for chosen in _failures(selection, until=now):
            with mapped():
                if selection.ids is not None:
                    total += await self._reset_among(list(selection.ids), chosen, now, dry_run)
                elif dry_run:
                    total += await self._tasks.count_documents(chosen, hint=BY_STATUS)
                else:
                    total += await self._reset(chosen, now)
        if RETRY.wakes_hosts and not dry_run:
            await self.wake_all_hosts()
        return total

    async def _reset_among(
        self, ids: list[bytes], chosen: dict[str, Any], now: datetime, dry_run: bool
    ) -> int:
        reset = bulk_update(RETRY, now=now)
        total = 0
        for start in range(0, len(ids), _RESETS_AT_ONCE):
            some = {**chosen, "_id": {"$in": ids[start : start + _RESETS_AT_ONCE]}}
            if dry_run:
                total += await self._tasks.count_documents(some, hint="_id_")
            else:
                result = await self._durable.update_many(some, reset, hint="_id_")
                total += result.modified_count
        return total

    async def _reset(self, chosen: dict[str, Any], now: datetime) -> int:
        reset = bulk_update(RETRY, now=now)
        total = 0
        while True:
            cursor = self._tasks.find(chosen, {"_id": 1}).hint(BY_STATUS)
            cursor = cursor.limit(_RESETS_AT_ONCE).batch_size(_RESETS_AT_ONCE)
            ids = [found["_id"] for found in await cursor.to_list(None)]
            if not ids:
                return total
            result = await self._durable.update_many(
                {"_id": {"$in": ids}, **chosen}, reset, hint="_id_"
            )
            total += result.modified_count


def _failures(selection: TaskFilter, *, until: datetime) -> Iterator[dict[str, Any]]:
    """Yield a filter for each status whose tasks may be brought back."""
    for status in RETRY.from_statuses:
        reasons = [str(r) for r in Reason if transitions.retries(status, r)]
        if selection.reason is not None:
            reasons = [reason for reason in reasons if reason == selection.reason]
        if not reasons or status not in selection.statuses:
            continue
        # What fails again meanwhile is not brought back once more.
        failed_at = {"$lte": until}
        if selection.since is not None:
            failed_at["$gte"] = selection.since
        if selection.until is not None:
            failed_at["$lt"] = selection.until
        chosen: dict[str, Any] = {
            "status": int(status),
            "reason": {"$in": reasons},
            "update_time": failed_at,
        }
        if selection.host is not None:
            chosen["host"] = selection.host
        yield chosen
