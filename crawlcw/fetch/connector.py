"""How connections are made, kept, and used again.

A connection that has spoken out of turn must not answer the next request: its bytes would be
stored as another page. Nothing in HTTP/1.1 tells a late answer from a right one. So:

- **Idle connections are listened to.** Any byte ends the connection, and no connection to that
  origin is used twice any more. A `408 Request Timeout` ends the connection only.
- **An answer too many**, in the segment of the right one or before it was taken, counts as
  such a byte.
- **Connections rest** until the endpoint that answered last is trusted, see `connection`.
- **Before a request** the socket is looked at for bytes that the event loop has not delivered.
- **After it** the first bytes of the answer must come when the server's kernel has acknowledged
  the whole request, for the segment that carries an answer acknowledges what it answers (Linux;
  requests without a body). Bytes that come sooner were sent before: the connection is closed,
  and an idempotent request goes out once more.

Not guaranteed: an endpoint that is trusted, and then answers twice, the second time after our
next request has arrived; and half a TLS record, which neither the socket nor aiohttp shows. The
page that could be mistaken is of the same origin. HTTP/2 is not offered: aiohttp has none.
"""

import asyncio
import socket
from base64 import b64encode
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Self, cast

import yarl
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
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict

from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, ProxyFailedError, Reason
from crawlcw.fetch import connection
from crawlcw.fetch.addresses import AddressGuard, Hop, Stage, current_hop
from crawlcw.fetch.connection import Listener, Origin, Origins, Site
from crawlcw.fetch.failures import failure_of
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

#: How long an answer of the DNS is used, in seconds.
NAMES_KEPT = 30
_NAME_PATIENCE = 5.0
_RESOLVER_THREADS = 32
_KEEPALIVE = 15.0
#: Less than aiohttp's own limit, so that what passes here passes there.
_OLDEST = _KEEPALIVE - 1.0
_LEAST_IDLE = 16
#: Should descriptors run out before, the downloader closes what is idle.
_IDLE_IN_TOTAL = 1_000
#: Seconds that a timer of uvloop, which counts milliseconds, may be early.
_TIMER_STEP = 0.001
#: A handshake costs the server more than a wait does: so many times as long is waited for
#: a connection that rests as a new one takes.
_OPENING_COSTS = 2.5
#: RFC 1928, section 6: what a SOCKS server says of the host, and not of itself.
_OF_THE_HOST = range(1, 7)


@lru_cache(maxsize=1 << 12)
def site_of(origin: str, proxy: Proxy | None) -> Site:
    """Return the site of an origin, `https://example.com`, asked through *proxy*."""
    url = yarl.URL(f"{origin}/", encoded=True)
    key = ConnectionKey(
        url.raw_host or "",
        url.port,
        is_ssl=url.scheme == "https",
        ssl=True,
        proxy=None if proxy is None else _address_of(proxy),
        proxy_auth=None,
        # The user counts too: some proxies have another exit for each.
        proxy_headers_hash=None if proxy is None else hash(proxy),
        server_hostname=None,
    )
    return Site(url, url.host_port_subcomponent or "", key)


def _address_of(proxy: Proxy) -> yarl.URL:
    return yarl.URL.build(scheme=proxy.scheme, host=proxy.host, port=proxy.port)


def login_of(proxy: Proxy) -> dict[str, str]:
    """Return the header by which a request logs in to an HTTP proxy, if it has a user."""
    if proxy.user is None:
        return {}
    encoded = b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {encoded}"}


