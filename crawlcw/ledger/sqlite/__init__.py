"""The ledger in one SQLite file: for one machine, any number of processes, no server.

What a task becomes is decided in `transitions`; here is how it is written. Every
operation is one function on one worker thread and one transaction, for a hop to
a thread costs more than a statement (a hundred claims take 0.2 ms this way, and
6-12 ms at a hop a statement). Several spiders share a file: their tables bear
their names.

The file is in WAL mode, so that readers and the one writer do not wait for each
other. A transaction is fsynced where the contract says durable; a claim is not,
because a claim that is lost in a power cut is a repeated fetch.
"""

# ruff: noqa: S608  # the tables' names are quoted below; every value is a parameter

import base64
import heapq
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from anyio import CapacityLimiter, to_thread

from crawlcw import transitions
from crawlcw.clock import LedgerClock
from crawlcw.errors import LedgerConfigurationError, LedgerError, LedgerUnavailableError, Reason
from crawlcw.hosts import Host, HostLease
from crawlcw.invariants import Kind, Violation
from crawlcw.ledger import documents
from crawlcw.ledger.examination import HOST_STATE, TASK_STATE, Health
from crawlcw.ledger.protocol import (
    Added,
    Claimed,
    Committed,
    Counts,
    ItemRow,
    Selection,
    Tally,
    Worker,
)
from crawlcw.task import Lease, Record, Status, Task
from crawlcw.transitions import Change, Event, Settlement

SCHEMA_VERSION = 3
#: What is brought up to date when it is opened; it has no `begun`.
_UPGRADED_VERSION = 2

_P = ParamSpec("_P")
_T = TypeVar("_T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_INT64 = 1 << 63
_CLOCK_SET_EVERY = 60.0
#: What the machine's clock lacks beyond this was taken from it: it was set back.
_LONGEST_STANDSTILL = timedelta(minutes=1)

_BUSY_TIMEOUT = 10.0
_TURNED_AWAY = 0.01
#: SQLite's own limit for a row is 10**9 bytes.
_LARGEST_VALUE = 1 << 28
#: `items` reads this much at a time: rows, and characters of JSON.
_ITEM_ROWS = 500
_ITEM_CHARACTERS = 1 << 20
#: How much of a damaged file is told.
_DAMAGES = 10
#: The last millisecond of 9999.
_LATEST = 253_402_300_799_999
#: One transaction gives up this many tasks, or wakes this many hosts: others wait meanwhile.
_BATCH = 5_000

_TIMES = frozenset(
    {
        "due",
        "update_time",
        "create_time",
        "lock_time",
        "ready_at",
        "not_before",
        "started",
        "heartbeat",
        "left",
    }
)
_JSON = frozenset({"headers", "context", "errors", "response", "robots", "counts", "tally"})

#: What is raised for a value that has no place in a row.
_UNHOLDABLE = (ValueError, TypeError, OverflowError, RecursionError)

_FILE = "PRAGMA database_list"
#: macOS has no fdatasync.
_sync_file: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another process",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written",
    sqlite3.SQLITE_NOMEM: "needs more memory than there is",
    sqlite3.SQLITE_INTERRUPT: "was interrupted",
}
_MISCONFIGURED = {
    sqlite3.SQLITE_READONLY: "is read-only: a crawl needs a file and a folder it can write to",
    sqlite3.SQLITE_PERM: "may not be opened by this user",
    sqlite3.SQLITE_AUTH: "may not be opened by this user",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: is it a folder, or may this user not write there?",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "is damaged: bring back a copy, or recover it with `sqlite3 .recover`",
}


class _Database(sqlite3.Connection):
    """A connection that knows what is still to be synced."""

    unsynced = False  #: whether something durable was committed since the last sync


