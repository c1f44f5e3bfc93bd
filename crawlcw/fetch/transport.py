"""The downloader of the crawl, which speaks HTTP/1.1 with aiohttp's connector and parser.

This module writes requests, decodes and limits bodies, and names the reasons of failures. No server
can make the crawl hang or fill the memory. The module does not use aiohttp's client session,
because the session would cost more CPU than the whole module.
"""

import asyncio
import errno
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from time import monotonic
from typing import Self
from urllib.parse import quote_from_bytes

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDictProxy

from crawlcw.api import charset
from crawlcw.api.attempt import Attempt, Jar, Purpose, redirected, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import BUDGET_IN_BODIES, Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.addresses import AddressGuard, Hop, PublicNames, Stage, current_hop
from crawlcw.fetch.body import (
    ACCEPTED,
    CODED,
    LOOK,
    SIGNED,
    BodyDecoder,
    MemoryBudget,
    check_start,
    check_type,
    codings_of,
)
from crawlcw.fetch.connector import Connector, Listener, Site, login_of
from crawlcw.fetch.failures import failure_in, login_refused
from crawlcw.fetch.redirects import REDIRECTS
from crawlcw.files.saving import FileTransfers, PartRefusedError
from crawlcw.model import urls

#: Statuses of responses without a body (RFC 9110, sections 15.3.5, 15.3.6 and 15.4.5).
_BODILESS = frozenset({204, 205, 304})
#: Methods of requests that may be sent again if their connection ends (RFC 9110, section 9.2.2).
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
#: Methods whose requests need no Content-Length if they have no body.
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_USUALLY_WITH_BODY = frozenset({"PATCH", "POST", "PUT"})
#: Headers that `_request` writes itself; of these headers, a user can set only Host.
_FIXED_HEADERS = frozenset({"host", "content-length", "transfer-encoding"})
#: RFC 9110, section 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_HEADER = re.compile(r"[\r\n\0]")
#: Length of the longest `scheme://` of a URL; the path begins at the first slash after it.
_BEFORE_PATH = len("https://")
_MAX_HEADERS_KEPT = 200
#: Maximum size in bytes of a body that does not count for the memory budget.
_FREE_BODY = 256 << 10
#: Seconds between two attempts to open a connection if the process has no free file descriptor.
_DESCRIPTOR_PAUSE = 0.05


@dataclass(slots=True, eq=False, kw_only=True)
class _Exchange(Hop):
    """One exchange (a request and its response), with its connector."""

    request: Request
    connector: Connector
    site: Site
    path: str  #: path and query of the URL


