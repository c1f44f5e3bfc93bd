"""The workers of a ledger, with their leased tasks, and with their counters by minute.

A point is a document with a worker's counters at one minute. The ledger keeps points of the last
week. A point has these fields:

    kept     number of days for which the ledger keeps the point
    minute   minute of the point; a worker has one point in a minute
    worker   name of the worker
    started  time when the worker began to count
    time     exact time of the point
    vitals   state of the worker, see `documents`

The key of a point is its first three fields, so each read or deletion selects a range of keys.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.documents import Document
from crawlcw.ledger.hosts import Hosts
from crawlcw.ledger.port import (
    MAX_LIMIT,
    RATE_KEY,
    Among,
    AtMost,
    Edit,
    Key,
    LedgerTables,
    Not,
    Path,
    Store,
    Within,
    Write,
)
from crawlcw.model.counters import Counters
from crawlcw.model.loans import Loan, LoanReport
from crawlcw.model.rates import (
    COARSE,
    EVERY,
    FINE_DAYS,
    KEPT_DAYS,
    Point,
    Span,
    Vitals,
    Worker,
    first_read,
    minute_of,
    spans,
)
from crawlcw.model.task import BlobRef, Lease, Status
from crawlcw.model.transitions import lease_of

#: Maximum number of workers in a read; the number of running and former workers is lower.
_WORKER_LIMIT = 100_000
#: Maximum number of points in one read.
_POINT_BATCH_SIZE = 5_000


class Workers:
    """The list of worker processes that work on the ledger."""

    def __init__(self, store: Store, hosts: Hosts) -> None:
        self._store = store
        self._hosts = hosts

    async def join(self, worker: Worker) -> None:
        """Add a worker to the list of running workers, with its start as the first heartbeat.

        `join` writes nothing if the worker is on the list already, or has left since its start.
        """
        document = documents.worker_document(worker)
        fields = {name: value for name, value in document.items() if name != "_id"}
        # A delayed call must not add a worker that has left after `worker.started`.
        condition = {"left_at": AtMost(worker.started)}
        write = Write(worker.name, condition, Edit(set=fields), new=document)
        await self._store.writing(lambda tables: tables.workers.change([write]))

    async def all(self) -> list[Worker]:
        """Return the workers that have joined and not left."""
        workers = await self._store.reading(
            lambda tables: tables.workers.scan({"left_at": None}, by=Path.LEFT, limit=_WORKER_LIMIT)
        )
        return [documents.worker(worker) for worker in workers]

    async def beat(
        self, name: str, counters: Counters, *, idle: bool = False, vitals: Vitals | None = None
    ) -> None:
        """Record a worker's heartbeat and counters, and whether the worker is *idle*.

        `beat` takes one write, including *vitals*; if *vitals* is None, the previous vitals stay.
        `beat` writes nothing for a worker that is no longer on the list.
        """
        counters_document = documents.counters_document(counters)
        changes: Document = {
            "heartbeat": self._store.now(),
            "idle": idle,
            "counters": counters_document,
        }
        if vitals is not None:
            changes["vitals"] = asdict(vitals)
        # A delayed call must not overwrite a later heartbeat.
        where = {"left_at": None, "heartbeat": AtMost(changes["heartbeat"])}
        write = Write(name, where, Edit(set=changes))
        await self._store.writing(lambda tables: tables.workers.change([write]))

    async def lend(self, worker: Worker, loan: Loan) -> bool:
        """Offer *loan* to *worker*, if the stored loan still equals `worker.loan`.

        Return whether the stored loan is *loan* now; an earlier call may have written it.
        """
        new_loan = asdict(loan)
        old_loan = None if worker.loan is None else asdict(worker.loan)
        write = Write(
            worker.name, {"left_at": None, "loan": old_loan}, Edit(set={"loan": new_loan})
        )
        if await self._store.writing(lambda tables: tables.workers.change([write])):
            return True
        return await self.loan(worker.name) == loan

    async def loan(self, name: str) -> Loan | None:
        """Return the loan of request slots that was last offered to the worker *name*."""
        workers = await self._store.reading(lambda tables: tables.workers.read([name], ("loan",)))
        return documents.loan(workers[name]) if name in workers else None

    async def report(
        self, name: str, report: LoanReport, *, previous: LoanReport | None = None
    ) -> None:
        """Record a report and heartbeat of a borrower, a worker that uses another worker's host.

        A borrower is not idle. Nothing is written if the worker is no longer on the list. The
        stored report must be *previous*, so that a late report does not replace a later one.
        """
        last = None if previous is None else documents.report_document(previous)
        edit = Edit(
            set={"report": documents.report_document(report), "idle": False},
            raise_to={"heartbeat": self._store.now()},
        )
        write = Write(name, {"left_at": None, "report": last}, edit)
        await self._store.writing(lambda tables: tables.workers.change([write]))

    async def counters(self) -> Counters:
        """Return the summed counters of all running workers and the last 1,000 ended workers."""
        workers = await self._store.reading(
            lambda tables: tables.workers.scan({}, limit=_WORKER_LIMIT)
        )
        return sum((documents.counters(worker["counters"]) for worker in workers), Counters())

    async def leave(self, name: str) -> int:
        """Remove a worker from the list, end its leases, and return its number of leased tasks.

        Call `leave` only for a dead worker. Other workers can claim the worker's tasks at once,
        because `leave` sets each task's due time to its creation time. The worker's hosts become
        ready. The hosts of the worker's tasks become ready too, if no worker leases these hosts.
        The worker's counters stay.
        """
        now = self._store.now()
        # Record the worker's departure after all other writes. If this process crashes before, the
        # next call repeats the writes.
        task_count, hosts = await self._store.writing(_end_leases, name, now)
        if task_count and not self._store.kind.tracked:
            # Wake the hosts of the worker's tasks too. Otherwise a host that the worker did not own
            # would become ready only when the old leases expire.
            await self._hosts.wake(dict.fromkeys(hosts, now))
        await self._store.writing(_leave, name, now)
        return task_count


async def _end_leases(tables: LedgerTables, name: str, now: datetime) -> tuple[int, set[str]]:
    """End a worker's leases; return the number of its leased tasks, and the set of their hosts."""
    tasks = await _tasks_of(tables, name, ("host", "lock", "fence", "create_time"))
    # Let the tasks be due at the time of their creation, so that they come before newer tasks.
    task_count = await tables.tasks.change(
        [
            _leased_write(key, task["lock"], task["fence"], Edit(set={"due": task["create_time"]}))
            for key, task in tasks.items()
        ]
    )
    host_edit = Edit(set={"ready_at": now, "owner": None})
    await tables.hosts.change_where({"owner": _tokens(name)}, host_edit, by=Path.OWNER)
    await tables.sessions.change_where({"owner": name}, Edit(set={"expires": now}))
    return task_count, {task["host"] for task in tasks.values()}


