"""Questions on all the tasks of a spider: how many there are, and when the next one is due."""

from datetime import datetime

from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.indexes import ANY_PRIORITY, BY_PRIORITY, HAS_DUE
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import Counts
from crawlcw.task import Status


class Questions(MongoStore):
    """Answers by the indexes alone, but for the reasons."""

    async def horizon(self) -> datetime | None:
        """Seek the earliest `due` of each priority there is; there are few."""
        earliest: datetime | None = None
        below = ANY_PRIORITY
        while True:
            with mapped():
                cursor = self._tasks.find(
                    {"priority": {"$lt": below}, **HAS_DUE}, {"_id": 0, "priority": 1, "due": 1}
                )
                cursor = cursor.sort([("priority", -1), ("due", 1)]).limit(1).hint(BY_PRIORITY)
                found = await cursor.to_list(1)
            if not found:
                return earliest
            due, below = found[0]["due"], found[0]["priority"]
            earliest = due if earliest is None else min(due, earliest)

    async def counts(self) -> Counts:
        """Count by the status index alone."""
        groups = await self._aggregate(
            [
                {"$match": {"status": {"$gte": 0}}},
                {"$group": {"_id": "$status", "n": {"$sum": 1}}},
            ],
        )
        return Counts(by_status={Status(group["_id"]): group["n"] for group in groups})

    async def reasons(self) -> dict[str, int]:
        """Count failed and ignored tasks by reason."""
        groups = await self._aggregate(
            [
                {"$match": {"status": {"$in": [int(Status.FAILED), int(Status.IGNORED)]}}},
                {"$group": {"_id": "$reason", "n": {"$sum": 1}}},
                {"$sort": {"n": -1, "_id": 1}},
            ],
        )
        return {str(group["_id"]): group["n"] for group in groups}
