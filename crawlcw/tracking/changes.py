"""Changes of tasks that no worker holds: again, anew, never, gone."""

from dataclasses import replace
from datetime import datetime, timedelta

from crawlcw.errors import Reason, UsageError
from crawlcw.model.task import Status
from crawlcw.tracking import choices, keys
from crawlcw.tracking.base import Base
from crawlcw.tracking.choices import Statuses

#: The resolution of a ledger's time.
A_MILLISECOND = timedelta(milliseconds=1)


class Changes(Base):
    """Retries, withdraws, resets, opens once more, deletes.

    Each is about the tasks of some keys, about those that are as asked, or, by
    `all=True`, about every one. Each raises `UsageError` where it is said of
    none of these, as of a list of keys that is empty.
    """

    async def retry(
        self,
        *chosen_keys: str,
        reason: Reason | str | None = None,
        stage: str | None = None,
        since: datetime | None = None,
        all: bool = False,  # noqa: A002  # the word for it
    ) -> int:
        """Bring back failures: those of the keys, or all that are as asked; return how many.

        Withdrawn tasks have not failed: `reset` brings them back.
        """
        filters = {"reason": reason, "stage": stage, "since": since}
        ids = choices.ids(chosen_keys, everything=all, filters=filters)
        chosen = choices.chosen(reason=reason, since=since, ids=ids)
        count = 0
        for place in choices.places(self.use_case, stage):
            count += await self.ledger.admin.retry_failed(replace(chosen, host=place))
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
        """Withdraw tasks that no worker holds; return how many. `reset` brings them back."""
        filters = {"reason": reason, "stage": stage, "since": since, "until": until}
        ids = choices.ids(chosen_keys, everything=all, filters=filters)
        chosen = choices.chosen(reason=reason, since=since, until=until, ids=ids)
        count = 0
        for place in choices.places(self.use_case, stage):
            one_place = replace(chosen, host=place)
            count += await self.ledger.admin.withdraw(one_place, reason=Reason.WITHDRAWN)
        return count

    async def reset(
        self,
        *chosen_keys: str,
        stage: str | None = None,
        all: bool = False,  # noqa: A002  # as in `retry`
    ) -> int:
        """Let tasks begin anew, however they ended, but those that are held.

        In *stage*, by default the use case's first; their results are forgotten,
        their data and their context are as they are. Return how many.
        """
        ids = choices.ids(chosen_keys, everything=all, filters={})
        chosen = choices.chosen(ids=ids, until=self._a_moment_later())
        first = keys.stage(self.use_case.first if stage is None else stage)
        count = await self.ledger.admin.reopen(chosen, stage=first, anew=True)
        self.added.set()
        return count

    async def enter(
        self,
        stage: str,
        *chosen_keys: str,
        enter_from: Statuses | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all: bool = False,  # noqa: A002  # as in `retry`
    ) -> int:
        """Make a second pass: queue tasks of a status for *stage*; return how many.

        *enter_from* is by default `Status.FINISHED`.
        """
        filters = {"enter_from": enter_from, "since": since, "until": until}
        chosen = choices.chosen(
            status=Status.FINISHED if enter_from is None else enter_from,
            since=since,
            until=until or self._a_moment_later(),
            ids=choices.ids(chosen_keys, everything=all, filters=filters),
        )
        entered = keys.stage(stage)
        count = await self.ledger.admin.reopen(chosen, stage=entered)
        self.added.set()
        return count

    async def purge(
        self,
        *chosen_keys: str,
        status: Statuses | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        force: bool = False,
        all: bool = False,  # noqa: A002  # as in `retry`
    ) -> int:
        """Delete tasks; return how many. Those that are held only with *force*."""
        meant = choices.statuses(status)
        if Status.PROCESSING in meant and not force:
            if status is not None:
                raise UsageError("tasks that are processing are deleted by force=True only")
            meant = tuple(each for each in meant if each is not Status.PROCESSING)
        filters = {"status": status, "since": since, "until": until}
        ids = choices.ids(chosen_keys, everything=all, filters=filters)
        chosen = choices.chosen(status=meant, since=since, until=until, ids=ids)
        return await self.ledger.admin.purge(chosen)

    def _a_moment_later(self) -> datetime:
        # What changes from now on is left alone, however often this is sent.
        return self.ledger.now() + A_MILLISECOND
