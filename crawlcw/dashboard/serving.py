"""Serve the dashboard over HTTP: its routes, its handlers, and its live updates.

Live updates are server-sent events:
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter

import crawlcw
from crawlcw.dashboard.assets import assets
from crawlcw.dashboard.crawls import Crawls, Overview
from crawlcw.dashboard.gate import Gate
from crawlcw.dashboard.history import HistoryQuery, history
from crawlcw.dashboard.items import ListItems, list_items
from crawlcw.dashboard.metrics import scrape
from crawlcw.dashboard.task_views import task_details
from crawlcw.dashboard.tasks import Action, FindTasks, Order, act, give_order, search
from crawlcw.errors import LedgerError
from crawlcw.feeds.escaping import escape_json
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.values import to_json
from crawlcw.server import metrics
from crawlcw.server.access import RefusedError
from crawlcw.server.connections import CONNECTIONS, Connections, Handler, allowed_connections
from crawlcw.server.exchange import json_response, map_errors, read_request
from crawlcw.server.listening import Route, listening, require_token
from crawlcw.server.requests import RequestModel

logger = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=RequestModel)

_MAX_CONNECTIONS = 256
#: Seconds between two live updates.
_UPDATE_INTERVAL = 1.0
#: The server ends the live updates of a client that has read nothing for this number of seconds.
_WRITE_TIMEOUT = 30.0


@asynccontextmanager
async def serving(
    crawls: Crawls, *, host: str, port: int, token: str | None, allowed_hosts: Collection[str] = ()
) -> AsyncIterator[str]:
    """Serve the dashboard of *crawls* in the `with` block, and yield the server's address.

    The server accepts the host names *allowed_hosts*, *host* and the names of loopback. Raises
    `UsageError` if *host* is not loopback and there is no *token*, if the server cannot
    listen at the address, or if the limit of open files is too low.
    """
    require_token(host, token)
    gate = Gate(token=token, hosts=[host, *allowed_hosts])
    dashboard = _Dashboard(crawls, gate)
    async with listening(
        dashboard.routes(),
        host=host,
        port=port,
        connections=Connections(max_connections=allowed_connections(_MAX_CONNECTIONS)),
        check=gate.check,
        middlewares=[map_errors],
        stop=dashboard.stop,
    ) as address:
        yield address


class _Dashboard:
    """The request handlers."""

    def __init__(self, crawls: Crawls, gate: Gate) -> None:
        self._crawls = crawls
        self._gate = gate
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all live updates."""
        self._stopping.set()

    def routes(self) -> Iterator[Route]:
        """Yield the routes of the dashboard with their handlers."""
        for path, handler in assets().items():
            yield "GET", path, handler
        prefix = "/api/crawls/{name}"
        yield "GET", "/api/start", self._start
        yield "GET", "/api/crawls", self._summaries
        yield "GET", f"{prefix}/live", self._live
        yield "GET", f"{prefix}/history", self._handler(HistoryQuery, history)
        yield "GET", f"{prefix}/tasks", self._handler(FindTasks, search)
        yield "GET", f"{prefix}/tasks/{{task:[0-9a-f]{{32}}}}", self._task
        yield "GET", f"{prefix}/items", self._handler(ListItems, list_items)
        yield "POST", f"{prefix}/act", self._handler(Action, act)
        yield "POST", f"{prefix}/steer", self._handler(Order, give_order)
        yield metrics.route(partial(scrape, self._crawls))
        yield "GET", "/{rest:.*}", _not_found

    async def _start(self, _request: web.Request) -> web.Response:
        """Return the data that the page loads first."""
        return json_response(
            {
                "version": crawlcw.__version__,
                "key": self._gate.key,
                "crawls": await self._crawls.names(),
            }
        )

    async def _summaries(self, _request: web.Request) -> web.Response:
        """Return the numbers of each crawl, for the start page."""
        return json_response({"crawls": await self._crawls.summaries()})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Send a crawl's overview every second, until the client leaves or the server ends."""
        overview = await self._overview(request)
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        with suppress(ConnectionError, TimeoutError):
            await response.prepare(request)
            # Count the request as in progress, so that the client's connection stays open.
            request.app[CONNECTIONS].start_work(request)
            while not self._stopping.is_set():
                event = await _event(overview)
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await response.write(event)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _UPDATE_INTERVAL)
        return response

    async def _task(self, request: web.Request) -> web.Response:
        ledger = (await self._overview(request)).ledger
        record = await ledger.tasks.get(bytes.fromhex(request.match_info["task"]))
        if record is None:
            raise RefusedError(404, "no task with this id is recorded")
        return json_response(await task_details(ledger, record))

    def _handler(
        self,
        model: type[RequestT],
        respond: Callable[[Ledger, RequestT], Awaitable[dict[str, Any]]],
    ) -> Handler:
        """Return an HTTP handler that checks a request with *model* and passes it to *respond*."""
        type_adapter: TypeAdapter[RequestT] = TypeAdapter(model)

        async def handler(request: web.Request) -> web.Response:
            overview = await self._overview(request)
            content = await respond(overview.ledger, await read_request(request, type_adapter))
            if request.method == "POST":
                overview.expire()
            return json_response(content)

        return handler

    async def _overview(self, request: web.Request) -> Overview:
        return await self._crawls.overview(request.match_info["name"])


async def _event(overview: Overview) -> bytes:
    try:
        name, data = "overview", await overview.get()
    except LedgerError as error:
        # Do not end the stream, because the ledger may work again later; the page shows the error.
        logger.warning(
            "the ledger is unavailable: %s", printable(error), extra={"event": "refused"}
        )
        name, data = "away", {"error": "the ledger is unavailable"}
    # `to_json` writes no line ends, which would end an event.
    return f"event: {name}\ndata: {escape_json(to_json(data))}\n\n".encode()


async def _not_found(_request: web.Request) -> web.Response:
    raise RefusedError(404, "the dashboard has no such path")
