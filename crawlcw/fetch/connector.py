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
  says no more than it should; see `connection`.
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
in order as often as that demands, and then answers twice, the second time
after our next request has arrived; and half a TLS record, which neither the
socket nor aiohttp shows. The page that could be mistaken is of the
same origin.

HTTP/2 is not offered (ALPN says `http/1.1`): aiohttp does not speak it.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from aiohttp import (
    ClientConnectionError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientRequest,
    ClientTimeout,
    ConnectionTimeoutError,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from crawlcw.errors import FetchError, ProxyFailedError, Reason
from crawlcw.fetch import connection
from crawlcw.fetch.addresses import AddressGuard, Hop, Stage, current_hop
from crawlcw.fetch.connection import Listener, Origin, OriginKey, Origins
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

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


#: RFC 1928, section 6: what a SOCKS server says of the host, and not of itself.
_OF_THE_HOST = range(1, 7)


class RestingConnector(TCPConnector):
    """A connector that lets connections rest before they are used again, as `connection` says.

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
            partial(Listener, loop=self._loop, origins=self._origins),
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

    async def take(
        self,
        key: "ConnectionKey",
        opening: Callable[[], ClientRequest],
        timeout: ClientTimeout,  # noqa: ASYNC109  # aiohttp names it
    ) -> Listener:
        """Return a connection of *key* for a request, one that is open where there is one.

        *opening* makes aiohttp's request for a new one. Who takes it calls `release`.
        """
        if key in self._conns:
            protocol = self._ready(key)
            if protocol is None:
                protocol = await self._rested(key)
            if protocol is not None:
                self._acquired.add(protocol)
                return protocol
        req = opening()
        began = monotonic()
        try:
            async with asyncio.timeout(timeout.connect):
                opened = await self._create_connection(req, [], timeout)
        except TimeoutError as error:
            raise ConnectionTimeoutError(f"Connection timeout to host {req.url}") from error
        if self.closed:
            opened.close()
            raise ClientConnectionError("the connector is closed")
        origin = self._origins.of(origin_key(key))
        origin.opening = min(origin.opening or monotonic() - began, monotonic() - began)
        self._acquired.add(opened)
        return cast("Listener", opened)

    def release(
        self, key: "ConnectionKey", protocol: Listener, *, should_close: bool = False
    ) -> None:
        """Keep a connection for the next request of *key*, or close it."""
        idle = self._conns.get(key)
        full = idle is not None and len(idle) >= self._idle_per_host
        unwanted = full or self._origins.of(origin_key(key)).spoke_unasked
        self._release(key, protocol, should_close=should_close or unwanted)
        if protocol.transport is not None and not self.closed:
            self._idle[protocol] = key
            protocol.rest()
            if len(self._idle) > _IDLE_IN_TOTAL:
                self._close_longest_idle()

    # aiohttp has no public hook for these three, nor for `_factory`; tests/
    # fetch/test_downloader.py fails if it stops calling them.

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list["Trace"],
        timeout: ClientTimeout,  # noqa: ASYNC109  # aiohttp names it
    ) -> ResponseHandler:
        proxy = current_hop.get().proxy
        if proxy is not None and proxy.is_socks:
            return await self._through_socks(req, proxy, timeout)
        return await super()._create_connection(req, traces, timeout)

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

    async def _rested(self, key: "ConnectionKey") -> Listener | None:
        """Return a connection as soon as one has rested, None where a new one costs less."""
        origin = self._origins.of(origin_key(key))
        wait = self._worth_waiting(key, origin)
        if not wait:
            return None
        origin.waiting += 1
        try:
            await asyncio.sleep(wait + _TIMER_STEP)
        finally:
            origin.waiting -= 1
        return self._ready(key)

    def _ready(self, key: "ConnectionKey") -> Listener | None:
        """Return a connection that may be used now, the longest idle first; None: there is none."""
        idle = self._conns.get(key)
        if idle is None:
            return None
        origin = self._origins.of(origin_key(key))
        now = monotonic()
        found = None
        gone = []
        for entry in idle:
            protocol, since = cast("tuple[Listener, float]", entry)
            rested = now - since
            # Those of an origin that spoke unasked rest for ever, and are closed below.
            if rested < origin.rest_after(protocol.endpoint) and not origin.spoke_unasked:
                continue
            is_good = not origin.spoke_unasked and protocol.is_connected()
            if not is_good or protocol.should_close or rested > _OLDEST:
                gone.append(entry)
                protocol.close()
            # What waits to be read the event loop will deliver, and so end
            # the connection: as bytes out of turn or as the server's end.
            elif not protocol.readable():
                if rested >= connection.REST:
                    origin.rested(protocol.endpoint)
                gone.append(entry)
                found = protocol
                break
        for entry in gone:
            idle.remove(entry)
            self._idle.pop(entry[0], None)
        if not idle:
            del self._conns[key]
        return found

    def _worth_waiting(self, key: "ConnectionKey", origin: Origin) -> float:
        """Return after how many seconds one has rested, where a new one would cost more."""
        idle = self._conns.get(key, ())
        if origin.waiting >= len(idle):
            return 0.0
        # Those that wait already take the ones before.
        protocol, since = cast("tuple[Listener, float]", idle[origin.waiting])
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


def origin_key(key: "ConnectionKey") -> OriginKey:
    """Return what is one origin, of all that a connection was made for."""
    proxy = None if key.proxy is None else hash((key.proxy, key.proxy_headers_hash))
    return key.is_ssl, key.host, key.port, proxy


async def greeted(
    on: Hop, proxy: Proxy, sock: socket.socket, *, host: str, port: int, seconds: float | None
) -> socket.socket:
    """Return *sock*, a connection to a SOCKS proxy, as one to *host*; it is closed on failure.

    Raises `ProxyFailedError` where the proxy refuses us, `FetchError` (`connect`)
    where it says that it cannot reach the host, and `TimeoutError`.
    """
    from python_socks import ProxyError, ProxyType
    from python_socks.async_.asyncio.v2 import Proxy as SocksProxy

    # It connects by another proxy, so to speak: the connection is there already.
    reached: Any = _Reached(_Stream(on, sock))
    way = SocksProxy.create(
        proxy_type=ProxyType.SOCKS5,
        host=proxy.host,
        port=proxy.port,
        username=proxy.user,
        password=proxy.password,
        # A name goes as it is: where it is to be looked up here, it is an address by now.
        rdns=True,
        forward=reached,
    )
    try:
        await way.connect(host, port, timeout=seconds)
    except ProxyError as error:
        said = printable(error)
        if error.error_code in _OF_THE_HOST:
            message = f"the proxy {proxy} says: {said}"
            raise FetchError(Reason.CONNECT, message) from error
        refuses = "authenticat" in said.lower()
        raise ProxyFailedError(f"the proxy {proxy} says: {said}", for_good=refuses) from error
    on.stage = Stage.PASSED
    return sock


class _Reached:
    def __init__(self, stream: "_Stream") -> None:
        self._stream = stream

    async def connect(self, **_: Any) -> "_Stream":
        return self._stream


class _Stream:
    """A connection to a SOCKS proxy as python-socks uses one."""

    def __init__(self, on: Hop, sock: socket.socket) -> None:
        self._on = on
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    async def write(self, data: bytes) -> None:
        """Send all of *data*."""
        await self._loop.sock_sendall(self._socket, data)

    async def read_exactly(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(self._socket, size - len(data))
            if not piece:
                raise ConnectionResetError("the proxy hung up")
            data += piece
            self._on.stage = Stage.GREETED
        return data

    async def close(self) -> None:
        """Close the connection."""
        self._socket.close()


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
