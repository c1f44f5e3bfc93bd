"""Table of the server's operations: path, request, response, refusals and handler.

The routes and the OpenAPI document are generated from this table.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from crawlcw.server import answers, bodies
from crawlcw.server.api import Api
from crawlcw.server.reading import read_body, read_query

#: Refusals of any request, besides 401 or 403; and those of a request with a body.
_ANY = (422, 503)
_BODY = (400, 408, 413, 415)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One path and method."""

    method: str
    path: str
    summary: str
    asks: TypeAdapter[Any]  #: the body of a POST, the query of a GET
    gives: type[answers.Answer]
    refusals: tuple[int, ...]
    act: Callable[[Api, Any, web.Request], Awaitable[answers.Answer]]

    @property
    def name(self) -> str:
        """The operationId in the OpenAPI document."""
        return self.path.strip("/").partition("/")[0]

    async def answer(self, api: Api, request: web.Request) -> answers.Answer:
        """Validate a request and execute it."""
        if self.method == "POST":
            asked = await read_body(request, self.asks)
        else:
            asked = read_query(request, self.asks)
        return await self.act(api, asked, request)


def _operation(
    method: str,
    path: str,
    summary: str,
    asks: Any,
    answer: type[answers.Answer],
    act: Callable[[Api, Any, web.Request], Awaitable[answers.Answer]],
    *refusals: int,
) -> Operation:
    of_bodies = _BODY if method == "POST" else ()
    return Operation(
        method=method,
        path=path,
        summary=summary,
        asks=TypeAdapter(asks),
        gives=answer,
        refusals=(*of_bodies, *_ANY, *refusals),
        act=act,
    )


OPERATIONS = (
    _operation(
        "POST",
        "/create_task",
        "Add one task, or up to 1,000 `tasks`. Known tasks do not change.",
        bodies.CreateTask,
        answers.Created,
        lambda api, asked, _: api.create_task(asked),
    ),
    _operation(
        "POST",
        "/hold_task",
        "Claim tasks: the worker's own unfinished tasks first, then others by priority, up to "
        "the limit. Its tasks beyond the limit go back.",
        bodies.HoldTask,
        answers.Held,
        lambda api, asked, request: api.hold_task(asked, gone=lambda: _is_gone(request)),
    ),
    _operation(
        "POST",
        "/set_task",
        "End a held task. A repeated request is recorded once and has the same answer.",
        bodies.SetTask,
        answers.Accepted,
        lambda api, asked, _: api.set_task(asked),
        404,
        409,
    ),
    _operation(
        "POST",
        "/renew_task",
        "Renew leases; the answer lists the tasks that the worker still holds.",
        bodies.RenewTask,
        answers.Renewed,
        lambda api, asked, _: api.renew_task(asked),
    ),
    _operation(
        "GET",
        "/task/{key}",
        "All fields of a task.",
        bodies.Nothing,
        answers.TaskView,
        lambda api, _, request: api.task(request.match_info["key"]),
        404,
    ),
    _operation(
        "GET",
        "/tasks",
        "The tasks that match the filter, the last changed first.",
        bodies.FindTasks,
        answers.Found,
        lambda api, asked, _: api.tasks(asked),
    ),
    _operation(
        "GET",
        "/stats",
        "Number of tasks by status and reason.",
        bodies.Nothing,
        answers.Stats,
        lambda api, _asked, _request: api.stats(),
    ),
)


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
