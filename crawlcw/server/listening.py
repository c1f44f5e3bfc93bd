"""Serve a web application on a socket, with bounded connections and a graceful shutdown."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from crawlcw.errors import UsageError
from crawlcw.server.access import is_loopback
from crawlcw.server.connections import CONNECTIONS, Connections

logger = logging.getLogger(__name__)

LARGEST_BODY = 8 << 20
#: The URL of the longest key has about 12 KiB.
_LONGEST_LINE = 64 << 10
#: Seconds for requests under way to end at shutdown.
_LAST_SECONDS = 20.0
#: Seconds for their answers to reach the clients after that.
_LAST_ANSWERS = 1.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    connections: Connections,
    check: Callable[[web.Request], None],
    *,
    around: Sequence[Middleware],
) -> web.Application:
    """Return an application without routes; *check* raises if it refuses a request.

    The middlewares *around* that turn its exceptions into responses.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        check(request)
        return await handler(request)

    under_way = _UnderWay(connections)
    made = web.Application(
        client_max_size=LARGEST_BODY, middlewares=[under_way.counted, *around, guarded]
    )
    made[CONNECTIONS] = connections
    made[_UNDER_WAY] = under_way
    made.on_response_prepare.append(_plain)
    made.on_response_prepare.append(connections.answered)
    return made


@asynccontextmanager
async def listening(
    served: web.Application,
    *,
    host: str,
    port: int,
    stop: Callable[[], None] = lambda: None,
    subject: str = "",
) -> AsyncIterator[str]:
    """Serve an `application` within the block, and yield the address.

    At its end the socket closes, *stop* is called, and requests under way are answered.
    Raises `UsageError`, which begins with *subject*, if the server cannot listen at the address.
    """
    runner = web.AppRunner(
        served,
        access_log=None,
        # aiohttp logs malformed HTTP here.
        logger=_WithoutTracebacks(logger),
        # Encoded bodies are refused without decoding: they may be broken, or a zip bomb.
        auto_decompress=False,
        max_line_size=_LONGEST_LINE,
        shutdown_timeout=_LAST_ANSWERS,
    )
    await runner.setup()
    assert runner.server is not None
    protocols = served[CONNECTIONS].protocols(runner.server)
    try:
        try:
            sockets = await asyncio.get_running_loop().create_server(protocols, host, port)
        except (OSError, UnicodeError) as error:
            raise UsageError(subject + _why_not(host, port, error)) from error
        try:
            yield _address_of(sockets)
        finally:
            sockets.close()
        stop()
        # aiohttp's cleanup stops all reading, even of a body that a handler awaits.
        await served[_UNDER_WAY].ended(within=_LAST_SECONDS)
    finally:
        await runner.cleanup()


def check_reach(host: str, token: str | None) -> None:
    """Raise `UsageError` for an address beyond loopback without a token."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"other machines can reach {host}: give a token by --token-file or CRAWLCW_TOKEN, "
            "or serve on 127.0.0.1"
        )


def _address_of(listening: asyncio.Server) -> str:
    host, port = listening.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why_not(host: str, port: int, error: Exception) -> str:
    """Return the reason why the server cannot listen at *port* of *host*, as a sentence."""
    place = f"port {port} of {host}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{place} is in use: choose another port, or stop the server that uses it"
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"there is no host {host!r}"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen at {place}: {error}"


class _UnderWay:
    """Counter of the requests under way."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._number = 0
        self._none = asyncio.Event()
        self._none.set()
        self._last = False

    @web.middleware
    async def counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
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
        """Wait for the last request, at most *within* seconds; close connections after answers."""
        self._last = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._none.wait(), within)


_UNDER_WAY = web.AppKey("under_way", _UnderWay)


class _WithoutTracebacks(logging.LoggerAdapter[logging.Logger]):
    """Logs aiohttp's messages without tracebacks: any client can provoke them."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "exc_info": None}


async def _plain(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
