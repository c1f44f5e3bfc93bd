"""Wake hosts, give hosts up, read the states of hosts, and write the states of leased hosts.

The subclasses of each store find each host's first due task, and lease ready hosts.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from crawlcw.errors import LedgerUnavailableError, Reason
from crawlcw.ledger import documents
from crawlcw.ledger.choosing import after_key, batches, edit_of, resumed
from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import (
    After,
    Among,
    AtMost,
    Edit,
    LedgerTables,
    Not,
    Path,
    Store,
    Where,
    Within,
    Write,
)
from crawlcw.ledger.values import Counts
from crawlcw.model.hosts import FailureCalls, Host, HostLease
from crawlcw.model.transitions import GIVE_UP_HOST

#: Maximum number of tasks or hosts in one operation. Other users of the ledger wait until the
#: operation ends.
BATCH = 5_000
#: Number of hosts in one read; it is small, because a host has a robots.txt of up to 512 KiB.
_BATCH_SIZE = 100
#: Number of tasks that one read examines to find hosts with due tasks.
_SCAN_LIMIT = 100
#: Names of all fields of a host except its robots.txt, which is by far the largest.
_FIELDS_WITHOUT_ROBOTS = (
    *("_id", "ready_at", "owner", "epoch", "not_before", "delay", "failures", "page_failures"),
    *("given_up", "finished", "origins"),
)
_NO_FAILURES = {"failures": 0, "page_failures": 0, "given_up": None, "origins": None}


class Hosts(ABC):
    """Wakes hosts that no worker leases, gives hosts up, and reads the states of all hosts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def wake(self, dues: Mapping[str, datetime]) -> None:
        """Add unknown hosts; make hosts without a lease ready at their times in *dues* or earlier.

        A host that pauses after a failure becomes ready at its `not_before`, so new links to the
        host do not end the pause. A worker that makes a task due calls `wake` after the task is in
        the ledger. It writes only changes.
        """
        # All processes write hosts in the same order, so two processes that wake the same hosts
        # never deadlock.
        for batch in batches(sorted(dues.items()), BATCH):
            while not await self._store.writing(_wake, dict(batch)):
                pass  # repeat the write, because another process changed a host after the read

    async def wake_all(self) -> int:
        """Make all hosts without a lease ready now, and reset their failures; return the number.

        `wake_all` also ends the pause of a host after a failure, but keeps the adaptive delay.
        """
        now, total = self._store.now(), 0
        first_host: str | None = ""
        while first_host is not None:
            woken_count, first_host = await self._store.writing(_wake_next, first_host, now)
            total += woken_count
        return total

    async def give_up(
        self,
        host: str,
        *,
        reason: Reason,
        scheme: str | None = None,
        calls: FailureCalls = FailureCalls.NONE,
    ) -> int:
        """Ignore all waiting tasks of *host* for *reason*; return their number.

        With *scheme* (for example `https`), only tasks whose URL has that scheme are ignored.
        `give_up` does not ignore the tasks whose errback or `on_error` must be called (*calls*).
        These tasks become due now, so that a worker settles each task and makes its call.

        `give_up` runs in batches, so that a million tasks neither block the ledger nor exceed its
        time limit. Leased and finished tasks do not change. A caller may repeat `give_up`.
        """
        now = self._store.now()
        waiting_tests: dict[str, Any] = {
            "status": Among(tuple(map(int, GIVE_UP_HOST.from_statuses))),
            "url": Within(*documents.urls_of(scheme)),
        }
        if calls is not FailureCalls.NONE:
            errback_test = {"errback": Not(None)} if calls is FailureCalls.ERRBACK else {}
            where = waiting_tests | errback_test | {"due": After(now)}
            await self._change_waiting(host, where, Edit(set={"due": now}))
        if calls is FailureCalls.ALL:
            return 0
        if calls is FailureCalls.ERRBACK:
            waiting_tests["errback"] = None
        edit = edit_of(GIVE_UP_HOST, now, {"reason": str(reason)})
        return await self._change_waiting(host, waiting_tests, edit)

    async def _change_waiting(self, host: str, waiting: Where, edit: Edit) -> int:
        """Change waiting tasks of a host; after *edit* a task is no longer in the index range.

        Each batch begins where the last batch ended, so that leased tasks are not read again.
        """
        total = 0
        index_range: Where | None = {}
        while index_range is not None:
            number, index_range = await self._store.writing(
                _change_next, {"host": host, **index_range}, waiting, edit
            )
            total += number
        return total

    async def all(self) -> AsyncIterator[Host]:
        """Yield every host, by name, in constant memory."""
        last_name: str | None = None
        while batch := await resumed(self._store, _read_batch, last_name):
            for document in batch:
                yield documents.host(document)
            last_name = batch[-1]["_id"]

    async def busiest(self, *, limit: int) -> tuple[list[Host], list[Host]]:
        """Return up to *limit* leased hosts, and up to *limit* hosts with the latest `ready_at`.

        The returned hosts have no robots.txt. One short index scan reads each of the two lists.
        """
        leased_hosts, waiting = await self._store.reading(_busiest, limit)
        return (
            [documents.host(host) for host in leased_hosts],
            # The scan may return leased hosts too, but few, because leases end soon.
            [documents.host(host) for host in waiting if host["owner"] is None],
        )

    async def counts(self) -> dict[str, Counts]:
        """Return the number of tasks of each host and status.

        A store reads only its indexes to count, but MongoDB also reads the leased tasks. MongoDB
        needs several reads, so its numbers may contradict each other.
        """
        return await self._store.reading(lambda tables: tables.groups.of_hosts())

    async def get(self, names: Collection[str]) -> dict[str, Host]:
        """Return the known hosts among *names*."""
        hosts: dict[str, Host] = {}
        for batch in batches(names, BATCH):
            by_name = await self._store.reading(
                lambda tables, names: tables.hosts.read(names), batch
            )
            hosts |= {name: documents.host(document) for name, document in by_name.items()}
        return hosts

    async def next_ready(self) -> datetime | None:
        """Return when a host next becomes ready or a lease next ends; None if no host has work."""
        hosts = await self._store.reading(
            lambda tables: tables.hosts.scan({}, by=Path.READY, limit=1, fields=("ready_at",))
        )
        return hosts[0]["ready_at"] if hosts else None

    async def due(self, *, last_host: str, limit: int) -> list[str]:
        """Return the next hosts after *last_host* that have tasks with a `due` time.

        `due` takes one index seek for a host with many due tasks, or for many hosts with few due
        tasks. An idle process calls `due` to find hosts whose wake-up was lost.
        """
        return await self._store.reading(_due, last_host, limit)

    async def earliest_due(self, host: str) -> datetime | None:
        """Return the earliest `due` time of the tasks of *host*; None if no task has one."""
        return (await self.earliest_dues([host])).get(host)

    @abstractmethod
    async def earliest_dues(self, hosts: Collection[str]) -> dict[str, datetime]:
        """Return the earliest `due` time for each host that has a task with a `due` time."""


