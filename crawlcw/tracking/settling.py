"""Settlements of tracked tasks: made of endings, with the large values beside the tasks."""

import random
from dataclasses import replace
from datetime import datetime
from typing import Any, assert_never

from crawlcw.errors import Reason
from crawlcw.model import transitions, values
from crawlcw.model.task import BlobRef, Lease, Payload
from crawlcw.model.transitions import Advanced, Failed, Outcome, Progress, Settlement, Succeeded
from crawlcw.tracking import keys
from crawlcw.tracking.endings import Advance, Ending, Fail, Finish, Ignore, Release
from crawlcw.tracking.session import Session
from crawlcw.tracking.use_case import UseCase


class Settlements:
    """Makes settlements for a use case, and deletes the large values that they replace."""

    def __init__(self, session: Session, use_case: UseCase) -> None:
        self._session = session
        self._use_case = use_case

    async def of(
        self,
        lease: Lease,
        ending: Ending,
        *,
        worker: str,
        started_at: datetime,
        traceback: str | None = None,
    ) -> Settlement:
        """Return how *worker* ends a task; *traceback* is that of a failure."""
        stage = self._use_case.named(lease.task.callback)
        trace = Progress(stage=stage, worker=worker, started_at=started_at)
        return transitions.settle(
            lease,
            await self._outcome(lease, ending, trace, traceback),
            now=self._session.ledger.now(),
            policy=self._session.policy.retries,
            chance=random.random(),
        )

    async def _outcome(
        self, lease: Lease, ending: Ending, trace: Progress, traceback: str | None
    ) -> Outcome:
        task = lease.task
        match ending:
            case Finish():
                progress = await self._progress(lease, ending, trace)
                following = self._use_case.after(task.callback)
                if following is None:
                    return Succeeded(progress=progress)
                return Advanced(stage=following, progress=progress, context=task.context)
            case Advance():
                stage, delay = keys.stage(ending.stage), keys.delay(ending.delay)
                passed = keys.data(ending.context) if ending.context else None
                context = await self._session.stow(task.id, passed)
                progress = await self._progress(lease, ending, trace)
                return Advanced(stage=stage, progress=progress, context=context, delay=delay)
            case Fail():
                return Failed(
                    reason=Reason.TASK_ERROR,
                    message=ending.error,
                    traceback=traceback,
                    progress=trace,
                    last=not ending.again,
                )
            case Ignore():
                return Failed(reason=Reason.UNWANTED, message=ending.why, progress=trace)
            case Release():
                raise AssertionError("a release is no outcome")
            case _:
                assert_never(ending)

    async def _progress(self, lease: Lease, ending: Finish | Advance, trace: Progress) -> Progress:
        stow, task_id = self._session.stow, lease.task.id
        results = {}
        if ending.result is not None:
            results[self._use_case.named(lease.task.callback)] = await stow(
                task_id, values.clean(ending.result)
            )
        data = None if ending.data is None else await stow(task_id, keys.data(ending.data))
        return replace(trace, data=data, results=results)

    async def drop_replaced(self, settlement: Settlement, *, recorded: bool) -> None:
        """Delete the large values that nothing refers to any more."""
        task, change = settlement.lease.task, settlement.change
        progress = change.progress
        before = {"data": (task.carried or Payload()).data, "context": task.context}
        after: dict[str, Any] = {}
        if progress is not None and progress.data is not None:
            after["data"] = progress.data
        if change.next is not None:
            after["context"] = change.next.context
        if recorded:
            gone = [before[name] for name in after if before[name] != after[name]]
        else:
            # A chain passes the context along as it is.
            gone = [value for value in after.values() if value != task.context]
            gone += progress.results.values() if progress is not None else ()
        await self._session.drop(*(value for value in gone if isinstance(value, BlobRef)))
