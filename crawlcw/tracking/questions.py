"""Questions on the tasks of a use case."""

import asyncio
import dataclasses
import heapq
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import Any

from crawlcw.errors import Reason, TaskNotFoundError
from crawlcw.ledger.protocol import Counts, Ledger, TaskFilter
from crawlcw.model.task import Record, key_id
from crawlcw.tracking import choices, keys, views
from crawlcw.tracking.adding import Adder
from crawlcw.tracking.blobs import Blobs
from crawlcw.tracking.choices import Statuses
from crawlcw.tracking.coalescer import Coalescer
from crawlcw.tracking.policy import Policy
from crawlcw.tracking.session import Session
from crawlcw.tracking.sync_calls import LoopPortal
from crawlcw.tracking.use_case import UseCase
from crawlcw.tracking.views import Page, TrackedTask


class Questions:
    """A use case with its session on a ledger: reads tasks and counts them."""

    def __init__(
        self, ledger: Ledger, use_case: UseCase, policy: Policy, *, give_up: timedelta
    ) -> None:
        """Wait up to *give_up* for an unavailable ledger."""
        self.use_case = use_case
        self.session = Session(ledger, policy, give_up=give_up)
        self.ledger = self.session.ledger
        #: Set after this process has made tasks due.
        self.added = asyncio.Event()
        self.portal = LoopPortal()
        self._blobs = Blobs(self.ledger)
        self._adder = Adder(self.ledger, use_case)
        #: Reads tasks by id; concurrent reads share one query.
        self.records: Coalescer[bytes, Record | None] = Coalescer(self._read)

    async def get(self, key: str) -> TrackedTask:
        """Return all that is known of a task; raises `TaskNotFoundError`."""
        record = await self._record(keys.key(key))
        return await self._whole(self._view(record))

    async def _record(self, key: str) -> Record:
        record = await self.records(key_id(key))
        if record is None:
            raise TaskNotFoundError(key)
        return record

    async def _read(self, ids: Sequence[bytes]) -> list[Record | None]:
        if len(ids) == 1:
            return [await self.ledger.tasks.get(ids[0])]
        chosen = TaskFilter(ids=set(ids))
        found = await self.ledger.queries.find(chosen, limit=len(ids))
        records = {record.task.id: record for record in found}
        return [records.get(each) for each in ids]

    def _view(self, record: Record) -> TrackedTask:
        return TrackedTask.of(record, stage=self.use_case.named(record.task.callback))

    async def _whole(self, task: TrackedTask) -> TrackedTask:
        return dataclasses.replace(
            task,
            data=await self._blobs.load(task.data),
            context=await self._blobs.load(task.context),
            results={k: await self._blobs.load(v) for k, v in task.results.items()},
        )

    async def find(
        self,
        *,
        status: Statuses | None = None,
        reason: Reason | str | None = None,
        stage: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Return the tasks that are as asked, the last changed first; *after* goes on.

        *since* and *until* (aware) bound the last change of their status. Large
        values are `BlobRef`s: `get` reads them. Raises `UsageError`.
        """
        chosen = choices.chosen(status=status, reason=reason, since=since, until=until)
        limit = choices.limit(limit)
        place = views.place(after) if after is not None else None
        found: dict[bytes, Record] = {}
        for host in choices.places(self.use_case, stage):
            some = dataclasses.replace(chosen, host=host)
            # One that moves meanwhile is in the later answer.
            found |= {
                each.task.id: each
                for each in await self.ledger.queries.find(some, limit=limit + 1, after=place)
            }
        nearest = heapq.nlargest(limit + 1, found.values(), key=_place_of)
        return Page(
            tasks=tuple(self._view(record) for record in nearest[:limit]),
            after=views.cursor(nearest[limit - 1]) if len(nearest) > limit else None,
        )

    async def walk(self, **asked: Any) -> AsyncGenerator[TrackedTask, None]:
        """Yield every task that is as asked, see `find`, in flat memory.

        One that changes meanwhile may be missed: it is then among the first, which were
        yielded before.
        """
        after = None
        while True:
            page = await self.find(**asked, after=after)
            for task in page.tasks:
                yield task
            after = page.after
            if after is None:
                return

    async def counts(self) -> Counts:
        """Return how many tasks there are of each status."""
        return await self.ledger.queries.counts()

    async def reasons(self) -> dict[str, int]:
        """Return how many failed and ignored tasks there are for each reason."""
        return await self.ledger.queries.reasons()


def _place_of(record: Record) -> tuple[datetime, bytes]:
    return record.task.update_time, record.task.id
