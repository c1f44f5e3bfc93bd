"""How connections are made and kept.

A connection that has spoken out of turn must not answer the next request: its
bytes would be stored as another page. Nothing in HTTP/1.1 tells a late answer
from a right one. What is done against it:

- **Idle connections are listened to.** Any byte that comes ends the connection,
  and no connection to that origin (scheme, host, port) is used twice any more.
  A `408 Request Timeout` is a goodbye, and ends the connection only.
- **An answer too many** in the segment of the right one, or before it was
  taken, counts as such a byte.
- **Connections rest**, until the endpoint that answered last has shown that it
  says no more than it should; see `trust`.
- **Before a request** the socket is looked at: where bytes wait that the event
  loop has not delivered yet, the connection is passed over.
- **After it**, the first bytes of the answer must come when the server's kernel
  has acknowledged the whole request, for the segment that carries an answer
  acknowledges what it answers (Linux; requests without a body). Bytes that
  come sooner were sent before: the connection is closed, and the request goes
  out once more on a new one where its method is idempotent.

Guaranteed: bytes that arrive before the next request was sent are never taken
for its answer, nor are those of an endpoint that is not trusted yet and that
comes within `REST` seconds of its answer. Not guaranteed: an endpoint that was
in order as often as `trust` demands, and then answers twice, the second time
after our next request has arrived; and half a TLS record, which neither the
socket nor aiohttp shows. The page that could be mistaken is of the
same origin.

HTTP/2 is not offered (ALPN says `http/1.1`): aiohttp does not speak it.
"""

import array
import asyncio
import select
import socket
import sys
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientRequest,
    ClientTimeout,
    ServerDisconnectedError,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError

from crawlcw.downloader import trust
from crawlcw.downloader.addresses import AddressGuard
from crawlcw.downloader.bounds import BoundedHandler
from crawlcw.downloader.hop import Stage, current_hop
from crawlcw.downloader.passages import greeted
from crawlcw.downloader.trust import Endpoint, Origin, OriginKey, Origins, endpoint_of
from crawlcw.model.proxies import Proxy

if sys.platform != "win32":
    import fcntl
    import termios

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.tracing import Trace

#: How long an answer of the DNS is used, in seconds.
NAMES_KEPT = 30
_KEEPALIVE = 15.0
#: Less than aiohttp's own limit, so that what passes here passes there.
_OLDEST = _KEEPALIVE - 1.0
#: Should descriptors run out before, the downloader closes what is idle.
_IDLE_IN_TOTAL = 1_000
#: Seconds that a timer of uvloop, which counts milliseconds, may be early.
_TIMER_STEP = 0.001
_RESOLVER_THREADS = 32
#: A handshake costs the server more than a wait does: so many times as long is waited for
#: a connection that rests as a new one takes.
_OPENING_COSTS = 2.5
#: What some servers say before they close an idle connection, RFC 9110, section 15.5.9.
_GOODBYES = (b"HTTP/1.1 408", b"HTTP/1.0 408")


