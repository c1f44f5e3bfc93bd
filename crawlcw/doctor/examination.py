"""Check all invariants of a ledger, and repair violations.

The examination may run during a crawl. A violation is reported only if a second check, a moment
later, finds it again. A crawl may end a violation between the two checks. A repair does not change
a document that a crawl has changed since the check.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import anyio

from crawlcw.doctor import invariants
from crawlcw.engine.workers import is_dead, is_gone
from crawlcw.ledger.examination import Health, Kind, Violation
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.port import Part
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.task import BlobRef

#: Time before the second check; a crawl wakes a host a moment after it adds the host's tasks.
RECHECK_DELAY = timedelta(seconds=1)
#: Maximum number of documents that wait in memory for their second check.
_CANDIDATES = 10_000
#: Number of hosts that one query checks for a missing wake-up.
_HOSTS = 100
#: Do not delete blobs younger than this age, because a writer stores a blob before its task.
_REFERRED_WITHIN = timedelta(days=1)

#: Violations that `prepare` repairs.
_PREPARED = (Kind.STORE_INCOMPLETE, Kind.NOT_WAL)
#: Violations that prevent the examination from reading the ledger.
_UNREADABLE = (Kind.STORE_INCOMPLETE, Kind.STORE_DIFFERENT)

StoredDocument = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A violation as printable text."""

    where: Mapping[str, str]  #: `task` (its id in hex) and `url`, or `host`, or `worker`
    detail: str


@dataclass(slots=True, kw_only=True)
class Finding:
    """The number of violations of one kind, and examples of them."""

    kind: Kind
    count: int = 0
    repaired: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def is_note(self) -> bool:
        """Whether the finding is only a note, not a violation."""
        return self.kind in invariants.NOTES


