"""Limit the number of connections, and the time for which a client may keep the server waiting.

aiohttp accepts any number of connections, waits an hour for the headers of a request, and waits
without limit for a body. So a few hundred silent clients would block all other clients. On every
connection a protocol of this module forwards the data to aiohttp's protocol. If a client connects
when the limit is reached, the server closes the connection whose client has kept the server waiting
longest. The server never ends a running request to accept a new connection.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from crawlcw.errors import UsageError
from crawlcw.server.access import RefusedError

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: The number of file descriptors to leave for the ledger, the log and the event loop.
_OTHER_FILES = 128
#: The server refuses to start if the system allows fewer than this number of connections.
_MIN_CONNECTIONS = 16
#: The number of refused clients that may receive a 503 at the same time.
_MAX_REFUSALS = 32
#: Seconds that a client has to read the last response on its connection.
_LAST_RESPONSE_S = 1.0
#: Seconds between two warnings about the limit of connections.
_WARNING_INTERVAL_S = 60.0
_FULL_BODY = b'{"error":"the server has no free connection: try again"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: application/json\r\n"
    b"Content-Length: %d\r\n"
    b"Cache-Control: no-store\r\n"
    b"Retry-After: 1\r\n"
    b"Connection: close\r\n"
    b"\r\n"
    b"%s"
) % (len(_FULL_BODY), _FULL_BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """The limits, in seconds, of the time for which a client may keep the server waiting."""

    headers: float = 10.0  #: from a request's first byte to the end of its headers
    body: float = 30.0  #: from the end of the headers to the end of the body
    idle: float = 75.0  #: from the start of a response to the start of the next request


class Connections:
    """The open connections and the running requests of one server."""

    def __init__(self, *, max_connections: int, deadlines: Deadlines = Deadlines()) -> None:
        self.deadlines = deadlines
        self._max_connections = max_connections
        self._connection_by_transport: dict[asyncio.BaseTransport, _Connection] = {}
        #: The connections that wait for their clients; the longest wait is first.
        self.waiting: dict[_Connection, None] = {}
        #: The rejected connections that are receiving a 503 response.
        self.rejected: set[_Connection] = set()
        self._requests = 0
        self._no_requests = asyncio.Event()
        self._no_requests.set()
        self._is_stopping = False  #: whether each connection closes after its next response
        self._closed_count = self._refused_count = 0
        self._warned_at = float("-inf")

    def protocols(
        self, make_protocol: Callable[[], asyncio.BaseProtocol]
    ) -> Callable[[], asyncio.Protocol]:
        """Return a factory of protocols for new connections.

        A protocol from the factory forwards the data to a protocol from *make_protocol*.
        """
        return lambda: _Connection(self, cast("Callable[[], asyncio.Protocol]", make_protocol))

    @web.middleware
    async def count_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a request as running until its handler has returned the response."""
        self.start_work(request)
        self._requests += 1
        self._no_requests.clear()
        try:
            response = await handler(request)
        finally:
            self._requests -= 1
            if not self._requests:
                self._no_requests.set()
        if self._is_stopping:
            response.force_close()
        return response

    async def wait_for_requests(self, *, within: float) -> None:
        """Wait until no request is running, at most *within* seconds."""
        self._is_stopping = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._no_requests.wait(), within)

    def start_work(self, request: web.Request) -> None:
        """Stop the timer of a request's connection, because the request's headers have arrived."""
        if (connection := self._connection_of(request)) is not None:
            connection.work()

    async def start_idle(self, request: web.Request, _response: web.StreamResponse) -> None:
        """Restart the timer of a connection; aiohttp calls this method when a response begins."""
        if (connection := self._connection_of(request)) is not None:
            connection.idle()

    async def body(self, request: web.Request) -> bytes:
        """Return the body of a request; raises `RefusedError` if the body arrives too late."""
        connection = self._connection_of(request)
        if connection is not None:
            connection.wait()
        try:
            # The deadline is for the whole body, so that a slow client cannot extend the deadline.
            async with asyncio.timeout(self.deadlines.body):
                return await request.read()
        except TimeoutError:
            if connection is not None:
                connection.is_last = True
            timeout_text = f"{self.deadlines.body:g} s"
            raise RefusedError(408, f"the body did not arrive within {timeout_text}") from None
        except (ConnectionError, web.RequestPayloadError):
            # Do not log the error, because the client has disconnected or sent invalid HTTP.
            raise RefusedError(400, "the body is shorter than its Content-Length") from None
        finally:
            if connection is not None:
                connection.work()

    def admit(self, connection: "_Connection", transport: asyncio.BaseTransport) -> bool:
        """Return whether to accept *connection*; if needed, close a connection in `waiting`."""
        if len(self._connection_by_transport) >= self._max_connections:
            if not self.waiting:
                self._refused_count += 1
                self._warn()
                return False
            self._closed_count += 1
            self._warn()
            next(iter(self.waiting)).close()
        self._connection_by_transport[transport] = connection
        return True

    def forget(self, connection: "_Connection", transport: asyncio.BaseTransport) -> None:
        """Forget a connection."""
        self._connection_by_transport.pop(transport, None)
        self.waiting.pop(connection, None)
        self.rejected.discard(connection)

    def _connection_of(self, request: web.Request) -> "_Connection | None":
        transport = request.transport
        return None if transport is None else self._connection_by_transport.get(transport)

    def _warn(self) -> None:
        now = time.monotonic()
        if now - self._warned_at < _WARNING_INTERVAL_S:
            return
        self._warned_at = now
        logger.warning(
            "all %d connections are in use (--max-connections): since the start, %d waiting "
            "connections were closed for new ones, and %d new ones were refused",
            self._max_connections,
            self._closed_count,
            self._refused_count,
            extra={"event": "connections_full"},
        )