async def _wake(tables: LedgerTables, dues: Mapping[str, datetime]) -> bool:
    """Add new hosts, and make known hosts ready when due; return whether all writes succeeded.

    A leased host needs no write. If the host's owner releases the host after this read, the owner
    finds the new tasks in the ledger itself.
    """
    state_fields = ("owner", "ready_at", "not_before")
    hosts = await tables.hosts.read([*dues], state_fields)
    new_hosts, writes = [], []
    for name, due in dues.items():
        if name not in hosts:
            new_hosts.append(documents.host_document(Host(name=name, ready_at=due)))
            continue
        stored_state = {field: hosts[name].get(field) for field in state_fields}
        owner, ready_at, not_before = stored_state.values()
        ready_time = max(due, not_before or due)
        if owner is None and (ready_at is None or ready_at > ready_time):
            writes.append(Write(name, stored_state, Edit(set={"ready_at": ready_time})))
    written_count = await tables.hosts.insert(new_hosts) + await tables.hosts.change(writes)
    return written_count == len(new_hosts) + len(writes)


async def _wake_next(tables: LedgerTables, first: str, now: datetime) -> tuple[int, str | None]:
    """Wake a batch of hosts; return the number of woken hosts, and the name of the next host."""
    remaining_names = {"_id": Within(first, None)}
    hosts = await tables.hosts.scan(remaining_names, limit=BATCH + 1, fields=("_id",))
    next_name = hosts[BATCH]["_id"] if len(hosts) > BATCH else None
    where = {"_id": Within(first, next_name), "owner": None}
    fields = {"ready_at": now, **_NO_FAILURES}
    # Keep `not_before` for hosts without failures, because `not_before` delays only one request.
    number = await tables.hosts.change_where({**where, "failures": AtMost(0)}, Edit(set=fields))
    edit = Edit(set={**fields, "not_before": None})
    return number + await tables.hosts.change_where(
        {**where, "failures": After(0)}, edit
    ), next_name


