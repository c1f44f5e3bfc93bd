"""The server's operations: what each does on the tracker, and the table of all.

The routes and the OpenAPI document are generated from the table.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeVar, assert_never

from aiohttp import web
from pydantic import TypeAdapter

from crawlcw import tracking
from crawlcw.model.sanitize import printable
from crawlcw.server import answers, bodies
from crawlcw.server.access import RefusedError
from crawlcw.tracking import Dispenser, Ending, Refusal, Tracker

T = TypeVar("T")

#: Seconds between two polls of a waiting request: other servers add tasks without a signal.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
#: Refusals of any request, besides 401 or 403; and those of a request with a body.
_ANY = (422, 503)
_BODY = (400, 408, 413, 415)
#: The ending that each report of a worker is.
_ENDINGS: dict[type[bodies.Report], type[Ending]] = {
    bodies.Finished: tracking.Finish,
    bodies.Advanced: tracking.Advance,
    bodies.Failed: tracking.Fail,
    bodies.Ignored: tracking.Ignore,
    bodies.Released: tracking.Release,
}


class Api:
    """The requests of one server."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._dispenser = Dispenser(tracker)
        self._stopping = False

    def stop(self) -> None:
        """Answer the requests that wait for tasks, and let none wait from now on."""
        self._stopping = True
        self.tracker.added.set()

    async def create_task(
        self, asked: bodies.NewTask | bodies.NewTasks, _request: web.Request
    ) -> answers.Created:
        """Add tasks."""
        tasks = asked.tasks if isinstance(asked, bodies.NewTasks) else [asked]
        added = await self.tracker.add_many(_made(tracking.NewTask, each) for each in tasks)
        rejected = [
            answers.RejectedTask(key=task.url, error=printable(why)) for task, why in added.rejected
        ]
        return answers.Created(new=added.new, known=added.known, rejected=rejected)

    async def hold_task(self, asked: bodies.HoldTask, request: web.Request) -> answers.Held:
        """Hand out a share."""
        end = time.monotonic() + asked.wait
        pause = _FIRST_PAUSE
        while True:
            self.tracker.added.clear()
            share = await self._dispenser.assign(
                asked.worker, asked.limit, stages=asked.stages, request=asked.request
            )
            left = end - time.monotonic()
            if share or not asked.limit or left <= 0 or self._stopping:
                return answers.Held(tasks=[answers.HeldTask.model_validate(each) for each in share])
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, left)):
                    await self.tracker.added.wait()
            if request.transport is None or request.transport.is_closing():
                return answers.Held(tasks=[])
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def set_task(self, asked: bodies.Report, _request: web.Request) -> answers.Accepted:
        """End a task that is held."""
        key = asked.key
        ending = _made(_ENDINGS[type(asked)], asked)
        ended = await self._dispenser.end(asked.worker, {key: ending}, fences={key: asked.fence})
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

    async def renew_task(self, asked: bodies.RenewTask, _request: web.Request) -> answers.Renewed:
        """Renew leases."""
        return answers.Renewed(held=sorted(await self._dispenser.renew(asked.worker, asked.keys)))

    async def task(self, _asked: bodies.Nothing, request: web.Request) -> answers.TaskView:
        """Return all fields of a task."""
        return answers.TaskView.of(await self.tracker.get(request.match_info["key"]))

    async def tasks(self, asked: bodies.FindTasks, _request: web.Request) -> answers.Found:
        """Find tasks."""
        page = await self.tracker.find(**dict(asked))
        tasks = [answers.TaskView.of(task) for task in page.tasks]
        return answers.Found(tasks=tasks, after=page.after)

    async def stats(self, _asked: bodies.Nothing, _request: web.Request) -> answers.Stats:
        """Count the tasks by status and reason."""
        counts = await self.tracker.counts()
        return answers.Stats(
            use_case=self.tracker.name,
            total=counts.total,
            counts=answers.Counts(**counts.by_name()),
            reasons=await self.tracker.reasons(),
            next_due=await self.tracker.ledger.queries.horizon(),
        )


def _made(kind: type[T], asked: bodies.Asked) -> T:
    """Return a dataclass with the fields of a request, whose delays are in seconds."""
    found = {field.name: getattr(asked, field.name) for field in fields(kind)}  # type: ignore[arg-type]  # all that are made are dataclasses
    if "delay" in found:
        found["delay"] = timedelta(seconds=found["delay"])
    return kind(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One path and method."""

    method: str
    path: str
    summary: str
    asks: TypeAdapter[Any]  #: the body of a POST, the query of a GET
    gives: type[answers.Answer]
    act: Callable[[Api, Any, web.Request], Awaitable[answers.Answer]]
    own_refusals: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The operationId in the OpenAPI document."""
        return self.path.strip("/").partition("/")[0]

    @property
    def refusals(self) -> tuple[int, ...]:
        """Statuses of all refusals, except 401 or 403."""
        return (*(_BODY if self.method == "POST" else ()), *_ANY, *self.own_refusals)


OPERATIONS = (
    Operation(
        method="POST",
        path="/create_task",
        summary="Add one task, or up to 1,000 `tasks`. Known tasks do not change.",
        asks=TypeAdapter(bodies.CreateTask),
        gives=answers.Created,
        act=Api.create_task,
    ),
    Operation(
        method="POST",
        path="/hold_task",
        summary="Claim tasks: the worker's own unfinished tasks first, then others by priority, up "
        "to the limit. Its tasks beyond the limit go back.",
        asks=TypeAdapter(bodies.HoldTask),
        gives=answers.Held,
        act=Api.hold_task,
    ),
    Operation(
        method="POST",
        path="/set_task",
        summary="End a held task. A repeated request is recorded once and has the same answer.",
        asks=TypeAdapter(bodies.SetTask),
        gives=answers.Accepted,
        act=Api.set_task,
        own_refusals=(404, 409),
    ),
    Operation(
        method="POST",
        path="/renew_task",
        summary="Renew leases; the answer lists the tasks that the worker still holds.",
        asks=TypeAdapter(bodies.RenewTask),
        gives=answers.Renewed,
        act=Api.renew_task,
    ),
    Operation(
        method="GET",
        path="/task/{key}",
        summary="All fields of a task.",
        asks=TypeAdapter(bodies.Nothing),
        gives=answers.TaskView,
        act=Api.task,
        own_refusals=(404,),
    ),
    Operation(
        method="GET",
        path="/tasks",
        summary="The tasks that match the filter, the last changed first.",
        asks=TypeAdapter(bodies.FindTasks),
        gives=answers.Found,
        act=Api.tasks,
    ),
    Operation(
        method="GET",
        path="/stats",
        summary="Number of tasks by status and reason.",
        asks=TypeAdapter(bodies.Nothing),
        gives=answers.Stats,
        act=Api.stats,
    ),
)
