"""The server on its socket, from the first request to the last."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from crawlcw.errors import UsageError
from crawlcw.server.access import Access, is_loopback
from crawlcw.server.api import Api
from crawlcw.server.connections import Connections, Deadlines, places
from crawlcw.server.metrics import answer_of
from crawlcw.server.openapi import document
from crawlcw.server.operations import OPERATIONS, Operation
from crawlcw.server.reading import CONNECTIONS, LARGEST_BODY
from crawlcw.server.refusals import answered, told
from crawlcw.server.request_metrics import RequestMetrics
from crawlcw.server.sockets import address_of, why_not
from crawlcw.tracking import Tracker

logger = logging.getLogger(__name__)

#: How many connections there are by default at the most.
MOST_CONNECTIONS = 256
DEADLINES = Deadlines()
#: The address of the longest key is some 12 KiB.
_LONGEST_LINE = 64 << 10
#: Seconds that requests under way have to end when the server does.
_LAST_SECONDS = 20.0
#: And what is answered by then, to arrive.
_LAST_ANSWERS = 1.0


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

    At its end requests under way are answered and no others are taken. Raises
    `UsageError` where *host* is not loopback and there is no *token*, where
    the address cannot be listened at, and where hardly a file may be opened.
    """
    check_reach(host, token)
    api = Api(tracker)
    connections = Connections(most=places(max_connections), deadlines=DEADLINES)
    under_way = _UnderWay(connections)
    runner = web.AppRunner(
        _application(api, Access(token), under_way, connections),
        access_log=None,
        # What is no HTTP is told of here: a few times, and then counted.
        logger=_WithoutTracebacks(logger),
        # An encoded body is refused as it is: one that is unpacked may be a bomb, or broken.
        auto_decompress=False,
        max_line_size=_LONGEST_LINE,
        shutdown_timeout=_LAST_ANSWERS,
    )
    await runner.setup()
    assert runner.server is not None
    protocols = connections.protocols(runner.server)
    try:
        try:
            listening = await asyncio.get_running_loop().create_server(protocols, host, port)
        except (OSError, UnicodeError) as error:
            raise UsageError(why_not(host, port, error)) from error
        try:
            yield address_of(listening)
        finally:
            listening.close()
        api.stop()
        # aiohttp reads nothing any more once it cleans up, not even the rest of a
        # body that somebody waits for.
        await under_way.ended(within=_LAST_SECONDS)
    finally:
        await runner.cleanup()


def check_reach(host: str, token: str | None) -> None:
    """Raise `UsageError` where strangers could ask and no token would stop them."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached by others: give a token by --token-file or CRAWLCW_TOKEN, "
            "or serve on 127.0.0.1"
        )


class _UnderWay:
    """The requests that are being answered."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._number = 0
        self._none = asyncio.Event()
        self._none.set()
        self._last = False

    @web.middleware
    async def counted(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Count a request while it is answered."""
        self._connections.asked(request)
        self._number += 1
        self._none.clear()
        try:
            response = await handler(request)
        finally:
            self._number -= 1
            if not self._number:
                self._none.set()
        if self._last:
            response.force_close()
        return response

    async def ended(self, *, within: float) -> None:
        """Wait until none is left, or for so many seconds; connections end with their answers."""
        self._last = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._none.wait(), within)


def _application(
    api: Api, access: Access, under_way: _UnderWay, connections: Connections
) -> web.Application:
    @web.middleware
    async def guarded(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        access.check(request)
        return await handler(request)

    def handler_of(operation: Operation) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            return answered(await operation.answer(api, request))

        return handler

    requests = RequestMetrics(api.tracker)
    described = json.dumps(document(api.tracker.name, needs_token=access.needs_token)).encode()

    async def openapi(_request: web.Request) -> web.Response:
        return web.Response(body=described, content_type="application/json")

    application = web.Application(
        client_max_size=LARGEST_BODY,
        middlewares=[under_way.counted, requests.counted, told, guarded],
    )
    application[CONNECTIONS] = connections
    application.on_response_prepare.append(_plain)
    application.on_response_prepare.append(connections.answered)
    for each in OPERATIONS:
        # A key may have slashes in it.
        path = each.path.replace("{key}", "{key:.+}")
        application.router.add_route(each.method, path, handler_of(each))
    application.router.add_route("GET", "/openapi.json", openapi)
    application.router.add_route("GET", "/metrics", answer_of(requests.scrape))
    return application


class _WithoutTracebacks(logging.LoggerAdapter[logging.Logger]):
    """Tells what aiohttp has to say in a line: it is strangers who make it say so."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "exc_info": None}


async def _plain(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
