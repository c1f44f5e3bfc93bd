"""The downloader that crawls the web: HTTP/1.1 with aiohttp's connector and parser.

The requests, the decoding, the bound of a body, the deadline of a read and the names of what
goes wrong are ours: a server can make a client hang, swell or lie without them. aiohttp's
client session is left out; it costs more CPU than all of that together.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from http.cookies import BaseCookie
from itertools import islice
from time import monotonic
from types import TracebackType
from typing import Self
from urllib.parse import quote_from_bytes

import aiohttp
import yarl
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict

from crawlcw.api.attempt import Attempt, Jar, asked_at, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import BUDGET_IN_BODIES, Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.addresses import AddressGuard, Hop, PublicNames, Stage, current_hop
from crawlcw.fetch.body import (
    ACCEPTED,
    LOOK,
    BodyDecoder,
    StreamDecoder,
    codings_of,
    refused_start,
    refused_type,
)
from crawlcw.fetch.connection import Listener, OriginKey, endpoint_of
from crawlcw.fetch.connector import NameResolver, RestingConnector, origin_key
from crawlcw.fetch.failures import failure_in, is_out_of_descriptors, login_refused
from crawlcw.fetch.file_transfer import FileTransfer, FileTransfers
from crawlcw.fetch.memory_budget import BodyRoom, MemoryBudget
from crawlcw.model import urls
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: RFC 9110, sections 9.3.2, 15.3.5, 15.3.6 and 15.4.5: these have no body.
_BODILESS = frozenset({204, 205, 304})
#: RFC 9110, section 9.2.2: requests that may be sent again where their connection ends.
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
#: Requests without a body do not say so.
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_USUALLY_WITH_BODY = frozenset({"PATCH", "POST", "PUT"})
#: Headers that have their place in a request; those of its framing are never the user's.
_OURS = frozenset({"host", "content-length", "transfer-encoding"})
_ACCEPTS = (("Accept-Encoding", ACCEPTED), ("Accept", "*/*"))
#: RFC 9110, section 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_HEADER = re.compile(r"[\r\n\0]")
#: The path begins behind these, and behind those of http.
_BEFORE_PATH = len("https://")
_MAX_HEADERS_KEPT = 200
_NAME_PATIENCE = timedelta(seconds=5)
_LEAST_IDLE = 16
#: A body of this size needs no share of the memory budget.
_FREE_BODY = 256 << 10
#: How long to wait for another request to give its descriptor back.
_DESCRIPTOR_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class _Site:
    """An origin, asked directly or through one proxy."""

    url: yarl.URL
    host: str  #: as the header says it
    key: ConnectionKey
    origin: OriginKey


@lru_cache(maxsize=1 << 12)
def _site(origin: str, proxy: Proxy | None) -> _Site:
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
    return _Site(url, url.host_port_subcomponent or "", key, origin_key(key))


def _address_of(proxy: Proxy) -> yarl.URL:
    return yarl.URL.build(scheme=proxy.scheme, host=proxy.host, port=proxy.port)


class _Answer:
    """One answer: its head, and its body as it comes.

    At the end of the body the connection is released. Whatever else happens, it is to be
    closed: a connection with bytes left on it is of no use for another request.
    """

    __slots__ = ("_connector", "_is_open", "_key", "content", "message", "protocol", "sending")

    message: RawResponseMessage
    content: StreamReader

    def __init__(self, connector: RestingConnector, key: ConnectionKey, protocol: Listener) -> None:
        self._connector = connector
        self._key = key
        self.protocol = protocol
        self._is_open = True
        #: The rest of a large request, on its way to a server that may answer before.
        self.sending: asyncio.Task[None] | None = None

    def take(self, head: tuple[RawResponseMessage, StreamReader]) -> None:
        """Take what the connection has read."""
        self.message, self.content = head
        self.content.on_eof(self._ended)

    def _ended(self) -> None:
        if not self.protocol.upgraded:
            self.close(should_close=self.sending is not None and not self.sending.done())

    def close(self, *, should_close: bool = True) -> None:
        """Let go of the connection, where that has not been done."""
        if self._is_open:
            self._is_open = False
            if self.sending is not None:
                self.sending.cancel()
            self._connector.release(self._key, self.protocol, should_close=should_close)


class AiohttpDownloader:
    """A `Downloader` on aiohttp's client.

    *start_origins* are the `Location.host` of the start URLs: these hosts, and
    those of `settings.allow_private`, may be at private addresses, see
    `AddressGuard`, which has *public_names* too. To be opened inside of the
    running loop, by `open`, `async with` or the first `fetch`; who opens it
    closes it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        start_origins: Iterable[str] = (),
        public_names: PublicNames | None = None,
    ) -> None:
        self._settings = settings
        self._max_body = settings.max_body
        self._accepted = settings.accept_types
        self._budget = MemoryBudget(settings.memory_budget // BUDGET_IN_BODIES)
        # Of all fetchers together no more than a sixteenth of the whole budget.
        self._free_body = min(_FREE_BODY, settings.memory_budget // 16 // settings.concurrency)
        self._files = FileTransfers(settings, buffer=self._free_body)
        self._read_timeout = settings.read_timeout.total_seconds()
        self._guard = AddressGuard(
            start_origins=start_origins,
            allow_private=settings.allow_private,
            public_names=public_names,
        )
        self._connector: RestingConnector | None = None
        self._resolver: NameResolver | None = None
        # `connect` spans the look-up and all addresses of a name.
        self._timeout = aiohttp.ClientTimeout(connect=settings.connect_timeout.total_seconds())
        #: The headers of a request, where it brings none of that name.
        self._usual = (("User-Agent", settings.user_agent), *_ACCEPTS)
        self._usual_head = _lines(self._usual)
        #: The cookies of what is asked for without any session.
        self._jar: Jar | None = None

    async def open(self) -> None:
        """Make ready for the first request."""
        self._opened()

    async def close(self) -> None:
        """Close all connections."""
        if self._connector is not None:
            await self._connector.close()
            self._connector = None
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
        # Under a user's own downloader it is the attempt that this works on.
        outer = current_hop.get(None)
        attempt = Attempt(request=request) if outer is None else outer.attempt
        response = await self.exchange(attempt, asked_at(request, url), proxy=None)
        return response if response.request is request else replaced(response, request=request)

    async def exchange(
        self, attempt: Attempt, request: Request, *, proxy: Proxy | None
    ) -> Response:
        """Return the response to *request*, asked for through *proxy*; see `Downloader`."""
        address = urls.locate(request.url).url
        split = address.index("/", _BEFORE_PATH)
        site, path = _site(address[:split], proxy), address[split:]
        hop = Hop(attempt, proxy)
        current_hop.set(hop)
        hop.trusted = self._guard.admitted(site.url) if proxy is None else None
        if hop.trusted is None:
            try:
                await self._guard.learn(site.url)
            except OSError as error:
                raise failure_in(error, hop) from error
            if proxy is None:
                hop.trusted = self._guard.admit(site.url)
            else:
                hop.trusted = self._guard.admit_through(site.url, proxy)
        while True:
            try:
                if request.options.save_to is not None:
                    return await self._saved(hop, request, site, path)
                answer = await self._asked(hop, request, site, path, headers=request.headers)
                try:
                    return await self._page(answer, hop, request)
                finally:
                    answer.close()
            except FetchError:
                raise
            except Exception as error:
                if not is_out_of_descriptors(error):
                    raise failure_in(error, hop) from error
            # Not the page's fault, so it costs no attempt: the idle
            # connections go first, then this waits until others have ended.
            if self._connector is not None:
                self._connector.close_idle()
            await asyncio.sleep(_DESCRIPTOR_PAUSE)

    async def _page(
        self, answer: _Answer, hop: Hop, request: Request, headers: dict[str, str] | None = None
    ) -> Response:
        """Return the response whose headers have come, with its body in memory."""
        status = answer.message.code
        headers = _headers(answer.message.raw_headers) if headers is None else headers
        _check_head(status, headers, accepted=self._accepted)
        body, truncated, waited = b"", None, 0.0
        if _has_body(request.method, status, headers):
            most = request.options.max_body
            most = self._max_body if most is None else most
            small = await self._small_body(answer, headers, most=most)
            if small is not None:
                body = small
            else:
                room = BodyRoom(self._budget, hop.attempt, free=self._free_body, most=most)
                patience = self._patience(request)
                body, truncated = await self._body(answer, headers, patience, room, most=most)
                waited = room.waited
        return Response(
            request.url,
            request=request,
            status=status,
            headers=headers,
            body=body,
            elapsed=timedelta(seconds=monotonic() - hop.sent - waited),
            truncated=truncated,
        )

    async def _small_body(
        self, answer: _Answer, headers: Mapping[str, str], *, most: int
    ) -> bytes | None:
        """Return a body without codings whose length is known to be small; None: see `_body`.

        aiohttp's timer ends the wait for it.
        """
        if "content-encoding" in headers or "transfer-encoding" in headers:
            return None
        content = answer.content
        length = content.total_bytes if content.is_eof() else _length(headers)
        if length is None or length > min(most, self._free_body):
            return None
        body = content.read_nowait() if content.is_eof() else await content.read()
        self._check_start(body[:LOOK], answer.message.code, headers)
        return body

    async def _saved(self, hop: Hop, request: Request, site: _Site, path: str) -> Response:
        """Return the response to a request for a file, its body on the disk."""
        async with self._files.transfer(hop.attempt, request) as transfer:
            while True:
                asked = transfer.headers(request.headers)
                answer = await self._asked(hop, request, site, path, headers=asked)
                status = answer.message.code
                try:
                    headers = _headers(answer.message.raw_headers)
                    if transfer.is_contradicted(status, headers):
                        continue
                    if not transfer.is_file(status):
                        return await self._page(answer, hop, request, headers)
                    elapsed = timedelta(seconds=monotonic() - hop.sent)
                    await self._file(answer, headers, transfer, self._patience(request))
                finally:
                    answer.close()
                response = Response(
                    request.url,
                    request=request,
                    # It is whole, whichever part of it has come by this answer.
                    status=200 if status == 206 else status,
                    headers=headers,
                    elapsed=elapsed,
                )
                return await transfer.kept(response)

    async def _file(
        self,
        answer: _Answer,
        headers: Mapping[str, str],
        transfer: FileTransfer,
        patience: float,
    ) -> None:
        """Stream the body into the file of *transfer*."""
        codings = [name for name in _codings(headers) if name != "identity"]
        decoder = StreamDecoder(codings)
        length = None if codings else _length(headers)
        await transfer.begin(answer.message.code, headers, length=length, coded=bool(codings))

        async def take(data: bytes) -> bool:
            transfer.came(len(data))
            for piece in decoder.pieces(data):
                await transfer.take(piece)
            return False

        if answer.content.is_eof():
            await take(answer.content.read_nowait())
        else:
            await self._stream(answer, take, patience)
        decoder.close()

    async def _body(
        self,
        answer: _Answer,
        headers: Mapping[str, str],
        patience: float,
        room: BodyRoom,
        *,
        most: int,
    ) -> tuple[bytes, str | None]:
        """Return the body, *most* bytes of it, decoded; and why it was cut."""
        codings = _codings(headers)
        decoder = BodyDecoder(codings, limit=most)
        # Of what is not coded the length is known beforehand.
        length = None if codings else _length(headers)
        if length is not None:
            room.expect(length)
        body = b""
        status = answer.message.code
        checked = False

        async def take(data: bytes) -> bool:
            nonlocal checked
            await _feed(decoder, data, room)
            if not checked:
                start = decoder.start(LOOK)
                self._check_start(start, status, headers)
                checked = len(start) == LOOK
            return decoder.full

        try:
            if answer.content.is_eof():
                # Most pages are here as soon as their headers are.
                await take(answer.content.read_nowait())
            else:
                await room.make(length or 0)
                await self._stream(answer, take, patience)
            body = decoder.close()
        finally:
            room.close(len(body))
        return body, _cut(decoder, headers, body)

    def _check_start(self, start: bytes, status: int, headers: Mapping[str, str]) -> None:
        """Raise `FetchError` for a page that begins as nothing that is read."""
        if not 200 <= status < 300:
            return
        kind = headers.get("content-type", "")
        found = refused_start(start, content_type=kind, accepted=self._accepted)
        if found is not None:
            said = printable(kind) if kind else "of no type"
            raise FetchError(Reason.CONTENT_TYPE, f"a body {said} that is {found} is not read")

    async def _stream(
        self,
        answer: _Answer,
        take: Callable[[bytes], Awaitable[bool]],
        patience: float,
    ) -> None:
        """Give the body to *take*, a chunk at a time, until it has enough or the body ends."""
        protocol, content = answer.protocol, answer.content
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(patience) as deadline:
                while data := await content.readany():
                    # Neither does waiting for memory, or a disk, count.
                    deadline.reschedule(None)
                    if await take(data):
                        break
                    deadline.reschedule(now() + patience)
        except TimeoutError:
            # After a malformed chunk aiohttp closes the socket, drops its own
            # timer, and leaves the reader waiting for ever: the connection
            # knows what really happened.
            known = protocol.exception()
            if known is not None:
                raise known from None
            raise
        if type(protocol.exception()) is aiohttp.ClientOSError:
            # A body without a length ends with its connection, and aiohttp
            # takes a reset for an end.
            raise FetchError(Reason.PAYLOAD_TRUNCATED, "the connection was reset within the body")

    async def _asked(
        self,
        hop: Hop,
        request: Request,
        site: _Site,
        path: str,
        *,
        headers: Sequence[tuple[str, str]],
    ) -> _Answer:
        """Return the answer to a request whose headers have come; it is to be closed."""
        proxy = None if hop.proxy is None or hop.proxy.is_socks else hop.proxy
        if proxy is not None and not site.key.is_ssl:
            # In a tunnel the server would be told it; without one it goes with each request.
            headers = [*headers, *_login(proxy).items()]
            path = f"{str(site.url)[:-1]}{path}"
        jar = self._jar_of(hop.attempt)
        if jar is not None or request.options.cookies:
            cookies = _cookies_to(urls.parse(request.url), hop.attempt, request, jar)
            if cookies:
                headers = _with_cookies(headers, cookies)
        method, body = request.method.upper(), request.body or b""
        sent = self._head(method, path, site.host, headers, body) + body
        connector = self._opened()
        retries = method in _IDEMPOTENT
        while True:
            try:
                answer = await self._exchange(connector, hop, request, site, sent)
                break
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                # RFC 9112, section 9.3.1: it may have ended before the server has read it.
                if not retries:
                    raise
                retries = False
        hop.stage = Stage.PASSED
        if jar is not None and (told := answer.message.headers.getall("Set-Cookie", ())):
            jar.update_cookies_from_headers(told, urls.parse(request.url))
        if proxy is not None and not site.key.is_ssl and answer.message.code == 407:
            answer.close()
            # Else any site could put an end to the proxies.
            message = f"HTTP 407, of the site or of the proxy {proxy}"
            raise login_refused(proxy, FetchError(Reason.HTTP_STATUS, message, status=407))
        return answer

    async def _exchange(
        self, connector: RestingConnector, hop: Hop, request: Request, site: _Site, sent: bytes
    ) -> _Answer:
        """Send a request as it is over one connection, and return the answer."""
        opening = partial(self._opening, hop, site)
        protocol = await connector.take(site.key, opening, self._timeout)
        answer = _Answer(connector, site.key, protocol)
        try:
            hop.stage = max(hop.stage, Stage.REACHED)
            protocol.ask(
                site.origin,
                endpoint_of(request.url),
                # A server may refuse a body before it has read all of it.
                answered_when_read=not request.body,
                is_head=request.method.upper() == "HEAD",
                patience=self._patience(request),
            )
            if protocol.transport is None or protocol.transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            hop.begin_sending(asyncio.get_running_loop())
            protocol.transport.write(sent)
            if protocol.writing_paused:
                answer.sending = asyncio.create_task(protocol.sent())
            else:
                protocol.start_timeout()
            answer.take(await protocol.read())
        except BaseException:
            answer.close()
            raise
        return answer

    def _opening(self, hop: Hop, site: _Site) -> aiohttp.ClientRequest:
        """Return what aiohttp is to open a connection for."""
        proxy = None if hop.proxy is None or hop.proxy.is_socks else hop.proxy
        told = None if proxy is None else dict([*self._usual, *_login(proxy).items()])
        return aiohttp.ClientRequest(
            "GET",
            site.url,
            loop=asyncio.get_running_loop(),
            proxy=None if proxy is None else _address_of(proxy),
            proxy_headers=None if told is None else CIMultiDict(told),
        )

    def _head(
        self, method: str, path: str, host: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> bytes:
        """Return the head of a request; raises `ValueError` for what is no header."""
        if not headers and not body and method in ("GET", "HEAD"):
            return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{self._usual_head}\r\n".encode()
        if _TOKEN.fullmatch(method) is None:
            raise ValueError(f"{method!r} is no method")
        given = {name.lower(): value for name, value in headers}
        pairs = [("Host", given.get("host", host))]
        pairs += [pair for pair in self._usual if pair[0].lower() not in given]
        pairs += [pair for pair in headers if pair[0].lower() not in _OURS]
        if (body or method in _USUALLY_WITH_BODY) and "content-type" not in given:
            pairs.append(("Content-Type", "application/octet-stream"))
        if body or method not in _WITHOUT_BODY:
            pairs.append(("Content-Length", str(len(body))))
        return f"{method} {path} HTTP/1.1\r\n{_lines(pairs)}\r\n".encode()

    def _jar_of(self, attempt: Attempt) -> Jar | None:
        """Return where the cookies of an attempt are kept; None: nowhere."""
        if attempt.session is not None:
            return attempt.session.jar
        # With cookies of its own it is asked for as somebody else than all others.
        return None if attempt.request.options.cookies else self._jar

    def _opened(self) -> RestingConnector:
        if self._connector is not None:
            return self._connector
        settings = self._settings
        if settings.cookies:
            # Its list of suffixes is loaded where it is wanted.
            from crawlcw.fetch.cookies import SiteCookies

            self._jar = SiteCookies()
        # Less than a connection may take, so that a dead DNS is told from a dead host.
        patience = min(settings.connect_timeout / 2, _NAME_PATIENCE)
        self._resolver = NameResolver(patience=patience.total_seconds(), guard=self._guard)
        self._connector = RestingConnector(
            guard=self._guard,
            resolver=self._resolver,
            # What fetchers have used rests while they go on with others.
            # Without a limit a host may have all fetchers to itself.
            idle_per_host=max(
                _LEAST_IDLE, 4 * settings.per_host_concurrency or 8 * settings.concurrency
            ),
            verify=not settings.insecure,
        )
        return self._connector

    def _patience(self, request: Request) -> float:
        """Return for how many seconds a request may be silent."""
        # One that may take longer than `read_timeout` may be silent for as long.
        return max(self._read_timeout, request.options.timeout or 0.0)


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    """Return headers as they are sent; raises `ValueError` for one that would be two."""
    for name, value in headers:
        if _TOKEN.fullmatch(name) is None or _NO_HEADER.search(value):
            raise ValueError(f"the header {name!r} is not one line of text")
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


def _cookies_to(
    target: yarl.URL, attempt: Attempt, request: Request, jar: Jar | None
) -> "BaseCookie[str] | None":
    """Return the cookies to send; of several of one name the request's own."""
    found = None if jar is None else jar.filter_cookies(target)
    own = dict(request.options.cookies or ())
    # They are for its own origin, wherever a redirect has led.
    if not own or urls.origin_of(request.url) != urls.origin_of(attempt.request.url):
        return found
    cookies: BaseCookie[str] = BaseCookie()
    for key, morsel in (found or {}).items():
        if morsel.key not in own:
            cookies[key] = morsel
    for name, value in own.items():
        cookies[name] = value
    return cookies


def _with_cookies(
    headers: Sequence[tuple[str, str]], cookies: "BaseCookie[str]"
) -> list[tuple[str, str]]:
    """Return *headers* with a `Cookie`; of a name that theirs has too, the jar's counts."""
    # aiohttp would sort them, and has no place for two of one name, nor for one without.
    sent = [
        f"{each.key}={each.coded_value}" if each.key else each.coded_value
        for each in cookies.values()
    ]
    names = {each.key for each in cookies.values()}
    given = ";".join(value for name, value in headers if name.lower() == "cookie").split(";")
    own = [pair.strip() for pair in given if pair.partition("=")[0].strip() not in names]
    others = [pair for pair in headers if pair[0].lower() != "cookie"]
    return [*others, ("Cookie", "; ".join([*filter(None, own), *sent]))]


def _login(proxy: Proxy) -> dict[str, str]:
    if proxy.user is None:
        return {}
    encoded = b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {encoded}"}


async def _feed(decoder: BodyDecoder, data: bytes, room: BodyRoom) -> None:
    for size in decoder.pieces(data):
        if size > room.size:
            await room.make(size)


def _check_head(status: int, headers: Mapping[str, str], *, accepted: Sequence[str]) -> None:
    if status == 101:
        raise FetchError(Reason.PROTOCOL, "the server switched to a protocol nobody asked for")
    if not 100 <= status <= 599:
        raise FetchError(Reason.HTTP_STATUS, f"{status} is no status of HTTP", status=status)
    kind = headers.get("content-type", "")
    refused = refused_type(kind, accepted=accepted) if 200 <= status < 300 else None
    if refused is not None:
        message = f"{printable(refused)} is not read, see `accept_types`"
        raise FetchError(Reason.CONTENT_TYPE, message, status=status)


def _cut(decoder: BodyDecoder, headers: Mapping[str, str], body: bytes) -> str | None:
    """Return why a body is not whole, None where it is; raises `FetchError` for half an answer."""
    if not decoder.missing:
        return "bytes" if decoder.full else None
    if not decoder.lacks_content:
        return "checksum"
    # Its server has sent all that it announced, as browsers show it. But where nothing was
    # announced, it may be the connection that has broken.
    is_framed = "content-length" in headers or "transfer-encoding" in headers
    if body and is_framed:
        return "coding"
    raise FetchError(Reason.PAYLOAD_TRUNCATED, decoder.missing)


def _has_body(method: str, status: int, headers: Mapping[str, str]) -> bool:
    # The body of a redirect is a courtesy to people, and may be endless.
    redirected = status in _REDIRECTS and "location" in headers
    return not (method == "HEAD" or status in _BODILESS or redirected)


def _length(headers: Mapping[str, str]) -> int | None:
    said = headers.get("content-length", "")
    return int(said) if said.isdigit() else None


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
    for name, value in islice(raw, _MAX_HEADERS_KEPT):
        key = name.decode("latin-1").lower()
        if key == "location":
            found.setdefault(key, _location(value))
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        if key not in found:
            found[key] = text
        elif key == "x-robots-tag" and ":" not in text:
            # What is asked of every robot must not come to stand behind the name of one.
            found[key] = f"{text}, {found[key]}"
        else:
            found[key] = f"{found[key]}, {text}"
    return found


def _location(value: bytes) -> str:
    # Every byte matters in a URL. What is UTF-8 is left to the URL's parser,
    # which encodes a path and a host each in its way; any other byte above
    # ASCII becomes %XX, as in browsers.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return quote_from_bytes(value, safe=bytes(range(128)))
