"""Questions on the tasks of a use case."""

import dataclasses
import heapq
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Counts
from crawlcw.model.task import Record
from crawlcw.tracking import choices, keys, views
from crawlcw.tracking.base import Base
from crawlcw.tracking.choices import Statuses
from crawlcw.tracking.views import Page, TrackedTask


class Questions(Base):
    """Reads tasks and counts them."""

    async def get(self, key: str) -> TrackedTask:
        """Return all that is known of a task; raises `TaskNotFoundError`."""
        record = await self._record(keys.key(key))
        return await self._whole(self._view(record))

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