class RestingConnector(TCPConnector):
    """A connector that lets connections rest before they are used again, see `connection`."""

    def __init__(self, settings: Settings, guard: AddressGuard) -> None:
        connect = settings.connect_timeout.total_seconds()
        # Less than a connection may take, so that a dead DNS is told from a dead host.
        self._names = NameResolver(patience=min(connect / 2, _NAME_PATIENCE), guard=guard)
        super().__init__(
            limit=0,
            resolver=self._names,
            socket_factory=guard.socket,
            ssl=not settings.insecure,
            ttl_dns_cache=NAMES_KEPT,
            keepalive_timeout=_KEEPALIVE,
        )
        self._origins = Origins()
        self._factory = cast(
            "partial[ResponseHandler]",
            partial(Listener, loop=self._loop, origins=self._origins),
        )
        self._guard = guard
        # It spans the look-up and all addresses of a name.
        self._timeout = ClientTimeout(connect=connect)
        self._user_agent = settings.user_agent
        # What fetchers have used rests while they go on with others. Without a limit a host
        # may have all fetchers to itself.
        self._idle_per_host = max(
            _LEAST_IDLE, 4 * settings.per_host_concurrency or 8 * settings.concurrency
        )
        #: All idle connections, the longest idle first. It may name some that
        #: aiohttp has closed meanwhile; they come up first, and are passed over.
        self._idle: OrderedDict[Listener, ConnectionKey] = OrderedDict()

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close all connections."""
        await super().close(abort_ssl=abort_ssl)
        await self._names.close()

    async def take(self, site: Site, hop: Hop) -> Listener:
        """Return a connection for a request, one that is open where there is one.

        It is to be given to `release`.
        """
        origin = self._origins.of(site.key)
        found = None
        if site.key in self._conns:
            found = self._ready(site.key, origin)
            if found is None:
                found = await self._rested(site.key, origin)
        if found is None:
            found = await self._open(site, hop)
            found.site = site
        hop.stage = max(hop.stage, Stage.REACHED)
        self._acquired.add(found)
        return found

    def release(self, protocol: Listener) -> None:
        """Keep a connection whose answer has ended for the next request, and close any other."""
        assert protocol.site is not None
        key = protocol.site.key
        is_wanted = (
            protocol.is_resting
            and not self._origins.of(key).spoke_unasked
            and len(self._conns.get(key, ())) < self._idle_per_host
        )
        if protocol.sending is not None:
            protocol.sending.cancel()
        self._release(key, protocol, should_close=not is_wanted)
        if protocol.transport is not None and not self.closed:
            self._idle[protocol] = key
            if len(self._idle) > _IDLE_IN_TOTAL:
                self.close_idle(but=_IDLE_IN_TOTAL)

    def close_idle(self, *, but: int = 0) -> None:
        """Close idle connections *but* so many, which gives their descriptors back."""
        while len(self._idle) > but:
            protocol, key = self._idle.popitem(last=False)
            idle = self._conns.get(key)
            if idle and idle[0][0] is protocol:
                idle.popleft()
                protocol.close()
                if not idle:
                    del self._conns[key]

    def _ready(self, key: ConnectionKey, origin: Origin) -> Listener | None:
        """Return a connection that may be used now, the longest idle first; None: there is none."""
        idle = self._conns.get(key)
        if idle is None:
            return None
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
            self._idle.pop(cast("Listener", entry[0]), None)
        if not idle:
            del self._conns[key]
        return found

    async def _rested(self, key: ConnectionKey, origin: Origin) -> Listener | None:
        """Return a connection as soon as one has rested, None where a new one costs less."""
        idle = self._conns.get(key, ())
        if origin.waiting >= len(idle):
            return None
        # Those that wait already take the ones before.
        protocol, since = cast("tuple[Listener, float]", idle[origin.waiting])
        wait = since + origin.rest_after(protocol.endpoint) - monotonic()
        if not 0 < wait < _OPENING_COSTS * origin.opening:
            return None
        origin.waiting += 1
        try:
            await asyncio.sleep(wait + _TIMER_STEP)
        finally:
            origin.waiting -= 1
        return self._ready(key, origin)

    async def _open(self, site: Site, hop: Hop) -> Listener:
        proxy = None if hop.proxy is not None and hop.proxy.is_socks else hop.proxy
        told = {} if proxy is None else {"User-Agent": self._user_agent, **login_of(proxy)}
        request = ClientRequest(
            "GET",
            site.url,
            loop=self._loop,
            proxy=None if proxy is None else _address_of(proxy),
            proxy_headers=CIMultiDict(told),
        )
        began = monotonic()
        try:
            async with asyncio.timeout(self._timeout.connect):
                if hop.proxy is proxy:
                    opened = await self._create_connection(request, [], self._timeout)
                else:
                    opened = await self._through_socks(request, hop)
        except TimeoutError as error:
            raise ConnectionTimeoutError(f"Connection timeout to host {site.url}") from error
        if self.closed:
            opened.close()
            raise ClientConnectionError("the connector is closed")
        origin = self._origins.of(site.key)
        origin.opening = min(origin.opening or monotonic() - began, monotonic() - began)
        return cast("Listener", opened)

    # aiohttp has no public hook for these two, nor for `_factory`; tests/
    # fetch/test_downloader.py fails if it stops calling them.

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

    async def _through_socks(self, request: ClientRequest, hop: Hop) -> ResponseHandler:
        proxy, host, port = hop.proxy, request.url.raw_host or "", request.port
        assert proxy is not None
        assert port is not None
        target = host
        if not proxy.resolves_names:
            try:
                target = (await self._looked_up(request, host, port))[0]["host"]
                self._guard.check(target)
            except OSError as error:
                raise failure_of(error) from error
        sock = await self._dialled(request, proxy)
        hop.stage = Stage.REACHED
        await self._greeted(hop, proxy, sock, host=target.strip("[]"), port=port)
        context = self._get_ssl_context(request)
        _, protocol = await self._wrap_existing_connection(
            self._factory,
            timeout=self._timeout,
            ssl=context,
            sock=sock,
            server_hostname=host.rstrip(".") if context else None,
            req=request,
        )
        return protocol

    async def _greeted(
        self, hop: Hop, proxy: Proxy, sock: socket.socket, *, host: str, port: int
    ) -> None:
        """Have a SOCKS proxy connect *sock* to *host*; it is closed on failure.

        Raises `ProxyFailedError` where the proxy refuses us, `FetchError` (`connect`)
        where it says that it cannot reach the host.
        """
        from python_socks import ProxyError, ProxyType
        from python_socks.async_.asyncio.v2 import Proxy as SocksProxy

        # It connects by another proxy, so to speak: the connection is there already.
        reached: Any = _Reached(hop, sock)
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
            # The deadline of the whole is the shorter one.
            await way.connect(host, port, timeout=self._timeout.connect)
        except ProxyError as error:
            said = printable(error)
            message = f"the proxy {proxy} says: {said}"
            if error.error_code in _OF_THE_HOST:
                raise FetchError(Reason.CONNECT, message) from error
            raise ProxyFailedError(message, for_good="authenticat" in said.lower()) from error
        hop.stage = Stage.PASSED

    async def _dialled(self, request: ClientRequest, proxy: Proxy) -> socket.socket:
        """Return a connection to a proxy, at the first of its addresses that takes one."""
        failure = OSError("it has no address")
        found = await self._looked_up(request, proxy.host, proxy.port)
        for family, kind, protocol, _, place in self._convert_hosts_to_addr_infos(found):
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                await self._loop.sock_connect(sock, place)
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
            else:
                return sock
        raise ClientConnectorError(request.connection_key, failure) from failure

    async def _looked_up(self, request: ClientRequest, host: str, port: int) -> list[ResolveResult]:
        try:
            return await self._resolve_host(host, port)
        except OSError as error:
            raise ClientConnectorDNSError(request.connection_key, error) from error


class _Reached:
    """A connection to a SOCKS proxy, as python-socks connects by a proxy and uses the stream."""

    def __init__(self, hop: Hop, sock: socket.socket) -> None:
        self._hop = hop
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    async def connect(self, **_: Any) -> Self:
        return self

    async def write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(self._socket, size - len(data))
            if not piece:
                raise ConnectionResetError("the proxy hung up")
            data += piece
            self._hop.stage = Stage.GREETED
        return data

    async def close(self) -> None:
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
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=port,
            family=family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for family, _, protocol, _, address in found
    ]
