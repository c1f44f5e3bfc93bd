"""Open connections to servers, read responses, and keep idle connections for later requests.

If a server sends two responses to one HTTP/1.1 request, the second response looks like the response
to the next request. One rule limits the damage of such second responses. If a byte arrives while a
connection is idle, the connector closes all idle connections to the same origin. From then on, a
connection to this origin serves only one request. The rule also applies to unread bytes in the
socket, and to a second response that directly follows the first response. If a second response
arrives after crawlcw has sent the next request, crawlcw cannot notice this, and records the second
response as the next page. HTTP/2 is not offered, because aiohttp does not support it.

aiohttp opens the connections, and its parser reads heads and bodies. The module `framing` repairs
heads and decodes chunks. aiohttp limits neither interim responses nor the size lines of chunks, so
`connector` limits them. Only `connector` uses private names of aiohttp. Any release of aiohttp may
change these names, so pyproject.toml limits aiohttp's version.
"""

import asyncio
import fcntl
import math
import re
import socket
import sys
import termios
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Self, cast

import aiohappyeyeballs
import yarl
from aiohttp import (
    ClientConnectionError,
    ClientPayloadError,
    ClientRequest,
    ClientTimeout,
    ConnectionTimeoutError,
    ServerDisconnectedError,
    TCPConnector,
    encode_basic_auth,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from multidict import CIMultiDict

from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, ProxyFailedError, Reason
from crawlcw.fetch.addresses import AddressGuard, Hop, Stage, current_hop
from crawlcw.fetch.failures import failure_of
from crawlcw.fetch.framing import Chunks, mended
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

#: Maximum number of `Site` objects that the connector remembers.
_SITES = 4_000
_KEEPALIVE = 15.0
_LEAST_IDLE = 16
#: Maximum number of idle connections; if file descriptors run out, the downloader closes them all.
_IDLE_IN_TOTAL = 1_000
#: First bytes of a 408 response, which some servers send before they close an idle connection.
_GOODBYES = (b"HTTP/1.1 408", b"HTTP/1.0 408")
#: Maximum bytes of the interim responses (such as 103 Early Hints) to one request, because some
#: servers send such responses for ever.
_MAX_INTERIM = 1 << 16
#: Maximum bytes of a response that are not content, such as the size lines of tiny chunks.
_MAX_FRAMING = 1 << 24
#: Pattern for interim responses, after the empty lines that some servers send first.
_INTERIM = re.compile(rb"[\r\n]*(?:HTTP/1\.[01] 1(?!01)\d\d\b.*?\n\r?\n)*", re.DOTALL)
_HEAD_END = re.compile(rb"\n\r?\n")
_BLANK_IN_NAME = re.compile(rb"\n[^\s:]+ +:")
#: Pattern for a list of codings with `chunked`; browsers accept `chunked` at any place.
_CHUNKED = re.compile(r"(?:^|,)[ \t]*chunked[ \t]*(?:,|$)", re.IGNORECASE)
_MAX_HEAD = 1 << 18  #: as in Chromium
#: Parameters of aiohttp's response parser.
_PARSING: Mapping[str, Any] = {
    "read_until_eof": True,
    "auto_decompress": False,
    "read_bufsize": 1 << 16,
    "max_line_size": 1 << 16,
    "max_field_size": 1 << 16,
    "max_headers": 1000,
}
_ACKNOWLEDGE: int | None = getattr(socket, "TCP_QUICKACK", None)  #: Linux: acknowledge at once

#: Seconds for which a DNS answer is cached.
NAMES_KEPT = 30
_NAME_PATIENCE = 5.0
_RESOLVER_THREADS = 32
#: Reply codes of a SOCKS server that cannot reach the host (RFC 1928, section 6).
_OF_THE_HOST = range(1, 7)


@dataclass(slots=True, eq=False)
class Site:
    """All connections to one origin through one proxy, or all that use no proxy."""

    url: yarl.URL
    is_admitted: bool = False  #: whether the address guard permits requests to the origin
    is_kept: bool = True  #: whether connections to the origin are used again
    idle: list["Listener"] = field(default_factory=list)  #: idle connections, oldest first

    def distrust(self) -> None:
        """Close the idle connections to the origin, and use each new connection for one request."""
        self.is_kept = False
        for connection in self.idle:
            connection.close()


class Listener(ResponseHandler):
    """Protocol object of one connection; it closes the connection if the bytes violate HTTP."""

    # `__slots__` is faster, because Python optimizes instance dictionaries only for few attributes.
    __slots__ = (
        *("site", "idle_since", "sent_at", "is_answered"),
        *("message", "content", "_socket", "_received_bytes", "_incomplete_head"),
        *("_framing_bytes", "_open_connections"),
    )

    message: RawResponseMessage  #: head of the response

    def __init__(self, loop: asyncio.AbstractEventLoop, *, among: set[ResponseHandler]) -> None:
        """*among* is the set of open connections; a connection leaves the set when it closes."""
        super().__init__(loop)
        self._open_connections = among
        self.site: Site | None = None  #: None until a proxy's tunnel is open
        self.idle_since = 0.0  #: monotonic time when the connection became idle
        #: Monotonic time just after the request was sent.
        self.sent_at = 0.0
        self.is_answered = False  #: whether the head of the response has come
        self.content: StreamReader = EMPTY_PAYLOAD  #: body of the response
        self._socket: Any = None
        self._received_bytes = 0  #: number of bytes received since the request was sent
        #: Received bytes of an incomplete head; None if no head is expected.
        self._incomplete_head: bytes | None = None
        #: Maximum sum of the bytes of head, chunk sizes and trailers in a complete response.
        self._framing_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to use a new connection, or a connection on which TLS has started."""
        super().connection_made(transport)
        # Record that the connection has reached the proxy, if an HTTP proxy is used.
        hop = current_hop.get()
        hop.stage = max(hop.stage, Stage.REACHED)
        self._socket = transport.get_extra_info("socket")

    def connection_lost(self, exc: BaseException | None) -> None:
        """Report an incomplete body if the server has reset the connection."""
        self._open_connections.discard(self)
        if isinstance(exc, OSError) and self._payload is not None and not self._payload.is_eof():
            # aiohttp would treat the reset as the normal end of the body.
            self._payload.set_exception(
                ClientPayloadError("the connection was reset during the body")
            )
        super().connection_lost(exc)

    def close(self) -> None:
        """End the connection at once.

        A graceful close would wait for a server that does not read the request or does not end TLS.
        If `close` were graceful, closing the connector would wait for such a server too.
        """
        self.abort()

    async def ask(self, request: bytes, *, is_head: bool, patience: float) -> None:
        """Send a request, and wait for the head of its response.

        The request fails if the server sends nothing for *patience* seconds. If *is_head*, the
        response has no body.
        """
        self.is_answered = False
        self._incomplete_head, self._received_bytes = b"", 0
        self.set_response_params(skip_payload=is_head, read_timeout=patience, **_PARSING)
        if self.transport is None:
            raise ServerDisconnectedError
        # uvloop sends in the next iteration of the loop, so `_note_sent` runs in that iteration.
        self._loop.call_soon(self._note_sent)
        self.transport.write(request)
        if not self.writing_paused:
            self.start_timeout()
        await self.read()

    def _note_sent(self) -> None:
        self.sent_at = monotonic()

    def _acknowledge(self) -> None:
        # Make the kernel acknowledge the head at once. The kernel would acknowledge it after 40 ms
        # on a reused connection, and until then a server with Nagle's algorithm would not send the
        # body.
        if _ACKNOWLEDGE is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)

    def resume_writing(self) -> None:
        """Start the timeout of the response when the kernel has accepted the whole request."""
        super().resume_writing()
        self.start_timeout()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume reading if it was paused; aiohttp calls this method after each read of a body."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def has_unread(self) -> bool:
        """Return whether the socket has unread bytes; false if the system cannot tell."""
        try:
            return any(fcntl.ioctl(self._socket, termios.FIONREAD, bytes(4)))
        except (OSError, ValueError):
            return False

    def data_received(self, data: bytes) -> None:
        """Process bytes from the socket; if *data* is empty, parse bytes from before a pause."""
        if self.site is None or self._parser is None:
            super().data_received(data)  # the tunnel is not open, or no request was sent
            return
        self._received_bytes += len(data)
        begins = self._incomplete_head is not None
        try:
            if self._incomplete_head is not None:
                data = self._begin(self._incomplete_head, data)
            if self.is_answered and not self.content.is_eof():
                self._parser.feed_data(data)
            is_over = self.is_answered and self.content.is_eof()
            framing = self._received_bytes - self.content.total_bytes
            if framing > (self._framing_bytes if is_over else _MAX_FRAMING):
                raise HttpProcessingError(message="the chunks have more framing than content")
        except HttpProcessingError as error:
            self._refuse(error, data)
            return
        if is_over:
            self._framing_bytes = framing
            self._drop_timeout()
            return
        if begins and self.is_answered and self.idle_since:
            self._acknowledge()
        if not self._reading_paused:
            self._reschedule_timeout()

    def _refuse(self, error: HttpProcessingError, data: bytes) -> None:
        """End the connection because of *data*, which is invalid HTTP or comes after the response.

        A response that is already complete stays valid (RFC 9112, section 6.3). Later bytes are
        dropped, because a server could send bytes for ever. On a reused connection, invalid HTTP
        may belong to the previous response, so the module `transport` sends the request again.
        """
        is_behind = self.is_answered and self.content.is_eof()
        is_goodbye = data.startswith(_GOODBYES)
        if (
            self.site is not None
            and not is_goodbye
            and (is_behind or (self.idle_since and not self.is_answered))
        ):
            self.site.distrust()
        if not is_behind and self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(error)
        self.close()
        self.set_exception(error)

    def _begin(self, head: bytes, data: bytes) -> bytes:
        """Add *data* to the incomplete *head* of the response; return the bytes after the head.

        Interim responses are dropped. A head is parsed only when it is complete, because only a
        whole head can be repaired.
        """
        assert self._parser is not None
        search_from = max(0, len(head) - 3)
        data = head + data
        head_end = _HEAD_END.search(data, search_from)
        if head_end is not None and (interim := _INTERIM.match(data)) is not None and interim.end():
            data = data[interim.end() :]
            head_end = _HEAD_END.search(data)
        if head_end is None:
            self._incomplete_head = data = data.lstrip(b"\r\n")
            if not b"HTTP/".startswith(data[:5]):
                raise HttpProcessingError(message=f"the response is not HTTP: {data[:50]!r}")
            if len(data) > _MAX_HEAD:
                raise LineTooLong(b"a head", _MAX_HEAD)
            if self._received_bytes - len(data) > _MAX_INTERIM:
                raise HttpProcessingError(message="too many interim responses")
            return b""
        head, body = data[: head_end.end()], data[head_end.end() :]
        self._incomplete_head, self._framing_bytes = None, self._received_bytes - len(body)
        try:
            # The parser hides a header with a blank before its colon, even a Content-Length.
            if b" :" in head and _BLANK_IN_NAME.search(head) is not None:
                raise HttpProcessingError(message="a blank before the colon of a header")
            messages, self._upgraded, _ = self._parser.feed_data(head)
            is_mended = False
        except LineTooLong:
            raise
        except HttpProcessingError:
            head, is_mended = mended(head), True
            self.set_response_params(
                skip_payload=self._skip_payload, read_timeout=self.read_timeout, **_PARSING
            )
            messages, self._upgraded, _ = self._parser.feed_data(head)
        ((message, payload),) = messages
        self.is_answered, self.message = True, message
        self.content = self._payload = payload
        self._should_close = message.should_close or is_mended
        is_chunked = message.chunked or (
            "Transfer-Encoding" in message.headers
            and _CHUNKED.search(",".join(message.headers.getall("Transfer-Encoding")))
        )
        if is_chunked and not payload.is_eof():
            self._parser, self._framing_bytes = cast("Any", Chunks(payload)), sys.maxsize
        self.feed_data((message, payload))
        return body


class Connector(TCPConnector):
    """Opens connections, and keeps idle connections for later requests."""

    def __init__(self, settings: Settings, guard: AddressGuard) -> None:
        connect = settings.connect_timeout.total_seconds()
        # DNS has a shorter timeout than the connection, so dead DNS does not look like a dead host.
        self._names = NameResolver(patience=min(connect / 2, _NAME_PATIENCE), guard=guard)
        super().__init__(
            resolver=self._names,
            socket_factory=guard.socket,
            ssl=not settings.insecure,
            ttl_dns_cache=NAMES_KEPT,
        )
        self._factory = cast(
            "partial[ResponseHandler]", partial(Listener, loop=self._loop, among=self._acquired)
        )
        self._address_guard = guard
        # The timeout covers the DNS look-up and the attempts at all addresses of a name.
        self._timeout = ClientTimeout(connect=connect)
        self._user_agent = settings.user_agent
        # Allow several idle connections for each request, because fetchers change between hosts. If
        # hosts have no limit of requests, all fetchers may use one host.
        self._idle_per_host = max(
            _LEAST_IDLE, 4 * settings.per_host_concurrency or 8 * settings.concurrency
        )
        self._sites: OrderedDict[tuple[str, Proxy | None], Site] = OrderedDict()
        #: All idle connections, sorted by `idle_since`; the server may have closed some of them.
        self._idle: OrderedDict[Listener, None] = OrderedDict()
        self._clean_timer: asyncio.TimerHandle | None = None

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close all connections."""
        await super().close(abort_ssl=abort_ssl)
        await self._names.close()

    def site(self, origin: str, proxy: Proxy | None) -> Site:
        """Return the `Site` for *origin*, such as `https://example.com`, through *proxy*."""
        # The key includes the proxy's user, because some proxies have one IP address for each user.
        key = (origin, proxy)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = Site(yarl.URL(f"{origin}/", encoded=True))
            if len(self._sites) > _SITES:
                self._sites.popitem(last=False)
        self._sites.move_to_end(key)
        return site

    async def take(self, site: Site, hop: Hop) -> Listener:
        """Return the connection that has been idle the longest; if none is usable, open a new one.

        The caller must pass the connection to `release`.
        """
        now = monotonic()
        while site.idle:
            connection = site.idle.pop(0)
            del self._idle[connection]
            if now - connection.idle_since > _KEEPALIVE or not connection.is_connected():
                connection.close()
            # Skip a connection with unread bytes, because these bytes will close it.
            elif not connection.has_unread():
                hop.stage = max(hop.stage, Stage.REACHED)
                return connection
        new_connection = await self._open(site, hop)
        new_connection.site = site
        return new_connection

    def release(self, connection: Listener) -> None:
        """Keep a connection for the next request if its response is complete; if not, close it."""
        site = connection.site
        assert site is not None
        is_over = (
            connection.is_answered and not connection.should_close and not connection.writing_paused
        )
        if self.closed or not is_over or not site.is_kept or len(site.idle) >= self._idle_per_host:
            connection.close()
            return
        connection.idle_since = monotonic()
        site.idle.append(connection)
        self._idle[connection] = None
        if len(self._idle) > _IDLE_IN_TOTAL:
            self.close_idle(max_kept=_IDLE_IN_TOTAL)
        if self._clean_timer is None:
            self._clean_timer = self._loop.call_later(_KEEPALIVE, self._close_old_idle)

    def close_idle(self, *, max_kept: int = 0, released_before: float = math.inf) -> None:
        """Close connections idle since before *released_before*, but keep *max_kept* idle ones."""
        while (
            len(self._idle) > max_kept
            and (oldest := next(iter(self._idle))).idle_since < released_before
        ):
            del self._idle[oldest]
            assert oldest.site is not None
            oldest.site.idle.remove(oldest)
            oldest.close()

    def _close_old_idle(self) -> None:
        self.close_idle(released_before=monotonic() - _KEEPALIVE)
        self._clean_timer = (
            self._loop.call_later(_KEEPALIVE, self._close_old_idle) if self._idle else None
        )

    async def _open(self, site: Site, hop: Hop) -> Listener:
        proxy = None if hop.proxy is not None and hop.proxy.is_socks else hop.proxy
        address, headers = None, CIMultiDict[str]()
        if proxy is not None:
            address = yarl.URL.build(scheme=proxy.scheme, host=proxy.host, port=proxy.port)
            headers.update({"User-Agent": self._user_agent, **login_of(proxy)})
        request = ClientRequest(
            "GET", site.url, loop=self._loop, proxy=address, proxy_headers=headers
        )
        try:
            async with asyncio.timeout(self._timeout.connect):
                if hop.proxy is proxy:
                    connection = await self._create_connection(request, [], self._timeout)
                else:
                    connection = await self._through_socks(request, hop)
        except TimeoutError as error:
            raise ConnectionTimeoutError(f"Connection timeout to host {site.url}") from error
        if self.closed:
            connection.close()
            raise ClientConnectionError("the connector is closed")
        self._acquired.add(connection)  # closed with the connector
        return cast("Listener", connection)

    async def _start_tls_connection(
        self, *arguments: Any, **options: Any
    ) -> tuple[asyncio.BaseTransport, ResponseHandler]:
        # aiohttp starts TLS only after the proxy has accepted CONNECT.
        current_hop.get().stage = Stage.PASSED
        return await super()._start_tls_connection(*arguments, **options)

    async def _through_socks(self, request: ClientRequest, hop: Hop) -> ResponseHandler:
        """Return a connection to the origin of *request* through the SOCKS proxy that *hop* uses.

        Raises `ProxyFailedError` if the proxy refuses this client. Raises `FetchError` if the proxy
        says that it cannot reach the host, or if the host has no permitted address.
        """
        from python_socks import ProxyError, ProxyType
        from python_socks.async_.asyncio.v2 import Proxy as SocksProxy

        proxy, host, port = hop.proxy, request.url.raw_host or "", request.port
        assert proxy is not None
        assert port is not None
        target = host.strip("[]")
        if not proxy.resolves_names:
            try:
                target = (await self._resolve_host(host, port))[0]["host"]
                self._address_guard.check(target)
            except OSError as error:
                raise failure_of(error) from error
        addresses = await self._resolve_host(proxy.host, proxy.port)
        sock = await aiohappyeyeballs.start_connection(self._convert_hosts_to_addr_infos(addresses))
        hop.stage = Stage.REACHED
        # Pass the open socket to python-socks as a forward proxy whose connection is open.
        forward_proxy: Any = _Reached(hop, sock)
        socks_proxy = SocksProxy.create(
            proxy_type=ProxyType.SOCKS5,
            host=proxy.host,
            port=proxy.port,
            username=proxy.user,
            password=proxy.password,
            # Send the target unchanged. It is an address if the proxy does not resolve names.
            rdns=True,
            forward=forward_proxy,
        )
        try:
            # This timeout never expires, because the timeout of all steps started earlier.
            await socks_proxy.connect(target, port, timeout=self._timeout.connect)
        except ProxyError as error:
            error_text = printable(error)
            message = f"the proxy {proxy} says: {error_text}"
            if error.error_code in _OF_THE_HOST:
                raise FetchError(Reason.CONNECT, message) from error
            raise ProxyFailedError(
                message, is_permanent="authenticat" in error_text.lower()
            ) from error
        hop.stage = Stage.PASSED
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


def login_of(proxy: Proxy) -> dict[str, str]:
    """Return the Proxy-Authorization header for an HTTP proxy, or {} for a proxy without a user."""
    if proxy.user is None:
        return {}
    return {"Proxy-Authorization": encode_basic_auth(proxy.user, proxy.password or "")}


class _Reached:
    """An open socket to a SOCKS proxy, with the methods that python-socks expects of a proxy."""

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
                raise ConnectionResetError("the proxy closed the connection")
            data += piece
            self._hop.stage = Stage.GREETED
        return data

    async def close(self) -> None:
        self._socket.close()


class NameResolver(AbstractResolver):
    """Resolves host names in its own threads, and each name within *patience* seconds.

    The resolver does not use the event loop's threads. uvloop has four threads, and each look-up of
    a dead name would block one of them. *guard* records the addresses of every name.
    """

    def __init__(self, *, patience: float, guard: AddressGuard) -> None:
        self._patience = patience
        self._address_guard = guard
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="crawlcw-dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of *host*; raises `socket.gaierror`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience):
                addresses = await loop.run_in_executor(self._threads, _look_up, host, port, family)
        except TimeoutError:
            message = f"no response of the DNS within {self._patience:g} s"
            raise socket.gaierror(socket.EAI_AGAIN, message) from None
        await self._address_guard.resolved(host, [address["host"] for address in addresses])
        return addresses

    async def close(self) -> None:
        """Start no more look-ups; a thread that still waits for the DNS ends by itself."""
        self._threads.shutdown(wait=False)


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    try:
        address_infos = socket.getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except UnicodeError:
        # A name with a label of more than 63 characters cannot exist.
        raise socket.gaierror(socket.EAI_NONAME, "the name is not valid in the DNS") from None
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=port,
            family=family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for family, _, protocol, _, address in address_infos
    ]