async def _tasks_of(
    tables: LedgerTables, worker: str, fields: Collection[str] = ()
) -> Mapping[Key, Document]:
    """Return the tasks that a worker leases; if *fields* is not empty, return only these fields."""
    condition = {"status": Among([int(Status.PROCESSING)]), "lock": _tokens(worker)}
    cursors, _ = await tables.tasks.listed(condition, limit=_WORKER_LIMIT, scan_limit=MAX_LIMIT)
    return await tables.tasks.read([cursor.id for cursor in cursors], fields, condition)


def _tokens(worker: str) -> Within:
    # In ASCII ';' follows ':', so this range has exactly the tokens that begin with `worker:`.
    return Within(f"{worker}:", f"{worker};")


def _leased_write(key: Key, token: str, fence: int, edit: Edit) -> Write:
    """Return a write that applies *edit* to a task; it changes nothing if the lease has ended."""
    return Write(key, {"lock": token, "fence": fence, "status": int(Status.PROCESSING)}, edit)


async def _leave(tables: LedgerTables, name: str, now: datetime) -> None:
    """Record that a worker has left; keep only the `KEPT_WORKERS` workers that left last."""
    departure = Edit(set={"left_at": now, "vitals": None})
    await tables.workers.change([Write(name, {"left_at": None}, departure)])
    # The scan returns workers in the order of their departures.
    departed_workers = await tables.workers.scan(
        {"left_at": Not(None)}, by=Path.LEFT, limit=_WORKER_LIMIT
    )
    if old := [worker["_id"] for worker in departed_workers[::-1][documents.KEPT_WORKERS :]]:
        # Test `left_at` again, because a worker with the same name may have joined since the read.
        await tables.workers.delete({"_id": Among(old), "left_at": Not(None)})