class RestingConnector(TCPConnector):
    """A connector that lets connections rest before they are used again, as `trust` says.

    *idle_per_host* bounds how many connections to one host are kept.
    """

    def __init__(
        self, *, guard: AddressGuard, resolver: AbstractResolver, idle_per_host: int, verify: bool
    ) -> None:
        super().__init__(
            limit=0,
            resolver=resolver,
            socket_factory=guard.socket,
            ssl=verify,
            ttl_dns_cache=NAMES_KEPT,
            keepalive_timeout=_KEEPALIVE,
        )
        self._origins = Origins()
        self._factory = cast(
            "partial[ResponseHandler]",
            partial(_Listener, loop=self._loop, origins=self._origins),
        )
        self._guard = guard
        self._idle_per_host = idle_per_host
        #: All idle connections, the longest idle first. It may name some that
        #: aiohttp has closed meanwhile; they come up first, and are passed over.
        self._idle: OrderedDict[ResponseHandler, ConnectionKey] = OrderedDict()

    def close_idle(self) -> None:
        """Close all idle connections, which gives their descriptors back."""
        while self._idle:
            self._close_longest_idle()

    async def connect(
        self,
        req: ClientRequest,
        traces: list["Trace"],
        timeout: ClientTimeout,  # noqa: ASYNC109  # aiohttp names it
    ) -> Connection:
        """Return a connection for a request, which is sent at once."""
        connection = await super().connect(req, traces, timeout)
        hop = current_hop.get()
        hop.stage = max(hop.stage, Stage.REACHED)
        hop.begin_sending(self._loop)
        cast("_Listener", connection.protocol).ask(
            _origin_key(req.connection_key),
            endpoint_of(req.url.raw_path, req.url.raw_query_string),
            # A server may refuse a body before it has read all of it.
            answered_when_read=not req.body,
        )
        return connection

    # aiohttp has no public hook for these five, nor for `_factory`; tests/
    # downloader/test_downloader.py fails if it stops calling them.

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list["Trace"],
        timeout: ClientTimeout,  # noqa: ASYNC109  # aiohttp names it
    ) -> ResponseHandler:
        began = monotonic()
        proxy = current_hop.get().proxy
        if proxy is not None and proxy.is_socks:
            protocol = await self._through_socks(req, proxy, timeout)
        else:
            protocol = await super()._create_connection(req, traces, timeout)
        took = monotonic() - began
        origin = self._origins.of(_origin_key(req.connection_key))
        origin.opening = min(origin.opening or took, took)
        return protocol

    async def _create_direct_connection(
        self, req: ClientRequest, *arguments: Any, **options: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        made = await super()._create_direct_connection(req, *arguments, **options)
        # With an HTTP proxy this is the connection to the proxy.
        current_hop.get().stage = Stage.REACHED
        return made

    async def _start_tls_connection(
        self, *arguments: Any, **options: Any
    ) -> tuple[asyncio.BaseTransport, ResponseHandler]:
        # Within a tunnel: the proxy has answered CONNECT well.
        current_hop.get().stage = Stage.PASSED
        return await super()._start_tls_connection(*arguments, **options)

    async def _through_socks(
        self,
        req: ClientRequest,
        proxy: Proxy,
        timeout: ClientTimeout,  # noqa: ASYNC109  # aiohttp names it
    ) -> ResponseHandler:
        host, port = req.url.raw_host or "", req.port
        assert port is not None
        on = current_hop.get()
        on.at_host = not proxy.resolves_names
        target = await self._address(req, host, port) if on.at_host else host
        on.at_host = False
        sock = await self._dialled(req, proxy)
        on.stage = Stage.REACHED
        # aiohttp's own deadline, for all of it, is the shorter one.
        sock = await greeted(
            on, proxy, sock, host=target.strip("[]"), port=port, seconds=timeout.connect
        )
        context = self._get_ssl_context(req)
        name = (req.server_hostname or host).rstrip(".") if context else None
        _, protocol = await self._wrap_existing_connection(
            self._factory, timeout=timeout, ssl=context, sock=sock, server_hostname=name, req=req
        )
        return protocol

    async def _address(self, req: ClientRequest, host: str, port: int) -> str:
        """Return an address of *host* that may be asked for, looked up here."""
        found = await self._looked_up(req, host, port)
        try:
            self._guard.check(found[0]["host"])
        except OSError as error:
            raise ClientConnectorError(req.connection_key, error) from error
        return found[0]["host"]

    async def _dialled(self, req: ClientRequest, proxy: Proxy) -> socket.socket:
        """Return a connection to a proxy, at the first of its addresses that takes one."""
        failure: OSError = OSError("it has no address")
        found = await self._looked_up(req, proxy.host, proxy.port)
        for family, kind, protocol, _, place in self._convert_hosts_to_addr_infos(found):
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                await self._loop.sock_connect(sock, place)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise ClientConnectorError(req.connection_key, failure) from failure

    async def _looked_up(self, req: ClientRequest, host: str, port: int) -> list[ResolveResult]:
        try:
            return await self._resolve_host(host, port)
        except OSError as error:
            raise ClientConnectorDNSError(req.connection_key, error) from error

    async def _get(self, key: "ConnectionKey", traces: list[Any]) -> Connection | None:
        if key not in self._conns:
            return None
        origin = self._origins.of(_origin_key(key))
        found = self._has_ready(key, origin)
        if not found and (wait := self._worth_waiting(key, origin)):
            origin.waiting += 1
            try:
                await asyncio.sleep(wait + _TIMER_STEP)
            finally:
                origin.waiting -= 1
            found = self._has_ready(key, origin)
        return await super()._get(key, traces) if found else None

    def _release(
        self, key: "ConnectionKey", protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        idle = self._conns.get(key)
        full = idle is not None and len(idle) >= self._idle_per_host
        unwanted = full or self._origins.of(_origin_key(key)).spoke_unasked
        super()._release(key, protocol, should_close=should_close or unwanted)
        if protocol.transport is not None and not self.closed:
            self._idle[protocol] = key
            cast("_Listener", protocol).rest()
            if len(self._idle) > _IDLE_IN_TOTAL:
                self._close_longest_idle()

    def _has_ready(self, key: "ConnectionKey", origin: Origin) -> bool:
        """Put a connection that may be used now before the others; return whether one may."""
        idle = self._conns.get(key)
        if idle is None:
            return False
        now = monotonic()
        for entry in list(idle):
            protocol, since = cast("tuple[_Listener, float]", entry)
            if (
                origin.spoke_unasked
                or protocol.should_close
                or not protocol.is_connected()
                or now - since > _OLDEST
            ):
                idle.remove(entry)
                self._idle.pop(protocol, None)
                protocol.close()
            # What waits to be read the event loop will deliver, and so end
            # the connection: as bytes out of turn or as the server's end.
            elif now - since >= origin.rest_after(protocol.endpoint) and not protocol.readable():
                if now - since >= trust.REST:
                    origin.rested(protocol.endpoint)
                self._idle.pop(protocol, None)
                idle.remove(entry)
                idle.appendleft(entry)
                return True
        if not idle:
            del self._conns[key]
        return False

    def _worth_waiting(self, key: "ConnectionKey", origin: Origin) -> float:
        """Return after how many seconds one has rested, where a new one would cost more."""
        idle = self._conns.get(key, ())
        if origin.waiting >= len(idle):
            return 0.0
        # Those that wait already take the ones before.
        protocol, since = cast("tuple[_Listener, float]", idle[origin.waiting])
        left = since + origin.rest_after(protocol.endpoint) - monotonic()
        return left if 0 < left < _OPENING_COSTS * origin.opening else 0.0

    def _close_longest_idle(self) -> None:
        protocol, key = self._idle.popitem(last=False)
        idle = self._conns.get(key)
        if idle and idle[0][0] is protocol:
            idle.popleft()
            protocol.close()
            if not idle:
                del self._conns[key]


def _origin_key(key: "ConnectionKey") -> OriginKey:
    proxy = None if key.proxy is None else hash((key.proxy, key.proxy_headers_hash))
    return key.is_ssl, key.host, key.port, proxy


class _Listener(BoundedHandler):
    """The receiving end of a connection; hangs up on a server that talks while nobody asks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, origins: Origins) -> None:
        super().__init__(loop)
        self.endpoint = Endpoint(0, 0)
        self._origins = origins
        self._origin: OriginKey | None = None
        self._resting = False
        #: Whether the next bytes can be told from an answer by what is acknowledged.
        self._can_be_told = False
        self._answers = 0
        self._poll: _Poll | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection, or one that TLS has begun on."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        number = sock.fileno() if sock is not None else -1
        self._poll = _Poll(number) if number >= 0 else None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of the descriptor: it may be another connection's soon."""
        self._poll = None
        super().connection_lost(exc)

    def ask(self, origin: OriginKey, endpoint: Endpoint, *, answered_when_read: bool) -> None:
        """Expect an answer; where *answered_when_read*, none before the request is read."""
        self._origin = origin
        self.endpoint = endpoint
        # Over a new connection a server may say that it is too busy to read.
        self._can_be_told = answered_when_read and self._resting
        self._resting = False
        self._answers = 0

    def rest(self) -> None:
        """Expect nothing from now on."""
        self._resting = True

    def readable(self) -> bool:
        """Return whether bytes, or the connection's end, wait to be read."""
        return self._poll is not None and self._poll.readable()

    def data_received(self, data: bytes) -> None:
        # aiohttp calls this without data when the last body has been taken.
        if data and self._resting:
            # Not one byte is kept: a server could send them for as long as
            # the connection stands.
            self._note_unasked(data)
            self.close()
            return
        if data and self._can_be_told:
            self._can_be_told = False
            if self._poll is not None and self._poll.is_unacknowledged():
                self._note_unasked(data)
                if self.transport is not None:
                    self.transport.close()
                # aiohttp repeats the request, if it may be, on a new connection.
                self.set_exception(ServerDisconnectedError("an answer before the request"))
                return
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the head of a response; a second one nobody has asked for."""
        if data[0].code >= 200:
            self._answers += 1
            if self._answers > 1:
                # Dropped, for there may be thousands; the first is still good.
                self._note_unasked(b"")
                self.force_close()
                return
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *more: BaseException) -> None:
        """Remember an answer that was no HTTP."""
        if isinstance(exc, HttpProcessingError) and self._origin is not None:
            self._origins.broke_http(self._origin)
        super().set_exception(exc, *more)

    def _note_unasked(self, data: bytes) -> None:
        if self._origin is not None and not data.startswith(_GOODBYES):
            self._origins.spoke_unasked(self._origin)


class _Poll:
    """What the system tells of a connection that is open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queued = array.array("i", [0])
        if sys.platform != "win32":
            # Not `select`, which knows no descriptor above 1,023.
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        """Return whether bytes, or the connection's end, wait to be read."""
        if sys.platform == "win32":
            return bool(select.select([self._descriptor], [], [], 0)[0])
        return bool(self._poll.poll(0))

    def is_unacknowledged(self) -> bool:
        """Return whether bytes sent have not been acknowledged; false where that is not known."""
        if sys.platform != "linux":
            return False
        try:
            # tcp(7) calls it SIOCOUTQ.
            fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, self._queued)
        except OSError:
            return False
        return self._queued[0] > 0


class NameResolver(AbstractResolver):
    """Looks names up in threads of its own, each look-up for *patience* seconds at most.

    The loop's own threads would not do: uvloop has four of them, and a few
    dead names keep them all busy. *guard* hears of every answer.
    """

    def __init__(self, *, patience: float, guard: AddressGuard) -> None:
        self._patience = patience
        self._guard = guard
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="crawlcw-dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of *host*; raises `socket.gaierror`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience):
                found = await loop.run_in_executor(self._threads, _look_up, host, port, family)
        except TimeoutError:
            message = f"no answer within {self._patience:g} s"
            raise socket.gaierror(socket.EAI_AGAIN, message) from None
        await self._guard.resolved(host, [each["host"] for each in found])
        return found

    async def close(self) -> None:
        """Stop looking up; a thread that waits for the DNS is left to end by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    try:
        found = socket.getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except UnicodeError:
        # A label of more than 63 characters: no such name can exist.
        raise socket.gaierror(socket.EAI_NONAME, "not a name the DNS could hold") from None
    return list(_results(host, port, found))


def _results(host: str, port: int, found: list[Any]) -> Iterator[ResolveResult]:
    for family, _, protocol, _, address in found:
        yield ResolveResult(
            hostname=host,
            host=address[0],
            port=port,
            family=family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
