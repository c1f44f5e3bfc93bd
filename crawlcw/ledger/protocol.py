"""Contract of every ledger.

A ledger holds the tasks of one spider. It is durable and shared: any number of
processes work on it at once. Every operation on a task is one atomic write,
guarded by the state that the task must still have, so a late operation writes
nothing; and every operation may be repeated after a lost reply.

All times are the ledger's own, see `Ledger.now`. Every operation may raise
`LedgerUnavailableError`; it is then unknown whether it was applied, and the caller
may repeat it. Only `transitions` decides the changes of a status.
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
from crawlcw.ledger.values import most_first as most_first
from crawlcw.ledger.workers import Rates, Workers
from crawlcw.model.counters import Counters as Counters
from crawlcw.model.counters import Counts as Counts
from crawlcw.model.rates import Worker as Worker
from crawlcw.model.task import BlobRef, ChangedTask, Lease, Record, Task
from crawlcw.model.transitions import Settlement


class Tasks(Protocol):
    """Adding and reading tasks."""

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add the tasks the ledger does not know; acknowledged means durable.

        A known task is not changed in any way, whatever its status. A task the
        store cannot hold is rejected alone. Not atomic as a whole.
        """

    async def admit_nearer(self, tasks: Sequence[Task]) -> int:
        """Reopen those of *tasks* that are stored as `refused-depth` with a larger depth.

        They become `todo`, due now, with the depth and the parent of the given task. Return
        their number; the caller wakes their hosts, as for `Tasks.add`.
        """

    async def reopen_changed(self, tasks: Sequence[ChangedTask]) -> int:
        """Reopen those of *tasks* that ended before they `changed`: they become `todo`, due now.

        Ended tasks are finished ones, and those ignored for a failure. Their results stay
        until there are new ones. Return their number; the caller wakes their hosts, as for
        `Tasks.add`.
        """

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """Return up to *limit* tasks that are due, by highest priority, then longest due.

        A hint: another worker may claim any of them first. With *hosts*, only tasks of
        these. Leased tasks are included only after their lease has run out.
        """

    async def page_each(self, wanted: Mapping[str, int]) -> list[Task]:
        """Return the first due tasks of each host in *wanted*, up to its number.

        Like `page` for each host, in one query. The tasks of a host are in the order of
        `page`, the hosts in any order.
        """

    async def get(self, task_id: bytes) -> Record | None:
        """Return everything known about a task, or None."""


class Leases(Protocol):
    """Leases of tasks: the operations of a worker between `Tasks.page` and `Outcomes.commit`."""

    @property
    def at_once(self) -> int:
        """Limit of tasks for one call of `claim`, for a short response time."""

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """Lease those of *tasks* that have not changed since `Tasks.page` returned them.

        No two claims of all processes hold the same task at the same time. Each success
        raises the task's fence by one. A task whose lease ran out twice is quarantined (see
        `transitions.is_quarantined`). If its holder had begun with it alone, it counts one
        `lost` and is due later instead, or is ignored (`crashed-worker`) at *max_lost*. A call
        that is repeated after a lost reply also returns the leases of the first one.
        """

    async def begin(self, lease: Lease) -> bool:
        """Record that the work on a quarantined task begins; return whether the lease still holds.

        The worker works on it alone: if this lease runs out too, that counts as `lost`.
        """

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """Let the leases end *lease* from now; return the task ids of lost ones."""

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """Write a held task's data, durably, and let its lease end *duration* from now, or later.

        Return whether the lease still holds; otherwise nothing is written. `update_time`
        stays: the status has not changed.
        """

    async def held(self, worker: str) -> list[Lease]:
        """Return the leases whose tokens begin with `worker:`, the longest held first.

        Includes expired ones that no other worker has taken over. The task of each is in
        the state for `Outcomes.release`: `failed` if it has failed before, else `todo`, due
        since its claim.
        """


class Outcomes(Protocol):
    """Results of the work on tasks."""

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """Record outcomes and end their leases, each in one atomic and durable step.

        A settlement whose lease is no longer held writes nothing and is named
        in the answer. A settlement sent twice is recorded once. One the store
        cannot hold becomes `store-rejected` and is named; the rest is written.
        """

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """Replace the results of tasks that no worker holds, see `transitions.reparse`.

        Each in one atomic and durable step, if the task still has the status and the fence
        of its read; else nothing is written, and its lease is returned as lost. One that
        the store cannot hold is returned as rejected, and not written. Idempotent.
        """

    async def release(self, leases: Sequence[Lease]) -> int:
        """Release tasks unchanged, without counting an attempt; return their number.

        Lost leases are left alone.
        """


class Blobs(Protocol):
    """Values that are too large for their tasks."""

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """Store a clean value outside of its task, durably; the task does not refer to it yet."""

    async def read(self, blob: BlobRef) -> Any:
        """Return an offloaded value; raises `LedgerError` if it is missing."""

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """Delete unreferenced values."""


class Changes(Protocol):
    """Notifications of changed tasks."""

    def watch(self) -> AsyncIterator[None]:
        """Yield once at first, and then after a task was added or may be due again.

        A hint: it may be early, late, or one for many. It ends after the first one if the
        store has no notifications; it raises `LedgerUnavailableError` if the connection
        breaks.
        """


class Ledger(Protocol):
    """The tasks of one spider, durable and shared: facets on one store."""

    tasks: Tasks  #: adding tasks, and reading them
    leases: Leases  #: holding tasks
    outcomes: Outcomes  #: results of the work on tasks
    hosts: Hosts  #: hosts without a lease
    host_leases: HostLeases  #: leases of hosts
    workers: Workers  #: the processes at work
    rates: Rates  #: their numbers, minute by minute
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

        It never runs backwards within a process and does not follow jumps of
        the machine's clock; all processes on a ledger agree on it to within
        the error of a measurement made at least once a minute.
        """

    async def another(self) -> "Ledger":
        """Return the same ledger over new connections, for another event loop.

        Nothing is created or checked. It must be closed separately.
        """

    async def close(self) -> None:
        """Close all connections. The ledger cannot be used afterwards."""
