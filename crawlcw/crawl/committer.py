"""Writing back what the fetchers did, many outcomes at a time.

The order of writes, and what remains where the process dies after each:

1. What pages changed besides (cookies of a session, the spider's state): the page is done again.
2. Links that lie too deep, then the links to follow: they are there; the page is done again.
3. The hosts of the links are woken: a wake-up that is lost is made up for by the sweep of an idle
   process.
4. The outcomes, each with the end of its lease, atomically: the page is done.

Before any of them the bodies that the outcomes name are synced to the disk. A page that is done
again adds no link twice, for links are known by their identity.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from crawlcw.archive.bodies import Bodies
from crawlcw.crawl import callbacks
from crawlcw.crawl.adding import SeenFilter, TaskAdder
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import Done
from crawlcw.engine.batching import write_in_groups
from crawlcw.engine.instruments import UNSEEN, Instruments
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.stats import FinishReason, Stats
from crawlcw.fetch.recording import unwritable
from crawlcw.ledger.protocol import Added, Committed
from crawlcw.model.sanitize import printable
from crawlcw.model.task import ChangedTask, Task
from crawlcw.model.transitions import Settlement

logger = logging.getLogger(__name__)


class CommitListener(Protocol):
    """Who is told of what is in the ledger."""

    async def announce(self, tasks: Iterable[Task]) -> None:
        """Wake the hosts of tasks that were added."""

    def written(self, *, more: bool, again: Iterable[str]) -> None:
        """*more*: a group left new tasks, or tasks to be tried *again*, of these hosts."""


class Committer:
    """Drains the queue of what is done into the ledger."""

    def __init__(
        self,
        *,
        held: HeldLeases,
        stats: Stats,
        listener: CommitListener,
        adder: TaskAdder,
        state: KeptState,
        bodies: Bodies | None,
        end: Callable[[FinishReason, str], None],
        instruments: Instruments | None = None,
    ) -> None:
        """Write to the ledger of *adder*; *state* is told what is recorded.

        *bodies* are what the outcomes name of files; where these fail, *end* is told.
        """
        self._ledger = adder.ledger
        self._held = held
        self._stats = stats
        self._listener = listener
        self._adder = adder
        self._state = state
        self._bodies = bodies
        self._end = end
        self._instruments = instruments
        #: Links that are kept and lie too deep. Not among those seen: found nearer they count.
        self._kept = SeenFilter()

    async def run(self, done: asyncio.Queue[Done], workers_wait: Callable[[], bool]) -> None:
        """Write what is *done* until cancelled; at once while *workers_wait* for tasks."""
        await write_in_groups(done, self._seen_writing, workers_wait=workers_wait)

    async def write_links(self, tasks: list[Task], too_deep: list[Task]) -> None:
        """Add links of a page whose callback still runs; its outcome comes later."""
        await self._adder.keep()
        await self._keep(too_deep)
        if await self._add(tasks):
            self._listener.written(more=True, again=())

    async def _seen_writing(self, group: list[Done]) -> None:
        watched = self._instruments
        leases = [each.lease for done in group for each in done.settlements]
        with UNSEEN if watched is None else watched.commit(leases):
            await self._write(group)

    async def _write(self, group: list[Done]) -> None:
        settlements = [settlement for done in group for settlement in done.settlements]
        self._held.settling(settlement.lease for settlement in settlements)
        if not await self._is_synced(settlements):
            return
        self._state.settling(settlements)
        await self._adder.keep()
        await self._keep([task for done in group for task in done.too_deep])
        added = await self._add([task for done in group for task in done.tasks])
        await self._commit(settlements)
        for done in group:
            self._stats.dropped.add(done.dropped)
            for reason, number in done.items_dropped.items():
                callbacks.count_dropped(self._stats.items_dropped, reason, number)
        again = {s.lease.task.host for s in settlements if s.change.due is not None}
        self._listener.written(more=bool(again) or added > 0, again=again)

    async def _is_synced(self, settlements: list[Settlement]) -> bool:
        """Return whether all that the outcomes name of files is on the disk.

        Where not, they are not recorded: the tasks go back as they were, and the crawl ends.
        """
        if self._bodies is None or all(each.change.stored is None for each in settlements):
            return True
        try:
            await self._bodies.sync()
        except OSError as error:
            self._end(FinishReason.FILES_UNWRITABLE, unwritable(self._bodies, error).message)
            leases = [settlement.lease for settlement in settlements]
            await self._ledger.outcomes.release(leases)
            self._state.settled(settlements, lost={lease.task.id for lease in leases})
            await self._listener.announce(lease.task for lease in leases)
            self._held.end(leases)
            return False
        return True

    async def _add(self, tasks: list[Task]) -> int:
        # Two pages of one group often have the same new links.
        fresh = {
            task.id: task
            for task in tasks
            if task.id not in self._adder.seen or isinstance(task, ChangedTask)
        }
        if not fresh:
            return 0
        added, new = await self._adder.add(list(fresh.values()))
        self._stats.links_added += new
        rejected = self._rejected(added)
        # Known or new: the process that added it may have been killed before it woke the host.
        await self._listener.announce(fresh.values())
        self._adder.seen.add(task_id for task_id in fresh if task_id not in rejected)
        return new

    async def _keep(self, tasks: list[Task]) -> None:
        """Write down links that lie too deep; nothing of them is due, so nobody is told."""
        fresh = {
            task.id: task
            for task in tasks
            if task.id not in self._adder.seen and task.id not in self._kept
        }
        if fresh:
            added = await self._ledger.tasks.add(list(fresh.values()))
            rejected = self._rejected(added)
            self._kept.add(task_id for task_id in fresh if task_id not in rejected)

    def _rejected(self, added: Added) -> set[bytes]:
        """Count and tell what the store cannot hold; return the ids."""
        for task, why in added.rejected:
            self._stats.dropped.note("store-rejected", task.url)
            logger.warning(
                "cannot store %s: %s",
                printable(task.url),
                printable(why),
                extra={"event": "store_rejected", "url": task.url},
            )
        return {task.id for task, _ in added.rejected}

    async def _commit(self, settlements: list[Settlement]) -> None:
        committed: Committed = await self._ledger.outcomes.commit(settlements)
        lost = {lease.task.id for lease in committed.lost}
        self._stats.leases_lost += len(lost)
        for lease in committed.lost:
            # Not a failure: the lease ran out while the page was loading, and
            # the newer holder's result is the one that counts.
            logger.info(
                "result dropped, another worker has %s",
                printable(lease.task.url),
                extra={"event": "lease_lost", "url": lease.task.url},
            )
        rejected = {lease.task.id for lease, _ in committed.rejected}
        for lease, why in committed.rejected:
            logger.warning(
                "cannot store %s: %s",
                printable(lease.task.url),
                printable(why),
                extra={"event": "store_rejected", "url": lease.task.url},
            )
            self._stats.failures["store-rejected"] += 1
            self._stats.given_up += 1
        self._state.settled(settlements, lost=lost | rejected)
        for settlement in settlements:
            task_id = settlement.lease.task.id
            if task_id not in lost and task_id not in rejected:
                self._stats.record(settlement)
        self._held.end(settlement.lease for settlement in settlements)
