"""Define the operations of the task server: path, request, response and refusals.

The server's routes and its OpenAPI document are generated from the list of operations.
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
from crawlcw.server import requests, responses
from crawlcw.server.access import RefusedError
from crawlcw.tracking import Dispenser, Ending, Refusal, Tracker

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[responses.ResponseModel]])

#: The shortest and the longest pause, in seconds, between two searches for due tasks within one
#: request. Polling is necessary, because another server that adds tasks sends no signal.
_MIN_PAUSE_S = 0.1
_MAX_PAUSE_S = 1.0
#: Statuses of refused requests, besides 401 and 403. `_WITH_BODY` is for requests with a body.
_ANY_REQUEST = (422, 503)
_WITH_BODY = (400, 408, 413, 415)
#: Maps each type of a worker's report to the class in `tracking` that ends a task in the same way.
_ENDINGS: dict[type[requests.Report], type[Ending]] = {
    requests.Finished: tracking.Finish,
    requests.Advanced: tracking.Advance,
    requests.Failed: tracking.Fail,
    requests.Ignored: tracking.Ignore,
    requests.Released: tracking.Release,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of the server, with its HTTP method and path."""

    method: str
    path: str
    summary: str  #: text of the docstring
    accepts: TypeAdapter[Any]  #: model of the POST body or of the GET query
    returns: type[responses.ResponseModel]
    api_method: Callable[["Api", Any, web.Request], Awaitable[responses.ResponseModel]]
    refusals: tuple[int, ...]  #: HTTP statuses of refusals, in addition to 401 and 403

    @property
    def name(self) -> str:
        """The name of the operation, which is the operationId in the OpenAPI document."""
        return self.path.strip("/").partition("/")[0]


#: All operations, in the order of their declaration.
OPERATIONS: list[Operation] = []


def _operation(
    method: str, path: str, *statuses: int, accepts: Any, returns: type[responses.ResponseModel]
) -> Callable[[F], F]:
    """Declare a method of `Api` as an operation of the server."""

    def declare(api_method: F) -> F:
        operation = Operation(
            method=method,
            path=path,
            summary=" ".join((api_method.__doc__ or "").split()),
            accepts=TypeAdapter(accepts),
            returns=returns,
            api_method=api_method,
            refusals=(*(_WITH_BODY if method == "POST" else ()), *_ANY_REQUEST, *statuses),
        )
        OPERATIONS.append(operation)
        return api_method

    return declare


