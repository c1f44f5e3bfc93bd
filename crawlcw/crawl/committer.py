"""Commit the outcomes of fetchers to the ledger, in groups.

The committer writes a group of outcomes in this order:

1. the body files that the outcomes name;
2. the changes of session cookies and of the spider's state;
3. the links that are too deep, and then the links to follow;
4. the wake-ups of the links' hosts (an idle process later finds a host whose wake-up was lost);
5. the keys of items, if the spider has an `item_key`, see `item_keys`;
6. the outcomes (one atomic write stores an outcome and ends the lease of its task).

If the process dies before the last write, the pages are crawled again. A page that is crawled again
adds no link twice, because the ledger has one task for each id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from itertools import islice

from crawlcw.archive.bodies import Bodies
from crawlcw.crawl import callbacks
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.item_keys import Duplicates
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import Done, End
from crawlcw.engine.batching import write_in_groups
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.stats import NO_STEP, Stats
from crawlcw.errors import FetchError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.counters import FinishReason
from crawlcw.model.sanitize import printable
from crawlcw.model.task import ChangedTask, Lease, Task
from crawlcw.model.transitions import Settlement

logger = logging.getLogger(__name__)

#: A `SeenFilter` holds at most twice this number of task ids, in about 20 MB of memory.
_MAX_KNOWN_IDS = 100_000


class SeenFilter(dict[bytes, None]):
    """Ids of tasks that the ledger has; if the filter is full, it forgets its oldest ids.

    The filter saves writes, because the ledger has most links of a page already. The filter is a
    dictionary, so a lookup calls no Python method.
    """

    def __init__(self, *, generation: int = _MAX_KNOWN_IDS) -> None:
        self._generation = generation

    def add(self, task_ids: Iterable[bytes]) -> None:
        """Remember ids that the ledger has acknowledged."""
        self.update(dict.fromkeys(task_ids))
        if len(self) > 2 * self._generation:
            for old_id in [*islice(self, self._generation)]:
                del self[old_id]


@dataclass(slots=True, kw_only=True)
class TaskAdder:
    """Adds tasks to the ledger of one crawl: start requests, links, targets of redirects.

    A `TaskAdder` also makes a finished task due again if its page has changed. A link beyond
    `max_depth` is admitted if a later page gives a shorter path to the link.
    """

    ledger: Ledger
    stats: Stats
    announce: Callable[[Iterable[Task]], Awaitable[None]]  #: wakes the hosts of tasks
    max_depth: int | None  #: the crawl's maximum depth; an earlier crawl's may have been smaller
    #: Functions to call before tasks are added; they write changes of sessions and of the state.
    writes_before: Sequence[Callable[[], Awaitable[None]]] = ()
    run_started_at: datetime | None = None  #: start of this run; None if unknown
    known_ids: SeenFilter = field(default_factory=SeenFilter)  #: ids of tasks in the ledger
    #: Ids of links in the ledger that are beyond `max_depth`; a shorter path can make a link due.
    too_deep_ids: SeenFilter = field(default_factory=SeenFilter)

    async def add(self, tasks: Iterable[Task], too_deep: Iterable[Task] = ()) -> int:
        """Add tasks and wake their hosts; return how many tasks become due.

        The ledger stores the tasks of *too_deep*, but no worker claims these tasks. Changes of
        sessions and of the spider's state are written even if there are no tasks.
        """
        for write in self.writes_before:
            await write()
        deep_task_by_id = {
            task.id: task
            for task in too_deep
            if task.id not in self.known_ids and task.id not in self.too_deep_ids
        }
        if deep_task_by_id:
            await self.put(deep_task_by_id)
            self.too_deep_ids.add(deep_task_by_id)
        fresh: dict[bytes, Task] = {}
        for task in tasks:
            # Several pages often have the same new links; the first link counts, as in the ledger.
            is_known = task.id in self.known_ids or task.id in fresh
            if not is_known or isinstance(task, ChangedTask):
                fresh[task.id] = task
        if not fresh:
            return 0
        new = await self.put(fresh)
        self.stats.links_added += new
        # Wake the hosts of known tasks too, because the process that added a known task may have
        # died before it woke the host.
        await self.announce(fresh.values())
        self.known_ids.add(fresh)
        return new

    def forget(self) -> None:
        """Forget which tasks the ledger has, because tasks may have been purged from the ledger."""
        self.known_ids.clear()
        self.too_deep_ids.clear()

    async def put(self, tasks: dict[bytes, Task]) -> int:
        """Add tasks without waking their hosts; return how many tasks become due.

        Tasks that the store cannot hold are removed from *tasks*.
        """
        added = await self.ledger.tasks.add([*tasks.values()])
        for task, reason in added.rejected:
            del tasks[task.id]
            self.stats.dropped.note("store-rejected", task.url)
            _warn(task, reason)
        due_count = added.new
        if added.existing and (due := [task for task in tasks.values() if task.due is not None]):
            if self.max_depth is not None:
                due_count += await self.ledger.tasks.admit_nearer(due)
            changed_tasks = [task for task in due if isinstance(task, ChangedTask)]
            if changed_tasks and (run_started_at := self.run_started_at) is not None:
                # Do not reopen pages that this run has crawled. Otherwise two sitemaps that give
                # each other a modification date in the future would reopen each other for ever.
                changed_tasks = [task.capped_at(run_started_at) for task in changed_tasks]
                due_count += await self.ledger.tasks.reopen_changed(changed_tasks)
        return due_count


@dataclass(slots=True)
class Committer:
    """Writes the queue of results to the ledger."""

    session: WorkerSession
    _: KW_ONLY
    coordinator: Coordinator
    adder: TaskAdder
    state: KeptState
    bodies: Bodies | None  #: writes body files; None if the crawl stores no pages
    end: End  #: ends the crawl if body files cannot be written
    #: Drops items whose keys are recorded; None if items have no keys.
    duplicates: Duplicates | None = None

    async def run(self, results: asyncio.Queue[Done], workers_wait: Callable[[], bool]) -> None:
        """Write *results* in groups; write a small group at once if *workers_wait* returns true."""
        await write_in_groups(results, self._write, workers_wait=workers_wait)

    async def write_links(self, tasks: list[Task], too_deep: list[Task]) -> None:
        """Add links of a page that has no outcome yet, because its callback still runs."""
        if await self.adder.add(tasks, too_deep):
            self.coordinator.note_written(has_more=True, retry_hosts=())

    async def _write(self, group: list[Done]) -> None:
        links, too_deep = list[Task](), list[Task]()
        settlements, leases, retry_hosts = list[Settlement](), list[Lease](), set[str]()
        positions = list[Mapping[str, int]]()
        for result in group:
            links += result.produced.tasks
            too_deep += result.produced.too_deep
            for settlement in result.settlements:
                settlements.append(settlement)
                positions.append(result.produced.item_keys if settlement.change.items else {})
                leases.append(settlement.lease)
                if settlement.change.due is not None:
                    retry_hosts.add(settlement.lease.task.host)
        task_leases, instruments = self.session.leases, self.session.instruments
        with NO_STEP if instruments is None else instruments.commit(leases):
            task_leases.mark_settling(leases)
            if self.bodies is not None and not await self._are_synced(self.bodies, settlements):
                # No outcome is recorded, so the tasks return to their previous state.
                for lease in leases:
                    self.state.undo(lease)
                task_leases.orphans += leases
                return
            # Call `add` even without links: it also writes the state changes of pages, and the
            # ledger must have these changes before the outcomes.
            added = await self.adder.add(links, too_deep)
            await self._commit(settlements, positions)
        stats = self.session.stats
        stats.count_unwritten(settlements, written=True)
        task_leases.end(leases)
        for result in group:
            if result.produced.dropped.counts:
                stats.dropped.add(result.produced.dropped)
            for reason, number in result.produced.items_dropped.items():
                callbacks.count_dropped(stats.items_dropped, reason, number)
        self.coordinator.note_written(
            has_more=bool(retry_hosts) or added > 0, retry_hosts=retry_hosts
        )

    async def _are_synced(self, bodies: Bodies, settlements: list[Settlement]) -> bool:
        """Sync the bodies that *settlements* name; if the disk fails, end the crawl."""
        if any(settlement.change.stored is not None for settlement in settlements):
            try:
                await bodies.sync()
            except FetchError as error:
                self.end(FinishReason.FILES_UNWRITABLE, error.message)
                return False
        return True

    async def _commit(
        self, settlements: list[Settlement], positions: list[Mapping[str, int]]
    ) -> None:
        if self.duplicates is not None:
            settlements = await self.duplicates.drop(
                settlements, positions, self.session.stats.items_dropped
            )
        stats = self.session.stats
        committed = await self.session.ledger.outcomes.commit(settlements)
        not_recorded = set[bytes]()
        for lease in committed.lost:
            # A lost lease is no failure of the page. The lease expired while the page was loading,
            # so only the result of the worker with the newer lease counts.
            not_recorded.add(lease.task.id)
            stats.leases_lost += 1
            logger.info(
                "dropped the result of %s, because another worker has its lease",
                printable(lease.task.url),
                extra={"event": "lease_lost", "url": lease.task.url},
            )
        for lease, reason in committed.rejected:
            not_recorded.add(lease.task.id)
            stats.failures["store-rejected"] += 1
            stats.given_up += 1
            _warn(lease.task, reason)
        self.state.settled(settlements, lost=not_recorded)
        for settlement in settlements:
            if settlement.lease.task.id not in not_recorded:
                stats.record(settlement)
        if self.duplicates is not None:
            await self.duplicates.release(settlements)


def _warn(task: Task, reason: str) -> None:
    """Log that the ledger's store cannot hold a task, or the outcome of a task."""
    logger.warning(
        "cannot store %s: %s",
        printable(task.url),
        printable(reason),
        extra={"event": "store_rejected", "url": task.url},
    )