#: The key of the `Connections` object in the web application.
CONNECTIONS = web.AppKey("connections", Connections)


class _Connection(asyncio.Protocol):
    """A client's connection, which forwards all data to the protocol that serves the client."""

    _transport: asyncio.Transport

    def __init__(
        self, connections: Connections, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._connections = connections
        self._make_protocol = make_protocol
        self._protocol = asyncio.Protocol()  #: ignores data until `admit` accepts the connection
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = False  #: whether the next data begins a request
        self.is_last = False  #: whether the connection closes after the next response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        rejected_connections = self._connections.rejected
        if self._connections.admit(self, transport):
            self._protocol = self._make_protocol()
            self.wait(self._connections.deadlines.headers)
            self._protocol.connection_made(transport)
        elif len(rejected_connections) < _MAX_REFUSALS:
            rejected_connections.add(self)
            self._transport.write(_REFUSAL)
            self._transport.write_eof()
            # Read the rest of the request until the timer closes the connection. TCP resets a
            # connection that is closed with unread data, and the client then loses the response.
            self._set_timer(_LAST_RESPONSE_S)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self.wait(self._connections.deadlines.headers)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        self._connections.forget(self, self._transport)
        self._protocol.connection_lost(exc)

    def wait(self, within: float | None = None) -> None:
        """Wait for the client; close the connection after *within* seconds (None: no limit)."""
        self._is_idle = False
        self._set_timer(within)
        self._connections.waiting.pop(self, None)
        self._connections.waiting[self] = None  # behind all other connections

    def work(self) -> None:
        """Stop the timer, because the server now works on a request."""
        self._is_idle = False
        self._set_timer(None)
        self._connections.waiting.pop(self, None)

    def idle(self) -> None:
        """Start waiting for the client to read the response and to send the next request."""
        self.wait(_LAST_RESPONSE_S if self.is_last else self._connections.deadlines.idle)
        self._is_idle = not self.is_last

    def close(self) -> None:
        """Close the connection now."""
        self._is_idle = False
        self._set_timer(None)
        self._connections.forget(self, self._transport)
        if self._transport.get_write_buffer_size():
            # Abort, because `close` would wait for ever for a client that does not read.
            self._transport.abort()
        else:
            self._transport.close()

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self.close)


def allowed_connections(requested: int) -> int:
    """Return how many connections to allow: *requested*, or fewer if too few files may be open.

    This function first raises the process's soft limit of open files if the system permits it.
    Raises `UsageError` if the limit allows fewer than 16 connections.
    """
    needed_files = requested + _OTHER_FILES
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed_files:
        limit = (
            needed_files if hard_limit == resource.RLIM_INFINITY else min(needed_files, hard_limit)
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    if limit == resource.RLIM_INFINITY or limit >= needed_files:
        return requested
    max_connections = limit - _OTHER_FILES
    if max_connections < _MIN_CONNECTIONS:
        raise UsageError(
            f"this process may open {limit} files, but the server needs "
            f"{_MIN_CONNECTIONS + _OTHER_FILES}: raise the limit (ulimit -n)"
        )
    logger.warning(
        "this process may open %d files, so the limit of connections is %d, not %d (ulimit -n)",
        limit,
        max_connections,
        requested,
        extra={"event": "files_limited"},
    )
    return max_connections
