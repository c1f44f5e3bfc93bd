"""The downloader that crawls the web: aiohttp's client, with its trust in servers taken out.

aiohttp is asked for the exchange alone. Decoding, the bound of a body, the
deadline of a read and the names of what goes wrong are ours; each of them is
here because a server can make the client hang, swell or lie without it.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterable, Mapping
from datetime import timedelta
from time import monotonic
from types import TracebackType
from typing import Self
from urllib.parse import quote_from_bytes

import aiohttp
import yarl
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.downloader.addresses import AddressGuard, AddressRefusedError
from crawlcw.downloader.connector import NameResolver, RestingConnector, sending
from crawlcw.downloader.decoding import ACCEPTED, BodyDecoder, codings_of
from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.sanitize import printable

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: RFC 9110, sections 9.3.2, 15.3.5, 15.3.6 and 15.4.5: these have no body.
_BODILESS = frozenset({204, 205, 304})
#: They have no end, or no text: not read where they are announced.
_REFUSED_TYPES = ("audio/", "video/", "text/event-stream")
_MAX_LINE = 1 << 16
_MAX_HEADERS = 1000
_MAX_HEADERS_KEPT = 200
_CHUNK = 1 << 16
_NAME_PATIENCE = timedelta(seconds=5)
_LEAST_IDLE = 4
_MAX_MESSAGE = 500
#: How long to wait for another request to give its descriptor back.
_DESCRIPTOR_PAUSE = 0.05
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class AiohttpDownloader:
    """A `Downloader` on aiohttp's client.

    *start_origins* are the `Location.host` of the start URLs: these hosts, and
    those of `settings.allow_private`, may be at private addresses. To be
    opened inside of the running loop, by `open`, `async with` or the first
    `fetch`; who opens it closes it.
    """

    def __init__(self, settings: Settings, *, start_origins: Iterable[str] = ()) -> None:
        self._settings = settings
        self._max_body = settings.max_body
        self._read_timeout = settings.read_timeout.total_seconds()
        self._guard = AddressGuard(
            start_origins=start_origins, allow_private=settings.allow_private
        )
        self._connector: RestingConnector | None = None
        self._resolver: NameResolver | None = None
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make ready for the first request."""
        self._opened()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._resolver is not None:
            await self._resolver.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response to *request* sent to *url*; see `Downloader`."""
        target = urls.parse(url)
        self._guard.admit(target)
        session = self._session or self._opened()
        while True:
            try:
                return await self._exchange(session, request, url, target=target)
            except FetchError:
                raise
            except Exception as error:
                if not _out_of_descriptors(error):
                    raise failure_of(error) from error
            # Not the page's fault, so it costs no attempt: the idle
            # connections go first, then this waits until others have ended.
            if self._connector is not None:
                self._connector.close_idle()
            await asyncio.sleep(_DESCRIPTOR_PAUSE)

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        request: Request,
        url: str,
        *,
        target: yarl.URL,
    ) -> Response:
        answer = await session.request(
            request.method,
            target,
            headers=request.headers or None,
            data=request.body,
            allow_redirects=False,
        )
        try:
            headers = _headers(answer.raw_headers)
            _check_head(answer.status, headers)
            body, truncated = b"", None
            if _has_body(request.method, answer.status, headers):
                body, truncated = await self._body(answer, headers)
        finally:
            # At the end of the body aiohttp has released the connection by
            # itself, and the response is closed. Whatever else happened, a
            # connection with bytes left on it is of no use to anybody.
            if not answer.closed:
                answer.close()
        return Response(
            url,
            request=request,
            status=answer.status,
            headers=headers,
            body=body,
            elapsed=timedelta(seconds=monotonic() - sending.get().at),
            truncated=truncated,
        )

    async def _body(
        self, answer: aiohttp.ClientResponse, headers: Mapping[str, str]
    ) -> tuple[bytes, str | None]:
        decoder = BodyDecoder(_codings(headers), limit=self._max_body)
        if answer.content.is_eof():
            # Most pages are here as soon as their headers are.
            decoder.feed(answer.content.read_nowait())
        else:
            await self._stream(answer, decoder)
        return decoder.close(), "bytes" if decoder.full else None

    async def _stream(self, answer: aiohttp.ClientResponse, decoder: BodyDecoder) -> None:
        connection, content = answer.connection, answer.content
        protocol = connection.protocol if connection is not None else None
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._read_timeout) as deadline:
                while not decoder.full and (data := await content.readany()):
                    decoder.feed(data)
                    deadline.reschedule(now() + self._read_timeout)
        except TimeoutError:
            # After a malformed chunk aiohttp closes the socket, drops its own
            # timer, and leaves the reader waiting for ever: the connection
            # knows what really happened.
            known = protocol.exception() if protocol is not None else None
            if known is not None:
                raise known from None
            raise
        if protocol is not None and type(protocol.exception()) is aiohttp.ClientOSError:
            # A body without a length ends with its connection, and aiohttp
            # takes a reset for an end.
            raise FetchError(Reason.PAYLOAD_TRUNCATED, "the connection was reset within the body")

    def _opened(self) -> aiohttp.ClientSession:
        settings = self._settings
        # Less than a connection may take, so that a dead DNS is told from a dead host.
        patience = min(settings.connect_timeout / 2, _NAME_PATIENCE)
        self._resolver = NameResolver(patience=patience.total_seconds())
        self._connector = RestingConnector(
            guard=self._guard,
            resolver=self._resolver,
            # Without a limit a host may have all fetchers to itself, and what
            # they have used rests while they go on with others.
            idle_per_host=max(
                _LEAST_IDLE, 2 * settings.per_host_concurrency or 8 * settings.concurrency
            ),
            verify=not settings.insecure,
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            # A crawl without cookies has no sessions that pages could mix up.
            cookie_jar=aiohttp.CookieJar(unsafe=True)
            if settings.cookies
            else aiohttp.DummyCookieJar(),
            headers={"User-Agent": settings.user_agent, "Accept-Encoding": ACCEPTED},
            trust_env=False,
            auto_decompress=False,
            # `connect` spans the look-up and all addresses of a name;
            # `sock_read` ends what `_stream` does not: the wait for headers.
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=settings.connect_timeout.total_seconds(),
                sock_read=self._read_timeout,
            ),
            read_bufsize=_CHUNK,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            max_headers=_MAX_HEADERS,
        )
        return self._session


def failure_of(error: Exception) -> FetchError:
    """Return what *error*, raised by aiohttp or below it, is called in crawlcw."""
    # aiohttp puts things of all kinds there, half a response among them.
    message = getattr(error, "message", None)
    text = message if isinstance(message, str) else str(error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        text = "the server hung up"
    return FetchError(_reason(error), printable(text or type(error).__name__, limit=_MAX_MESSAGE))


def _reason(error: BaseException) -> Reason:
    match error:
        case aiohttp.ClientConnectorDNSError():
            known = error.os_error.errno in _NO_SUCH_NAME
            return Reason.DNS_NXDOMAIN if known else Reason.DNS_TEMPORARY
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return Reason.TLS
        case aiohttp.ClientConnectorError():
            return _connect_reason(error.os_error)
        case aiohttp.ConnectionTimeoutError():
            return Reason.TIMEOUT_CONNECT
        case TimeoutError():
            return Reason.TIMEOUT_READ
        case aiohttp.ClientConnectionError() | OSError():
            return Reason.DISCONNECTED
        case aiohttp.ClientPayloadError():
            # Nearly always the body's end is missing; bytes that are no
            # chunks come as one of these in some builds of the parser.
            return Reason.PAYLOAD_TRUNCATED
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return _protocol_reason(error)
        case aiohttp.InvalidURL() | UnicodeError():
            return Reason.URL_INVALID
        case RuntimeError() if "closed" in str(error):
            return Reason.DISCONNECTED
        case _:
            return Reason.INTERNAL


def _connect_reason(error: OSError) -> Reason:
    if isinstance(error, AddressRefusedError):
        return Reason.REFUSED_ADDRESS
    return Reason.TIMEOUT_CONNECT if error.errno == errno.ETIMEDOUT else Reason.CONNECT


def _protocol_reason(error: BaseException | None) -> Reason:
    while error is not None:
        if isinstance(error, LineTooLong) or "Too many headers" in str(error)[:_MAX_MESSAGE]:
            return Reason.HEADER_TOO_LARGE
        error = error.__cause__
    return Reason.PROTOCOL


def _out_of_descriptors(error: Exception) -> bool:
    return isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in (
        errno.EMFILE,
        errno.ENFILE,
    )


def _check_head(status: int, headers: Mapping[str, str]) -> None:
    if status == 101:
        raise FetchError(Reason.PROTOCOL, "the server switched to a protocol nobody asked for")
    if not 100 <= status <= 599:
        raise FetchError(Reason.HTTP_STATUS, f"{status} is no status of HTTP", status=status)
    kind = headers.get("content-type", "")
    if 200 <= status < 300 and kind.lstrip().lower().startswith(_REFUSED_TYPES):
        raise FetchError(Reason.CONTENT_TYPE, f"{printable(kind)} is not read", status=status)


def _has_body(method: str, status: int, headers: Mapping[str, str]) -> bool:
    # The body of a redirect is a courtesy to people, and may be endless.
    redirected = status in _REDIRECTS and "location" in headers
    return not (method == "HEAD" or status in _BODILESS or redirected)


def _codings(headers: Mapping[str, str]) -> list[str]:
    codings = codings_of(headers.get("content-encoding", ""))
    transfer = headers.get("transfer-encoding", "chunked")
    if transfer != "chunked":
        # RFC 9112, section 6.1: applied after those of the content. aiohttp
        # takes the chunks apart and leaves the others alone.
        codings += [name for name in codings_of(transfer) if name != "chunked"]
    return codings


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for count, (name, value) in enumerate(raw):
        if count == _MAX_HEADERS_KEPT:
            break
        key = name.decode("latin-1").lower()
        text = _text(value) if key != "location" else _location(value)
        if key not in found:
            found[key] = text
        elif key != "location":
            found[key] = f"{found[key]}, {text}"
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _location(value: bytes) -> str:
    # Every byte matters in a URL. What is UTF-8 is left to the URL's parser,
    # which encodes a path and a host each in its way; any other byte above
    # ASCII becomes %XX, as in browsers.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return quote_from_bytes(value, safe=bytes(range(128)))