class Api:
    """The functions that carry out the operations of one server."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._dispenser = Dispenser(tracker)
        self._stopping = False

    def stop(self) -> None:
        """End all requests that wait for tasks, because the server stops."""
        self._stopping = True
        self.tracker.tasks_due.set()

    @_operation("POST", "/create_task", accepts=requests.CreateTask, returns=responses.Created)
    async def create_task(
        self, body: requests.NewTask | requests.NewTasks, _request: web.Request
    ) -> responses.Created:
        """Add one task, or up to 1,000 `tasks`. Existing tasks do not change."""
        tasks = body.tasks if isinstance(body, requests.NewTasks) else [body]
        result = await self.tracker.add_many(
            _to_dataclass(tracking.NewTask, body) for body in tasks
        )
        rejected = [
            responses.RejectedTask(key=task.url, error=printable(reason))
            for task, reason in result.rejected
        ]
        return responses.Created(new=result.new, existing=result.existing, rejected=rejected)

    @_operation("POST", "/claim_task", accepts=requests.ClaimTask, returns=responses.ClaimedTasks)
    async def claim_task(
        self, body: requests.ClaimTask, request: web.Request
    ) -> responses.ClaimedTasks:
        """Claim tasks: first the worker's unfinished tasks, then new tasks by priority.

        At most `limit` tasks are claimed. Unfinished tasks beyond `limit` are released.
        """
        deadline = time.monotonic() + body.wait
        delay = _MIN_PAUSE_S
        while True:
            self.tracker.tasks_due.clear()
            claimed_tasks = await self._dispenser.assign(
                body.worker, body.limit, stages=body.stages, request=body.request
            )
            remaining = deadline - time.monotonic()
            if claimed_tasks or not body.limit or remaining <= 0 or self._stopping:
                return responses.ClaimedTasks(
                    tasks=[responses.ClaimedTask.model_validate(task) for task in claimed_tasks]
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(min(delay, remaining)):
                    await self.tracker.tasks_due.wait()
            if request.transport is None or request.transport.is_closing():
                return responses.ClaimedTasks(tasks=[])
            delay = min(2 * delay, _MAX_PAUSE_S)

    @_operation("POST", "/end_task", 404, 409, accepts=requests.EndTask, returns=responses.Accepted)
    async def end_task(self, body: requests.Report, _request: web.Request) -> responses.Accepted:
        """End a leased task. A repeated request changes nothing, and gets the earlier response."""
        key = body.key
        ending = _to_dataclass(_ENDINGS[type(body)], body)
        result = await self._dispenser.end(body.worker, {key: ending}, fences={key: body.fence})
        match result.refused.get(key):
            case None:
                return responses.Accepted()
            case Refusal.NOT_FOUND:
                raise RefusedError(404, f"task {key!r} does not exist")
            case Refusal.NOT_LEASED:
                raise RefusedError(
                    409, f"{body.worker} does not hold task {key!r} with fence {body.fence}"
                )
            case Refusal.NOT_STORABLE:
                raise RefusedError(422, f"the ledger cannot store the result of task {key!r}")
            case unknown:
                assert_never(unknown)

    @_operation("POST", "/renew_task", accepts=requests.RenewTask, returns=responses.Renewed)
    async def renew_task(
        self, body: requests.RenewTask, _request: web.Request
    ) -> responses.Renewed:
        """Renew a worker's leases, and return the keys of the tasks whose leases were renewed."""
        return responses.Renewed(keys=sorted(await self._dispenser.renew(body.worker, body.keys)))

    @_operation(
        "GET", "/task/{key}", 404, accepts=requests.NoParameters, returns=responses.TaskView
    )
    async def task(self, _query: requests.NoParameters, request: web.Request) -> responses.TaskView:
        """Return all fields of a task."""
        return responses.TaskView.of(await self.tracker.get(request.match_info["key"]))

    @_operation("GET", "/tasks", accepts=requests.FindTasks, returns=responses.TaskPage)
    async def tasks(self, query: requests.FindTasks, _request: web.Request) -> responses.TaskPage:
        """Find the tasks that match the filter, sorted by their last change, newest first."""
        page = await self.tracker.find(**dict(query))
        tasks = [responses.TaskView.of(task) for task in page.tasks]
        return responses.TaskPage(tasks=tasks, next_cursor=page.next_cursor)

    @_operation("GET", "/stats", accepts=requests.NoParameters, returns=responses.Stats)
    async def stats(self, _query: requests.NoParameters, _request: web.Request) -> responses.Stats:
        """Count the use case's tasks by status and by reason."""
        counts = await self.tracker.counts()
        return responses.Stats(
            use_case=self.tracker.name,
            total=counts.total,
            counts=responses.Counts(**counts.by_name()),
            reasons=await self.tracker.reasons(),
            next_due=await self.tracker.ledger.queries.next_due(),
        )


def _to_dataclass(dataclass_type: type[T], body: requests.RequestModel) -> T:
    """Return an object of *dataclass_type* with the fields of *body*; `delay` is a timedelta."""
    values = {field.name: getattr(body, field.name) for field in fields(dataclass_type)}  # type: ignore[arg-type]  # `T` is a dataclass
    if "delay" in values:
        values["delay"] = timedelta(seconds=values["delay"])
    return dataclass_type(**values)