class LeasedTasks:
    """The operations of `protocol.Leases` on leased tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(self, lease: Lease) -> bool:
        """See `protocol.Leases.begin`."""
        edit = Edit(set={"quarantine_fence": lease.fence})
        return await self._store.writing(_change_leased, lease, edit)

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """See `protocol.Leases.save`."""
        edit = Edit(
            set={"data": documents.value_document(data)},
            # Use `raise_to`, because a delayed call must not shorten the lease.
            raise_to={"due": self._store.now() + duration},
        )
        return await self._store.writing(_change_leased, lease, edit)

    async def leases_of(self, worker: str) -> list[Lease]:
        """See `protocol.Leases.leases_of`."""
        leased_tasks = await self._store.reading(_tasks_of, worker)
        tasks = sorted(leased_tasks.values(), key=lambda task: (task["lock_time"], task["_id"]))
        return [lease_of(documents.task(task)) for task in tasks]


async def _change_leased(tables: LedgerTables, lease: Lease, edit: Edit) -> bool:
    write = _leased_write(lease.task.id, lease.token, lease.fence, edit)
    return await tables.tasks.change([write]) == 1


class Rates:
    """The states of workers (`Vitals`) at each minute of the last week."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, point: Point) -> None:
        """Record a worker's point of the current minute, and delete points that are too old.

        A worker has only one point for each minute, the latest. The ledger keeps every point for a
        day. For a week, it keeps one point of each ten minutes and the last point of each worker.
        The write is not durable, because the next point contains the counts of a lost point too.
        """
        await self._store.writing(_record, point)

    async def between(
        self, start: datetime, end: datetime, *, step: timedelta = EVERY
    ) -> list[Span]:
        """Return spans whose end is in [start, end); a span is a worker's progress between points.

        The spans are in order of time. If *step* is ten minutes or more, `between` reads only the
        points of every tenth minute.
        """
        kept_days = [KEPT_DAYS] if step >= COARSE else [KEPT_DAYS, FINE_DAYS]
        points = await self._store.reading(_between, start, end, kept_days)
        return spans(points, start=start, end=end)


async def _record(tables: LedgerTables, point: Point) -> None:
    document: Document = {
        "kept": point.kept_days,
        "minute": minute_of(point.time),
        "worker": point.worker,
        "started": point.started,
        "time": point.time,
        "vitals": asdict(point.vitals),
    }
    # A delayed call must not overwrite a later point.
    where = {"time": AtMost(point.time)}
    await tables.rates.change(
        [Write(_point_key(document), where, Edit(set=document), new=document)]
    )
    for days in (KEPT_DAYS, FINE_DAYS):
        outdated_keys = Within((days,), (days, minute_of(point.time) - timedelta(days=days)))
        await tables.rates.delete({"_id": outdated_keys})


async def _between(
    tables: LedgerTables, start: datetime, end: datetime, periods: list[int]
) -> list[Point]:
    point_by_key: dict[Key, Point] = {}
    for days in periods:
        first_key: Key = (days, minute_of(first_read(start)))
        end_key = (days, minute_of(end + EVERY))
        while batch := await tables.rates.scan(
            {"_id": Within(first_key, end_key)}, limit=_POINT_BATCH_SIZE
        ):
            point_by_key |= {_point_key(point): _point_of(point) for point in batch}
            if len(batch) < _POINT_BATCH_SIZE:
                break
            # The next read repeats the last point, because a range of keys includes its first key.
            first_key = _point_key(batch[-1])
    return [*point_by_key.values()]


def _point_of(document: Document) -> Point:
    return Point(
        worker=document["worker"],
        started=document["started"],
        time=document["time"],
        vitals=Vitals(**document["vitals"]),
    )


def _point_key(document: Document) -> tuple[object, ...]:
    return tuple(document[name] for name in RATE_KEY)
