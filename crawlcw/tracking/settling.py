"""Recording how a worker that asked for its share has ended its tasks."""

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, assert_never

from crawlcw.errors import Reason
from crawlcw.model import transitions, values
from crawlcw.model.task import BlobRef, Lease, Payload
from crawlcw.model.transitions import Advanced, Failed, Outcome, Progress, Settlement, Succeeded
from crawlcw.tracking import keys as names
from crawlcw.tracking.blobs import Blobs
from crawlcw.tracking.coalescer import Coalescer
from crawlcw.tracking.endings import Advance, Ending, Fail, Finish, Ignore, Refusal, Release
from crawlcw.tracking.tracker import Tracker


class Settler:
    """Makes outcomes of endings, and commits them with their data and results."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._ledger = tracker.ledger
        self._blobs = Blobs(tracker.ledger)
        self._committing: Coalescer[Settlement, Refusal | None] = Coalescer(self._commit_each)

    async def commit(
        self, endings: Collection[tuple[Lease, Ending]], me: str
    ) -> dict[str, Refusal]:
        """Record how the holder *me* ended tasks; return the keys of those that were not.

        They are written together with those of other holders.
        """
        if not endings:
            return {}
        settlements = [await self._settlement(lease, ending, me) for lease, ending in endings]
        became = await asyncio.gather(*(self._committing(each) for each in settlements))
        refused = {
            each.lease.task.url: why
            for each, why in zip(settlements, became, strict=True)
            if why is not None
        }
        self._tracker.added.set()
        for each in settlements:
            await self._drop_replaced(each, kept=each.lease.task.url not in refused)
        return refused

    async def _commit_each(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        committed = await self._ledger.outcomes.commit(settlements)
        # By the lease: one who lost a task may end it together with the one who has it now.
        refused = {_held(lease): Refusal.NOT_HELD for lease in committed.lost}
        refused |= {_held(lease): Refusal.NOT_STORABLE for lease, _ in committed.rejected}
        return [refused.get(_held(each.lease)) for each in settlements]

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
        trace = Progress(stage=self._stage(lease), worker=me, started_at=task.due)
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
                context = await self._offloaded(lease, passed)
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
            results[self._stage(lease)] = await self._offloaded(lease, result)
        data = None
        if ending.data is not None:
            data = await self._offloaded(lease, names.data(ending.data))
        return replace(trace, data=data, results=results)

    def _stage(self, lease: Lease) -> str:
        return self._tracker.use_case.named(lease.task.callback)

    async def _offloaded(self, lease: Lease, value: Any) -> Any:
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
        # A chain passes the context along as it is, however the outcome is recorded.
        await self._blobs.drop(
            *(each for each in gone if isinstance(each, BlobRef) and (kept or each != task.context))
        )


def _held(lease: Lease) -> tuple[bytes, str, int]:
    """Return what tells a lease from others, of the same task as well."""
    return lease.task.id, lease.token, lease.fence
