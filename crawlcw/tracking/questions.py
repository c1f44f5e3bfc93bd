"""Questions on the tasks of a use case."""

import dataclasses
from collections.abc import AsyncGenerator, Collection
from datetime import datetime
from typing import Any

from crawlcw.errors import Reason, UsageError
from crawlcw.ledger.protocol import Counts, TaskFilter
from crawlcw.model.task import Status
from crawlcw.tracking import keys, views
from crawlcw.tracking.base import Base
from crawlcw.tracking.views import Page, TrackedTask


class Questions(Base):
    """Reads tasks and counts them."""

    async def get(self, key: str) -> TrackedTask:
        """Return all that is known of a task; raises `TaskNotFoundError`."""
        record = await self._record(keys.key(key))
        task = TrackedTask.of(record)
        return await self._whole(task)

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
        status: Status | Collection[Status] | None = None,
        reason: Reason | None = None,
        stage: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Return the tasks that are as asked, the last changed first; *after* goes on.

        *since* and *until* (aware) bound the last change of their status. Large
        values are `BlobRef`s: `get` reads them.
        """
        chosen = TaskFilter(
            statuses=statuses(status), reason=reason, host=stage, since=since, until=until
        )
        place = views.place(after) if after is not None else None
        if limit < 1:
            raise UsageError("limit is at least 1")
        found = await self.ledger.queries.find(chosen, limit=limit + 1, after=place)
        more = len(found) > limit
        return Page(
            tasks=tuple(TrackedTask.of(record) for record in found[:limit]),
            after=views.cursor(found[limit - 1]) if more else None,
        )

    async def walk(self, **asked: Any) -> AsyncGenerator[TrackedTask, None]:
        """Yield every task that is as asked, see `find`, in flat memory."""
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


def statuses(given: Status | Collection[Status] | None) -> tuple[Status, ...]:
    """Return the statuses that are meant: of None all."""
    if given is None:
        return tuple(Status)
    return (given,) if isinstance(given, Status) else tuple(given)
