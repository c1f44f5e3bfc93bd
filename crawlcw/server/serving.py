"""The server on its socket, from the first request to the last."""

import errno
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from crawlcw.errors import UsageError
from crawlcw.server.access import Access, is_loopback
from crawlcw.server.api import Api
from crawlcw.server.openapi import document
from crawlcw.server.operations import OPERATIONS, Operation
from crawlcw.server.reading import LARGEST_BODY
from crawlcw.server.refusals import answered, told
from crawlcw.tracking import Tracker

logger = logging.getLogger(__name__)

#: The address of the longest key is some 12 KiB.
_LONGEST_LINE = 64 << 10
#: Seconds that requests under way have to end when the server does.
_LAST_SECONDS = 20.0


@asynccontextmanager
async def serving(
    tracker: Tracker, *, host: str, port: int, token: str | None
) -> AsyncIterator[str]:
    """Serve a tracker's tasks within the block, and yield the address.

    At its end requests under way are answered and no others are taken. Raises
    `UsageError` where *host* is not loopback and there is no *token*, and where
    the address cannot be listened at.
    """
    check_reach(host, token)
    api = Api(tracker)
    runner = web.AppRunner(
        _application(api, Access(token)),
        access_log=None,
        # What is no HTTP is told of here: a few times, and then counted.
        logger=logger,
        # An encoded body is refused as it is: one that is unpacked may be a bomb, or broken.
        auto_decompress=False,
        max_line_size=_LONGEST_LINE,
        shutdown_timeout=_LAST_SECONDS,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:
            raise UsageError(_why_not(host, port, error)) from error
        yield _address(runner)
    finally:
        api.stop()
        await runner.cleanup()


def check_reach(host: str, token: str | None) -> None:
    """Raise `UsageError` where strangers could ask and no token would stop them."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached by others: give a token by --token-file or CRAWLCW_TOKEN, "
            "or serve on 127.0.0.1"
        )


def _application(api: Api, access: Access) -> web.Application:
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

    described = json.dumps(document(api.tracker.name, needs_token=access.needs_token)).encode()

    async def openapi(_request: web.Request) -> web.Response:
        return web.Response(body=described, content_type="application/json")

    application = web.Application(client_max_size=LARGEST_BODY, middlewares=[told, guarded])
    application.on_response_prepare.append(_plain)
    for each in OPERATIONS:
        # A key may have slashes in it.
        path = each.path.replace("{key}", "{key:.+}")
        application.router.add_route(each.method, path, handler_of(each))
    application.router.add_route("GET", "/openapi.json", openapi)
    return application


async def _plain(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why_not(host: str, port: int, error: Exception) -> str:
    place = f"port {port} of {host}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{place} is in use: another --port is needed, or there is a server already"
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"there is no host {host!r}"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine"
    return f"{place} cannot be listened at: {error}"
