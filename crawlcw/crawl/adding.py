"""Adding tasks: unknown ones, and known ones that are to be done after all.

The latter are links that were kept as too deep and lie nearer now, and pages that have
changed since they were done.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Protocol

from crawlcw.ledger.protocol import Added, Ledger
from crawlcw.model.task import WAITING, ChangedTask, Status, Task

_LEFT = (*WAITING, Status.PROCESSING)
#: Workers that were silent for so many leases are not there.
_SILENT_LEASES = 3
#: Two generations of this many ids of 16 bytes: about 20 MB.
_GENERATION = 100_000


class RunStart:
    """The beginning of this run, found by what crawls have noted in the ledger."""

    def __init__(self, ledger: Ledger, *, lease: timedelta) -> None:
        self._ledger = ledger
        self._silence = _SILENT_LEASES * lease
        #: By the ledger's time; None: it is not known yet.
        self.began: datetime | None = None
        #: Which run of the ledger it is. Processes that begin one together find the same number.
        self.number = 0

    async def find(self, state: Mapping[str, Any]) -> None:
        """Take part in the run of the ledger's *state*, or begin one and note it.

        This process is on the list of workers already.
        """
        noted = state.get("run") or {}
        self.number = noted.get("number", 0)
        if noted:
            began = datetime.fromtimestamp(noted["began"] / 1000, UTC)
            over = noted.get("over") or not await self._ledger.queries.has(_LEFT)
            # Of several processes that start together the first has begun it just now.
            if not over or began >= await self._first_started():
                self.began = began
                return
        self.began = self._ledger.now()
        self.number += 1
        await self._note(self.began)

    async def end(self) -> None:
        """Note that the ledger is drained."""
        if self.began is not None:
            await self._note(self.began, over=True)

    async def _note(self, began: datetime, **more: bool) -> None:
        run = {"began": round(began.timestamp() * 1000), "number": self.number, **more}
        await self._ledger.notes.set_state({"run": run})

    async def _first_started(self) -> datetime:
        now = self._ledger.now()
        return min(
            (
                worker.started
                for worker in await self._ledger.workers.all()
                if worker.heartbeat is None or now - worker.heartbeat < self._silence
            ),
            default=now,
        )


class Beside(Protocol):
    """What pages change besides their outcomes."""

    async def keep(self) -> None:
        """Write what pages have changed so far, durably."""


class SeenFilter(dict[bytes, None]):
    """A bounded set of the ids of tasks that the ledger has, which forgets the oldest.

    A hint that saves a write: most links of a page lead to pages already known. A
    task that is not in here may be in the ledger all the same. Each link is looked up
    here, which a dictionary does without a call of Python's.
    """

    def __init__(self, *, generation: int = _GENERATION) -> None:
        super().__init__()
        self._generation = generation

    def add(self, task_ids: Iterable[bytes]) -> None:
        """Remember ids that the ledger has acknowledged."""
        self.update(dict.fromkeys(task_ids))
        if len(self) > 2 * self._generation:
            for each in [*islice(self, self._generation)]:
                del self[each]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdder:
    """Adds tasks to the ledger of one crawl; who waits for them is to be told afterwards."""

    ledger: Ledger
    beside: Sequence[Beside] = ()
    max_depth: int | None  #: how deep the crawl goes, for links may have been refused for it before
    run: RunStart
    seen: SeenFilter = field(default_factory=SeenFilter)  #: tasks that need not be added again

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


def seeded_hosts(state: Mapping[str, Any]) -> frozenset[str]:
    """Return the hosts where the seeds lead that a ledger's *state* has noted as complete."""
    return frozenset((state.get("seeds") or {}).get("hosts", ()))
