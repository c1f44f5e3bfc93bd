"""How a worker that asked for its share ends its tasks, and what is accepted of it."""

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, assert_never

from crawlcw.errors import Reason
from crawlcw.model import transitions, values
from crawlcw.model.task import BlobRef, Lease, Payload, Record, key_id
from crawlcw.model.transitions import (
    Advanced,
    Event,
    Failed,
    Outcome,
    Progress,
    Settlement,
    Succeeded,
    lease_of,
)
from crawlcw.tracking import keys as names
from crawlcw.tracking.dispensing import Dispensing, holder, is_held

#: So many tasks are read side by side.
_AT_ONCE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The stage is done, and the task with it, or the next stage of its chain is to do."""

    result: Any = None
    data: Mapping[str, Any] | None = None  #: None keeps what is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The stage is done, and another one is to do."""

    stage: str
    result: Any = None
    data: Mapping[str, Any] | None = None  #: None keeps what is there
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """An attempt is spent; without *again* it was the last one."""

    error: str
    again: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """The task turned out to be unwanted."""

    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """The task goes back as it was."""


Ending = Finish | Advance | Fail | Ignore | Release

#: What a task's trace says where an ending was recorded.
_EVENTS: Mapping[type[Ending], frozenset[Event]] = {
    Finish: frozenset({Event.FINISH, Event.ADVANCE}),
    Advance: frozenset({Event.ADVANCE}),
    Fail: frozenset({Event.FAIL, Event.GIVE_UP}),
    Ignore: frozenset({Event.GIVE_UP}),
    Release: frozenset(),
}


class Refusal(StrEnum):
    """Why an ending was not accepted."""

    NOT_FOUND = "not-found"
    NOT_HELD = "not-held"  #: somebody else holds it, or nobody
    NOT_STORABLE = "not-storable"  #: the ledger cannot hold the outcome: the task is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of endings."""

    accepted: frozenset[str] = frozenset()
    refused: Mapping[str, Refusal] = field(default_factory=dict)


