"""Serve tracked tasks over HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from crawlcw.server import metrics
from crawlcw.server.access import Access
from crawlcw.server.connections import Connections, Deadlines, allowed_connections
from crawlcw.server.exchange import json_response, map_errors, read_request
from crawlcw.server.listening import Route, listening, require_token
from crawlcw.server.openapi import document
from crawlcw.server.operations import OPERATIONS, Api, Operation
from crawlcw.tracking import Tracker

#: The default limit of open connections.
MAX_CONNECTIONS = 256
DEADLINES = Deadlines()


@asynccontextmanager
async def serving(
    tracker: Tracker,
    *,
    host: str,
    port: int,
    token: str | None,
    max_connections: int = MAX_CONNECTIONS,
) -> AsyncIterator[str]:
    """Serve a tracker's tasks over HTTP within a `with` block, and yield the server's address.

    At the end of the block the server accepts no new requests and completes the running requests.
    Raises `UsageError` if the server cannot listen at *host* and *port*, if the limit of open files
    is too low, or if other machines can reach *host* and there is no *token*.
    """
    require_token(host, token)
    api = Api(tracker)
    request_metrics = metrics.RequestMetrics(tracker.name, tracker.counts)
    document_json = json.dumps(document(tracker.name, needs_token=token is not None)).encode()

    async def openapi(_request: web.Request) -> web.Response:
        return web.Response(body=document_json, content_type="application/json")

    async with listening(
        [
            *(_route(api, operation) for operation in OPERATIONS),
            ("GET", "/openapi.json", openapi),
            metrics.route(request_metrics.scrape),
        ],
        host=host,
        port=port,
        connections=Connections(
            max_connections=allowed_connections(max_connections), deadlines=DEADLINES
        ),
        check=Access(token).check,
        middlewares=[request_metrics.count_request, map_errors],
        stop=api.stop,
    ) as address:
        yield address


def _route(api: Api, operation: Operation) -> Route:
    async def handler(request: web.Request) -> web.Response:
        parameters = await read_request(request, operation.accepts)
        return json_response((await operation.api_method(api, parameters, request)).model_dump())

    # The parameter `{key}` may contain any character, because a key may have slashes and line ends.
    path = operation.path.replace("{key}", r"{key:[\s\S]+}")
    return operation.method, path, handler
