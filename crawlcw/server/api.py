"""Request handlers over the tracker and its dispenser, without HTTP."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import assert_never

from crawlcw import tracking
from crawlcw.model.task import Status
from crawlcw.server import answers, bodies
from crawlcw.server.refused import RefusedError
from crawlcw.tracking import Dispenser, Ending, Refusal, Tracker

#: Seconds between two polls of a waiting request: other servers add tasks without a signal.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class Api:
    """The requests of one server."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.dispenser = Dispenser(tracker)
        self._stopping = False

    def stop(self) -> None:
        """Answer the requests that wait for tasks, and let none wait from now on."""
        self._stopping = True
        self.tracker.added.set()

    async def create_task(self, asked: bodies.NewTask | bodies.NewTasks) -> answers.Created:
        """Add tasks."""
        tasks = asked.tasks if isinstance(asked, bodies.NewTasks) else [asked]
        added = await self.tracker.add_many(_new(each) for each in tasks)
        return answers.Created.of(added)

    async def hold_task(
        self, asked: bodies.HoldTask, *, gone: Callable[[], bool] = lambda: False
    ) -> answers.Held:
        """Hand out a share; *gone* returns whether the client has disconnected."""
        end = time.monotonic() + asked.wait
        pause = _FIRST_PAUSE
        while True:
            self.tracker.added.clear()
            share = await self.dispenser.assign(
                asked.worker, asked.limit, stages=asked.stages, request=asked.request
            )
            left = end - time.monotonic()
            if share or not asked.limit or left <= 0 or self._stopping:
                return answers.Held(tasks=[answers.HeldTask.of(each) for each in share])
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, left)):
                    await self.tracker.added.wait()
            if gone():
                return answers.Held(tasks=[])
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def set_task(
        self,
        asked: bodies.Finished | bodies.Advanced | bodies.Failed | bodies.Ignored | bodies.Released,
    ) -> answers.Accepted:
        """End a task that is held."""
        key = asked.key
        ended = await self.dispenser.end(
            asked.worker, {key: _ending(asked)}, fences={key: asked.fence}
        )
        match ended.refused.get(key):
            case None:
                return answers.Accepted()
            case Refusal.NOT_FOUND:
                raise RefusedError(404, f"there is no task {key!r}")
            case Refusal.NOT_HELD:
                raise RefusedError(
                    409, f"{asked.worker} does not hold task {key!r} with fence {asked.fence}"
                )
            case Refusal.NOT_STORABLE:
                raise RefusedError(422, f"the ledger cannot store the report on task {key!r}")
            case other:
                assert_never(other)

    async def renew_task(self, asked: bodies.RenewTask) -> answers.Renewed:
        """Renew leases."""
        return answers.Renewed(held=sorted(await self.dispenser.renew(asked.worker, asked.keys)))

    async def task(self, key: str) -> answers.TaskView:
        """Return all fields of a task."""
        return answers.TaskView.of(await self.tracker.get(key))

    async def tasks(self, asked: bodies.FindTasks) -> answers.Found:
        """Find tasks."""
        page = await self.tracker.find(
            status=None if asked.status is None else Status[asked.status.upper()],
            reason=asked.reason,
            stage=asked.stage,
            since=asked.since,
            until=asked.until,
            limit=asked.limit,
            after=asked.after,
        )
        return answers.Found.of(page)

    async def stats(self) -> answers.Stats:
        """Count the tasks by status and reason."""
        counts = await self.tracker.counts()
        reasons = await self.tracker.reasons()
        due = await self.tracker.ledger.queries.horizon()
        return answers.Stats.of(self.tracker.name, counts, reasons, due)


def _new(asked: bodies.NewTask) -> tracking.NewTask:
    return tracking.NewTask(
        asked.key,
        asked.data,
        priority=asked.priority,
        stage=asked.stage,
        context=asked.context,
        delay=timedelta(seconds=asked.delay),
    )


def _ending(
    asked: bodies.Finished | bodies.Advanced | bodies.Failed | bodies.Ignored | bodies.Released,
) -> Ending:
    match asked:
        case bodies.Finished():
            return tracking.Finish(result=asked.result, data=asked.data)
        case bodies.Advanced():
            return tracking.Advance(
                stage=asked.stage,
                result=asked.result,
                data=asked.data,
                context=asked.context,
                delay=timedelta(seconds=asked.delay),
            )
        case bodies.Failed():
            return tracking.Fail(error=asked.error, again=asked.again)
        case bodies.Ignored():
            return tracking.Ignore(why=asked.error)
        case bodies.Released():
            return tracking.Release()
        case _:
            assert_never(asked)
