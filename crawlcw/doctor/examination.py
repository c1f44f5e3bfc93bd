"""Check all invariants of a ledger, and repair violations.

It may run beside a crawl. Violations that may be races are checked a second time, a
moment later, and reported only if they persist. Every repair has the finding as its
condition, so documents that changed meanwhile stay.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import anyio

from crawlcw.engine.workers import is_dead, is_gone
from crawlcw.ledger.examination import Health
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Ledger, Worker
from crawlcw.model import invariants
from crawlcw.model.invariants import ADVICE, Kind, Violation
from crawlcw.model.sanitize import printable
from crawlcw.model.task import BlobRef

#: Wait until the second check: a crawl wakes hosts a moment after it has added their tasks.
SECOND_LOOK = timedelta(seconds=1)
#: Candidates in memory for one second check.
_CANDIDATES = 10_000
#: Hosts in one query for tasks whose host was not woken.
_HOSTS = 100
#: Age of unreferenced values: a writer stores a large value right before its task.
_REFERRED_WITHIN = timedelta(days=1)

#: Violations that `prepare` repairs.
_PREPARED = (Kind.STORE_INCOMPLETE, Kind.NOT_WAL)
#: Violations that prevent reading the rest.
_UNREADABLE = (Kind.STORE_INCOMPLETE, Kind.STORE_DIFFERENT)

T = TypeVar("T")
Found = Mapping[str, Any]
#: The id of a document, and the token of an orphaned lease.
_Candidate = tuple[Any, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One violation, as printable text."""

    where: Mapping[str, str]  #: `task` (its id in hex) and `url`, or `host`, or `worker`
    detail: str


@dataclass(slots=True, kw_only=True)
class Finding:
    """All findings of one kind."""

    kind: Kind
    count: int = 0
    mended: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def note(self) -> bool:
        """Whether it is only a note, not a violation."""
        return ADVICE[self.kind].note