async def _change_next(
    tables: LedgerTables, index_range: Where, waiting: Where, edit: Edit
) -> tuple[int, Where | None]:
    """Change the first tasks in an index range; return their number, and the remaining range."""
    tasks = await tables.tasks.scan(
        {**waiting, **index_range},
        by=Path.HOST_DUE,
        limit=BATCH,
        fields=("_id", "priority", "due"),
    )
    ids = [task["_id"] for task in tasks]
    number = await tables.tasks.change_all(ids, waiting, edit) if ids else 0
    if len(ids) == BATCH:
        last = tasks[-1]
        # Begin again at the last task's `due`, because other tasks may have the same `due`.
        return number, {"priority": last["priority"], "due": Within(last["due"], None)}
    if "due" in index_range:
        return number, {"priority": Within(None, index_range["priority"])}
    return number, None


async def _read_batch(tables: LedgerTables, last_name: str | None) -> Sequence[Document]:
    return await tables.hosts.scan(after_key(last_name), limit=_BATCH_SIZE)


async def _busiest(
    tables: LedgerTables, limit: int
) -> tuple[Sequence[Document], Sequence[Document]]:
    return (
        await tables.hosts.scan({}, by=Path.OWNER, limit=limit, fields=_FIELDS_WITHOUT_ROBOTS),
        await tables.hosts.scan({}, by=Path.LAST_READY, limit=limit, fields=_FIELDS_WITHOUT_ROBOTS),
    )


