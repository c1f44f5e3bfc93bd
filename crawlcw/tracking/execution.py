"""One execution of a tracked task: its data while a worker holds it, and its end.

It ends once: by `finish`, `advance`, `fail`, `ignore` or `release`, or else at the end of
the block around it. Only `checkpoint` and a successful end record changes of `data`.
"""

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from crawlcw.api.user_code import Called, EscapedError
from crawlcw.errors import LeaseLostError, Reason, UsageError
from crawlcw.model import values
from crawlcw.model.task import Lease, Payload
from crawlcw.model.tracebacks import describe_error, format_traceback
from crawlcw.model.transitions import Advanced, Failed, Outcome, Progress, Succeeded
from crawlcw.tracking import keys
from crawlcw.tracking.blobs import Blobs
from crawlcw.tracking.session import Session
from crawlcw.tracking.use_case import UseCase


class Execution:
    """The right to work on one task, and the result."""

    def __init__(
        self,
        lease: Lease,
        *,
        data: dict[str, Any],
        results: Mapping[str, Any],
        context: Mapping[str, Any],
        session: Session,
        blobs: Blobs,
        use_case: UseCase,
    ) -> None:
        self.lease = lease
        self.data = data  #: may be changed
        self.results = results  #: of earlier stages: stage -> its result
        self.context = context  #: the context from the previous stage
        self.result: Any = None  #: of this stage
        self.ended = False
        self._session = session
        self._blobs = blobs
        self._use_case = use_case
        self._began = session.ledger.now()
        carried = lease.task.carried or Payload()
        self._stored_data: Any = carried.data  #: the ledger's present data

    @property
    def key(self) -> str:
        """The task's key."""
        return self.lease.task.url

    @property
    def stage(self) -> str:
        """The stage to do."""
        return self._use_case.named(self.lease.task.callback)

    @property
    def attempt(self) -> int:
        """Number of this attempt at the stage; the first is 1."""
        return self.lease.task.retry + 1

    @property
    def fence(self) -> int:
        """Number of this claim (fencing token), larger than that of any earlier claim.

        An external store can refuse writes with a smaller number than the last one.
        """
        return self.lease.fence

    def begins(self, called: Called) -> None:
        """Tell the watchdog that the user's code starts in the loop."""
        self._session.watchdog.begun = called

    async def checkpoint(self) -> None:
        """Record `data` as it is now, and renew the lease.

        Raises `LeaseLostError`, and records nothing, if another worker holds the task now.
        """
        self._check()
        data = await self._stowed(keys.data(self.data))
        session = self._session
        held = await session.ledger.leases.save(
            self.lease, data=data, duration=session.policy.lease
        )
        if not held:
            await self._blobs.drop(data)
            session.held.end([self.lease])
            self.ended = True
            raise LeaseLostError(f"another worker holds task {self.key!r} now")
        await self._blobs.drop(self._stored_data)
        self._stored_data = data

    async def finish(self) -> None:
        """End successfully: the task is finished, or in the next stage of its chain."""
        following = self._use_case.after(self.stage)
        if following is None:
            await self._succeed(Succeeded(progress=await self._progress()))
        else:
            await self.advance(following, context=self.context)

    async def advance(
        self,
        stage: str,
        *,
        context: Mapping[str, Any] | None = None,
        delay: timedelta = timedelta(0),
    ) -> None:
        """End this stage and queue the next one, in one write.

        The next stage gets *context* in `Execution.context`, and is due after *delay*.
        Raises `UsageError` without ending the execution.
        """
        self._check()
        stage, delay = keys.stage(stage), keys.delay(delay)
        passed = None if not context else await self._stowed(keys.data(context))
        progress = await self._progress()
        await self._succeed(Advanced(stage=stage, progress=progress, context=passed, delay=delay))
        await self._blobs.drop(self.lease.task.context)

    async def fail(self, error: BaseException | str, *, again: bool = True) -> None:
        """End as a failed attempt; the last attempt gives the task up.

        Without *again* this was the last one. Changes of `data` are dropped.
        """
        raised = None if isinstance(error, str) else error
        if isinstance(raised, EscapedError):
            raised = raised.error
        await self._end(
            Failed(
                reason=Reason.TASK_ERROR,
                message=describe_error(raised) if raised else str(error),
                traceback=format_traceback(raised, own=_OUR_FRAMES) if raised else None,
                progress=self._trace(),
                last=not again,
            )
        )

    async def ignore(self, why: str) -> None:
        """End as unwanted, which is not a failure."""
        await self._end(Failed(reason=Reason.UNWANTED, message=why, progress=self._trace()))

    async def release(self) -> None:
        """Release the task unchanged; the attempt does not count."""
        self._check()
        self.ended = True
        await self._session.release([self.lease])

    def _check(self) -> None:
        if self.ended:
            raise UsageError(f"the execution of task {self.key!r} has ended")

    async def _succeed(self, outcome: Outcome) -> None:
        await self._end(outcome)
        await self._blobs.drop(self._stored_data)

    async def _end(self, outcome: Outcome) -> None:
        self._check()
        written = self._session.settle(self.lease, outcome)
        # Only now: an ending that cannot be recorded leaves the execution open.
        self.ended = True
        await written

    async def _progress(self) -> Progress:
        self._check()
        results = {}
        if self.result is not None:
            results[self.stage] = await self._stowed(values.clean(self.result))
        data = await self._stowed(keys.data(self.data))
        return Progress(
            stage=self.stage,
            worker=self._session.worker,
            started_at=self._began,
            data=data,
            results=results,
        )

    def _trace(self) -> Progress:
        return Progress(stage=self.stage, worker=self._session.worker, started_at=self._began)

    async def _stowed(self, value: Any) -> Any:
        limit = self._session.policy.inline_limit
        return await self._blobs.offload(self.lease.task.id, value, limit=limit)


#: The functions between the user's code and the block around it.
_OUR_FRAMES = (
    str(Path(__file__).parent),
    str(Path(anyio.__file__).parent),
    contextlib.__file__,
)