@dataclass(slots=True, kw_only=True)
class Report:
    """The numbers of checked documents, and the findings."""

    facts: Mapping[str, str]  #: properties of the store, as text
    max_examples: int  #: maximum number of examples for each kind of violation
    kind: LedgerKind = LedgerKind.SPIDER
    tasks: int = 0
    hosts: int = 0
    workers: int = 0
    findings: dict[Kind, Finding] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether no violation remains."""
        return all(
            finding.is_note or finding.repaired == finding.count
            for finding in self.findings.values()
        )

    def add(
        self, violation: Violation, where: Mapping[str, str], *, repaired: bool = False
    ) -> None:
        """Count a violation, and keep the first violations of each kind as examples."""
        finding = self.findings.setdefault(violation.kind, Finding(kind=violation.kind))
        finding.count += 1
        finding.repaired += repaired
        if len(finding.examples) < self.max_examples:
            printable_where = {name: printable(text) for name, text in where.items()}
            finding.examples.append(
                Example(where=printable_where, detail=printable(violation.detail))
            )


async def examine(
    ledger: Ledger,
    *,
    repair: bool = False,
    examples: int = 5,
    recheck_delay: timedelta = RECHECK_DELAY,
) -> Report | None:
    """Check the whole *ledger*, and repair it if *repair* is true; return None for an empty ledger.

    *examples* is the maximum number of examples for each kind of violation; *recheck_delay* is the
    time between the two checks. Raises `LedgerError`.
    """
    health = await ledger.inspection.health()
    if not health.recorded:
        return None
    facts = dict(health.facts)
    if (offset := health.clock_offset) is not None:
        facts["clock offset"] = f"{offset.total_seconds():+.3f} s"
    report = Report(facts=facts, max_examples=examples, kind=ledger.kind)
    if await _is_readable(ledger, health, report, repair=repair):
        await _Examination(ledger, report, repair=repair, recheck_delay=recheck_delay).run()
    return report


async def _is_readable(ledger: Ledger, health: Health, report: Report, *, repair: bool) -> bool:
    """Check the store, and repair it if *repair* is true; return whether the ledger is readable."""
    kinds = {problem.kind for problem in health.violations}
    remaining = health.violations
    # Repair nothing if a table or index is defined wrongly, because the user must drop it.
    if repair and kinds.intersection(_PREPARED) and Kind.STORE_DIFFERENT not in kinds:
        await ledger.inspection.prepare()
        remaining = (await ledger.inspection.health()).violations
    for violation in health.violations:
        report.add(violation, {}, repaired=violation not in remaining)
    return not any(problem.kind in _UNREADABLE for problem in remaining)


class _Candidate(NamedTuple):
    """A document in which a first check found violations, to be confirmed by a second check."""

    key: Any
    where: Mapping[str, str]
    violations: Sequence[Violation]
    repair: Callable[[], Awaitable[object]]  #: returns False if the document has changed


#: Function that yields documents with violations, among all documents or those with given ids.
_Check = Callable[[Sequence[Any] | None], AsyncIterator[_Candidate]]


@dataclass(slots=True)
class _Examination:
    """Examines all tasks, hosts and workers of a ledger."""

    ledger: Ledger
    report: Report
    _: KW_ONLY
    repair: bool
    recheck_delay: timedelta

    async def run(self) -> None:
        await self._check_twice(self._tasks)
        await self._check_twice(self._hosts)
        malformed = self.report.findings.get(Kind.MALFORMED)
        if self.ledger.kind.tracked:
            # A use case has stages instead of hosts, and stages need no wake-up.
            await self._check_twice(self._blobs)
        # Skip this check if an invalid `due` remains, because the check sorts the tasks by `due`.
        elif malformed is None or malformed.repaired == malformed.count:
            await self._check_twice(self._sleeping_hosts)
        await self._check_twice(self._workers)

    async def _check_twice(self, check: _Check) -> None:
        """Check documents twice, and report the documents that have violations both times."""
        # Use texts as keys of the dictionary, because some document keys are unhashable.
        keys_by_text: dict[str, Any] = {}
        async for candidate in check(None):
            keys_by_text[repr(candidate.key)] = candidate.key
            if len(keys_by_text) >= _CANDIDATES:
                await self._recheck(check, keys_by_text)
                keys_by_text.clear()
        if keys_by_text:
            await self._recheck(check, keys_by_text)

    async def _recheck(self, check: _Check, keys_by_text: Mapping[str, Any]) -> None:
        await anyio.sleep(self.recheck_delay.total_seconds())
        async for candidate in check([*keys_by_text.values()]):
            mendable = [problem for problem in candidate.violations if problem.mend is not None]
            will_repair = self.repair and bool(mendable)
            repaired = will_repair and await candidate.repair() is not False
            for violation in candidate.violations:
                was_repaired = repaired and violation.mend is not None
                self.report.add(violation, candidate.where, repaired=was_repaired)

    async def _tasks(self, wanted_ids: Sequence[Any] | None) -> AsyncIterator[_Candidate]:
        async for document in self.ledger.inspection.examine(Part.TASKS, wanted_ids=wanted_ids):
            self.report.tasks += wanted_ids is None
            if violations := [*invariants.task_violations(document, now=self.ledger.now())]:
                mend = partial(self._mend, document, violations)
                yield _Candidate(document["_id"], _where(document), violations, mend)

    async def _hosts(self, wanted_ids: Sequence[Any] | None) -> AsyncIterator[_Candidate]:
        async for document in self.ledger.inspection.examine(Part.HOSTS, wanted_ids=wanted_ids):
            self.report.hosts += wanted_ids is None
            if violations := [*invariants.host_violations(document, now=self.ledger.now())]:
                where = {"host": str(document["_id"])}
                mend = partial(self._mend, document, violations)
                yield _Candidate(document["_id"], where, violations, mend)

    async def _mend(self, document: StoredDocument, violations: Iterable[Violation]) -> bool:
        """Mend a task or a host if it has not changed; return whether it was repaired.

        If two repairs set the same field, the later repair counts.
        """
        change: dict[str, Any] = {}
        for violation in violations:
            change |= violation.mend or {}
        was_repaired = await self.ledger.admin.mend(document, change)
        due = change.get("due")
        if was_repaired and isinstance(due, datetime) and not self.ledger.kind.tracked:
            await self.ledger.hosts.wake({document["host"]: due})
        return was_repaired

    async def _sleeping_hosts(self, wanted_ids: Sequence[str] | None) -> AsyncIterator[_Candidate]:
        """Yield hosts that become ready too late for their first task, after a lost wake-up."""
        if wanted_ids is None:
            cursor = ""
            while names := await self.ledger.hosts.due(last_host=cursor, limit=_HOSTS):
                cursor = names[-1]
                async for candidate in self._sleeping_hosts(names):
                    yield candidate
            return
        documents = self.ledger.inspection.examine(Part.HOSTS, wanted_ids=wanted_ids)
        hosts, now = {host["_id"]: host async for host in documents}, self.ledger.now()
        for name in wanted_ids:
            host = hosts.get(name)
            if host is not None and (
                invariants.is_awake(host, now=now) or any(invariants.host_violations(host, now=now))
            ):
                continue
            due = await self.ledger.hosts.earliest_due(name)
            if due is not None and (violations := [*invariants.wake_up_violations(host, due=due)]):
                wake = partial(self.ledger.hosts.wake, {name: due})
                yield _Candidate(name, {"host": name}, violations, wake)

    async def _blobs(self, wanted_ids: Sequence[str] | None) -> AsyncIterator[_Candidate]:
        """Yield the blobs (large values) to which no task refers."""
        async for document in self.ledger.inspection.examine(Part.BLOBS, wanted_ids=wanted_ids):
            identity, created_at = document["_id"], document["create_time"]
            detail, is_old = (
                f"{identity} of {created_at}",
                created_at <= self.ledger.now() - _REFERRED_WITHIN,
            )
            violation = Violation(kind=Kind.BLOB_LEFT, detail=detail, mend={} if is_old else None)
            drop = partial(self.ledger.blobs.drop, [BlobRef(id=identity, size=0)])
            yield _Candidate(identity, {"task": document["task_id"].hex()}, [violation], drop)

    async def _workers(self, wanted_ids: Sequence[str] | None) -> AsyncIterator[_Candidate]:
        """Yield the dead workers."""
        now, workers = self.ledger.now(), await self.ledger.workers.all()
        self.report.workers = len(workers)
        for worker in sorted(workers, key=lambda worker: worker.name):
            is_wanted = wanted_ids is None or worker.name in wanted_ids
            if is_wanted and (is_dead(worker) or is_gone(worker, now=now)):
                detail = f"process {worker.pid} on {worker.host}, last heard of {worker.heartbeat}"
                violation = Violation(kind=Kind.WORKER_DEAD, detail=detail, mend={})
                leave = partial(self.ledger.workers.leave, worker.name)
                yield _Candidate(worker.name, {"worker": worker.name}, [violation], leave)


def _where(document: StoredDocument) -> dict[str, str]:
    identity = document["_id"]
    task = identity.hex() if isinstance(identity, bytes) else repr(identity)
    return {"task": task, "url": str(document["url"])} if "url" in document else {"task": task}
