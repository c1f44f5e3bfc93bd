"""Contract of every ledger.

A ledger holds the tasks of one spider. A ledger is durable, and any number of processes work on a
ledger at the same time. Every operation on a task is one atomic write. The write applies only if
the task still has the expected state, so an operation that comes too late writes nothing. A caller
may repeat any operation whose reply was lost.

All times come from the ledger's clock, see `Ledger.now`. Every operation may raise
`LedgerUnavailableError`. After this error the caller does not know whether the operation was
applied, and may repeat it. Only module `transitions` decides how a task's status changes.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from crawlcw.ledger.admin import Admin
from crawlcw.ledger.examination import Inspection
from crawlcw.ledger.hosts import HostLeases as HostLeases
from crawlcw.ledger.hosts import Hosts as Hosts
from crawlcw.ledger.item_keys import ItemKeys
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.notes import Notes, SpiderStates
from crawlcw.ledger.queries import Groups as Groups
from crawlcw.ledger.queries import Queries
from crawlcw.ledger.sessions import Sessions
from crawlcw.ledger.values import Added as Added
from crawlcw.ledger.values import Claimed as Claimed
from crawlcw.ledger.values import Committed as Committed
from crawlcw.ledger.values import Count as Count
from crawlcw.ledger.values import Cursor as Cursor
from crawlcw.ledger.values import Dimension as Dimension
from crawlcw.ledger.values import Group as Group
from crawlcw.ledger.values import ItemRow as ItemRow
from crawlcw.ledger.values import TaskFilter as TaskFilter
from crawlcw.ledger.values import largest_first as largest_first
from crawlcw.ledger.workers import Rates, Workers
from crawlcw.model.counters import Counters as Counters
from crawlcw.model.counters import Counts as Counts
from crawlcw.model.rates import Worker as Worker
from crawlcw.model.task import BlobRef, ChangedTask, Lease, Record, Task
from crawlcw.model.transitions import Settlement


class Tasks(Protocol):
    """Adds tasks to the ledger, reads tasks, and reopens tasks."""

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add the tasks that the ledger does not have; the write is durable when the call returns.

        A task that the ledger already has does not change, whatever its status. If the store cannot
        hold a task, the call rejects only this task. A call for several tasks is not atomic.
        """

    async def admit_nearer(self, tasks: Sequence[Task]) -> int:
        """Reopen each task that was ignored as `refused-depth`, if *tasks* has a smaller depth.

        A reopened task is `todo`, due now, and gets the depth and the parent from *tasks*. Return
        the number of reopened tasks. The caller must wake the tasks' hosts, as after `Tasks.add`.
        """

    async def reopen_changed(self, tasks: Sequence[ChangedTask]) -> int:
        """Reopen each of *tasks* that has ended, if its page changed after the task's last visit.

        `ChangedTask.changed` is the time of the change. A task has ended if it is finished, or if
        it is ignored after a failure. A reopened task is `todo`, due now, and keeps its results
        until the next visit. Return how many tasks were reopened; the caller must wake their hosts.
        """

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """Return up to *limit* due tasks, sorted by highest priority, then by earliest due time.

        The list is only a hint, because another worker may claim a listed task first. If *hosts* is
        given, the list has only tasks of these hosts. The list includes a leased task only after
        its lease has expired.
        """

    async def page_each(self, limit_by_host: Mapping[str, int]) -> list[Task]:
        """Return the first due tasks of each host, at most the number that *limit_by_host* gives.

        The call is like `page` for each host, but needs only one query. The tasks of a host are in
        the order of `page`; the hosts are in any order.
        """

    async def get(self, task_id: bytes) -> Record | None:
        """Return the whole record of a task, or None if the task does not exist.

        The files in the record's items have the present state of the files' tasks.
        """