class AiohttpDownloader:
    """A `Downloader` that uses aiohttp's connections.

    The downloader connects to private addresses only for hosts in *start_origins* and in the
    setting `allow_private`. *start_origins* are the hosts of the start URLs, such as `example.com`
    or `example.com:8080`; `AddressGuard` explains *public_names*. Use the downloader in a running
    event loop by `async with`, or call `close` at the end.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        start_origins: Iterable[str] = (),
        public_names: PublicNames | None = None,
    ) -> None:
        self._settings = settings
        self._files = FileTransfers(settings)
        self.memory = MemoryBudget(settings.memory_budget // BUDGET_IN_BODIES)
        # Small bodies are not in the memory budget, and take at most a sixteenth of the budget.
        self._free_body = min(_FREE_BODY, settings.memory_budget // 16 // settings.concurrency)
        self._read_timeout = settings.read_timeout.total_seconds()
        self._address_guard = AddressGuard(
            start_origins=start_origins,
            allow_private=settings.allow_private,
            any_port=settings.any_port,
            public_names=public_names,
        )
        self._connector: Connector | None = None
        #: Default headers, which are added to requests without headers of the same names.
        self._default_headers = (
            ("User-Agent", settings.user_agent),
            ("Accept-Encoding", ACCEPTED),
            ("Accept", "*/*"),
        )
        self._usual_head = _lines(self._default_headers)
        #: Cookies of requests without a session.
        self._jar: Jar | None = None

    async def open(self) -> None:
        """Create the connector and the cookie jar."""
        if self._connector is None:
            self._connector = Connector(self._settings, self._address_guard)
            if self._settings.cookies:
                # Import the cookie jar late, because it loads a list of public suffixes.
                from crawlcw.fetch.cookies import SiteCookies

                self._jar = SiteCookies()

    async def close(self) -> None:
        """Close all connections."""
        if self._connector is not None:
            await self._connector.close()
            self._connector = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Send *request* to *url*, and return the response; see `Downloader`."""
        # If a user's own downloader calls `fetch`, use the attempt for which the crawl called it.
        outer = current_hop.get(None)
        attempt = Attempt(request=request) if outer is None else outer.attempt
        attempt.proxy = None
        response = await self.exchange(attempt, redirected(request, url))
        return response if response.request is request else replaced(response, request=request)

    async def exchange(self, attempt: Attempt, request: Request) -> Response:
        """Return the response to *request*, sent through the proxy of *attempt*."""
        address = urls.locate(request.url).url
        path_start = address.index("/", _BEFORE_PATH)
        if (connector := self._connector) is None:
            await self.open()
            return await self.exchange(attempt, request)
        site = connector.site(address[:path_start], attempt.proxy)
        hop = _Exchange(
            *(attempt, attempt.proxy, site.url),
            request=request,
            connector=connector,
            site=site,
            path=address[path_start:],
        )
        current_hop.set(hop)
        while True:
            try:
                # An origin that the address guard has admitted needs no second check.
                if not site.is_admitted:
                    await self._address_guard.admit(site.url, hop.proxy)
                    site.is_admitted = True
                if request.options.save_to is not None:
                    return await self._saved(hop)
                connection = await self._send(hop, request.headers)
                try:
                    return await self._page(connection, hop)
                finally:
                    connector.release(connection)
            except FetchError:
                raise
            except Exception as error:
                descriptor_errnos = (errno.EMFILE, errno.ENFILE)
                if not isinstance(error, OSError) or error.errno not in descriptor_errnos:
                    raise failure_in(error, hop) from error
            # No descriptor is free. The page did not cause this error, so do not count the attempt.
            # Close the idle connections, and wait until other requests have ended.
            connector.close_idle()
            await asyncio.sleep(_DESCRIPTOR_PAUSE)

    async def _send(self, hop: _Exchange, headers: Sequence[tuple[str, str]]) -> Listener:
        """Send the request, and return its connection, on which the response's head has arrived."""
        attempt, request, site, path = hop.attempt, hop.request, hop.site, hop.path
        # Without a tunnel, each request needs the proxy's login, which the proxy removes.
        is_tunnel = site.url.scheme == "https" or (hop.proxy is not None and hop.proxy.is_socks)
        proxy = None if is_tunnel else hop.proxy
        if proxy is not None:
            headers = [*headers, *login_of(proxy).items()]
            path = f"{str(site.url)[:-1]}{path}"
        if attempt.session is not None:
            jar = attempt.session.jar
        else:
            # A request with its own cookies does not use the jar, which other requests share.
            jar = None if attempt.request.options.cookies else self._jar
        if jar is not None or request.options.cookies:
            headers = _with_cookies(headers, attempt, request, jar)
        method, body = request.method.upper(), request.body or b""
        host = site.url.host_port_subcomponent or ""
        payload = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{self._usual_head}\r\n".encode()
        if headers or body or method not in ("GET", "HEAD"):
            payload = self._request(method, path, host, headers, body)
        may_repeat = method in _IDEMPOTENT
        while True:
            connection = await hop.connector.take(site, hop)
            try:
                await connection.ask(
                    payload,
                    is_head=method == "HEAD",
                    # A request's own timeout replaces `read_timeout` if `read_timeout` is shorter.
                    patience=max(self._read_timeout, request.options.timeout or 0.0),
                )
                if proxy is not None and connection.message.code == 407:
                    # Any site can send 407, so a 407 alone must not make a proxy count as failed.
                    message = f"HTTP 407, from the site or the proxy {proxy}"
                    raise login_refused(proxy, FetchError(Reason.HTTP_STATUS, message, status=407))
                break
            except BaseException as error:
                hop.connector.release(connection)
                # The server may have closed the connection before it read the request.
                hung_up = isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
                # Invalid HTTP on a reused connection may belong to the previous response.
                if not may_repeat or not (
                    hung_up or (isinstance(error, HttpProcessingError) and connection.idle_since)
                ):
                    raise
                may_repeat = False
        hop.stage = Stage.PASSED
        if jar is not None and (set_cookies := connection.message.headers.getall("Set-Cookie", ())):
            jar.keep(set_cookies, urls.parse(request.url))
        return connection

    def _request(
        self, method: str, path: str, host: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> bytes:
        """Return the bytes of a request; raises `ValueError` for an invalid method or header."""
        if _TOKEN.fullmatch(method) is None:
            raise ValueError(f"{method!r} is not an HTTP method")
        value_by_name = {name.lower(): value for name, value in headers}
        header_pairs = [("Host", value_by_name.get("host", host))]
        header_pairs += [
            pair for pair in self._default_headers if pair[0].lower() not in value_by_name
        ]
        header_pairs += [pair for pair in headers if pair[0].lower() not in _FIXED_HEADERS]
        if (body or method in _USUALLY_WITH_BODY) and "content-type" not in value_by_name:
            header_pairs.append(("Content-Type", "application/octet-stream"))
        if body or method not in _WITHOUT_BODY:
            header_pairs.append(("Content-Length", str(len(body))))
        return f"{method} {path} HTTP/1.1\r\n{_lines(header_pairs)}\r\n".encode() + body

    async def _page(self, connection: Listener, hop: _Exchange) -> Response:
        """Return the response on *connection*, with its body in memory."""
        request = hop.request
        status, headers = connection.message.code, headers_of(connection.message.headers)
        if status == 101:
            raise FetchError(Reason.PROTOCOL, "the server switched to an unrequested protocol")
        if not 200 <= status <= 599:
            raise FetchError(Reason.HTTP_STATUS, f"{status} is not an HTTP status", status=status)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        # Error pages and robots.txt are read, whatever their media type is.
        is_typed = 200 <= status < 300 and hop.attempt.purpose is not Purpose.ROBOTS
        accepted = self._settings.accept_types if is_typed else ("*/*",)
        if kind != "text/html":  # HTML is never refused
            check_type(kind, accepted, status=status)
        body, truncated, waited_s = b"", None, 0.0
        # Do not read the body of a redirect, which no spider needs and which may be endless.
        is_redirect = status in REDIRECTS and "location" in headers
        if status not in _BODILESS and not is_redirect:
            max_body = request.options.max_body
            max_body = self._settings.max_body if max_body is None else max_body
            codings = [] if headers.keys().isdisjoint(CODED) else codings_of(headers)
            content = connection.content
            if codings:
                length = None
            else:
                # Most bodies are complete when this code runs, so the size of the body is known.
                length = content.total_bytes if content.is_eof() else _length(headers)
            if length is not None and length <= min(max_body, self._free_body):
                body = content.read_nowait() if content.is_eof() else await content.read()
                if SIGNED.match(body) is not None:
                    check_start(body[:LOOK], kind, accepted)
            else:
                decoder = BodyDecoder(codings, limit=max_body)
                # Reserve all memory of a large body now, as two bodies could later wait for each
                # other.
                share = max_body if length is None else min(max_body, length)
                check = partial(check_start, declared_type=kind, accepted=accepted)
                body, waited_s = await self._collected(content, decoder, hop.attempt, share, check)
                truncated = _cut(decoder, headers, body)
        response = Response(
            request.url,
            request=request,
            status=status,
            headers=headers,
            body=body,
            elapsed=timedelta(seconds=monotonic() - connection.sent_at - waited_s),
            truncated=truncated,
        )
        if "set-cookie" in headers:
            response.set_cookies = _set_cookies(connection.message.headers)
        return response

    async def _collected(
        self,
        content: aiohttp.StreamReader,
        decoder: BodyDecoder,
        attempt: Attempt,
        size: int,
        check: Callable[[bytes], None],
    ) -> tuple[bytes, float]:
        """Return a body, and the seconds spent waiting for memory; *check* gets the first bytes."""
        body, buffer, share, waited_s = b"", io.BytesIO(), None, 0.0
        try:
            async for data in content.iter_any():
                for piece in decoder.pieces(data):
                    if share is None and decoder.size > self._free_body:
                        wait_started_at = monotonic()
                        with attempt.deadline:
                            share = await self.memory.take(size, waits=attempt.waits_for_memory)
                        waited_s = monotonic() - wait_started_at
                    buffer.write(piece)
                check(bytes(buffer.getbuffer()[:LOOK]))
                if decoder.is_full:
                    break
            body = buffer.getvalue()  # shares the buffer's memory
        finally:
            if share is not None:
                share.shrink(len(body))
                attempt.keep(share)
        return body, waited_s

    async def _saved(self, hop: _Exchange) -> Response:
        """Send the request, and return the response with its body in a file."""
        request = hop.request
        async with self._files.transfer(hop.attempt, request) as file:
            while True:
                connection = await self._send(hop, file.headers(request.headers))
                try:
                    status, headers = (
                        connection.message.code,
                        headers_of(connection.message.headers),
                    )
                    elapsed = timedelta(seconds=monotonic() - connection.sent_at)
                    codings = codings_of(headers)
                    length = None if codings else _length(headers)
                    if not await file.begin(status, headers, length=length, coded=bool(codings)):
                        return await self._page(connection, hop)  # its status says why
                    decoder = BodyDecoder(codings)
                    async for data in connection.content.iter_any():
                        file.count_wire_bytes(len(data))
                        for piece in decoder.pieces(data):
                            await file.take(piece)
                    if decoder.missing:
                        raise FetchError(Reason.PAYLOAD_TRUNCATED, decoder.missing)
                except PartRefusedError:
                    continue  # the file starts again
                finally:
                    hop.connector.release(connection)
                response = Response(
                    request.url, request=request, status=status, headers=headers, elapsed=elapsed
                )
                response.set_cookies = _set_cookies(connection.message.headers)
                return await file.store(response)


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    """Return the lines of *headers*; raises `ValueError` for a header with a line end."""
    for name, value in headers:
        if _TOKEN.fullmatch(name) is None or _NO_HEADER.search(value):
            raise ValueError(f"the header {name!r} is not one line of text")
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


def _with_cookies(
    headers: Sequence[tuple[str, str]], attempt: Attempt, request: Request, jar: Jar | None
) -> Sequence[tuple[str, str]]:
    """Return *headers* with all cookies in one `Cookie` header.

    A cookie of the request replaces a cookie of *jar* that has the same name.
    """
    own_cookies = dict(request.options.cookies or ())
    # A redirect to another origin drops the cookies of the attempt's request.
    if own_cookies and urls.origin_of(request.url) != urls.origin_of(attempt.request.url):
        own_cookies = {}
    jar_cookies = [] if jar is None else jar.sent_to(urls.parse(request.url))
    pairs = [*(pair for pair in jar_cookies if pair[0] not in own_cookies), *own_cookies.items()]
    if not pairs:
        return headers
    names = {name for name, _ in pairs}
    cookies = ";".join(value for name, value in headers if name.lower() == "cookie").split(";")
    texts = [pair.strip() for pair in cookies if pair.partition("=")[0].strip() not in names]
    texts += [f"{name}={value}" if name else value for name, value in pairs]
    other_headers = [pair for pair in headers if pair[0].lower() != "cookie"]
    return [*other_headers, ("Cookie", "; ".join(filter(None, texts)))]


def _cut(decoder: BodyDecoder, headers: Mapping[str, str], body: bytes) -> str | None:
    """Return why a body is incomplete, or None; raises `FetchError` for an unusable body."""
    if not decoder.missing:
        return "bytes" if decoder.is_full else None
    if not decoder.lacks_content:
        return "checksum"
    # Browsers show an incomplete compressed body if the body has as many bytes as the server
    # announced. If the server announced no length, a broken connection may be the cause.
    is_framed = "content-length" in headers or "transfer-encoding" in headers
    if body and is_framed:
        return "coding"
    raise FetchError(Reason.PAYLOAD_TRUNCATED, decoder.missing)


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length", "")
    return int(text) if text.isdigit() else None


def headers_of(wire_headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """Return a response's headers as text, by lower-case name."""
    text_by_name: dict[str, str] = {}
    for name, value in islice(wire_headers.items(), _MAX_HEADERS_KEPT):
        key = name.lower()
        text = value if value.isascii() else _readable(value, is_location=key == "location")
        if key not in text_by_name:
            text_by_name[key] = text
        elif key == "x-robots-tag" and ":" not in text:
            # A value for all robots must come first, because every value after a robot's name is
            # only for the named robot.
            text_by_name[key] = f"{text}, {text_by_name[key]}"
        elif key != "location":
            text_by_name[key] = f"{text_by_name[key]}, {text}"
    if "," in (kind := text_by_name.get("content-type", "")):
        text_by_name["content-type"] = charset.content_type(kind)
    return text_by_name


def _set_cookies(wire_headers: CIMultiDictProxy[str]) -> tuple[str, ...]:
    values = wire_headers.getall("Set-Cookie", ())
    return tuple(
        value if value.isascii() else _readable(value, is_location=False) for value in values
    )


def _readable(value: str, *, is_location: bool) -> str:
    """Return a header's value as text; bytes that are not UTF-8 become surrogate escapes."""
    raw = value.encode("utf-8", "surrogateescape")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # If a URL is not UTF-8, browsers percent-encode its bytes above 127.
        return (
            quote_from_bytes(raw, safe=bytes(range(128))) if is_location else raw.decode("latin-1")
        )
