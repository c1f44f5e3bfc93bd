"""HTTP server of tracked tasks."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from crawlcw.server.access import Access
from crawlcw.server.api import Api
from crawlcw.server.connections import Connections, Deadlines, places
from crawlcw.server.listening import application, check_reach, listening
from crawlcw.server.metrics import answer_of
from crawlcw.server.openapi import document
from crawlcw.server.operations import OPERATIONS, Operation
from crawlcw.server.refusals import answered, told
from crawlcw.server.request_metrics import RequestMetrics
from crawlcw.tracking import Tracker

#: Default limit of open connections.
MOST_CONNECTIONS = 256
DEADLINES = Deadlines()


@asynccontextmanager
async def serving(
    tracker: Tracker,
    *,
    host: str,
    port: int,
    token: str | None,
    max_connections: int = MOST_CONNECTIONS,
) -> AsyncIterator[str]:
    """Serve a tracker's tasks within the block, and yield the address.

    At its end requests under way are answered, and no new ones are accepted. Raises
    `UsageError` if *host* is not loopback and there is no *token*, if the server cannot
    listen at the address, or if the limit of open files is too low.
    """
    check_reach(host, token)
    api = Api(tracker)
    connections = Connections(most=places(max_connections), deadlines=DEADLINES)
    served = _application(api, Access(token), connections)
    async with listening(served, host=host, port=port, stop=api.stop) as address:
        yield address


def _application(api: Api, access: Access, connections: Connections) -> web.Application:
    def handler_of(operation: Operation) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            return answered(await operation.answer(api, request))

        return handler

    requests = RequestMetrics(api.tracker)
    described = json.dumps(document(api.tracker.name, needs_token=access.needs_token)).encode()

    async def openapi(_request: web.Request) -> web.Response:
        return web.Response(body=described, content_type="application/json")

    served = application(connections, access.check, around=[requests.counted, told])
    for each in OPERATIONS:
        # A key may contain slashes and line ends.
        path = each.path.replace("{key}", r"{key:[\s\S]+}")
        served.router.add_route(each.method, path, handler_of(each))
    served.router.add_route("GET", "/openapi.json", openapi)
    served.router.add_route("GET", "/metrics", answer_of(requests.scrape))
    return served