class Leases(Protocol):
    """A worker's operations on leases of tasks, from `claim` until `Outcomes.commit`."""

    @property
    def batch_size(self) -> int:
        """Maximum number of tasks for one call of `claim`; it keeps the call short."""

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """Lease the *tasks* that have not changed since `Tasks.page` returned them.

        At any time at most one process holds the lease of a task. Each lease raises the task's
        fence by one. A task whose lease expired twice is quarantined, see
        `transitions.is_quarantined`. If a quarantined task's lease expired after the call of
        `begin`, `claim` does not lease the task, but adds one to the task's field `lost`. If `lost`
        reaches *max_lost*, `claim` ignores the task (`crashed-worker`); otherwise `claim` defers
        the task. A call that is repeated after a lost reply also returns the leases of the first
        call.
        """

    async def begin(self, lease: Lease) -> bool:
        """Record that work on a quarantined task begins; return whether its lease is still valid.

        The worker runs only this task. If the lease expires, the count `lost` of this task grows.
        """

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """Extend the leases to now plus *lease*; return the ids of tasks whose lease is lost."""

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """Write a leased task's data durably; the lease then lasts at least *duration* from now.

        Return whether the lease is still valid; if the lease is lost, `save` writes nothing.
        `update_time` stays, because the status does not change.
        """

    async def leases_of(self, worker: str) -> list[Lease]:
        """Return the leases whose tokens begin with `worker:`, the oldest lease first.

        The list includes an expired lease if no other worker has claimed the task. A lease's task
        has the status that `Outcomes.release` restores: `failed` if the task has failed before,
        else `todo`. The task's due time is the time of the claim.
        """


class Outcomes(Protocol):
    """Records the outcomes of leased tasks."""

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """Record the outcome of each task and end the task's lease, in one atomic and durable step.

        If a lease is lost, its settlement writes nothing, and the lease is in `Committed.lost`. A
        repeated call records no settlement twice. If the store cannot hold a settlement, the task
        is ignored as `store-rejected`, and the task's lease is in `Committed.rejected`.
        """

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """Replace the results of tasks that no worker leases, see `transitions.reparse`.

        Each replacement is one atomic and durable step. A settlement is written only if the task
        still has the status and the fence that the caller read. If not, the settlement's lease is
        in `Committed.lost`. A settlement that the store cannot hold is not written, and its lease
        is in `Committed.rejected`. A repeated call changes nothing.
        """

    async def release(self, leases: Sequence[Lease]) -> int:
        """Release the leases without counting an attempt; return the number of released leases.

        `release` neither counts a lost lease nor changes its task.
        """


class Blobs(Protocol):
    """Values that are too large to be stored in their task's document."""

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """Store a value durably outside of its task. The task does not yet refer to the value."""

    async def read(self, blob: BlobRef) -> Any:
        """Return the value of a blob; raise `LedgerError` if the value is missing."""

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """Delete values to which no task refers."""


class Changes(Protocol):
    """Notifications of changed tasks."""

    def watch(self) -> AsyncIterator[None]:
        """Yield None at the start, and again if a task was added or may have become due.

        A yield is only a hint: it may come before or after the change, and many changes may cause
        one yield. If the store has no notifications, the iterator ends after the first yield.
        Raises `LedgerUnavailableError` if the connection breaks.
        """


class Ledger(Protocol):
    """The durable, shared tasks of a spider or use case; the methods are grouped by attributes."""

    tasks: Tasks  #: adds tasks and reads tasks
    leases: Leases  #: leases of tasks
    outcomes: Outcomes  #: records the outcomes of tasks
    hosts: Hosts  #: reads the states of hosts, and wakes hosts that no worker leases
    host_leases: HostLeases  #: leases of hosts
    workers: Workers  #: the processes at work
    rates: Rates  #: counters of the workers for each minute
    queries: Queries  #: questions about all tasks
    groups: Groups  #: counts tasks in groups with a common value
    admin: Admin  #: changes of many tasks
    notes: Notes  #: notes of crawls beside the tasks
    sessions: Sessions  #: identities for requests
    item_keys: ItemKeys  #: keys of recorded items
    spider_state: SpiderStates  #: the spider's `self.state`
    blobs: Blobs  #: values that are too large for a tracked task's document
    changes: Changes  #: notifications of tasks that were added or may be due again
    inspection: Inspection  #: checks and repairs for `doctor`

    @property
    def kind(self) -> LedgerKind:
        """Kind of the ledger's tasks."""

    def now(self) -> datetime:
        """Return the ledger's time as an aware `datetime` in UTC, precise to a millisecond.

        The ledger's time never runs backwards within a process, and does not follow jumps of the
        machine's clock. Each process measures the ledger's time at least once a minute, so the
        times in two processes differ only by the errors of their measurements.
        """

    async def reconnected(self) -> "Ledger":
        """Return the same ledger over new connections, for another event loop.

        `reconnected` creates and checks nothing. The caller must close the returned ledger.
        """

    async def close(self) -> None:
        """Close all connections of the ledger. A closed ledger cannot be used any more."""
