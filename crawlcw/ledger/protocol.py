"""What every ledger can do, and what it guarantees.

A ledger holds the tasks of one spider. It is durable and shared: any number of
processes work on it at once. Every operation on a task is one atomic write,
guarded by what the task must still be, so an operation that comes too late
writes nothing; and every operation may be sent again when its reply was lost.

All times are the ledger's own, see `Ledger.now`. Every operation may raise
`LedgerUnavailableError`; whether it was applied is then unknown, and sending it
again is right. What a status becomes is decided by `transitions` alone.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from crawlcw.errors import Reason
from crawlcw.ledger.admin import Admin
from crawlcw.ledger.examination import Inspection
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.notes import Notes
from crawlcw.ledger.queries import Groups as Groups
from crawlcw.ledger.queries import Queries, Search
from crawlcw.ledger.rates import Rates
from crawlcw.ledger.sessions import Sessions
from crawlcw.ledger.spider_states import SpiderStates
from crawlcw.ledger.values import Added as Added
from crawlcw.ledger.values import Claimed as Claimed
from crawlcw.ledger.values import Committed as Committed
from crawlcw.ledger.values import Cursor as Cursor
from crawlcw.ledger.values import Dimension as Dimension
from crawlcw.ledger.values import Group as Group
from crawlcw.ledger.values import ItemCount as ItemCount
from crawlcw.ledger.values import ItemRow as ItemRow
from crawlcw.ledger.values import TaskFilter as TaskFilter
from crawlcw.ledger.values import most_first as most_first
from crawlcw.ledger.workers import Workers
from crawlcw.model.counters import Counters as Counters
from crawlcw.model.counters import Counts as Counts
from crawlcw.model.hosts import Calls, Host, HostLease
from crawlcw.model.task import BlobRef, ChangedTask, Lease, Record, Task
from crawlcw.model.transitions import Settlement
from crawlcw.model.workers import Worker as Worker


class Tasks(Protocol):
    """The tasks themselves: adding and reading them."""

    async def add(self, tasks: Sequence[Task]) -> Added:
        """Add the tasks the ledger does not know; acknowledged means durable.

        A known task is not changed in any way, whatever its status. A task the
        store cannot hold is rejected alone. Not atomic as a whole.
        """

    async def admit_nearer(self, tasks: Sequence[Task]) -> int:
        """Make those of *tasks* `todo`, due now, that are kept as `refused-depth` and lie deeper.

        They get the depth and the parent of the task given. Return how many; their
        hosts are the caller's to wake, as for `Tasks.add`.
        """

    async def reopen_changed(self, tasks: Sequence[ChangedTask]) -> int:
        """Make those of *tasks* `todo`, due now, that ended before they `changed`.

        Ended are those that are finished, and those ignored for a failure. Their results
        stay until there are others. Return how many; their hosts are the caller's to wake,
        as for `Tasks.add`.
        """

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """Return up to *limit* tasks that are due, by highest priority, then longest due.

        A hint: any of them may be gone by the time it is claimed. *hosts*, if
        given, are the only ones looked at. Leased tasks are among them once
        their lease has run out, and never before.
        """

    async def page_each(self, wanted: Mapping[str, int]) -> list[Task]:
        """Return the first due tasks of each host in *wanted*, up to so many as it says.

        As `page` of each host alone, by one question for all: a host with many tasks takes no
        other's place. The tasks of a host are in the order of `page`, the hosts in any.
        """

    async def get(self, task_id: bytes) -> Record | None:
        """Return everything known about a task, or None."""


class Leases(Protocol):
    """Holding tasks: what a worker does between `Tasks.page` and `Outcomes.commit`."""

    @property
    def at_once(self) -> int:
        """The most tasks for one call of `claim`, so that its answer is not long in coming."""

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """Lease those of *tasks* that still are as `Tasks.page` returned them.

        No two claims of all processes ever get the same task at the same time.
        Each success raises the task's fence by one. A task whose lease ran out
        twice is quarantined (see `transitions.is_quarantined`); where its holder had
        begun with it alone, it counts one `lost` and is due later instead, or is
        ignored (`crashed-worker`) when that makes *max_lost*. Sent again after it
        was not answered, it returns the leases of the first time as well; nothing
        else does.
        """

    async def begin(self, lease: Lease) -> bool:
        """Write down that the work on a task begins; return whether the lease still holds.

        Of quarantined tasks, with which a worker begins alone: should this lease run out
        too, it counts.
        """

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """Let the leases end *lease* from now; return the task ids of those that are lost."""

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """Write a held task's data, durably, and let its lease end *duration* from now, or later.

        Return whether the lease still holds; where not, nothing is written.
        `update_time` stays: the status has not changed.
        """

    async def held(self, worker: str) -> list[Lease]:
        """Return the leases whose tokens begin with `worker:`, the longest held first.

        Those that ran out as well, as long as nobody took them over. The task of
        each is as `Outcomes.release` is to leave it: `failed` where it has failed before,
        else `todo`, due since it was claimed.
        """


class Outcomes(Protocol):
    """How the work on tasks ended."""

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """Record outcomes and end their leases, each in one atomic and durable step.

        A settlement whose lease is no longer held writes nothing and is named
        in the answer. A settlement sent twice is recorded once. One the store
        cannot hold becomes `store-rejected` and is named; the rest is written.
        """

    async def replace(self, settlements: Sequence[Settlement]) -> Committed:
        """Record what pages gave that nobody works on, see `transitions.reparse`.

        Each in one atomic and durable step, where the task still has the status and the
        fence that it was read with; else nothing is written, and its lease is named as
        lost. One that the store cannot hold is named as rejected, and not written either.
        Sent twice it is recorded once.
        """

    async def release(self, leases: Sequence[Lease]) -> int:
        """Give tasks back as they were before the claim, no attempt spent; return how many.

        Leases that were lost meanwhile are left alone.
        """


class Hosts(Protocol):
    """The hosts that nobody holds, and what is known of all."""

    async def wake(self, dues: Mapping[str, datetime]) -> None:
        """Make hosts known, and ready no later than given, unless somebody holds them.

        A host that rests until its `not_before` is ready then, and not earlier:
        a host in its backoff is not leased anew for every link to it. A worker that
        makes a task due says so here, after the task is in the ledger. Writes
        nothing where nothing changes.
        """

    async def wake_all(self) -> int:
        """Make every host ready now that nobody holds, its failures forgiven; return how many.

        The rest after a failure is forgiven too, the adaptive delay is not.
        """

    async def give_up(
        self,
        host: str,
        *,
        reason: Reason,
        scheme: str | None = None,
        calls: Calls = Calls.NONE,
    ) -> int:
        """Ignore all waiting tasks of *host* for *reason*; return how many.

        With *scheme* (`https`) only those whose URL has it. The tasks that *calls*
        includes are left, and are due now: each of them is settled by itself.

        A batch at a time, so that a million of them neither block the ledger
        nor run into its time limit. Leased tasks are left alone, and so are
        finished ones. May be repeated after an error.
        """

    def all(self) -> AsyncIterator[Host]:
        """Yield every host, by name, in flat memory."""

    async def busiest(self, *, limit: int) -> tuple[list[Host], list[Host]]:
        """Return up to *limit* hosts that are held, and up to *limit* others that wait longest.

        Without their robots.txt. By indexes alone, one seek each.
        """

    async def counts(self) -> dict[str, Counts]:
        """Return how many tasks of each status every host has.

        Counted by indexes alone, but for the leased ones on MongoDB, which are read. There it
        is no single moment that is counted: a number is wrong by no more tasks than changed
        meanwhile.
        """

    async def get(self, names: Collection[str]) -> dict[str, Host]:
        """Return the hosts of those names that are known."""

    async def next_ready(self) -> datetime | None:
        """Return when the next host is or will be ready, live leases included; None: never."""

    async def due(self, *, after: str, limit: int) -> list[str]:
        """Return the next hosts, by name, that have tasks with a `due`, behind the name *after*.

        One seek a host. For an idle process that looks for lost wake-ups.
        """

    async def earliest_due(self, host: str) -> datetime | None:
        """Return when the next task of *host* is due, live leases included; None: never."""


class HostLeases(Protocol):
    """Holding hosts: leasing many at once, and what their owner writes."""

    async def lease(self, *, worker: str, limit: int, lease: timedelta) -> list[HostLease]:
        """Lease up to *limit* hosts that are ready, the longest ready first.

        A host is ready when its `ready_at` has come: somebody woke it, or its
        last owner's lease ran out. No two leases of all processes ever hold a
        host at the same time. Each raises the host's epoch by one and sets its
        `ready_at` to the lease's end.
        """

    async def renew(self, leases: Sequence[HostLease], *, lease: timedelta) -> set[str]:
        """Let the leases end *lease* from now; return the names of the hosts that are lost."""

    async def save(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """Write what owners have learned of their hosts; return the names of those that are lost.

        Writes `not_before`, `delay`, `failures`, `page_failures`, `given_up`, `origins`,
        `finished` and `failed` as they are in the state, and `robots` where the
        state has another record than the lease's host. Nobody else writes them
        while the lease is held, so a state that is sent twice counts once. The
        lease is kept. A host that is leased to somebody else now is not written.
        """

    async def release(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """End leases, writing what `save` writes; return the names of those that were lost.

        Each host is ready again at its state's `ready_at`, or, where that is
        None, only when somebody wakes it. A wake-up that came while the host
        was leased is not lost to it: the ledger looks for the host's earliest
        task that is due after the release, and wakes it for that. It looks
        where the host would not be ready by now, or by its `not_before`.
        """


class Blobs(Protocol):
    """Values that are too large for their tasks."""

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """Keep a clean value beside its task, durably; nothing refers to it yet."""

    async def read(self, blob: BlobRef) -> Any:
        """Return a value that was set aside; raises `LedgerError` where it is gone."""

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """Delete values that nothing refers to any more."""


class Changes(Protocol):
    """Being told of tasks."""

    def watch(self) -> AsyncIterator[None]:
        """Yield once at first, and then whenever a task was added or may be due again.

        A hint: it may be early, late, or one for many. Where the store tells
        nobody, it ends after the first; it raises `LedgerUnavailableError`
        where the connection breaks.
        """


class Ledger(Protocol):
    """The tasks of one spider, durable and shared: facets on one store."""

    tasks: Tasks  #: adding tasks, and reading them
    leases: Leases  #: holding tasks
    outcomes: Outcomes  #: how the work on them ended
    hosts: Hosts  #: the hosts that nobody holds
    host_leases: HostLeases  #: holding hosts
    workers: Workers  #: the processes at work
    rates: Rates  #: what they did, minute by minute
    queries: Queries  #: questions about all tasks
    groups: Groups  #: how many tasks have what in common
    search: Search  #: looking for tasks in bounded time
    admin: Admin  #: changes of many tasks
    notes: Notes  #: values beside the tasks
    sessions: Sessions  #: who pages are asked for as
    spider_state: SpiderStates  #: what the spider keeps between its pages
    blobs: Blobs  #: values that are too large for their tracked tasks
    changes: Changes  #: being told of tracked tasks
    inspection: Inspection  #: what `doctor` reads and mends

    @property
    def kind(self) -> LedgerKind:
        """What the tasks are."""

    def now(self) -> datetime:
        """Return the ledger's time, aware, in UTC, in milliseconds.

        It never runs backwards within a process and does not follow jumps of
        the machine's clock; all processes on a ledger agree on it to within
        the error of a measurement made at least once a minute.
        """

    async def another(self) -> "Ledger":
        """Return the same ledger over connections of its own, for another event loop.

        Nothing is made or checked anew. It is to be closed by itself.
        """

    async def close(self) -> None:
        """Let go of connections. The ledger cannot be used any more."""
