"""Define the execution of a tracked task, by which a worker reads, changes and ends the task.

An execution ends by `finish`, `advance`, `fail`, `ignore` or `release`, or at the end of the `with`
block around the execution. `data` is recorded only by `checkpoint` and by a successful end.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from crawlcw.api.user_code import Called, EscapedError
from crawlcw.errors import LeaseLostError, UsageError
from crawlcw.model.sanitize import describe_error, format_traceback
from crawlcw.model.task import Lease, Payload
from crawlcw.tracking import keys
from crawlcw.tracking.endings import Advance, Ending, Fail, Finish, Ignore, Settlements
from crawlcw.tracking.session import Session
from crawlcw.tracking.use_case import UseCase


class Execution:
    """The work of one worker on one leased task, with the task's data and result."""

    def __init__(
        self,
        lease: Lease,
        *,
        data: dict[str, Any],
        results: Mapping[str, Any],
        context: Mapping[str, Any],
        session: Session,
        use_case: UseCase,
    ) -> None:
        self.lease = lease
        self.data = data  #: data of the task, which the worker may change
        self.results = results  #: maps earlier stages to their results
        self.context = context  #: context from the previous stage
        self.result: Any = None  #: result of this stage
        self.has_ended = False
        self._session = session
        self._use_case = use_case
        self._settlements = Settlements(session, use_case)
        self._started_at = session.ledger.now()

    @property
    def key(self) -> str:
        """The task's key."""
        return self.lease.task.url

    @property
    def stage(self) -> str:
        """The name of the stage that this execution runs."""
        return self._use_case.resolve_stage(self.lease.task.callback)

    @property
    def attempt(self) -> int:
        """The number of this attempt at the stage, from 1."""
        return self.lease.task.retry + 1

    @property
    def fence(self) -> int:
        """The fencing token of this claim; a later claim of the task has a higher number.

        So an external store can refuse a write if an earlier write of the task had a higher fence.
        """
        return self.lease.fence

    def note_user_code(self, called: Called) -> None:
        """Tell the watchdog that the event loop runs the user code *called* next."""
        self._session.watchdog.last_user_call = called

    async def checkpoint(self) -> None:
        """Record the current `data` in the ledger, and renew the lease.

        Raises `LeaseLostError`, without recording `data`, if another worker has the lease now.
        """
        self._check()
        session, task = self._session, self.lease.task
        payload = task.carried or Payload()
        data = await session.store_value(task.id, keys.data(self.data))
        is_saved = await session.ledger.leases.save(
            self.lease, data=data, duration=session.policy.lease
        )
        if not is_saved:
            await session.delete_blobs(data)
            session.leases.end([self.lease])
            self.has_ended = True
            raise LeaseLostError(f"another worker now has the lease of task {self.key!r}")
        await session.delete_blobs(payload.data)
        self.lease = replace(self.lease, task=replace(task, carried=replace(payload, data=data)))

    async def finish(self) -> None:
        """End this stage successfully, so that the task finishes or goes to its next stage."""
        await self._end(Finish(result=self.result, data=self.data))

    async def advance(
        self,
        stage: str,
        *,
        context: Mapping[str, Any] | None = None,
        delay: timedelta = timedelta(0),
    ) -> None:
        """End this stage, and queue the task for the next stage, in one write.

        The next stage gets *context* in `Execution.context`, and is due after *delay*.
        Raises `UsageError` without ending the execution.
        """
        result, data = self.result, self.data
        await self._end(
            Advance(stage=stage, result=result, data=data, context=context, delay=delay)
        )

    async def fail(self, error: BaseException | str, *, may_retry: bool = True) -> None:
        """End this execution as a failed attempt, and drop changes of `data`.

        crawlcw gives up the task if *may_retry* is false, or after `max_retry` failed attempts.
        """
        exception = None if isinstance(error, str) else error
        if isinstance(exception, EscapedError):
            exception = exception.error
        message = describe_error(exception) if exception else str(error)
        traceback = format_traceback(exception, own_prefixes=_OUR_FRAMES) if exception else None
        await self._end(Fail(error=message, may_retry=may_retry), traceback=traceback)

    async def ignore(self, message: str) -> None:
        """End the task as unwanted, which does not count as a failure."""
        await self._end(Ignore(message=message))

    async def release(self) -> None:
        """Release the task unchanged, without counting the attempt."""
        self._check()
        self.has_ended = True
        await self._session.release([self.lease])

    def _check(self) -> None:
        if self.has_ended:
            raise UsageError(f"the execution of task {self.key!r} has already ended")

    async def _end(self, ending: Ending, *, traceback: str | None = None) -> None:
        self._check()
        settlement = await self._settlements.of(
            self.lease,
            ending,
            worker=self._session.worker,
            started_at=self._started_at,
            traceback=traceback,
        )
        self._check()
        commit_future = self._session.commit(settlement)
        # Set `has_ended` after `commit`, because the execution stays open if `commit` raises.
        self.has_ended = True
        error = await commit_future
        await self._settlements.drop_replaced(settlement, is_recorded=error is None)
        if error is not None:
            raise error


#: A traceback omits files whose paths have these prefixes, because they are not the user's code.
_OUR_FRAMES = (
    str(Path(__file__).parent),
    str(Path(anyio.__file__).parent),
    contextlib.__file__,
)
