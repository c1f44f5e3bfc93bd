"""Links that were refused for depth, and may be followed now."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.hosts import Hosts
from crawlcw.ledger.mongo.selections import Selections
from crawlcw.ledger.mongo.store import BATCH, all_of
from crawlcw.ledger.mongo.updates import any_of, bulk_update
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Task
from crawlcw.model.transitions import ADMIT


class Admissions(Hosts, Selections):
    """Lets links in that lay too deep."""

    async def admit_nearer(self, tasks: Sequence[Task]) -> int:
        """Change each by an update of its own, in one bulk."""
        if not tasks:
            return 0
        now = self.now()
        writes = []
        for task in tasks:
            update = bulk_update(ADMIT, now=now)
            update["$set"]["depth"] = task.depth
            if task.parent is None:
                update["$unset"]["parent"] = ""
            else:
                update["$set"]["parent"] = task.parent
            nearer = {"_id": task.id, **_kept(now), "depth": {"$gt": task.depth}}
            writes.append(UpdateOne(nearer, update, hint="_id_"))
        with mapped():
            result = await self._durable.bulk_write(writes, ordered=False)
        count: int = result.modified_count
        return count

    async def admit_to_depth(self, max_depth: int | None) -> int:
        """Walk through what is ignored, some thousand tasks a command, whatever their reasons.

        No index knows the reasons, so a command that looked for one might read
        millions of tasks and run into its time limit.
        """
        total = 0
        now = self.now()
        within = {} if max_depth is None else {"depth": {"$lte": max_depth}}
        ignored = TaskFilter(statuses=ADMIT.from_statuses)
        async for guard in self._walk(ignored, ADMIT.from_statuses, size=BATCH):
            refused = {"_id": guard["_id"], **_kept(now), **within}
            with mapped():
                cursor = self._tasks.find(refused, {"host": 1}).hint("_id_")
                # Noted before: where an answer is lost, the next call wakes them.
                self._admitted_hosts |= {each["host"] for each in await all_of(cursor, BATCH)}
                if self._admitted_hosts:
                    update = bulk_update(ADMIT, now=now)
                    result = await self._durable.update_many(refused, update, hint="_id_")
                    total += result.modified_count
            await self._wake_admitted(now)
        await self._wake_admitted(now)
        return total

    async def _wake_admitted(self, now: datetime) -> None:
        if self._admitted_hosts:
            await self.wake_hosts(dict.fromkeys(self._admitted_hosts, now))
            self._admitted_hosts.clear()


def _kept(now: datetime) -> dict[str, Any]:
    """Return the filter of links that were refused for depth."""
    return {
        "status": any_of(ADMIT.from_statuses),
        "reason": str(ADMIT.from_reason),
        # One that was delayed on its way must not change what was refused again since.
        "update_time": {"$lte": now},
    }