class Endings(Dispensing):
    """Records what workers say of their tasks."""

    async def done(
        self,
        worker: str,
        keys: Iterable[str],
        results: Mapping[str, Any] | None = None,
        *,
        fences: Mapping[str, int] | None = None,
    ) -> Ended:
        """Finish tasks, each with its result; those of a chain are in their next stage then.

        *fences* as for `end`.
        """
        found = results or {}
        return await self.end(worker, {k: Finish(result=found.get(k)) for k in keys}, fences=fences)

    async def fail(
        self,
        worker: str,
        keys: Iterable[str],
        error: str,
        *,
        again: bool = True,
        fences: Mapping[str, int] | None = None,
    ) -> Ended:
        """Spend an attempt of each task, without *again* the last one; *fences* as for `end`."""
        ending = Fail(error=error, again=again)
        return await self.end(worker, dict.fromkeys(keys, ending), fences=fences)

    async def end(
        self,
        worker: str,
        endings: Mapping[str, Ending],
        *,
        fences: Mapping[str, int] | None = None,
    ) -> Ended:
        """End tasks, each in its way; return which endings are accepted.

        That are those of tasks which the worker holds, and those sent again whose
        first sending was recorded. A late one, after the task went to somebody
        else, is refused, and writes nothing. *fences* (key -> `Assigned.fence`)
        say which claim is meant: without them an ending that is sent again is
        taken for one of a later claim by the same worker, if there is one. To
        release what is not held any more is accepted. Raises `UsageError`.
        """
        me = holder(worker)
        fences = fences or {}
        records = await self._records(list(endings))
        held, others = {}, []
        for key in endings:
            record = records[key]
            if record is not None and _holds(me, record, fences.get(key)):
                held[key] = lease_of(record.task)
            else:
                others.append(key)
        released = {key for key in held if isinstance(endings[key], Release)}
        await self._give_back([held[key] for key in released])
        refused = await self._commit(
            [(lease, endings[key]) for key, lease in held.items() if key not in released], me
        )
        lost = [key for key, why in refused.items() if why is Refusal.NOT_HELD]
        records |= await self._records(lost)
        for key in (*others, *lost):
            why = _again(me, records[key], endings[key], fences.get(key))
            refused.pop(key, None)
            if why is not None:
                refused[key] = why
        return Ended(accepted=frozenset(endings) - frozenset(refused), refused=refused)

    async def _records(self, keys: Sequence[str]) -> dict[str, Record | None]:
        ids = [key_id(names.key(key)) for key in keys]
        found: list[Record | None] = []
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            reads = [self._ledger.tasks.get(each) for each in some]
            found += await asyncio.gather(*reads)
        return dict(zip(keys, found, strict=True))

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        if leases:
            await self._ledger.outcomes.release(leases)
            self._tracker.added.set()

    async def _commit(
        self, endings: Collection[tuple[Lease, Ending]], me: str
    ) -> dict[str, Refusal]:
        """Record outcomes; return which of them were not."""
        if not endings:
            return {}
        settlements = [await self._settlement(lease, ending, me) for lease, ending in endings]
        committed = await self._ledger.outcomes.commit(settlements)
        refused = {lease.task.url: Refusal.NOT_HELD for lease in committed.lost}
        refused |= {lease.task.url: Refusal.NOT_STORABLE for lease, _ in committed.rejected}
        self._tracker.added.set()
        for each in settlements:
            await self._drop_replaced(each, kept=each.lease.task.url not in refused)
        return refused

    async def _settlement(self, lease: Lease, ending: Ending, me: str) -> Settlement:
        return transitions.settle(
            lease,
            await self._outcome(lease, ending, me),
            now=self._ledger.now(),
            policy=self._tracker.policy.retries,
            chance=random.random(),
        )

    async def _outcome(self, lease: Lease, ending: Ending, me: str) -> Outcome:
        task = lease.task
        assert task.due is not None
        trace = Progress(stage=self._stage(lease), worker=me, began=task.due)
        match ending:
            case Finish():
                progress = await self._progress(trace, lease, ending)
                following = self._tracker.use_case.after(task.callback)
                if following is None:
                    return Succeeded(progress=progress)
                return Advanced(stage=following, progress=progress, context=task.context)
            case Advance():
                stage = names.stage(ending.stage)
                progress = await self._progress(trace, lease, ending)
                passed = names.data(ending.context) if ending.context else None
                context = await self._stowed(lease, passed)
                return Advanced(stage=stage, progress=progress, context=context, delay=ending.delay)
            case Fail():
                return Failed(
                    reason=Reason.TASK_ERROR,
                    message=ending.error,
                    progress=trace,
                    last=not ending.again,
                )
            case Ignore():
                return Failed(reason=Reason.UNWANTED, message=ending.why, progress=trace)
            case Release():
                raise AssertionError("a release is no outcome")
            case _:
                assert_never(ending)

    async def _progress(self, trace: Progress, lease: Lease, ending: Finish | Advance) -> Progress:
        results = {}
        if ending.result is not None:
            result = values.clean(ending.result)
            results[self._stage(lease)] = await self._stowed(lease, result)
        data = None
        if ending.data is not None:
            data = await self._stowed(lease, names.data(ending.data))
        return replace(trace, data=data, results=results)

    def _stage(self, lease: Lease) -> str:
        return self._tracker.use_case.named(lease.task.callback)

    async def _stowed(self, lease: Lease, value: Any) -> Any:
        limit = self._tracker.policy.inline_limit
        return await self._blobs.offload(lease.task.id, value, limit=limit)

    async def _drop_replaced(self, settlement: Settlement, *, kept: bool) -> None:
        """Delete the large values that nothing refers to any more."""
        task, change = settlement.lease.task, settlement.change
        progress = change.progress
        before = {"data": (task.carried or Payload()).data, "context": task.context}
        after: dict[str, Any] = {}
        if progress is not None and progress.data is not None:
            after["data"] = progress.data
        if change.next is not None:
            after["context"] = change.next.context
        gone = [before[n] for n in after if before[n] != after[n]] if kept else [*after.values()]
        if not kept and progress is not None:
            gone += progress.results.values()
        # A chain passes the context along as it is, whatever becomes of the outcome.
        await self._blobs.drop(
            *(each for each in gone if isinstance(each, BlobRef) and (kept or each != task.context))
        )


def _holds(me: str, record: Record, fence: int | None) -> bool:
    return is_held(record.task, me) and fence in (None, record.task.fence)


def _again(me: str, record: Record | None, ending: Ending, fence: int | None) -> Refusal | None:
    """Say why an ending of a task that is not held is refused; None: it is recorded already."""
    if record is None:
        return Refusal.NOT_FOUND
    task = record.task
    if fence is None:
        # Nobody has claimed it since.
        entries = [each for each in record.trace if each.fence == task.settled == task.fence]
    else:
        entries = [each for each in record.trace if each.fence == fence]
    mine = [each for each in entries if each.worker == me]
    if isinstance(ending, Release):
        return Refusal.NOT_HELD if mine and fence is not None else None
    if any(each.event in _EVENTS[type(ending)] for each in mine):
        return None
    if task.reason is Reason.STORE_REJECTED and task.settled == fence:
        return Refusal.NOT_STORABLE
    return Refusal.NOT_HELD
