"""Contract of every ledger.

A ledger holds the tasks of one spider. It is durable and shared: any number of processes work on
it at the same time. Every operation on a task is one atomic write, guarded by the state that the
task must still have, so a late operation writes nothing. Every operation may be repeated after a
lost reply.

All times are of the ledger's clock, see `Ledger.now`. Every operation may raise
`LedgerUnavailableError`; it is then unknown whether it was applied, and the caller may repeat it.
Only `transitions` decides the changes of a status.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from crawlcw.ledger.admin import Admin
from crawlcw.ledger.examination import Inspection
from crawlcw.ledger.hosts import HostLeases as HostLeases
from crawlcw.ledger.hosts import Hosts as Hosts
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
    """Adding and reading tasks."""

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add the tasks that the ledger does not have; they are durable when the call returns.

        A task that the ledger already has does not change, whatever its status. If the store cannot
        hold a task, it rejects only that task. The call as a whole is not atomic.
        """

    async def admit_nearer(self, tasks: Sequence[Task]) -> int:
        """Reopen the *tasks* that are stored as `refused-depth` with a larger depth.

        They become `todo`, due now, with the depth and the parent of the given task. Return
        their number; the caller wakes their hosts, as for `Tasks.add`.
        """

    async def reopen_changed(self, tasks: Sequence[ChangedTask]) -> int:
        """Reopen the *tasks* that ended before they `changed`: they become `todo`, due now.

        Ended tasks are finished tasks, and tasks ignored after a failure. They keep their results
        until they have new results. Return their number; the caller wakes their hosts, as for
        `Tasks.add`.
        """

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """Return up to *limit* tasks that are due, by highest priority, then longest due.

        The list is a hint, because another worker may claim any of its tasks first. With *hosts*,
        it returns only tasks of these hosts. A leased task is included only after its lease has
        expired.
        """

    async def page_each(self, limit_by_host: Mapping[str, int]) -> list[Task]:
        """Return the first due tasks of each host in *limit_by_host*, up to the host's number.

        It is like `page` for each host, but takes one query. The tasks of a host are in the order
        of `page`, the hosts in any order.
        """

    async def get(self, task_id: bytes) -> Record | None:
        """Return the whole record of a task; None: the task does not exist."""


class Leases(Protocol):
    """Leases of tasks: the operations of a worker between `Tasks.page` and `Outcomes.commit`."""

    @property
    def batch_size(self) -> int:
        """Maximum number of tasks in one call of `claim`, which keeps the call short."""

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """Lease the *tasks* that have not changed since `Tasks.page` returned them.

        At any time at most one process holds the lease of a task. Each lease raises the task's
        fence by one. A task whose lease expired twice is quarantined, see
        `transitions.is_quarantined`. If the lease of a quarantined task expired after `begin`,
        the task is not leased: its count `lost` grows by one and it is due later; at *max_lost* it
        is ignored (`crashed-worker`). A call that is repeated after a lost reply also returns the
        leases of the first call.
        """

    async def begin(self, lease: Lease) -> bool:
        """Record that the work on a quarantined task begins; return whether the lease still holds.

        The worker runs no other task meanwhile: if this lease expires too, that counts as `lost`.
        """

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """Extend the leases to *lease* from now; return the task ids of lost leases."""

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """Write a leased task's data, durably; extend its lease to *duration* from now or later.

        Return whether the lease still holds; otherwise nothing is written. `update_time` stays,
        because the status does not change.
        """

    async def leases_of(self, worker: str) -> list[Lease]:
        """Return the leases whose tokens begin with `worker:`, the oldest lease first.

        They include expired leases of tasks that no other worker has claimed. Each task is in the
        state for `Outcomes.release`: `failed` if it has failed before, else `todo`, due since its
        claim.
        """


class Outcomes(Protocol):
    """Results of the work on tasks."""

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """Record outcomes and end their leases, each in one atomic and durable step.

        If a lease is lost, its settlement writes nothing and is named in the result. A settlement
        that is sent twice is recorded once. If the store cannot hold a settlement, its task
        becomes `store-rejected` and is named in the result; the other settlements are written.
        """

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """Replace the results of tasks that no worker holds, see `transitions.reparse`.

        Each replacement is one atomic and durable step. It is written only if the task still has
        the status and the fence of its read; otherwise the result names its lease as lost. A
        settlement that the store cannot hold is not written, and the result names it as rejected.
        The call is idempotent.
        """

    async def release(self, leases: Sequence[Lease]) -> int:
        """Release tasks unchanged, without counting an attempt; return their number.

        Tasks whose lease is lost do not change.
        """


class Blobs(Protocol):
    """Values that are too large for their tasks."""

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """Store a clean value outside its task, durably; the task does not refer to it yet."""

    async def read(self, blob: BlobRef) -> Any:
        """Return an offloaded value; raises `LedgerError` if it is missing."""

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """Delete unreferenced values."""


class Changes(Protocol):
    """Notifications of changed tasks."""

    def watch(self) -> AsyncIterator[None]:
        """Yield once at the start, and then after a task was added or may be due again.

        Each notification is only a hint: it may be early or late, or stand for many changes. If the
        store has no notifications, the iterator ends after its first item. Raises
        `LedgerUnavailableError` if the connection breaks.
        """


class Ledger(Protocol):
    """The tasks of one spider, durable and shared: facets on one store."""

    tasks: Tasks  #: adding tasks, and reading them
    leases: Leases  #: leases of tasks
    outcomes: Outcomes  #: results of the work on tasks
    hosts: Hosts  #: hosts without a lease, and the states of all hosts
    host_leases: HostLeases  #: leases of hosts
    workers: Workers  #: the processes at work
    rates: Rates  #: counters of the workers, minute by minute
    queries: Queries  #: questions about all tasks
    groups: Groups  #: counts of tasks by a common value
    admin: Admin  #: changes of many tasks
    notes: Notes  #: values beside the tasks
    sessions: Sessions  #: identities for requests
    spider_state: SpiderStates  #: the spider's `self.state`
    blobs: Blobs  #: values that are too large for their tracked tasks
    changes: Changes  #: notifications of changed tracked tasks
    inspection: Inspection  #: checks and repairs for `doctor`

    @property
    def kind(self) -> LedgerKind:
        """Kind of the tasks."""

    def now(self) -> datetime:
        """Return the ledger's time, aware, in UTC, in milliseconds.

        It never runs backwards within a process and does not follow jumps of the machine's clock.
        All processes on a ledger agree on it, except for the error of a measurement that each
        process repeats at least once a minute.
        """

    async def reconnected(self) -> "Ledger":
        """Return the same ledger over new connections, for another event loop.

        Nothing is created or checked. The caller must close it separately.
        """

    async def close(self) -> None:
        """Close all connections. The ledger cannot be used afterwards."""
