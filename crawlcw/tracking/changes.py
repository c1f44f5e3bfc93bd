"""Changes of tasks that nobody works on: again, anew, never, gone."""

from collections.abc import Collection
from datetime import datetime, timedelta

from crawlcw.errors import Reason, UsageError
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Status, key_id
from crawlcw.tracking import keys
from crawlcw.tracking.base import Base
from crawlcw.tracking.questions import statuses

#: The resolution of a ledger's time.
A_MILLISECOND = timedelta(milliseconds=1)


class Changes(Base):
    """Retries, withdraws, resets, opens once more, deletes."""

    async def retry(
        self,
        *chosen_keys: str,
        reason: Reason | None = None,
        stage: str | None = None,
        since: datetime | None = None,
    ) -> int:
        """Bring back failures: those of the keys, or all that are as asked; return how many."""
        selection = TaskFilter(reason=reason, host=stage, since=since, ids=_ids(chosen_keys))
        count = await self.ledger.admin.retry_failed(selection)
        self.added.set()
        return count

    async def ignore(
        self,
        *chosen_keys: str,
        reason: Reason | None = None,
        stage: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Withdraw tasks that nobody works on; return how many. `reset` brings them back."""
        chosen = TaskFilter(
            reason=reason, host=stage, since=since, until=until, ids=_ids(chosen_keys)
        )
        return await self.ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)

    async def reset(self, *chosen_keys: str, stage: str | None = None) -> int:
        """Let tasks begin anew, whatever became of them, but those that are held.

        In *stage*, by default the use case's first; their results are forgotten,
        their data is as it is. Return how many.
        """
        chosen = TaskFilter(ids=_ids(chosen_keys) or (), until=self._a_moment_later())
        first = keys.stage(stage or self.use_case.first)
        count = await self.ledger.admin.reopen(chosen, stage=first, anew=True)
        self.added.set()
        return count

    async def enter(
        self,
        stage: str,
        *chosen_keys: str,
        enter_from: Status | Collection[Status] = Status.FINISHED,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Make a second pass: queue tasks of that status for *stage*; return how many."""
        chosen = TaskFilter(
            statuses=statuses(enter_from),
            since=since,
            until=until or self._a_moment_later(),
            ids=_ids(chosen_keys),
        )
        entered = keys.stage(stage)
        count = await self.ledger.admin.reopen(chosen, stage=entered)
        self.added.set()
        return count

    async def purge(
        self,
        *chosen_keys: str,
        status: Status | Collection[Status] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        force: bool = False,
    ) -> int:
        """Delete tasks; return how many. Those that are held only with *force*."""
        meant = statuses(status)
        if Status.PROCESSING in meant and not force:
            if status is not None:
                raise UsageError("tasks that are processing are deleted by force=True only")
            meant = tuple(each for each in meant if each is not Status.PROCESSING)
        chosen = TaskFilter(statuses=meant, since=since, until=until, ids=_ids(chosen_keys))
        return await self.ledger.admin.purge(chosen)

    def _a_moment_later(self) -> datetime:
        # What changes from now on is left alone, however often this is sent.
        return self.ledger.now() + A_MILLISECOND


def _ids(chosen_keys: Collection[str]) -> tuple[bytes, ...] | None:
    """Return the ids of the keys, or None where no key is named: all are meant."""
    return tuple(key_id(keys.key(each)) for each in chosen_keys) or None
