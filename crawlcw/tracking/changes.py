"""Changes of tasks that no worker holds: again, anew, never, gone."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from crawlcw.errors import Reason, UsageError
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Status
from crawlcw.tracking import choices, keys
from crawlcw.tracking.choices import Statuses
from crawlcw.tracking.questions import Questions

#: The resolution of a ledger's time.
A_MILLISECOND = timedelta(milliseconds=1)


class Changes(Questions):
    """Retry, withdraw, reset, reopen or delete tasks.

    Each method changes the tasks of some keys, those that match the filters, or, with
    `all=True`, every one, and returns their number. Each raises `UsageError` if none of these
    is given, as for an empty list of keys.
    """

    async def retry(
        self,
        *chosen_keys: str,
        reason: Reason | str | None = None,
        stage: str | None = None,
        since: datetime | None = None,
        all: bool = False,  # noqa: A002  # the word for it
    ) -> int:
        """Bring back failures. Withdrawn tasks have not failed: `reset` brings them back."""
        filters = {"reason": reason, "stage": stage, "since": since}
        count = 0
        for chosen in self._chosen(chosen_keys, all, **filters):
            count += await self.ledger.admin.retry_failed(chosen)
        self.added.set()
        return count

    async def ignore(
        self,
        *chosen_keys: str,
        reason: Reason | str | None = None,
        stage: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all: bool = False,  # noqa: A002  # as in `retry`
    ) -> int:
        """Withdraw tasks that no worker holds. `reset` brings them back."""
        filters = {"reason": reason, "stage": stage, "since": since, "until": until}
        count = 0
        for chosen in self._chosen(chosen_keys, all, **filters):
            count += await self.ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
        return count

    async def reset(
        self,
        *chosen_keys: str,
        stage: str | None = None,
        all: bool = False,  # noqa: A002  # as in `retry`
    ) -> int:
        """Start tasks again, whatever their status, except those that a worker holds.

        In *stage*, by default the use case's first. Their results are deleted; data and
        context stay.
        """
        (chosen,) = self._chosen(chosen_keys, all)
        first = keys.stage(self.use_case.first if stage is None else stage)
        return await self._reopen(chosen, stage=first, anew=True)

    async def enter(
        self,
        stage: str,
        *chosen_keys: str,
        enter_from: Statuses | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all: bool = False,  # noqa: A002  # as in `retry`
    ) -> int:
        """Make a second pass: queue tasks of a status for *stage*.

        *enter_from* is by default `Status.FINISHED`.
        """
        filters = {"enter_from": enter_from, "since": since, "until": until}
        (chosen,) = self._chosen(chosen_keys, all, **filters)
        if enter_from is None:
            chosen = chosen.among((Status.FINISHED,))
        return await self._reopen(chosen, stage=keys.stage(stage))

    async def purge(
        self,
        *chosen_keys: str,
        status: Statuses | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        force: bool = False,
        all: bool = False,  # noqa: A002  # as in `retry`
    ) -> int:
        """Delete tasks. Those that a worker holds only with *force*."""
        filters = {"status": status, "since": since, "until": until}
        (chosen,) = self._chosen(chosen_keys, all, **filters)
        if not force:
            if status is not None and Status.PROCESSING in chosen.statuses:
                raise UsageError("tasks that are processing are deleted by force=True only")
            chosen = chosen.among([each for each in Status if each is not Status.PROCESSING])
        return await self.ledger.admin.purge(chosen)

    def _chosen(
        self, chosen_keys: Collection[str], everything: bool, **filters: Any
    ) -> list[TaskFilter]:
        """Return the filter, one for each name of a stage; raises `UsageError`."""
        ids = choices.ids(chosen_keys, everything=everything, filters=filters)
        stage = filters.pop("stage", None)
        filters["status"] = filters.pop("enter_from", filters.get("status"))
        chosen = choices.chosen(ids=ids, **filters)
        return [replace(chosen, host=place) for place in choices.places(self.use_case, stage)]

    async def _reopen(self, chosen: TaskFilter, *, stage: str, anew: bool = False) -> int:
        # What changes from now on is left alone, however often this is sent.
        until = chosen.until or self.ledger.now() + A_MILLISECOND
        count = await self.ledger.admin.reopen(replace(chosen, until=until), stage=stage, anew=anew)
        self.added.set()
        return count
