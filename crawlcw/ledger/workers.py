"""The workers: the processes at work, their tasks, their counters minute by minute.

A point has a worker's counters at one minute of the last week. It is the document

    kept     number of days to keep it
    minute   its minute, in which a worker has a single point
    worker   its name
    started  when the worker began to count
    time     the exact time
    vitals   as of a worker, see `documents`

and its key is the first three fields. So each read, and each deletion, is one range of keys.
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

#: A limit above the number of workers at work and of kept workers that left.
_WORKER_LIMIT = 100_000
#: Number of points in one read.
_POINT_BATCH_SIZE = 5_000


class Workers:
    """The processes that work on the ledger."""

    def __init__(self, store: Store, hosts: Hosts) -> None:
        self._store = store
        self._hosts = hosts

    async def join(self, worker: Worker) -> None:
        """Add a worker to the list of workers at work; its start is its first heartbeat.

        Writes nothing if the worker is on the list already, or has left since it started.
        """
        document = documents.worker_document(worker)
        fields = {name: value for name, value in document.items() if name != "_id"}
        # A delayed call must not undo a later call.
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
        """Record a worker's heartbeat, its counters, and whether it needs hosts.

        It takes one write, including *vitals*; if they are missing, the previous vitals stay. It
        writes nothing for a worker that is no longer on the list.
        """
        counters_document = documents.counters_document(counters)
        changes: Document = {
            "heartbeat": self._store.now(),
            "idle": idle,
            "counters": counters_document,
        }
        if vitals is not None:
            changes["vitals"] = asdict(vitals)
        # A delayed call must not undo a later call.
        where = {"left_at": None, "heartbeat": AtMost(changes["heartbeat"])}
        write = Write(name, where, Edit(set=changes))
        await self._store.writing(lambda tables: tables.workers.change([write]))

    async def lend(self, worker: Worker, loan: Loan) -> bool:
        """Offer a loan to a worker, or change it, if the ledger still has the loan of *worker*.

        Return whether the ledger has the new loan now; a repeated call also returns True.
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
        """Return the loan that was last offered to a worker."""
        workers = await self._store.reading(lambda tables: tables.workers.read([name], ("loan",)))
        return documents.loan(workers[name]) if name in workers else None

    async def report(
        self, name: str, report: LoanReport, *, previous: LoanReport | None = None
    ) -> None:
        """Record the report of a borrower with its heartbeat; a borrower is not idle.

        Writes nothing if the worker is no longer on the list, or if its last report is not
        *previous*: a delayed report does not replace a later report.
        """
        last = None if previous is None else documents.report_document(previous)
        edit = Edit(
            set={"report": documents.report_document(report), "idle": False},
            raise_to={"heartbeat": self._store.now()},
        )
        write = Write(name, {"left_at": None, "report": last}, edit)
        await self._store.writing(lambda tables: tables.workers.change([write]))

    async def counters(self) -> Counters:
        """Return the sum of the counters of all workers, including those that left.

        Only the last 1,000 workers that left count.
        """
        workers = await self._store.reading(
            lambda tables: tables.workers.scan({}, limit=_WORKER_LIMIT)
        )
        return sum((documents.counters(worker["counters"]) for worker in workers), Counters())

    async def leave(self, name: str) -> int:
        """Take a worker off the list and end its leases now; return how many tasks it had.

        Call it for a worker that is known to be dead. Its tasks can be claimed immediately: they
        become due at the time of their creation, before all later tasks. Its hosts become ready,
        and so do the hosts of its tasks if they have no owner. Its counters stay, see `counters`.
        """
        now = self._store.now()
        # Mark the worker as left last, so that the next call repeats everything after a crash in
        # between.
        task_count, hosts = await self._store.writing(_end_leases, name, now)
        if task_count and not self._store.kind.tracked:
            # Also wake hosts that the worker did not own, because they would be ready only when the
            # leases expire.
            await self._hosts.wake(dict.fromkeys(hosts, now))
        await self._store.writing(_leave, name, now)
        return task_count


async def _end_leases(tables: LedgerTables, name: str, now: datetime) -> tuple[int, set[str]]:
    """End the leases of a worker; return the number of its tasks, and their hosts."""
    tasks = await _tasks_of(tables, name, ("host", "lock", "fence", "create_time"))
    # The tasks become due at the time of their creation, so that no later task comes first.
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
    """Return the tasks that a worker leases, with *fields* or all fields."""
    condition = {"status": Among([int(Status.PROCESSING)]), "lock": _tokens(worker)}
    cursors, _ = await tables.tasks.listed(condition, limit=_WORKER_LIMIT, scan_limit=MAX_LIMIT)
    return await tables.tasks.read([cursor.id for cursor in cursors], fields, condition)


def _tokens(worker: str) -> Within:
    # ';' follows ':', so this range has exactly the tokens that begin with `worker:`.
    return Within(f"{worker}:", f"{worker};")


def _leased_write(key: Key, token: str, fence: int, edit: Edit) -> Write:
    """Return the change of a task, if the lease still holds it."""
    return Write(key, {"lock": token, "fence": fence, "status": int(Status.PROCESSING)}, edit)


async def _leave(tables: LedgerTables, name: str, now: datetime) -> None:
    """Mark a worker as left, and delete all but the last `KEPT_WORKERS` that left."""
    departure = Edit(set={"left_at": now, "vitals": None})
    await tables.workers.change([Write(name, {"left_at": None}, departure)])
    # The index begins with the workers that left longest ago.
    departed_workers = await tables.workers.scan(
        {"left_at": Not(None)}, by=Path.LEFT, limit=_WORKER_LIMIT
    )
    if old := [worker["_id"] for worker in departed_workers[::-1][documents.KEPT_WORKERS :]]:
        # A worker of the same name may have joined since the read.
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
            # A delayed write must not shorten the lease.
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
    """States of workers (`Vitals`), minute by minute, for the last week."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, point: Point) -> None:
        """Record a point of a worker, and delete points that are too old.

        A worker has one point a minute, the latest. Points stay for a week: all points of the last
        day, one point in ten minutes of earlier days, and each worker's last point. Not durable:
        the next point makes up for a point that a crash loses.
        """
        await self._store.writing(_record, point)

    async def between(
        self, start: datetime, end: datetime, *, step: timedelta = EVERY
    ) -> list[Span]:
        """Return each worker's progress from point to point, ended in [since, until), in order.

        *step* is the wanted resolution: for ten minutes or more, only points of that resolution
        are read.
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
    # A delayed call must not undo a later call.
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
            # The last point is read again, because a range begins with a key.
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
