"""The server's operations: each with its path, request, response and refusals.

The routes and the OpenAPI document are generated from them.
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
F = TypeVar("F", bound=Callable[..., Awaitable[answers.Answer]])

#: Seconds between two polls of a waiting request, because other servers send no signals.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
#: Refusals of any request, in addition to 401 or 403; and those of a request with a body.
_ANY = (422, 503)
_BODY = (400, 408, 413, 415)
#: The ending for each kind of a worker's report.
_ENDINGS: dict[type[bodies.Report], type[Ending]] = {
    bodies.Finished: tracking.Finish,
    bodies.Advanced: tracking.Advance,
    bodies.Failed: tracking.Fail,
    bodies.Ignored: tracking.Ignore,
    bodies.Released: tracking.Release,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One path and method."""

    method: str
    path: str
    summary: str  #: its docstring
    asks: TypeAdapter[Any]  #: the body of a POST, the query of a GET
    gives: type[answers.Answer]
    act: Callable[["Api", Any, web.Request], Awaitable[answers.Answer]]
    refusals: tuple[int, ...]  #: their statuses, except 401 or 403

    @property
    def name(self) -> str:
        """The operationId in the OpenAPI document."""
        return self.path.strip("/").partition("/")[0]


#: All operations, in the order of their declaration.
OPERATIONS: list[Operation] = []


def _operation(
    method: str, path: str, *statuses: int, asks: Any, gives: type[answers.Answer]
) -> Callable[[F], F]:
    """Declare a method of `Api` as an operation."""

    def declare(act: F) -> F:
        operation = Operation(
            method=method,
            path=path,
            summary=" ".join((act.__doc__ or "").split()),
            asks=TypeAdapter(asks),
            gives=gives,
            act=act,
            refusals=(*(_BODY if method == "POST" else ()), *_ANY, *statuses),
        )
        OPERATIONS.append(operation)
        return act

    return declare


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

    @_operation("POST", "/create_task", asks=bodies.CreateTask, gives=answers.Created)
    async def create_task(
        self, asked: bodies.NewTask | bodies.NewTasks, _request: web.Request
    ) -> answers.Created:
        """Add one task, or up to 1,000 `tasks`. Known tasks do not change."""
        tasks = asked.tasks if isinstance(asked, bodies.NewTasks) else [asked]
        result = await self.tracker.add_many(_made(tracking.NewTask, body) for body in tasks)
        rejected = [
            answers.RejectedTask(key=task.url, error=printable(reason))
            for task, reason in result.rejected
        ]
        return answers.Created(new=result.new, known=result.known, rejected=rejected)

    @_operation("POST", "/hold_task", asks=bodies.HoldTask, gives=answers.Held)
    async def hold_task(self, asked: bodies.HoldTask, request: web.Request) -> answers.Held:
        """Claim tasks: the worker's own unfinished tasks, then others by priority, up to the limit.

        Its tasks beyond the limit go back.
        """
        deadline = time.monotonic() + asked.wait
        delay = _FIRST_PAUSE
        while True:
            self.tracker.added.clear()
            held_tasks = await self._dispenser.assign(
                asked.worker, asked.limit, stages=asked.stages, request=asked.request
            )
            remaining = deadline - time.monotonic()
            if held_tasks or not asked.limit or remaining <= 0 or self._stopping:
                return answers.Held(
                    tasks=[answers.HeldTask.model_validate(task) for task in held_tasks]
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(min(delay, remaining)):
                    await self.tracker.added.wait()
            if request.transport is None or request.transport.is_closing():
                return answers.Held(tasks=[])
            delay = min(2 * delay, _LONGEST_PAUSE)

    @_operation("POST", "/set_task", 404, 409, asks=bodies.SetTask, gives=answers.Accepted)
    async def set_task(self, asked: bodies.Report, _request: web.Request) -> answers.Accepted:
        """End a held task. A repeated request is recorded once and has the same answer."""
        key = asked.key
        ending = _made(_ENDINGS[type(asked)], asked)
        result = await self._dispenser.end(asked.worker, {key: ending}, fences={key: asked.fence})
        match result.refused.get(key):
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

    @_operation("POST", "/renew_task", asks=bodies.RenewTask, gives=answers.Renewed)
    async def renew_task(self, asked: bodies.RenewTask, _request: web.Request) -> answers.Renewed:
        """Renew leases; the answer lists the tasks that the worker still holds."""
        return answers.Renewed(held=sorted(await self._dispenser.renew(asked.worker, asked.keys)))

    @_operation("GET", "/task/{key}", 404, asks=bodies.Nothing, gives=answers.TaskView)
    async def task(self, _asked: bodies.Nothing, request: web.Request) -> answers.TaskView:
        """Return all fields of a task."""
        return answers.TaskView.of(await self.tracker.get(request.match_info["key"]))

    @_operation("GET", "/tasks", asks=bodies.FindTasks, gives=answers.Found)
    async def tasks(self, asked: bodies.FindTasks, _request: web.Request) -> answers.Found:
        """Find the tasks that match the filter, the last changed first."""
        page = await self.tracker.find(**dict(asked))
        tasks = [answers.TaskView.of(task) for task in page.tasks]
        return answers.Found(tasks=tasks, after=page.after)

    @_operation("GET", "/stats", asks=bodies.Nothing, gives=answers.Stats)
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


def _made(kind: type[T], body: bodies.Asked) -> T:
    """Return a dataclass with the fields of a request, whose delays are in seconds."""
    values = {field.name: getattr(body, field.name) for field in fields(kind)}  # type: ignore[arg-type]  # all that are made are dataclasses
    if "delay" in values:
        values["delay"] = timedelta(seconds=values["delay"])
    return kind(**values)