async def _due(tables: LedgerTables, last_host: str, limit: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < limit:
        where = {"host": After(last_host)}
        tasks = await tables.tasks.scan(
            where, by=Path.HOST_DUE, limit=_SCAN_LIMIT, fields=("host",)
        )
        if not tasks:
            break
        # The next read starts after this host, so it skips the other tasks of the host.
        last_host = tasks[-1]["host"]
        names |= dict.fromkeys(task["host"] for task in tasks)
    return [*names][:limit]


class HostLeases(ABC):
    """Leases hosts, and writes the states of leased hosts."""

    def __init__(self, store: Store, hosts: Hosts) -> None:
        self._store = store
        self._hosts = hosts
        #: Counter whose numbers make each lease token of a worker different.
        self._numbers = count(1)
        #: Tokens of calls that got no reply; the ledger may have leased hosts to these tokens.
        self._unconfirmed: list[str] = []

    async def lease(self, *, worker: str, limit: int, lease: timedelta) -> list[HostLease]:
        """Lease up to *limit* ready hosts; the host that has been ready longest comes first.

        A host is ready from the time `ready_at` on. A wake-up sets `ready_at`, and a lease sets
        `ready_at` to the end of the lease. At any time at most one process holds the lease of a
        host. Each lease raises the host's epoch by one.
        """
        if limit < 1:
            return []
        now = self._store.now()
        if self._unconfirmed:
            adopted_leases = await self._store.writing(_adopt, self._unconfirmed, now, limit)
            self._unconfirmed = []
            if adopted_leases:
                return adopted_leases
        token = f"{worker}:{next(self._numbers)}"
        try:
            return await self._take(token, limit, now=now, end=now + lease)
        except (LedgerUnavailableError, asyncio.CancelledError):
            # Remember the token, because the ledger may have leased hosts to it. Without the token
            # no worker would use these hosts until the lease expires.
            self._unconfirmed.append(token)
            raise

    @abstractmethod
    async def _take(
        self, token: str, limit: int, *, now: datetime, end: datetime
    ) -> list[HostLease]:
        """Lease up to *limit* ready hosts until *end*, with *token* as the token of the leases."""

    async def renew(self, leases: Sequence[HostLease], *, lease: timedelta) -> set[str]:
        """Extend the leases to *lease* from now; return the names of hosts whose lease is lost."""
        # A late renewal must not shorten a lease that a newer renewal has extended.
        edit = Edit(raise_to={"ready_at": self._store.now() + lease})
        return await self._store.writing(
            _write_edits, [(host_lease, edit) for host_lease in leases]
        )

    async def save(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """Write the states of leased hosts; return the names of hosts whose lease is lost.

        `save` writes `not_before`, `delay`, `failures`, `page_failures`, `given_up`, `origins` and
        `finished` of the state, and `robots` if it differs from the lease's host. No other process
        writes these fields during the lease, so a caller may repeat `save`. The lease stays. `save`
        does not write a host that another process has leased.
        """
        edits = [
            (lease, Edit(set=documents.owner_fields(state, previous=lease.host)))
            for lease, state in states
        ]
        return await self._store.writing(_write_edits, edits)

    async def release(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """Write states like `save`, and end the leases; return names of hosts whose lease is lost.

        A released host is ready at the `ready_at` of its state. If `ready_at` is None, the host is
        ready only after a wake-up. After this write, `release` reads the host's earliest due task
        and wakes the host for this task, because `wake` does not change a leased host. `release`
        does not wake a host that is ready now, or that will be ready at its `not_before`.
        """
        edits = []
        for lease, state in states:
            learned_fields = documents.owner_fields(state, previous=lease.host)
            release_fields = {"owner": None, "ready_at": state.ready_at, "released": lease.epoch}
            edits.append((lease, Edit(set=learned_fields | release_fields)))
        lost_names = await self._store.writing(_write_edits, edits)
        now = self._store.now()
        sleeping_names = [
            lease.host.name
            for lease, state in states
            if lease.host.name not in lost_names
            and (state.ready_at is None or state.ready_at > max(now, state.not_before or now))
        ]
        # Wake the hosts after the release, because a process that adds a task to a leased host does
        # not wake the host. If this process is killed before the wake-up, another process finds the
        # task when it calls `due`.
        dues = await self._hosts.earliest_dues(sleeping_names)
        await self._hosts.wake({name: max(due, now) for name, due in dues.items()})
        return lost_names


async def _adopt(
    tables: LedgerTables, tokens: Sequence[str], now: datetime, limit: int
) -> list[HostLease]:
    """Return the leases that the ledger granted to earlier calls that got no reply."""
    # Send an empty write for each of the hosts that were ready longest. The write returns only
    # after the ledger has committed every earlier lease of these hosts.
    where = {"ready_at": AtMost(now)}
    hosts = await tables.hosts.scan(where, by=Path.READY, limit=limit, fields=("_id",))
    names = sorted(host["_id"] for host in hosts)
    await tables.host_leases.change([Write(name, {}, Edit()) for name in names])
    leases = [
        documents.host_lease(host)
        for token in tokens
        for host in await tables.hosts.scan({"owner": token}, by=Path.OWNER, limit=limit)
    ]
    # Ignore an expired lease, because its host is ready and can be leased again.
    return [lease for lease in leases if lease.expires > now]


async def _write_edits(tables: LedgerTables, edits: Sequence[tuple[HostLease, Edit]]) -> set[str]:
    """Change hosts under their leases; return the names of hosts whose lease is lost."""
    writes = [
        Write(lease.host.name, {"owner": lease.token, "epoch": lease.epoch}, edit)
        for lease, edit in edits
    ]
    if await tables.host_leases.change(writes) == len(writes):
        return set()
    names = [write.key for write in writes]
    hosts = await tables.hosts.read(names, ("owner", "epoch", "released"))
    return {
        lease.host.name
        for lease, edit in edits
        if not _is_written(lease, edit, hosts.get(lease.host.name, {}))
    }


def _is_written(lease: HostLease, edit: Edit, document: Document) -> bool:
    """Return whether the ledger has *edit* if it is a release, and else still has the lease."""
    if "released" in edit.set:
        return document.get("released") == lease.epoch
    return (document.get("owner"), document.get("epoch")) == (lease.token, lease.epoch)