@dataclass(slots=True, kw_only=True)
class Report:
    """Numbers of checked documents, and the findings."""

    facts: Mapping[str, str]  #: properties of the store, as text
    most_examples: int  #: examples of each kind; further ones are counted
    kind: LedgerKind = LedgerKind.SPIDER
    tasks: int = 0
    hosts: int = 0
    workers: int = 0
    findings: dict[Kind, Finding] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether no violation is left."""
        return all(each.note or each.mended == each.count for each in self.findings.values())

    def add(self, violation: Violation, where: Mapping[str, str], *, mended: bool = False) -> None:
        """Count a violation, and keep the first ones of each kind as examples."""
        finding = self.findings.setdefault(violation.kind, Finding(kind=violation.kind))
        finding.count += 1
        finding.mended += mended
        if len(finding.examples) < self.most_examples:
            shown = {name: printable(text) for name, text in where.items()}
            finding.examples.append(Example(where=shown, detail=printable(violation.detail)))


async def examine(
    ledger: Ledger,
    *,
    repair: bool = False,
    max_retry: int | None = None,
    max_lost: int | None = None,
    examples: int = 5,
    second_look: timedelta = SECOND_LOOK,
) -> Report | None:
    """Check all of *ledger*, and with *repair* repair it; return None for an empty ledger.

    *examples* is the number of examples of each kind; *second_look* is the wait until
    the second check. The limits are those of `invariants.of_task`. Raises
    `LedgerError`.
    """
    health = await ledger.inspection.health()
    if not health.recorded:
        return None
    offset = health.clock_offset
    facts = dict(health.facts)
    if offset is not None:
        facts["clock offset"] = f"{offset.total_seconds():+.3f} s"
    report = Report(facts=facts, most_examples=examples, kind=ledger.kind)
    for violation in invariants.of_clock(offset or timedelta(0)):
        report.add(violation, {})
    if await _is_readable(ledger, health, report, repair=repair):
        limits = {"max_retry": max_retry, "max_lost": max_lost}
        examination = _Examination(
            ledger, report, repair=repair, limits=limits, second_look=second_look
        )
        await examination.run()
    return report


async def _is_readable(ledger: Ledger, health: Health, report: Report, *, repair: bool) -> bool:
    """Check the store, and with *repair* prepare it; return whether the rest can be read."""
    kinds = {each.kind for each in health.violations}
    left = health.violations
    # A different table or index has to be dropped by the user first.
    if repair and kinds.intersection(_PREPARED) and Kind.STORE_DIFFERENT not in kinds:
        await ledger.inspection.prepare()
        left = (await ledger.inspection.health()).violations
    for violation in health.violations:
        report.add(violation, {}, mended=violation not in left)
    return not any(each.kind in _UNREADABLE for each in left)


class _Examination:
    """One pass over tasks, hosts and workers."""

    def __init__(
        self,
        ledger: Ledger,
        report: Report,
        *,
        repair: bool,
        limits: Mapping[str, int | None],
        second_look: timedelta,
    ) -> None:
        self._ledger = ledger
        self._report = report
        self._repair = repair
        self._limits = limits
        self._second_look = second_look
        self._at_work: dict[str, Worker] = {}
        #: Dead workers with leases.
        self._absent: set[str] = set()

    async def run(self) -> None:
        ledger = self._ledger
        await self._read_workers()
        self._report.workers = len(self._at_work)
        await self._twice(self._candidate_tasks(), self._look_at_tasks)
        await self._twice(self._candidate_hosts(), self._look_at_hosts)
        for name in self._absent:
            # At the end: it releases all leases of the worker.
            await ledger.workers.leave(name)
        malformed = self._report.findings.get(Kind.MALFORMED)
        if ledger.kind.tracked:
            # A use case has stages instead of hosts, which never sleep.
            blobs = (each["_id"] async for each in ledger.inspection.unreferenced_blobs())
            await self._twice(blobs, self._look_at_blobs)
        # Not with an invalid `due` left, by which tasks could not be sorted.
        elif malformed is None or malformed.mended == malformed.count:
            await self._twice(self._candidate_sleepers(), self._look_at_sleepers)
        await self._look_at_workers()

    async def _twice(
        self, first: AsyncIterator[T], again: Callable[[list[T]], Awaitable[None]]
    ) -> None:
        """Check the candidates of the *first* check again, a moment later."""
        candidates: list[T] = []

        async def look_again() -> None:
            if candidates:
                await anyio.sleep(self._second_look.total_seconds())
                await again(candidates)
                candidates.clear()

        async for each in first:
            candidates.append(each)
            if len(candidates) >= _CANDIDATES:
                await look_again()
        await look_again()

    async def _read_workers(self) -> None:
        self._at_work = {worker.name: worker for worker in await self._ledger.workers.all()}

    async def _candidate_tasks(self) -> AsyncIterator[_Candidate]:
        async for found in self._ledger.inspection.examine():
            self._report.tasks += 1
            token = self._orphan(found, found.get("lock"))
            if token or any(self._of_task(found)):
                yield found["_id"], token

    async def _candidate_hosts(self) -> AsyncIterator[_Candidate]:
        async for found in self._ledger.inspection.examine_hosts():
            self._report.hosts += 1
            token = self._orphan(found, found.get("owner"))
            if token or any(self._of_host(found)):
                yield found["_id"], token

    def _of_task(self, found: Found) -> Iterator[Violation]:
        now, tracked = self._ledger.now(), self._ledger.kind.tracked
        return invariants.of_task(found, now=now, tracked=tracked, **self._limits)

    def _of_host(self, found: Found) -> Iterator[Violation]:
        return invariants.of_host(found, now=self._ledger.now())

    def _orphan(self, found: Found, token: Any) -> str | None:
        """Return the token of an orphaned lease."""
        holder = invariants.holder(found, now=self._ledger.now())
        return None if holder is None or holder in self._at_work else str(token)

    async def _tokens(self, candidates: list[_Candidate]) -> dict[str, str | None]:
        """Return the tokens by the text of their ids, which may be of any type."""
        # Read again: a worker with a lease at the first check joined before it.
        await self._read_workers()
        return {repr(identity): token for identity, token in candidates}

    async def _look_at_tasks(self, candidates: list[_Candidate]) -> None:
        tokens = await self._tokens(candidates)
        only = [identity for identity, _ in candidates]
        mend, tracked = self._ledger.admin.mend, self._ledger.kind.tracked
        async for found in self._ledger.inspection.examine(only=only):
            where, violations = _where(found), list(self._of_task(found))
            change = await self._report_all(found, violations, where, mend)
            due = change.get("due")
            if isinstance(due, datetime) and not tracked:
                await self._ledger.hosts.wake({found["host"]: due})
            self._report_orphan(found, found.get("lock"), tokens[repr(found["_id"])], where)

    async def _look_at_hosts(self, candidates: list[_Candidate]) -> None:
        tokens = await self._tokens(candidates)
        only = [name for name, _ in candidates]
        mend = self._ledger.admin.mend_host
        async for found in self._ledger.inspection.examine_hosts(only=only):
            where = {"host": str(found["_id"])}
            await self._report_all(found, list(self._of_host(found)), where, mend)
            self._report_orphan(found, found.get("owner"), tokens[repr(found["_id"])], where)

    async def _report_all(
        self,
        found: Found,
        violations: list[Violation],
        where: Mapping[str, str],
        mend: Callable[[Found, dict[str, Any]], Awaitable[bool]],
    ) -> dict[str, Any]:
        """Report the violations of one document; return the repair, empty if there was none.

        If two repairs set the same field, the later one wins.
        """
        change: dict[str, Any] = {}
        for violation in violations if self._repair else ():
            change |= violation.mend or {}
        if change and not await mend(found, change):
            change = {}
        for violation in violations:
            mended = bool(change) and violation.mend is not None
            self._report.add(violation, where, mended=mended)
        return change

    def _report_orphan(
        self, found: Found, token: Any, first: str | None, where: Mapping[str, str]
    ) -> None:
        """Report an orphaned lease that had the token *first* at the first check as well."""
        if first is None or self._orphan(found, token) != first:
            return
        ends = found.get("due") or found.get("ready_at")
        worker = str(invariants.holder(found, now=self._ledger.now()))
        if self._repair:
            self._absent.add(worker)
        violation = Violation(kind=Kind.LEASE_ORPHANED, detail=f"held by {worker} until {ends}")
        self._report.add(violation, where, mended=self._repair)

    async def _candidate_sleepers(self) -> AsyncIterator[str]:
        """Yield the hosts that sleep longer than the due time of their tasks."""
        after = ""
        while names := await self._ledger.hosts.due(after=after, limit=_HOSTS):
            after = names[-1]
            async for name, _, _ in self._sleepers(names):
                yield name

    async def _look_at_sleepers(self, names: list[str]) -> None:
        async for name, due, violation in self._sleepers(names):
            if self._repair:
                await self._ledger.hosts.wake({name: due})
            self._report.add(violation, {"host": name}, mended=self._repair)

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

    async def _look_at_blobs(self, candidates: list[Any]) -> None:
        """Report large values without a task that refers to them."""
        async for found in self._ledger.inspection.unreferenced_blobs(only=candidates):
            identity, made = found["_id"], found["create_time"]
            old = made <= self._ledger.now() - _REFERRED_WITHIN
            if self._repair and old:
                await self._ledger.blobs.drop([BlobRef(id=identity, size=0)])
            violation = Violation(kind=Kind.BLOB_LEFT, detail=f"{identity} of {made}")
            where = {"task": found["task_id"].hex()}
            self._report.add(violation, where, mended=self._repair and old)

    async def _look_at_workers(self) -> None:
        first = self._dead()
        await self._read_workers()
        for name in sorted(first & self._dead()):
            if self._repair:
                await self._ledger.workers.leave(name)
            worker = self._at_work[name]
            detail = f"process {worker.pid} on {worker.host}, last heard of {worker.heartbeat}"
            violation = Violation(kind=Kind.WORKER_DEAD, detail=detail)
            self._report.add(violation, {"worker": name}, mended=self._repair)

    def _dead(self) -> set[str]:
        now = self._ledger.now()
        return {n for n, w in self._at_work.items() if is_dead(w) or is_gone(w, now=now)}


def _where(found: Found) -> dict[str, str]:
    identity = found["_id"]
    task = identity.hex() if isinstance(identity, bytes) else repr(identity)
    return {"task": task, "url": str(found["url"])} if "url" in found else {"task": task}
