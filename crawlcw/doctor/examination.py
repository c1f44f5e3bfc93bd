"""Looking at a whole ledger: what of it does not hold, and mending what can be mended.

It may run beside a crawl. What may be a race is looked at a second time, a
moment later, and only what is still there is reported; every mend repeats what
was found as its condition, so what changed meanwhile is left alone.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import anyio

from crawlcw.doctor.report import Report, Written
from crawlcw.engine.workers import is_dead, is_gone
from crawlcw.ledger.examination import ExaminedLedger, Health
from crawlcw.ledger.protocol import Worker
from crawlcw.model import invariants
from crawlcw.model.invariants import Kind, Violation
from crawlcw.model.task import BlobRef

#: A crawl wakes hosts a moment after it has added their tasks.
SECOND_LOOK = timedelta(seconds=1)
#: So many candidates are kept in memory, and then looked at again.
_SUSPECTS = 10_000
#: The hosts of one look for tasks that nobody was told of.
_HOSTS = 100
#: Who sets a value aside writes it into its task right after.
_REFERRED_WITHIN = timedelta(days=1)

#: What `prepare` makes or switches.
_PREPARED = (Kind.STORE_INCOMPLETE, Kind.NOT_WAL)
#: Where one of these holds, a look at the rest would only raise.
_UNREADABLE = (Kind.STORE_INCOMPLETE, Kind.STORE_DIFFERENT)

Found = Mapping[str, Any]


async def examine(
    ledger: ExaminedLedger,
    *,
    repair: bool = False,
    max_retry: int | None = None,
    max_lost: int | None = None,
    examples: int = 5,
    second_look: timedelta = SECOND_LOOK,
) -> Report | None:
    """Look at everything in *ledger*, and mend it where *repair*; None where there is nothing.

    *examples* of each kind are kept, the rest is counted; *second_look* is how
    much later that is. The limits are those of `invariants.of_task`. Raises
    `LedgerError`.
    """
    health = await ledger.inspection.health()
    if not health.recorded:
        return None
    offset = health.clock_offset
    facts = dict(health.facts)
    if offset is not None:
        facts["clock offset"] = f"{offset.total_seconds():+.3f} s"
    report = Written(Report(facts=facts, kind=ledger.kind), examples=examples)
    for violation in invariants.of_clock(offset or timedelta(0)):
        report.add(violation, {})
    if await _is_readable(ledger, health, report, repair=repair):
        limits = {"max_retry": max_retry, "max_lost": max_lost}
        examination = _Examination(
            ledger, report, repair=repair, limits=limits, second_look=second_look
        )
        await examination.run()
    return report.report


async def _is_readable(
    ledger: ExaminedLedger, health: Health, report: Written, *, repair: bool
) -> bool:
    """Report how the store is and make what is missing; say whether the rest can be read."""
    kinds = {each.kind for each in health.violations}
    left = health.violations
    # A table or index that is in the way has to be dropped first.
    if repair and kinds.intersection(_PREPARED) and Kind.STORE_DIFFERENT not in kinds:
        await ledger.inspection.prepare()
        left = (await ledger.inspection.health()).violations
    for violation in health.violations:
        report.add(violation, {}, mended=violation not in left)
    return not any(each.kind in _UNREADABLE for each in left)


class _Examination:
    """One walk through tasks, hosts and workers."""

    def __init__(
        self,
        ledger: ExaminedLedger,
        written: Written,
        *,
        repair: bool,
        limits: Mapping[str, int | None],
        second_look: timedelta,
    ) -> None:
        self._ledger = ledger
        self._written = written
        self._report = written.report
        self._repair = repair
        self._limits = limits
        self._second_look = second_look
        self._at_work: dict[str, Worker] = {}
        #: By the text of their ids, which may be of any type: the id, and the
        #: token of a lease whose holder is not at work.
        self._tasks: dict[str, tuple[Any, str | None]] = {}
        self._hosts: dict[str, tuple[Any, str | None]] = {}
        self._asleep: list[str] = []
        self._blobs: list[str] = []
        #: Workers that are not at work and hold leases.
        self._absent: set[str] = set()

    async def run(self) -> None:
        await self._read_workers()
        self._report.workers = len(self._at_work)
        await self._look_at_tasks()
        await self._look_at_hosts()
        await self._look_again()
        if self._ledger.kind.tracked:
            # Stages are no hosts: there is none to be woken.
            await self._look_at_blobs()
        else:
            await self._look_for_hosts_asleep()
        await self._look_at_workers()

    async def _look_for_hosts_asleep(self) -> None:
        malformed = self._report.findings.get(Kind.MALFORMED)
        # A `due` that is no time has no place in an order.
        if malformed is None or malformed.mended == malformed.count:
            await self._look_for_sleepers()

    async def _read_workers(self) -> None:
        self._at_work = {worker.name: worker for worker in await self._ledger.workers.all()}

    async def _look_at_tasks(self) -> None:
        async for found in self._ledger.inspection.examine():
            self._report.tasks += 1
            token = self._orphan(found, found.get("lock"))
            if token or any(self._of_task(found)):
                self._tasks[repr(found["_id"])] = (found["_id"], token)
                await self._look_again_if_many()

    async def _look_at_hosts(self) -> None:
        async for found in self._ledger.inspection.examine_hosts():
            self._report.hosts += 1
            token = self._orphan(found, found.get("owner"))
            if token or any(self._of_host(found)):
                self._hosts[repr(found["_id"])] = (found["_id"], token)
                await self._look_again_if_many()

    def _of_task(self, found: Found) -> Iterator[Violation]:
        now, tracked = self._ledger.now(), self._ledger.kind.tracked
        return invariants.of_task(found, now=now, tracked=tracked, **self._limits)

    def _of_host(self, found: Found) -> Iterator[Violation]:
        return invariants.of_host(found, now=self._ledger.now())

    def _orphan(self, found: Found, token: Any) -> str | None:
        """Return the token of a live lease whose holder is not at work."""
        holder = invariants.holder(found, now=self._ledger.now())
        return None if holder is None or holder in self._at_work else str(token)

    async def _look_again_if_many(self) -> None:
        if len(self._tasks) + len(self._hosts) >= _SUSPECTS:
            await self._look_again()

    async def _look_again(self) -> None:
        """Look at the candidates a second time: report what is still there, and mend it."""
        if not self._tasks and not self._hosts:
            return
        tasks, self._tasks = self._tasks, {}
        hosts, self._hosts = self._hosts, {}
        await anyio.sleep(self._second_look.total_seconds())
        # A worker that held a lease at the first look had joined before it.
        await self._read_workers()
        async for found in self._ledger.inspection.examine(
            only=[identity for identity, _ in tasks.values()]
        ):
            await self._report_task(found, tasks[repr(found["_id"])][1])
        async for found in self._ledger.inspection.examine_hosts(
            only=[name for name, _ in hosts.values()]
        ):
            await self._report_host(found, hosts[repr(found["_id"])][1])
        absent, self._absent = self._absent, set()
        for name in absent:
            # Only now, for it ends all that the worker holds.
            await self._ledger.workers.leave(name)

    async def _report_task(self, found: Found, token: str | None) -> None:
        violations = list(self._of_task(found))
        where = _where(found)
        change = _merged(violations)
        mended = bool(self._repair and change) and await self._ledger.inspection.mend(found, change)
        due = change.get("due")
        if mended and isinstance(due, datetime) and not self._ledger.kind.tracked:
            await self._ledger.hosts.wake({found["host"]: due})
        for violation in violations:
            self._written.add(violation, where, mended=mended and violation.mend is not None)
        if token is not None and self._orphan(found, found.get("lock")) == token:
            self._report_orphan(found, where)

    async def _report_host(self, found: Found, token: str | None) -> None:
        violations = list(self._of_host(found))
        where = {"host": str(found["_id"])}
        change = _merged(violations)
        mended = bool(self._repair and change) and await self._ledger.inspection.mend_host(
            found, change
        )
        for violation in violations:
            self._written.add(violation, where, mended=mended and violation.mend is not None)
        if token is not None and self._orphan(found, found.get("owner")) == token:
            self._report_orphan(found, where)

    def _report_orphan(self, found: Found, where: Mapping[str, str]) -> None:
        ends = found.get("due") or found.get("ready_at")
        worker = str(invariants.holder(found, now=self._ledger.now()))
        if self._repair:
            self._absent.add(worker)
        violation = Violation(kind=Kind.LEASE_ORPHANED, detail=f"held by {worker} until {ends}")
        self._written.add(violation, where, mended=self._repair)

    async def _look_for_sleepers(self) -> None:
        """Look for hosts that have tasks and would not be leased in time for them."""
        after = ""
        while names := await self._ledger.hosts.due(after=after, limit=_HOSTS):
            after = names[-1]
            self._asleep += [name async for name, _, _ in self._sleepers(names)]
            if len(self._asleep) >= _SUSPECTS:
                await self._look_at_sleepers_again()
        await self._look_at_sleepers_again()

    async def _look_at_sleepers_again(self) -> None:
        names, self._asleep = self._asleep, []
        if not names:
            return
        await anyio.sleep(self._second_look.total_seconds())
        async for name, due, violation in self._sleepers(names):
            if self._repair:
                await self._ledger.hosts.wake({name: due})
            self._written.add(violation, {"host": name}, mended=self._repair)

    async def _sleepers(self, names: list[str]) -> AsyncIterator[tuple[str, datetime, Violation]]:
        found = {
            host["_id"]: host async for host in self._ledger.inspection.examine_hosts(only=names)
        }
        now = self._ledger.now()
        for name in names:
            host = found.get(name)
            if host is not None and (
                invariants.is_awake(host, now=now) or any(self._of_host(host))
            ):
                continue
            due = await self._ledger.hosts.earliest_due(name)
            if due is None:
                continue
            for violation in invariants.of_wake_up(host, due=due):
                yield name, due, violation

    async def _look_at_blobs(self) -> None:
        """Look for values that were set aside and that nothing refers to."""
        async for found in self._ledger.inspection.unreferenced_blobs():
            self._blobs.append(found["_id"])
            if len(self._blobs) >= _SUSPECTS:
                await self._look_at_blobs_again()
        await self._look_at_blobs_again()

    async def _look_at_blobs_again(self) -> None:
        candidates, self._blobs = self._blobs, []
        if not candidates:
            return
        await anyio.sleep(self._second_look.total_seconds())
        async for found in self._ledger.inspection.unreferenced_blobs(only=candidates):
            identity, made = found["_id"], found["create_time"]
            old = made <= self._ledger.now() - _REFERRED_WITHIN
            if self._repair and old:
                await self._ledger.blobs.drop([BlobRef(id=identity, size=0)])
            violation = Violation(kind=Kind.BLOB_LEFT, detail=f"{identity} of {made}")
            where = {"task": found["task_id"].hex()}
            self._written.add(violation, where, mended=self._repair and old)

    async def _look_at_workers(self) -> None:
        first = self._dead()
        await self._read_workers()
        for name in sorted(first & self._dead()):
            if self._repair:
                await self._ledger.workers.leave(name)
            worker = self._at_work[name]
            detail = f"process {worker.pid} on {worker.host}, last heard of {worker.heartbeat}"
            violation = Violation(kind=Kind.WORKER_DEAD, detail=detail)
            self._written.add(violation, {"worker": name}, mended=self._repair)

    def _dead(self) -> set[str]:
        now = self._ledger.now()
        return {n for n, w in self._at_work.items() if is_dead(w) or is_gone(w, now=now)}


def _merged(violations: list[Violation]) -> dict[str, Any]:
    """Return one change for all; of two that set a field the later one counts."""
    change: dict[str, Any] = {}
    for violation in violations:
        change |= violation.mend or {}
    return change


def _where(found: Found) -> dict[str, str]:
    identity = found["_id"]
    task = identity.hex() if isinstance(identity, bytes) else repr(identity)
    return {"task": task, "url": str(found["url"])} if "url" in found else {"task": task}
