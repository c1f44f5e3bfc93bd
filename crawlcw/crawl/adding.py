"""Adding tasks: those that nobody knew, and those known that are to be done after all.

These are links that were kept as too deep and lie nearer now, and pages that have
changed since they were done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from crawlcw.crawl.run_start import RunStart
from crawlcw.ledger.protocol import Added, Ledger
from crawlcw.model.task import ChangedTask, Task


class Beside(Protocol):
    """What pages change besides their outcomes."""

    async def keep(self) -> None:
        """Write what pages have changed so far, durably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdder:
    """Adds tasks to the ledger of one crawl; who waits for them is to be told afterwards."""

    ledger: Ledger
    beside: Sequence[Beside] = ()
    max_depth: int | None  #: how deep the crawl goes, for links may have been refused for it before
    run: RunStart

    async def keep(self) -> None:
        """Write what pages have changed: before what they have found, and their outcomes."""
        for each in self.beside:
            await each.keep()

    async def add(self, tasks: Sequence[Task]) -> tuple[Added, int]:
        """Return what became of the tasks, and how many are to be done that were not before."""
        added = await self.ledger.tasks.add(tasks)
        number = added.new
        if added.known:
            if self.max_depth is not None:
                number += await self.ledger.tasks.admit_nearer(tasks)
            if changed := self._changed(tasks):
                number += await self.ledger.tasks.reopen_changed(changed)
        return added, number

    def _changed(self, tasks: Sequence[Task]) -> list[ChangedTask]:
        began = self.run.began
        if began is None:
            return []
        # What was done in this run is not done again, whatever is said of it: a date in
        # the future would let two sitemaps that lead to one another go on for ever.
        return [task.before(began) for task in tasks if isinstance(task, ChangedTask)]
