"""Adding tasks, and reading them: those that are due, or one with all that is known of it."""

import asyncio
import inspect
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.admin import Reopening
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.indexes import ANY_PRIORITY, BY_HOST, BY_PRIORITY
from crawlcw.ledger.mongo.items import Items
from crawlcw.ledger.mongo.store import MongoStore, all_of
from crawlcw.ledger.mongo.table import Update, send
from crawlcw.ledger.protocol import Added
from crawlcw.model.task import Record, Task

#: A bulk has as long as any operation: a slow server is to be done with it in that time.
_ADDED_AT_ONCE = 1_000
#: What grows with a task's results; `page` leaves it out.
_RESULTS = dict.fromkeys(("errors", "response", "items"), 0)
#: Likewise for the payload of a tracked task.
_CARRIED = dict.fromkeys(("trace", *documents.CARRIED_FIELDS), 0)


class Tasks(Reopening):
    """Adds tasks and reads them."""

    def __init__(self, store: MongoStore, items: Items) -> None:
        super().__init__(store)
        self._store = store
        self._items = items

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add tasks by unordered upserts that only insert, some of them by each bulk."""
        added = Added()
        for start in range(0, len(tasks), _ADDED_AT_ONCE):
            added += await self._add_some(tasks[start : start + _ADDED_AT_ONCE])
        return added

    async def _add_some(self, tasks: Sequence[Task]) -> Added:
        with mapped():
            sent = await send(self._store.durable, [_insertion(task) for task in tasks])
        return Added(
            new=sent.inserted,
            known=len(tasks) - sent.inserted - len(sent.refused),
            rejected=tuple((tasks[place], why) for place, why in sent.refused.items()),
        )

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """Return due tasks by one index range, in the index's order."""
        if limit < 1:
            return []  # to the server, no limit
        due, hint = self._due(), BY_PRIORITY
        if hosts is not None:
            due = {"host": {"$in": list(hosts)}, **due}
            hint = BY_HOST
        with mapped():
            # A projection of this call's own: a driver may add to it.
            cursor = self._store.tasks.find(due, {**self._left_out()})
            cursor = cursor.sort([("priority", -1), ("due", 1)]).limit(limit).hint(hint)
            return [documents.task(found) for found in await all_of(cursor, limit)]

    async def page_each(self, wanted: Mapping[str, int]) -> list[Task]:
        """Ask for hosts of which about as many tasks are wanted by one command."""
        alike: defaultdict[int, list[str]] = defaultdict(list)
        for host, most in wanted.items():
            if most > 0:
                alike[1 << (most - 1).bit_length()].append(host)
        parts = await asyncio.gather(*(self._first(hosts, most) for most, hosts in alike.items()))
        left = Counter(wanted)
        tasks: list[Task] = []
        for found in chain.from_iterable(parts):
            if left[found["host"]] > 0:
                left[found["host"]] -= 1
                tasks.append(documents.task(found))
        return tasks

    async def _first(self, hosts: Sequence[str], most: int) -> list[documents.Document]:
        """Return the first *most* due tasks of each host, each by a seek in one index."""
        # The host is in the order so that no other index has it.
        order = {"host": 1, "priority": -1, "due": 1}
        pipeline: list[dict[str, Any]] = [
            # Any task, for a pipeline needs something to begin with: of none there is no page.
            {"$limit": 1},
            {"$project": {"_id": 0, "host": {"$literal": hosts}}},
            {"$unwind": "$host"},
            {
                "$lookup": {
                    "from": self._store.name,
                    "localField": "host",
                    "foreignField": "host",
                    "pipeline": [
                        {"$match": self._due()},
                        {"$sort": order},
                        {"$limit": most},
                        {"$project": self._left_out()},
                    ],
                    "as": "task",
                }
            },
            {"$unwind": "$task"},
            {"$replaceRoot": {"newRoot": "$task"}},
        ]
        with mapped():
            # Unlike a command's, these may be more than a reply of the server holds, and their
            # times have a zone.
            cursor = self._store.tasks.aggregate(
                pipeline, hint="_id_", batchSize=most * len(hosts) + 1
            )
            # PyMongo's aggregate is a coroutine, Motor's is not.
            if inspect.isawaitable(cursor):
                cursor = await cursor
            found: list[documents.Document] = await cursor.to_list(None)
        return found

    def _due(self) -> dict[str, Any]:
        return {"priority": {"$lte": ANY_PRIORITY}, "due": {"$lte": self._store.now()}}

    def _left_out(self) -> dict[str, int]:
        return _RESULTS | _CARRIED if self._store.kind.tracked else _RESULTS

    async def get(self, task_id: bytes) -> Record | None:
        """Read one whole document."""
        with mapped():
            found = await self._store.tasks.find_one({"_id": task_id})
            if found is None:
                return None
            found["items"] = [documents.escaped(item) for item in await self._items.whole(found)]
        return documents.record(found)


def _insertion(task: Task) -> Update:
    document = documents.document(task)
    return Update({"_id": document.pop("_id")}, {"$setOnInsert": document}, upsert=True)
