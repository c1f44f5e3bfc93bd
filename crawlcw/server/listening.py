"""Serve a web application on a socket, with bounded connections and a graceful shutdown."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from crawlcw.errors import UsageError
from crawlcw.server.access import is_loopback
from crawlcw.server.connections import CONNECTIONS, Connections, Handler

logger = logging.getLogger(__name__)

MAX_BODY = 8 << 20
#: The maximum length of a request line; the URL of the longest task key has about 12 KiB.
_MAX_LINE = 64 << 10
#: When the server stops, it waits at most this number of seconds for running requests.
_SHUTDOWN_S = 20.0
#: When the server stops, clients may read the last responses for this number of seconds.
_LAST_RESPONSES_S = 1.0

#: HTTP method, path, and the function that handles the requests.
Route = tuple[str, str, Handler]


@asynccontextmanager
async def listening(
    routes: Iterable[Route],
    *,
    host: str,
    port: int,
    connections: Connections,
    check: Callable[[web.Request], None],
    middlewares: Sequence[Middleware],
    stop: Callable[[], None] = lambda: None,
    subject: str = "",
) -> AsyncIterator[str]:
    """Serve *routes* over HTTP within a `with` block, and yield the server's address.

    *check* raises an exception to refuse a request. The *middlewares* convert exceptions into
    responses. At the end of the block the server closes its socket, calls *stop*, and completes the
    running requests. Raises `UsageError`, whose text begins with *subject*, if the server cannot
    listen at *host* and *port*.
    """

    @web.middleware
    async def check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
        check(request)
        return await handler(request)

    app = web.Application(
        client_max_size=MAX_BODY,
        middlewares=[connections.count_request, *middlewares, check_access],
    )
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    app[CONNECTIONS] = connections
    app.on_response_prepare.append(_set_headers)
    app.on_response_prepare.append(connections.start_idle)
    runner = web.AppRunner(
        app,
        access_log=None,
        # aiohttp logs malformed requests to this logger.
        logger=_WithoutTracebacks(logger),
        # Do not decompress bodies, because a compressed body may be a zip bomb.
        auto_decompress=False,
        max_line_size=_MAX_LINE,
        shutdown_timeout=_LAST_RESPONSES_S,
    )
    await runner.setup()
    assert runner.server is not None
    protocol_factory = connections.protocols(runner.server)
    try:
        try:
            sockets = await asyncio.get_running_loop().create_server(protocol_factory, host, port)
        except (OSError, UnicodeError) as error:
            raise UsageError(subject + _bind_error(host, port, error)) from error
        try:
            yield _address_of(sockets)
        finally:
            sockets.close()
        stop()
        # Wait before aiohttp's cleanup, which would stop reading the bodies of running requests.
        await connections.wait_for_requests(within=_SHUTDOWN_S)
    finally:
        await runner.cleanup()


def require_token(host: str, token: str | None) -> None:
    """Raise `UsageError` if other machines can reach *host* and there is no token."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"other machines can reach {host}: set a token by --token-file or CRAWLCW_TOKEN, "
            "or serve on 127.0.0.1"
        )


def _address_of(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind_error(host: str, port: int, error: Exception) -> str:
    """Return a sentence that says why the server cannot listen at *port* of *host*."""
    address = f"port {port} of {host}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{address} is in use: choose another port, or stop the server that uses it"
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the host {host!r} does not exist"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen at {address}: {error}"


class _WithoutTracebacks(logging.LoggerAdapter[logging.Logger]):
    """Logs aiohttp's messages without tracebacks, because any client could fill a log with them."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "exc_info": None}


async def _set_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