class SqliteLedger:
    """A `Ledger` in an SQLite file."""

    def __init__(self, path: Path, spider: str, *, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._spider = spider
        self._sql = _Statements(spider)
        self._clock = clock
        self._writer = _Connection(path)
        # Its own, so that `items` and `counts` do not keep claims waiting.
        self._reader = _Connection(path)
        self._claims = 0

    @classmethod
    async def open(
        cls, path: str | Path, spider: str, *, clock: Callable[[], datetime] | None = None
    ) -> Self:
        """Return the ledger of *spider* in the file at *path*, both made where they do not exist.

        Raises `LedgerConfigurationError` for a file that is not such a ledger.
        """
        machine = LedgerClock()
        ledger = cls(Path(path), spider, clock=clock or _machine_clock(machine))
        try:
            await ledger.prepare()
            await ledger._reader.run(_restrict_to_reading)
            await ledger._go_on_from_the_latest(machine)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @classmethod
    async def look(
        cls, path: str | Path, spider: str, *, clock: Callable[[], datetime] | None = None
    ) -> Self:
        """Return the ledger of *spider* in the file at *path* as it is, to be examined.

        Nothing is made or switched. Raises `LedgerConfigurationError` for a
        file that is no ledger, or one of another version.
        """
        machine = LedgerClock()
        ledger = cls(Path(path), spider, clock=clock or _machine_clock(machine))
        try:
            await ledger._reader.run(_restrict_to_reading)
            await ledger._reader.run(_check_marker, spider, ledger._path)
            await ledger._go_on_from_the_latest(machine)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def prepare(self) -> None:
        """Make the tables and indexes that are missing, and check what is there."""
        await self._writer.run(_create, self._sql, self._spider, self._path)

    async def _go_on_from_the_latest(self, machine: LedgerClock) -> None:
        """Set the clock to what a worker has last shown, should that be later than it is."""
        # The machine's clock was set back since: else what is due would be due much later.
        latest = await self._reader.run(_latest, self._sql, self._spider)
        reading = machine.monotonic()
        if latest > machine.now():
            machine.set(latest, asked=reading, answered=reading)

    def now(self) -> datetime:
        """Return this machine's time, which all processes on the file share."""
        return self._clock()

    async def add(self, tasks: Sequence[Task]) -> Added:
        """See `Ledger.add`."""
        return await self._writer.run(self._add, tasks)

    def _add(self, db: _Database, tasks: Sequence[Task]) -> Added:
        rows: list[dict[str, Any]] = []
        rejected: list[tuple[Task, str]] = []
        for task in tasks:
            try:
                rows.append(_NEW_ROW | _row(documents.document(task)))
            except _UNHOLDABLE as error:
                rejected.append((task, _said(error)))
        with _durable_transaction(db):
            new = db.executemany(self._sql.add, rows).rowcount if rows else 0
        return Added(new=new, known=len(rows) - new, rejected=tuple(rejected))

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """See `Ledger.page`."""
        return await self._reader.run(self._page, limit, hosts, _milliseconds(self.now()))

    def _page(
        self, db: sqlite3.Connection, limit: int, hosts: Collection[str] | None, now: int
    ) -> list[Task]:
        if hosts is None:
            due = self._due(db, limit, now)
        else:
            # Each host's tasks come in order and are read only as far as they
            # are taken, so a page costs its length and not the hosts' backlog.
            lines = [self._due_of_host(db, limit, now, host) for host in set(hosts)]
            due = heapq.merge(*lines, key=lambda row: (-row["priority"], row["due"]))
        return [documents.task(_document(row)) for row in islice(due, limit)]

    def _due(self, db: sqlite3.Connection, limit: int, now: int) -> Iterator[sqlite3.Row]:
        for priority in self._priorities(db):
            yield from db.execute(
                self._sql.page, {"priority": priority, "now": now, "limit": limit}
            )

    def _due_of_host(
        self, db: sqlite3.Connection, limit: int, now: int, host: str
    ) -> Iterator[sqlite3.Row]:
        bounds: dict[str, Any] = {"host": host, "now": now, "limit": limit}
        for priority in _descending(db, self._sql.next_priority_of_host, bounds):
            yield from db.execute(self._sql.page_of_host, bounds | {"priority": priority})

    def _priorities(self, db: sqlite3.Connection) -> Iterator[int]:
        return _descending(db, self._sql.next_priority, {})

    async def claim(
        self, tasks: Sequence[Task], *, worker: str, lease: timedelta, max_lost: int
    ) -> Claimed:
        """See `Ledger.claim`."""
        now = self.now()
        decided: list[tuple[Task, Change]] = []
        for task in tasks:
            self._claims += 1
            token = f"{worker}:{self._claims}"
            change = transitions.claim(task, token=token, now=now, lease=lease, max_lost=max_lost)
            if change is not None:
                decided.append((task, change))
        leases, abandoned = await self._writer.run(self._claim, decided, _milliseconds(now))
        missed = len(tasks) - len(leases) - abandoned
        return Claimed(leases=tuple(leases), missed=missed, abandoned=abandoned)

    def _claim(
        self, db: _Database, decided: Sequence[tuple[Task, Change]], now: int
    ) -> tuple[list[Lease], int]:
        leases: list[Lease] = []
        abandoned = 0
        # To give a task up is an outcome: the crawl may be at its end with it.
        outcome = any(change.event is Event.ABANDON for _, change in decided)
        with _durable_transaction(db) if outcome else _transaction(db):
            for task, change in decided:
                as_read = {"from_status": task.status, "from_fence": task.fence, "now": now}
                if not self._apply(db, self._sql.claim, _written(task, change), as_read):
                    continue
                if change.event is Event.ABANDON:
                    abandoned += 1
                else:
                    leases.append(_leased(task, change))
        return leases, abandoned

    def _apply(
        self, db: sqlite3.Connection, statement: str, write: "_Write", guard: Mapping[str, Any]
    ) -> bool:
        """Change a task where it still is what *guard* says; say whether it was."""
        errors = None
        if write.error is not None:
            row = db.execute(self._sql.errors, (write.task_id,)).fetchone()
            kept = json.loads(row["errors"]) if row and row["errors"] else []
            errors = _json([*kept, json.loads(write.error)][-transitions.KEPT_ERRORS :])
        values = {**write.values, **guard, "id": write.task_id, "errors": errors}
        return db.execute(statement, values).rowcount == 1

    async def begin(self, lease: Lease) -> bool:
        """See `Ledger.begin`."""
        return await self._writer.run(self._begin, lease)

    def _begin(self, db: sqlite3.Connection, lease: Lease) -> bool:
        with _transaction(db):
            return db.execute(self._sql.begin, _mine(lease) | {"id": lease.task.id}).rowcount == 1

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        """See `Ledger.renew`."""
        return await self._writer.run(self._renew, leases, _milliseconds(self.now() + lease))

    def _renew(self, db: sqlite3.Connection, leases: Sequence[Lease], due: int) -> set[bytes]:
        with _transaction(db):
            return {
                held.task.id
                for held in leases
                if not db.execute(
                    self._sql.renew, {**_mine(held), "id": held.task.id, "due": due}
                ).rowcount
            }

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        """See `Ledger.commit`."""
        return await self._writer.run(self._commit, settlements)

    def _commit(self, db: _Database, settlements: Sequence[Settlement]) -> Committed:
        lost: list[Lease] = []
        rejected: list[tuple[Lease, str]] = []
        # Encoded before the transaction begins, for it keeps all others waiting.
        writes = [(settlement.lease, *_storable(settlement)) for settlement in settlements]
        with _durable_transaction(db):
            for lease, write, refusal in writes:
                if not self._settle(db, lease, write) and not self._was_settled(db, lease):
                    lost.append(lease)
                elif refusal is not None:
                    rejected.append((lease, refusal))
        return Committed(lost=tuple(lost), rejected=tuple(rejected))

    def _settle(self, db: sqlite3.Connection, lease: Lease, write: "_Write") -> bool:
        """Apply what ends a lease, where it is still held; say whether it was."""
        if not self._apply(db, self._sql.settle, write, _mine(lease)):
            return False
        if write.items is not None:
            db.execute(self._sql.forget_items, (write.task_id,))
            db.executemany(self._sql.add_item, write.items)
        return True

    def _was_settled(self, db: sqlite3.Connection, lease: Lease) -> bool:
        """Say whether an earlier send of the same settlement was applied, its reply lost."""
        row = db.execute(self._sql.settled, (lease.task.id,)).fetchone()
        return row is not None and row["settled"] == lease.fence

    async def release(self, leases: Sequence[Lease]) -> int:
        """See `Ledger.release`."""
        now = self.now()
        settlements = [transitions.release(lease, now=now) for lease in leases]
        return await self._writer.run(self._release, settlements)

    def _release(self, db: _Database, settlements: Sequence[Settlement]) -> int:
        writes = [(s.lease, _written(s.lease.task, s.change)) for s in settlements]
        with _durable_transaction(db):
            return sum(self._settle(db, lease, write) for lease, write in writes)

    async def retry_failed(self, selection: Selection, *, dry_run: bool = False) -> int:
        """See `Ledger.retry_failed`."""
        bounds = {
            "reason": selection.reason,
            "host": selection.host,
            "since": _milliseconds(selection.since) if selection.since else None,
        }
        if dry_run:
            return await self._reader.run(_number, self._sql.count_failed, bounds)
        bounds["now"] = _milliseconds(self.now())
        count = await self._writer.run(_update, self._sql.retry_failed, bounds)
        await self.wake_all_hosts()
        return count

    async def horizon(self) -> datetime | None:
        """See `Ledger.horizon`."""
        return await self._reader.run(self._horizon)

    def _horizon(self, db: sqlite3.Connection) -> datetime | None:
        # One look a priority: the earliest due of each is the first in the index.
        # All of one moment: links may be added above a priority already seen
        # while their page, below it, is finished, and nothing would be found.
        with _snapshot(db):
            firsts = [
                _number(db, self._sql.first_due, {"priority": priority})
                for priority in self._priorities(db)
            ]
        return _moment(min(firsts)) if firsts else None

    async def counts(self) -> Counts:
        """See `Ledger.counts`."""
        rows = await self._reader.run(_rows, self._sql.counts)
        return Counts(by_status={Status(status): count for status, count in rows})

    async def item_count(self) -> int:
        """See `Ledger.item_count`."""
        return await self._reader.run(_number, self._sql.item_count, {})

    async def reasons(self) -> dict[str, int]:
        """See `Ledger.reasons`."""
        rows = await self._reader.run(_rows, self._sql.reasons)
        return {row["reason"]: row["tasks"] for row in rows}

    async def items(self) -> AsyncIterator[ItemRow]:
        """See `Ledger.items`."""
        last = b""
        # Each page is a read of its own: one that stayed open would keep the
        # WAL from being folded into the file.
        while rows := await self._reader.run(self._some_items, last):
            for row in rows:
                yield ItemRow(
                    item=documents.unescaped(_from_json(row["item"])),
                    url=row["url"],
                    fetched_at=_moment(row["fetched_at"]),
                )
            last = rows[-1]["task_id"]

    def _some_items(self, db: sqlite3.Connection, after: bytes) -> list[sqlite3.Row]:
        """Return the items of the next tasks, of each of them all: they are of one commit."""
        rows: list[sqlite3.Row] = []
        characters = 0
        for row in db.execute(self._sql.items, (after,)):
            enough = len(rows) >= _ITEM_ROWS or characters >= _ITEM_CHARACTERS
            if enough and row["task_id"] != rows[-1]["task_id"]:
                break
            rows.append(row)
            characters += len(row["item"])
        return rows

    async def lease_hosts(self, *, worker: str, limit: int, lease: timedelta) -> list[HostLease]:
        """See `Ledger.lease_hosts`."""
        self._claims += 1
        now = self.now()
        bounds = {
            "now": _milliseconds(now),
            "limit": max(limit, 0),
            "owner": f"{worker}:{self._claims}",
            "end": _milliseconds(now + lease),
        }
        return await self._writer.run(self._lease_hosts, bounds)

    def _lease_hosts(self, db: sqlite3.Connection, bounds: Mapping[str, Any]) -> list[HostLease]:
        # Most looks find nothing, and those must not take the writers' turn.
        if not db.execute(self._sql.ready_hosts, bounds).fetchone():
            return []
        with _transaction(db):
            rows = db.execute(self._sql.ready_hosts, bounds).fetchall()
            db.executemany(self._sql.lease_host, [{**bounds, "id": row["id"]} for row in rows])
        taken = {"owner": bounds["owner"], "ready_at": bounds["end"]}
        return [
            documents.host_lease(_document({**dict(row), **taken, "epoch": row["epoch"] + 1}))
            for row in rows
        ]

    async def renew_hosts(self, leases: Sequence[HostLease], *, lease: timedelta) -> set[str]:
        """See `Ledger.renew_hosts`."""
        end = {"ready_at": _milliseconds(self.now() + lease)}
        return await self._writer.run(
            self._write_hosts, self._sql.renew_host, [(held, end) for held in leases]
        )

    async def save_hosts(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """See `Ledger.save_hosts`."""
        writes = [(lease, _learned(lease, state)) for lease, state in states]
        return await self._writer.run(self._write_hosts, self._sql.save_host, writes)

    def _write_hosts(
        self,
        db: sqlite3.Connection,
        statement: str,
        writes: Sequence[tuple[HostLease, Mapping[str, Any]]],
    ) -> set[str]:
        """Change hosts where they are held; return those that are not."""
        if not writes:
            return set()
        with _transaction(db):
            return {
                lease.host.name
                for lease, values in writes
                if not db.execute(statement, {**values, **_my_host(lease)}).rowcount
            }

    async def release_hosts(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """See `Ledger.release_hosts`."""
        writes = [
            (lease, state, _learned(lease, state) | _row({"ready_at": state.ready_at}))
            for lease, state in states
        ]
        if not writes:
            return set()
        return await self._writer.run(self._release_hosts, writes, _milliseconds(self.now()))

    def _release_hosts(
        self,
        db: sqlite3.Connection,
        writes: Sequence[tuple[HostLease, Host, Mapping[str, Any]]],
        now: int,
    ) -> set[str]:
        lost: set[str] = set()
        # A release that is lost in a power cut is a lease that runs out.
        with _transaction(db):
            for lease, state, values in writes:
                name = lease.host.name
                mine = {**values, **_my_host(lease)}
                if not db.execute(self._sql.release_host, mine).rowcount:
                    # Unless it was sent before, and only the reply was lost.
                    if not db.execute(self._sql.host_was_released, mine).fetchone():
                        lost.add(name)
                    continue
                rest = max(now, _milliseconds(state.not_before) if state.not_before else now)
                if values["ready_at"] is not None and values["ready_at"] <= rest:
                    continue
                due = self._earliest_due(db, name)
                if due is not None:
                    db.execute(self._sql.wake_host, {**_NEW_HOST, "id": name, "due": max(due, now)})
        return lost

    async def wake_hosts(self, dues: Mapping[str, datetime]) -> None:
        """See `Ledger.wake_hosts`."""
        rows = [{**_NEW_HOST, "id": host, "due": _milliseconds(due)} for host, due in dues.items()]
        for start in range(0, len(rows), _BATCH):
            await self._writer.run(self._wake_hosts, rows[start : start + _BATCH])

    def _wake_hosts(self, db: _Database, rows: Sequence[Mapping[str, Any]]) -> None:
        # What is held when it is read needs no write, also where it is released
        # right after: the release looks for tasks, and the task that this is
        # about is in the ledger.
        late = [row for row in rows if not db.execute(self._sql.host_is_awake, row).fetchone()]
        if late:
            # As durable as the task, which nobody would look for without it.
            with _durable_transaction(db):
                db.executemany(self._sql.wake_host, late)

    async def wake_all_hosts(self) -> int:
        """See `Ledger.wake_all_hosts`."""
        now = {"now": _milliseconds(self.now())}
        return await self._writer.run(_update, self._sql.wake_all_hosts, now)

    async def give_up_host(self, host: str, *, reason: Reason) -> int:
        """See `Ledger.give_up_host`."""
        total = 0
        for priority in await self._reader.run(self._priorities_of_host, host):
            bounds: dict[str, Any] = {"host": host, "priority": priority, "due": -_INT64}
            # What is given up leaves the index; each batch begins where the
            # last one ended, so that the leased tasks are not read for each.
            while True:
                bounds |= {"reason": str(reason), "now": _milliseconds(self.now())}
                given_up, bounds["due"] = await self._writer.run(self._give_up_some, bounds)
                if not given_up:
                    break
                total += given_up
        return total

    def _priorities_of_host(self, db: sqlite3.Connection, host: str) -> list[int]:
        return list(_descending(db, self._sql.next_priority_of_host, {"host": host}))

    def _give_up_some(self, db: _Database, bounds: Mapping[str, Any]) -> tuple[int, int]:
        """Give up the next tasks of one priority; return how many, and the last one's `due`."""
        with _durable_transaction(db):
            rows = db.execute(self._sql.waiting_of_host, {**bounds, "limit": _BATCH}).fetchall()
            for row in rows:
                db.execute(self._sql.give_up, {**bounds, "id": row["id"]})
        return len(rows), rows[-1]["due"] if rows else bounds["due"]

    async def hosts(self) -> AsyncIterator[Host]:
        """See `Ledger.hosts`."""
        last = ""
        while rows := await self._reader.run(self._some_hosts, last):
            for row in rows:
                yield documents.host(_document(row))
            last = rows[-1]["id"]

    def _some_hosts(self, db: sqlite3.Connection, after: str) -> list[sqlite3.Row]:
        rows: list[sqlite3.Row] = []
        characters = 0
        for row in db.execute(self._sql.hosts, (after,)):
            rows.append(row)
            characters += len(row["robots"] or "")
            if len(rows) >= _ITEM_ROWS or characters >= _ITEM_CHARACTERS:
                break
        return rows

    async def host_counts(self) -> dict[str, Counts]:
        """See `Ledger.host_counts`."""
        found: dict[str, dict[Status, int]] = {}
        for host, status, number in await self._reader.run(_rows, self._sql.host_counts):
            found.setdefault(host, {})[Status(status)] = number
        return {host: Counts(by_status=by_status) for host, by_status in found.items()}

    async def get_hosts(self, names: Collection[str]) -> dict[str, Host]:
        """See `Ledger.get_hosts`."""
        wanted = list(names)
        hosts: dict[str, Host] = {}
        for start in range(0, len(wanted), _BATCH):
            rows = await self._reader.run(self._get_hosts, wanted[start : start + _BATCH])
            hosts |= {row["id"]: documents.host(_document(row)) for row in rows}
        return hosts

    def _get_hosts(self, db: sqlite3.Connection, names: Sequence[str]) -> list[sqlite3.Row]:
        return [row for name in names for row in db.execute(self._sql.get_host, (name,))]

    async def next_ready(self) -> datetime | None:
        """See `Ledger.next_ready`."""
        rows = await self._reader.run(_rows, self._sql.next_ready)
        return _moment(rows[0]["ready_at"]) if rows else None

    async def due_hosts(self, *, after: str, limit: int) -> list[str]:
        """See `Ledger.due_hosts`."""
        return await self._reader.run(self._due_hosts, after, limit)

    def _due_hosts(self, db: sqlite3.Connection, after: str, limit: int) -> list[str]:
        names: list[str] = []
        while len(names) < limit:
            row = db.execute(self._sql.next_host, (after,)).fetchone()
            if row is None:
                break
            after = row["host"]
            names.append(after)
        return names

    async def earliest_due(self, host: str) -> datetime | None:
        """See `Ledger.earliest_due`."""
        due = await self._reader.run(self._earliest_due, host)
        return None if due is None else _moment(due)

    def _earliest_due(self, db: sqlite3.Connection, host: str) -> int | None:
        return min(
            (
                _number(db, self._sql.first_due_of_host, {"host": host, "priority": priority})
                for priority in self._priorities_of_host(db, host)
            ),
            default=None,
        )

    async def get(self, task_id: bytes) -> Record | None:
        """See `Ledger.get`."""
        return await self._reader.run(self._get, task_id)

    def _get(self, db: sqlite3.Connection, task_id: bytes) -> Record | None:
        # One statement, so that the items are those of the status beside them.
        rows = db.execute(self._sql.get, (task_id,)).fetchall()
        if not rows:
            return None
        found = _document(rows[0])
        found["items"] = [_from_json(row["item"]) for row in rows if row["item"] is not None]
        return documents.record(found)

    async def join(self, worker: Worker) -> None:
        """See `Ledger.join`."""
        row = _row(documents.worker_document(worker))
        await self._writer.run(_update, self._sql.join, row)

    async def workers(self) -> list[Worker]:
        """See `Ledger.workers`."""
        rows = await self._reader.run(_rows, self._sql.workers)
        return [documents.worker(_document(row)) for row in rows]

    async def beat(self, name: str, tally: Tally, *, hungry: bool = False) -> None:
        """See `Ledger.beat`."""
        counted = documents.tally_document(tally)
        news = {"heartbeat": self.now(), "hungry": hungry, "tally": counted}
        await self._writer.run(_update, self._sql.beat, _row({"_id": name, **news}))

    async def tally(self) -> Tally:
        """See `Ledger.tally`."""
        rows = await self._reader.run(_rows, self._sql.tallies)
        return sum((documents.tally(_from_json(row["tally"])) for row in rows), Tally())

    async def leave(self, name: str) -> int:
        """See `Ledger.leave`."""
        return await self._writer.run(self._leave, name, _milliseconds(self.now()))

    def _leave(self, db: sqlite3.Connection, name: str, now: int) -> int:
        tokens = {"name": name, "first": f"{name}:", "end": f"{name};", "now": now}
        with _transaction(db):
            db.execute(self._sql.leave, tokens)
            db.execute(self._sql.forget_workers, {"kept": documents.KEPT_WORKERS})
            db.execute(self._sql.end_host_leases, tokens)
            return db.execute(self._sql.end_leases, tokens).rowcount

    async def health(self) -> Health:
        """See `ExaminedLedger.health`."""
        return await self._reader.run(self._health)

    def _health(self, db: sqlite3.Connection) -> Health:
        violations = list(_store_violations(db, self._sql, self._spider))
        # After a read: until then a connection has the mode that was before.
        mode = str(db.execute("PRAGMA journal_mode").fetchone()[0])
        if mode != "wal":
            violations.append(Violation(kind=Kind.NOT_WAL, detail=f"the mode is {mode}"))
        violations += [
            Violation(kind=Kind.STORE_READ_ONLY, detail=str(place))
            for place in (self._path, self._path.parent)
            if not os.access(place, os.W_OK)
        ]
        violations += [
            Violation(kind=Kind.STORE_DAMAGED, detail=str(row[0]))
            for row in db.execute(f"PRAGMA quick_check({_DAMAGES})")
            # A status that does not exist is told of with its task.
            if row[0] != "ok" and not row[0].startswith("CHECK constraint")
        ]
        there = db.execute(self._sql.has_table, (self._spider,)).fetchone()
        return Health(
            recorded=there is not None and db.execute(self._sql.any_task).fetchone() is not None,
            facts={
                "store": f"SQLite {sqlite3.sqlite_version}, {self._path}",
                "journal mode": mode,
                "schema version": str(SCHEMA_VERSION),
            },
            violations=tuple(violations),
        )

    async def examine(
        self, *, only: Collection[bytes] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `ExaminedLedger.examine`."""
        if only is not None:
            for identity in only:
                for statement in (self._sql.examine_one, self._sql.items_of_no_such_task):
                    for row in await self._reader.run(_examined, statement, (identity,)):
                        yield _raw(row)
            return
        # By the row's number: ids that are no bytes have a place in its order too.
        last = -_INT64
        while rows := await self._reader.run(_examined, self._sql.examine, (last,)):
            for row in rows:
                yield _raw(row)
            last = rows[-1]["row"]
        behind = b""
        while rows := await self._reader.run(_examined, self._sql.items_of_no_task, (behind,)):
            for row in rows:
                yield _raw(row)
            behind = rows[-1]["id"]

    async def examine_hosts(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `ExaminedLedger.examine_hosts`."""
        if only is not None:
            for name in only:
                for row in await self._reader.run(_examined, self._sql.examine_host, (name,)):
                    yield _raw(row)
            return
        last = -_INT64
        while rows := await self._reader.run(_examined, self._sql.examine_hosts, (last,)):
            for row in rows:
                yield _raw(row)
            last = rows[-1]["row"]

    async def mend(self, found: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
        """See `ExaminedLedger.mend`."""
        return await self._mend(self._sql.mend, TASK_STATE, found, change)

    async def mend_host(self, found: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
        """See `ExaminedLedger.mend_host`."""
        return await self._mend(self._sql.mend_host, HOST_STATE, found, change)

    async def _mend(
        self,
        statement: str,
        state: Sequence[str],
        found: Mapping[str, Any],
        change: Mapping[str, Any],
    ) -> bool:
        before = {name: _as_found(found.get(name)) for name in state}
        after = before | {name: _as_found(value) for name, value in change.items()}
        values = {f"was_{name}": value for name, value in before.items()} | after
        changed = await self._writer.run(_update, statement, {**values, "id": found["_id"]})
        return changed == 1

    async def close(self) -> None:
        """See `Ledger.close`."""
        await self._reader.close()
        await self._writer.close()


class _Statements:
    """Every statement, on the tables of one spider."""

    def __init__(self, spider: str) -> None:
        tasks, items, workers, hosts = (
            _quoted(name)
            for name in (spider, f"{spider}.items", f"{spider}.workers", f"{spider}.hosts")
        )
        due, host_due, status, ready, owned = (
            _quoted(f"{spider}.{name}")
            for name in ("due", "host_due", "status", "hosts_ready_at", "hosts_owner")
        )
        left = _quoted(f"{spider}.workers_left")
        columns = ", ".join(_COLUMNS)

        #: From version 2 to 3.
        self.upgrade = f"ALTER TABLE {tasks} ADD COLUMN {_COLUMNS['begun']}"
        self.create = [
            f"CREATE TABLE IF NOT EXISTS {tasks} ({', '.join(_COLUMNS.values())})",
            f"""CREATE TABLE IF NOT EXISTS {items} (
                task_id BLOB NOT NULL, n INTEGER NOT NULL, item TEXT NOT NULL,
                url TEXT NOT NULL, fetched_at INTEGER NOT NULL, PRIMARY KEY (task_id, n))""",
            f"""CREATE TABLE IF NOT EXISTS {workers} (
                id TEXT PRIMARY KEY NOT NULL, machine TEXT NOT NULL, host TEXT NOT NULL,
                pid INTEGER NOT NULL, birth TEXT NOT NULL, started INTEGER NOT NULL,
                heartbeat INTEGER NOT NULL, "left" INTEGER,
                hungry INTEGER NOT NULL, tally TEXT NOT NULL)""",
            f'CREATE INDEX IF NOT EXISTS {left} ON {workers} ("left", id)',
            # What is finished or ignored has no place in these two.
            f"""CREATE INDEX IF NOT EXISTS {due} ON {tasks}
                (priority DESC, due) WHERE due IS NOT NULL""",
            f"""CREATE INDEX IF NOT EXISTS {host_due} ON {tasks}
                (host, priority DESC, due) WHERE due IS NOT NULL""",
            f"CREATE INDEX IF NOT EXISTS {status} ON {tasks} (status, update_time DESC)",
            f"CREATE TABLE IF NOT EXISTS {hosts} ({', '.join(_HOST_COLUMNS.values())})",
            f"""CREATE INDEX IF NOT EXISTS {ready} ON {hosts}
                (ready_at) WHERE ready_at IS NOT NULL""",
            # Of those that are held only: `leave` must not read all the others.
            f"CREATE INDEX IF NOT EXISTS {owned} ON {hosts} (owner) WHERE owner IS NOT NULL",
        ]

        self.add = (
            f"INSERT INTO {tasks} ({columns}) VALUES ({', '.join(f':{c}' for c in _COLUMNS)}) "
            "ON CONFLICT (id) DO NOTHING"
        )
        self.get = (
            f"SELECT {tasks}.*, i.item FROM {tasks} LEFT JOIN {items} AS i ON i.task_id = id "
            "WHERE id = ? ORDER BY i.n"
        )

        # `priority = ... AND due <= ...` is one stretch of the index; without
        # the priority, all that is due later would be read as well.
        read = "id, " + ", ".join(documents.TASK_FIELDS)
        stretch = "priority = :priority AND due <= :now ORDER BY due LIMIT :limit"
        self.page = f"SELECT {read} FROM {tasks} INDEXED BY {due} WHERE {stretch}"
        self.page_of_host = (
            f"SELECT {read} FROM {tasks} INDEXED BY {host_due} WHERE host = :host AND {stretch}"
        )
        lower = "due IS NOT NULL AND priority < :above ORDER BY priority DESC LIMIT 1"
        self.next_priority = f"SELECT priority FROM {tasks} INDEXED BY {due} WHERE {lower}"
        self.next_priority_of_host = (
            f"SELECT priority FROM {tasks} INDEXED BY {host_due} WHERE host = :host AND {lower}"
        )
        self.first_due = (
            f"SELECT due FROM {tasks} INDEXED BY {due} "
            "WHERE priority = :priority AND due IS NOT NULL ORDER BY due LIMIT 1"
        )

        self.next_host = (
            f"SELECT host FROM {tasks} INDEXED BY {host_due} WHERE host > ? AND due IS NOT NULL "
            "ORDER BY host LIMIT 1"
        )
        self.first_due_of_host = (
            f"SELECT due FROM {tasks} INDEXED BY {host_due} WHERE host = :host "
            "AND priority = :priority AND due IS NOT NULL ORDER BY due LIMIT 1"
        )

        changed = (
            f"UPDATE {tasks} SET status = :status, due = :due, update_time = :update_time, "
            "lock = :lock, lock_time = :lock_time, fence = :fence, settled = :settled, "
            "retry = :retry, lost = :lost, reason = :reason, "
            "errors = coalesce(:errors, errors), response = coalesce(:response, response)"
        )
        mine = (
            f"id = :id AND lock = :token AND fence = :held_fence AND status = {Status.PROCESSING:d}"
        )
        self.claim = (
            f"{changed} WHERE id = :id AND status = :from_status AND fence = :from_fence "
            "AND due <= :now"
        )
        self.settle = f"{changed} WHERE {mine}"
        self.begin = f"UPDATE {tasks} SET begun = fence WHERE {mine}"
        self.renew = f"UPDATE {tasks} SET due = :due WHERE {mine}"
        self.settled = f"SELECT settled FROM {tasks} WHERE id = ?"
        self.errors = f"SELECT errors FROM {tasks} WHERE id = ?"

        self.forget_items = f"DELETE FROM {items} WHERE task_id = ?"
        self.add_item = f"INSERT INTO {items} VALUES (?, ?, ?, ?, ?)"
        self.items = (
            f"SELECT task_id, n, item, url, fetched_at FROM {items} "
            "WHERE task_id > ? ORDER BY task_id, n"
        )
        self.item_count = f"SELECT count(*) FROM {items}"

        failed = (
            f"({' OR '.join(_retried())}) AND (:reason IS NULL OR reason = :reason) "
            "AND (:host IS NULL OR host = :host) AND (:since IS NULL OR update_time >= :since)"
        )
        self.count_failed = f"SELECT count(*) FROM {tasks} WHERE {failed}"
        self.retry_failed = (
            f"UPDATE {tasks} SET status = {Status.TODO:d}, retry = 0, lost = 0, due = :now, "
            f"update_time = :now, reason = NULL WHERE {failed}"
        )

        waiting = f"status IN ({', '.join(f'{s:d}' for s in transitions.GIVEN_UP_WITH_HOST)})"
        self.waiting_of_host = (
            f"SELECT id, due FROM {tasks} INDEXED BY {host_due} WHERE host = :host "
            f"AND priority = :priority AND due >= :due AND {waiting} ORDER BY due LIMIT :limit"
        )
        self.give_up = (
            f"UPDATE {tasks} SET status = {Status.IGNORED:d}, due = NULL, reason = :reason, "
            "update_time = :now WHERE id = :id"
        )

        self.ready_hosts = (
            f"SELECT * FROM {hosts} INDEXED BY {ready} WHERE ready_at <= :now "
            "ORDER BY ready_at LIMIT :limit"
        )
        self.lease_host = (
            f"UPDATE {hosts} SET owner = :owner, epoch = epoch + 1, ready_at = :end WHERE id = :id"
        )
        my_host = "id = :id AND owner = :token AND epoch = :held_epoch"
        learned = (
            "not_before = :not_before, delay = :delay, failures = :failures, "
            "page_failures = :page_failures, given_up = :given_up, counts = :counts, "
            "robots = CASE WHEN :new_robots THEN :robots ELSE robots END"
        )
        self.renew_host = f"UPDATE {hosts} SET ready_at = :ready_at WHERE {my_host}"
        self.save_host = f"UPDATE {hosts} SET {learned} WHERE {my_host}"
        self.release_host = (
            f"UPDATE {hosts} SET owner = NULL, released = epoch, ready_at = :ready_at, {learned} "
            f"WHERE {my_host}"
        )
        self.host_was_released = f"SELECT 1 FROM {hosts} WHERE id = :id AND released = :held_epoch"
        # A host that rests is woken for the end of its rest.
        woken = "max(:due, coalesce(not_before, :due))"
        self.host_is_awake = (
            f"SELECT 1 FROM {hosts} WHERE id = :id AND (owner IS NOT NULL OR ready_at <= {woken})"
        )
        columns = ", ".join(_HOST_COLUMNS)
        new = ", ".join(":due" if name == "ready_at" else f":{name}" for name in _HOST_COLUMNS)
        self.wake_host = (
            f"INSERT INTO {hosts} ({columns}) VALUES ({new}) "
            f"ON CONFLICT (id) DO UPDATE SET ready_at = {woken} "
            f"WHERE owner IS NULL AND (ready_at IS NULL OR ready_at > {woken})"
        )
        # A rest without a failure is the gap after the last request, and is kept.
        self.wake_all_hosts = (
            f"UPDATE {hosts} SET ready_at = :now, page_failures = 0, given_up = NULL, "
            "not_before = CASE WHEN failures > 0 THEN NULL ELSE not_before END, failures = 0 "
            "WHERE owner IS NULL"
        )
        self.hosts = f"SELECT * FROM {hosts} WHERE id > ? ORDER BY id"
        self.get_host = f"SELECT * FROM {hosts} WHERE id = ?"
        self.next_ready = (
            f"SELECT ready_at FROM {hosts} INDEXED BY {ready} WHERE ready_at IS NOT NULL "
            "ORDER BY ready_at LIMIT 1"
        )
        self.host_counts = (
            f"SELECT host, status, count(*) FROM {tasks} GROUP BY host, status ORDER BY host"
        )
        self.end_host_leases = (
            f"UPDATE {hosts} SET ready_at = :now, owner = NULL "
            "WHERE owner >= :first AND owner < :end"
        )

        self.counts = f"SELECT status, count(*) FROM {tasks} GROUP BY status"
        self.reasons = (
            f"SELECT reason, count(*) AS tasks FROM {tasks} WHERE status IN "
            f"({Status.FAILED:d}, {Status.IGNORED:d}) AND reason IS NOT NULL "
            "GROUP BY reason ORDER BY tasks DESC, reason"
        )

        self.join = (
            f"INSERT OR REPLACE INTO {workers} VALUES (:id, :machine, :host, :pid, :birth, "
            ":started, :heartbeat, :left, :hungry, :tally)"
        )
        at_work = '"left" IS NULL'
        self.workers = f"SELECT * FROM {workers} INDEXED BY {left} WHERE {at_work} ORDER BY id"
        self.beat = (
            f"UPDATE {workers} SET heartbeat = :heartbeat, hungry = :hungry, tally = :tally "
            f"WHERE id = :id AND {at_work}"
        )
        self.tallies = f"SELECT tally FROM {workers}"
        self.latest = f'SELECT max(max(heartbeat, coalesce("left", 0))) FROM {workers}'
        self.leave = f'UPDATE {workers} SET "left" = :now WHERE id = :name AND {at_work}'
        self.forget_workers = (
            f"DELETE FROM {workers} WHERE id IN (SELECT id FROM {workers} INDEXED BY {left} "
            'WHERE "left" IS NOT NULL ORDER BY "left" DESC, id DESC LIMIT -1 OFFSET :kept)'
        )
        self.has_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        self.any_task = f"SELECT 1 FROM {tasks} LIMIT 1"
        unchanging = "id, url, host, method, body, callback, depth, priority"
        examined = f"{unchanging}, update_time, create_time, {', '.join(TASK_STATE)}"
        examine = (
            f"SELECT {tasks}.rowid AS row, {examined}, nullif((SELECT count(*) FROM {items} "
            f"WHERE task_id = {tasks}.id), 0) AS items FROM {tasks}"
        )
        self.examine = f"{examine} WHERE {tasks}.rowid > ? ORDER BY {tasks}.rowid"
        self.examine_one = f"{examine} WHERE id = ?"
        self.items_of_no_such_task, self.items_of_no_task = (
            f"SELECT task_id AS id, count(*) AS items FROM {items} WHERE task_id {bound} "
            f"AND task_id NOT IN (SELECT id FROM {tasks}) GROUP BY task_id ORDER BY task_id"
            for bound in ("= ?", "> ?")
        )
        of_host = ", ".join(name for name in _HOST_COLUMNS if name != "robots")
        self.examine_hosts = (
            f"SELECT rowid AS row, {of_host} FROM {hosts} WHERE rowid > ? ORDER BY rowid"
        )
        self.examine_host = f"SELECT rowid AS row, {of_host} FROM {hosts} WHERE id = ?"
        self.mend, self.mend_host = (
            f"UPDATE {table} SET {', '.join(f'{name} = :{name}' for name in state)} WHERE id = :id "
            + "".join(f"AND {name} IS :was_{name} " for name in state)
            for table, state in ((tasks, TASK_STATE), (hosts, HOST_STATE))
        )

        # ';' follows ':', so these are the tokens that begin with `name:`.
        self.end_leases = (
            f"UPDATE {tasks} SET due = :now WHERE status = {Status.PROCESSING:d} "
            "AND lock >= :first AND lock < :end"
        )


#: The document's fields as columns: times are milliseconds since 1970, and
#: headers, context, errors and response are JSON.
_COLUMNS = {
    column.partition(" ")[0]: column
    for column in (
        "id BLOB PRIMARY KEY NOT NULL",
        "url TEXT NOT NULL",
        "host TEXT NOT NULL",
        "method TEXT",
        "headers TEXT",
        "body BLOB",
        "callback TEXT NOT NULL",
        "errback TEXT",
        "context TEXT",
        "depth INTEGER NOT NULL",
        "parent BLOB",
        "priority INTEGER NOT NULL",
        f"status INTEGER NOT NULL CHECK (status IN ({', '.join(str(int(s)) for s in Status)}))",
        "due INTEGER",
        "update_time INTEGER NOT NULL",
        "create_time INTEGER NOT NULL",
        "lock TEXT",
        "lock_time INTEGER",
        "fence INTEGER NOT NULL",
        "settled INTEGER NOT NULL",
        "retry INTEGER NOT NULL",
        "lost INTEGER NOT NULL",
        "reason TEXT",
        "errors TEXT",
        "response TEXT",
        "begun INTEGER",
    )
}
_NEW_ROW = dict.fromkeys(_COLUMNS)
#: A host's fields as columns; robots and counts are JSON.
_HOST_COLUMNS = {
    column.partition(" ")[0]: column
    for column in (
        "id TEXT PRIMARY KEY NOT NULL",
        "ready_at INTEGER",
        "owner TEXT",
        "epoch INTEGER NOT NULL",
        "released INTEGER",
        "not_before INTEGER",
        "delay REAL NOT NULL",
        "failures INTEGER NOT NULL",
        "page_failures INTEGER NOT NULL",
        "given_up TEXT",
        "robots TEXT",
        "counts TEXT NOT NULL",
    )
}
_MARKER = "crawlcw.schema"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _retried() -> Iterator[str]:
    """Yield what `transitions.retries` says, a condition for each status that it brings back."""
    for status in Status:
        reasons = [reason for reason in Reason if transitions.retries(status, reason)]
        if len(reasons) == len(Reason):
            yield f"status = {status:d}"
        elif reasons:
            listed = ", ".join(f"'{reason}'" for reason in reasons)
            yield f"(status = {status:d} AND reason IN ({listed}))"


class _Connection:
    """A connection to the file, opened at its first use and used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limiter = CapacityLimiter(1)
        # The limiter makes calls wait without a thread. The lock is for a call
        # that was cancelled: it leaves the limiter while its thread still works.
        self._lock = threading.Lock()
        self._db: _Database | None = None
        self._wal: int | None = None
        self._syncing = CapacityLimiter(1)
        self._closed = False

    async def run(
        self,
        work: Callable[Concatenate[_Database, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Return *work(connection, ...)*, done on a worker thread; raises `LedgerError`.

        What is to be durable is so when this returns.
        """

        def locked() -> tuple[_T, bool]:
            with self._lock:
                try:
                    db = self._opened()
                    result = work(db, *args, **kwargs)
                    unsynced, db.unsynced = db.unsynced, False
                    return result, unsynced
                except (sqlite3.Error, OSError) as error:
                    raise _translated(error, self._path) from error

        result, unsynced = await to_thread.run_sync(locked, limiter=self._limiter)
        if unsynced:
            await to_thread.run_sync(self._sync, limiter=self._syncing)
        return result

    def _sync(self) -> None:
        """Let everything that is committed survive a power cut.

        That is what `synchronous = FULL` does at each commit, but it keeps the
        file's one write lock meanwhile, and this keeps nobody waiting.
        """
        try:
            if self._wal is None:
                # SQLite knows where a link leads to.
                with self._lock:
                    file = Path(self._opened().execute(_FILE).fetchone()["file"])
                self._wal = os.open(f"{file}-wal", os.O_RDONLY)
                # It may be a new file, and then its name is to survive as well.
                folder = os.open(file.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            _sync_file(self._wal)
        except OSError as error:
            raise LedgerUnavailableError(
                f"The ledger {self._path} cannot be synced to its disk: {error.strerror}."
            ) from error

    def _opened(self) -> _Database:
        if self._closed:
            raise LedgerUnavailableError(f"The ledger {self._path} was closed.")
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                self._path,
                timeout=_BUSY_TIMEOUT,
                isolation_level=None,
                check_same_thread=False,
                factory=_Database,
            )
            self._db.row_factory = sqlite3.Row
            # Synced when the WAL is folded into the file; otherwise by `_sync`.
            self._db.execute("PRAGMA synchronous = NORMAL")
        return self._db

    async def close(self) -> None:
        def locked() -> None:
            with self._lock:
                self._closed = True
                if self._db is not None:
                    self._db.close()

        await to_thread.run_sync(locked, limiter=self._limiter)
        async with self._syncing:
            if self._wal is not None:
                os.close(self._wal)
                self._wal = None


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write all that is done inside, or nothing."""
    # At once, for a transaction that begins by reading cannot always go on to write.
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # A full disk may have rolled it back already.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def _durable_transaction(db: _Database) -> Iterator[None]:
    """Write all that is done inside, or nothing, and let it survive a power cut too."""
    with _transaction(db):
        yield
    db.unsynced = True


@contextmanager
def _snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """Read all that is read inside as of one moment."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")


def _create(db: _Database, sql: _Statements, spider: str, path: Path) -> None:
    """Make the tables of *spider*, or find out that the file is not one of ours."""
    # SQLite itself would read, and leave files beside it that are read-only as well
    # and keep it so when this one has become writable.
    if path.exists() and not os.access(path, os.W_OK):
        raise LedgerConfigurationError(
            f"The ledger {path} {_MISCONFIGURED[sqlite3.SQLITE_READONLY]}."
        )
    # Before anything is changed, for the mode is written into the file.
    _check_marker(db, spider, path, upgrades=True)
    _enter_wal_mode(db)
    with _durable_transaction(db):
        # SQLite takes "Books" and "books" for the same table, so the marker does too.
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {_quoted(_MARKER)} "
            "(spider TEXT PRIMARY KEY NOT NULL COLLATE NOCASE, version INTEGER NOT NULL)"
        )
        db.execute(
            f"INSERT OR IGNORE INTO {_quoted(_MARKER)} VALUES (?, ?)", (spider, SCHEMA_VERSION)
        )
        _check_marker(db, spider, path, upgrades=True)
        outdated = {"spider": spider, "old": _UPGRADED_VERSION, "new": SCHEMA_VERSION}
        if db.execute(
            f"UPDATE {_quoted(_MARKER)} SET version = :new "
            "WHERE spider = :spider AND version = :old",
            outdated,
        ).rowcount:
            db.execute(sql.upgrade)
        for statement in sql.create:
            db.execute(statement)


def _check_marker(
    db: sqlite3.Connection, spider: str, path: Path, *, upgrades: bool = False
) -> None:
    """Raise where the file is another program's, or the spider's tables are of another version.

    *upgrades* says that a version which can be brought up to date will be.
    """
    names = _names(db)
    if names and _MARKER not in names:
        raise LedgerConfigurationError(
            f"The ledger {path} is an SQLite database of another program: "
            "name a file that crawlcw has for itself."
        )
    marker = _marker(db, spider) if names else None
    if marker is None:
        return
    if marker["version"] == _UPGRADED_VERSION:
        if not upgrades:
            raise LedgerConfigurationError(
                f"The ledger {path} has schema version {_UPGRADED_VERSION} for {spider}: bring it "
                f"up to date by `crawlcw stats {spider}`."
            )
    elif marker["version"] != SCHEMA_VERSION:
        raise LedgerConfigurationError(
            f"The ledger {path} has schema version {marker['version']} for {spider}, and this "
            f"crawlcw knows version {SCHEMA_VERSION}: use the crawlcw that wrote it, or "
            "another file."
        )
    if marker["spider"] != spider:
        raise LedgerConfigurationError(
            f"The ledger {path} holds a spider {marker['spider']}, which SQLite cannot tell "
            f"from {spider}: rename the spider, or use another file."
        )


def _names(db: sqlite3.Connection) -> set[str]:
    return {row["name"] for row in db.execute("SELECT name FROM sqlite_master")}


def _marker(db: sqlite3.Connection, spider: str) -> sqlite3.Row | None:
    marker: sqlite3.Row | None = db.execute(
        f"SELECT spider, version FROM {_quoted(_MARKER)} WHERE spider = ?", (spider,)
    ).fetchone()
    return marker


def _store_violations(db: sqlite3.Connection, sql: _Statements, spider: str) -> Iterator[Violation]:
    """Yield which tables and indexes are not as `_create` makes them."""
    if _MARKER not in _names(db) or _marker(db, spider) is None:
        yield Violation(kind=Kind.STORE_INCOMPLETE, detail="the schema's version is missing")
    there = {row["name"]: row["sql"] for row in db.execute("SELECT name, sql FROM sqlite_master")}
    for statement in sql.create:
        # SQLite keeps the text of a statement, without this.
        made = statement.replace("IF NOT EXISTS ", "")
        name = made.split('"')[1]
        if name not in there:
            yield Violation(kind=Kind.STORE_INCOMPLETE, detail=f"{name} is missing")
        elif there[name].split() != made.split():
            yield Violation(kind=Kind.STORE_DIFFERENT, detail=f"{name} is {there[name]}")


def _examined(db: sqlite3.Connection, statement: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    """Return the next rows of a walk through a table, few enough for the memory."""
    rows: list[sqlite3.Row] = []
    size = 0
    for row in db.execute(statement, values):
        rows.append(row)
        size += len(row["body"] or b"") if "body" in row.keys() else 0  # noqa: SIM118  # a Row's
        if len(rows) >= _ITEM_ROWS or size >= _ITEM_CHARACTERS:
            break
    return rows


def _raw(row: sqlite3.Row) -> dict[str, Any]:
    """Return a row as a document without what is null; values of wrong types as they are."""
    found = {name: row[name] for name in row.keys() if row[name] is not None}  # noqa: SIM118
    found.pop("row", None)
    for name in _TIMES & found.keys():
        if isinstance(found[name], int) and abs(found[name]) < _LATEST:
            found[name] = _moment(found[name])
    if isinstance(found.get("counts"), str):
        # Else it is shown as the text it is.
        with suppress(ValueError):
            found["counts"] = json.loads(found["counts"])
    if "id" in found:
        found["_id"] = found.pop("id")
    return found


def _as_found(value: Any) -> Any:
    return _milliseconds(value) if isinstance(value, datetime) else value


def _enter_wal_mode(db: sqlite3.Connection) -> None:
    """Switch the file to WAL, where several processes may be about to."""
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # Two that have read the old mode would wait for each other to go on, so
            # SQLite turns one of them away at once, without its busy timeout.
            busy = (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(_TURNED_AWAY)


def _latest(db: sqlite3.Connection, sql: _Statements, spider: str) -> datetime:
    """Return the latest time that a worker has written down."""
    if f"{spider}.workers" not in _names(db):
        return _EPOCH
    return _moment(_number(db, sql.latest, {}) or 0)


def _restrict_to_reading(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA query_only = ON")


def _rows(db: sqlite3.Connection, statement: str) -> list[sqlite3.Row]:
    return db.execute(statement).fetchall()


def _number(db: sqlite3.Connection, statement: str, values: Mapping[str, Any]) -> int:
    number: int = db.execute(statement, values).fetchone()[0]
    return number


def _update(db: _Database, statement: str, values: Mapping[str, Any]) -> int:
    with _durable_transaction(db):
        return db.execute(statement, values).rowcount


def _descending(db: sqlite3.Connection, statement: str, bounds: Mapping[str, Any]) -> Iterator[int]:
    """Yield the priorities there are, highest first, by a seek for each."""
    above = math.inf
    while row := db.execute(statement, {**bounds, "above": above}).fetchone():
        above = row["priority"]
        yield above


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """A change of a task as its row takes it."""

    task_id: bytes
    values: dict[str, Any]
    error: str | None  #: JSON, to be added to those there
    items: list[tuple[bytes, int, str, str, int]] | None  #: rows; None keeps those there


def _written(task: Task, change: Change) -> _Write:
    response = change.response
    items = None
    if change.items is not None:
        url = response.final_url if response else task.url
        fetched = _milliseconds(change.update_time)
        items = [
            (task.id, n, _json(documents.escaped(item)), url, fetched)
            for n, item in enumerate(change.items)
        ]
    return _Write(
        task_id=task.id,
        values=_row(
            {
                **documents.changed(change),
                "response": documents.response_document(response) if response else None,
            }
        ),
        error=_json(documents.error_document(change.error)) if change.error else None,
        items=items,
    )


def _storable(settlement: Settlement) -> tuple[_Write, str | None]:
    """Return what to write; and why it is a rejection, where the store cannot hold the outcome."""
    task = settlement.lease.task
    try:
        return _written(task, settlement.change), None
    except _UNHOLDABLE as error:
        why = _said(error)
        instead = transitions.rejected(settlement, reason=Reason.STORE_REJECTED, message=why)
        return _written(task, instead.change), why


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _mine(lease: Lease) -> dict[str, Any]:
    return {"token": lease.token, "held_fence": lease.fence}


def _leased(task: Task, change: Change) -> Lease:
    assert change.lock is not None
    assert change.due is not None
    return Lease(task=task, token=change.lock, fence=change.fence, expires=change.due)


def _my_host(lease: HostLease) -> dict[str, Any]:
    return {"id": lease.host.name, "token": lease.token, "held_epoch": lease.epoch}


def _learned(lease: HostLease, state: Host) -> dict[str, Any]:
    learned = documents.host_learned(state, since=lease.host)
    return {"robots": None, "new_robots": "robots" in learned} | _row(learned)


def _row(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document as its columns hold them."""
    row = {name: _column(name, value) for name, value in document.items()}
    if "_id" in row:
        row["id"] = row.pop("_id")
    return row


def _column(name: str, value: Any) -> Any:
    """Return a field as its column holds it; raises one of `_UNHOLDABLE` for what none holds."""
    if value is None:
        return None
    if name in _TIMES:
        return _milliseconds(value)
    if name in _JSON:
        return _json(value)
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise ValueError(f"{name} is not an integer of 64 bits")
    if isinstance(value, str | bytes):
        _check_size(value)
    return value


def _check_size(value: str | bytes) -> None:
    size = len(value.encode() if isinstance(value, str) else value)
    if size > _LARGEST_VALUE:
        raise ValueError(f"a value of {size} bytes, {_LARGEST_VALUE} are allowed")


def _document(row: sqlite3.Row | Mapping[str, Any]) -> documents.Document:
    """Return the document whose fields a row holds."""
    found: documents.Document = dict(row)
    for name in _TIMES & found.keys():
        if found[name] is not None:
            found[name] = _moment(found[name])
    for name in _JSON & found.keys():
        if found[name] is not None:
            found[name] = _from_json(found[name])
    found["_id"] = found.pop("id")
    return found


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND


def _json(value: Any) -> str:
    """Return a value as JSON text; bytes and datetimes as objects with a `$` key.

    Crawled keys are escaped by `documents.escaped`, so none begins with `$`.
    """
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_tagged
    )
    _check_size(text)
    return text


def _tagged(value: object) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {"$date": _milliseconds(value)}
    raise TypeError(f"{type(value).__name__} is not a clean value")


def _from_json(text: str) -> Any:
    """Return what `_json` was given."""
    return json.loads(text, object_hook=_untagged if '"$' in text else None)


def _untagged(found: dict[str, Any]) -> Any:
    if "$bytes" in found:
        return base64.b64decode(found["$bytes"])
    if "$date" in found:
        return _moment(found["$date"])
    return found


def _translated(error: sqlite3.Error | OSError, path: Path) -> LedgerError:
    """Return what a foreign error means, in this one place."""
    if isinstance(error, OSError):
        return LedgerConfigurationError(
            f"The folder of the ledger {path} cannot be made: {error.strerror}."
        )
    # The low byte is the error's class (https://www.sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _UNAVAILABLE:
        return LedgerUnavailableError(f"The ledger {path} {_UNAVAILABLE[code]} ({error}).")
    if code in _MISCONFIGURED:
        return LedgerConfigurationError(f"The ledger {path} {_MISCONFIGURED[code]} ({error}).")
    return LedgerError(f"The ledger {path}: {error}.")


#: What a host is that nobody has heard of, for `wake_host`.
_NEW_HOST: Mapping[str, Any] = dict.fromkeys(_HOST_COLUMNS) | _row(
    documents.host_document(Host(name=""))
)


def _time_of_day() -> datetime:
    return datetime.now(UTC)


def _machine_clock(
    clock: LedgerClock, *, time_of_day: Callable[[], datetime] = _time_of_day
) -> Callable[[], datetime]:
    """Return this machine's time by *clock*, which is set to the time of day once a minute.

    Where the time of day was set back it goes on: what is due would be due much later.
    """
    measured = clock.monotonic()
    shown = _EPOCH

    def now() -> datetime:
        nonlocal measured, shown
        reading = clock.monotonic()
        if reading - measured >= _CLOCK_SET_EVERY:
            found = time_of_day()
            if found >= shown - _LONGEST_STANDSTILL:
                clock.set(found, asked=reading, answered=reading)
            measured = reading
        shown = clock.now()
        return shown

    return now
