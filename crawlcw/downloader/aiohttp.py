"""The downloader that crawls the web: aiohttp's client, with its trust in servers taken out.

aiohttp is asked for the exchange alone. Decoding, the bound of a body, the
deadline of a read and the names of what goes wrong are ours; each of them is
here because a server can make the client hang, swell or lie without it.
"""

import asyncio
import errno
import socket
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from http.cookies import BaseCookie
from time import monotonic
from types import TracebackType
from typing import Self
from urllib.parse import quote_from_bytes

import aiohttp
import yarl
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from crawlcw.api.attempt import Attempt, Jar, asked_at
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import BUDGET_IN_BODIES, Settings
from crawlcw.downloader import content_types
from crawlcw.downloader.addresses import AddressGuard, AddressRefusedError, PublicNames
from crawlcw.downloader.connector import NameResolver, RestingConnector
from crawlcw.downloader.decoding import ACCEPTED, BodyDecoder, StreamDecoder, codings_of
from crawlcw.downloader.file_transfer import FileTransfer, FileTransfers
from crawlcw.downloader.hop import Hop, Stage, current_hop
from crawlcw.downloader.memory_budget import BodyRoom, MemoryBudget
from crawlcw.downloader.passages import PassingRequest
from crawlcw.errors import FetchError, ProxyFailedError, Reason
from crawlcw.model import urls
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: RFC 9110, sections 9.3.2, 15.3.5, 15.3.6 and 15.4.5: these have no body.
_BODILESS = frozenset({204, 205, 304})
_MAX_LINE = 1 << 16
_MAX_HEADERS = 1000
_MAX_HEADERS_KEPT = 200
_CHUNK = 1 << 16
_NAME_PATIENCE = timedelta(seconds=5)
_LEAST_IDLE = 16
#: A body of this size needs no share of the memory budget.
_FREE_BODY = 256 << 10
_MAX_MESSAGE = 500
#: What aiohttp says of headers and trailers that are too large.
_TOO_LARGE = ("Too many headers", "Got more than")
#: What becomes of a request that a proxy answers nothing to.
_SILENCE = frozenset({Reason.TIMEOUT_CONNECT, Reason.TIMEOUT_READ, Reason.DISCONNECTED})
#: How long to wait for another request to give its descriptor back.
_DESCRIPTOR_PAUSE = 0.05
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


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
        self._session: aiohttp.ClientSession | None = None
        #: The cookies of what is asked for without any session.
        self._jar: Jar | None = None

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
        # Under a user's own downloader it is the attempt that this works on.
        outer = current_hop.get(None)
        attempt = Attempt(request=request) if outer is None else outer.attempt
        response = await self.exchange(attempt, asked_at(request, url), proxy=None)
        response.request = request
        return response

    async def exchange(
        self, attempt: Attempt, request: Request, *, proxy: Proxy | None
    ) -> Response:
        """Return the response to *request*, asked for through *proxy*; see `Downloader`."""
        target = urls.parse(request.url)
        hop = Hop(attempt, proxy)
        current_hop.set(hop)
        try:
            await self._guard.learn(target)
        except OSError as error:
            raise _failure(error, hop) from error
        if proxy is None:
            hop.trusted = self._guard.admit(target)
        else:
            hop.trusted = self._guard.admit_through(target, proxy)
        session = self._session or self._opened()
        while True:
            try:
                if request.options.save_to is not None:
                    return await self._saved(session, hop, request, target=target)
                return await self._exchange(session, hop, request, target=target)
            except FetchError:
                raise
            except Exception as error:
                if not _out_of_descriptors(error):
                    raise _failure(error, hop) from error
            # Not the page's fault, so it costs no attempt: the idle
            # connections go first, then this waits until others have ended.
            if self._connector is not None:
                self._connector.close_idle()
            await asyncio.sleep(_DESCRIPTOR_PAUSE)

    async def _exchange(
        self, session: aiohttp.ClientSession, hop: Hop, request: Request, *, target: yarl.URL
    ) -> Response:
        answer = await self._asked(session, hop, request, target, headers=request.headers)
        try:
            return await self._page(answer, hop, request, headers=_headers(answer.raw_headers))
        finally:
            # At the end of the body aiohttp has released the connection by
            # itself, and the response is closed. Whatever else happened, a
            # connection with bytes left on it is of no use to anybody.
            if not answer.closed:
                answer.close()

    async def _page(
        self,
        answer: aiohttp.ClientResponse,
        hop: Hop,
        request: Request,
        *,
        headers: Mapping[str, str],
    ) -> Response:
        """Return the response whose headers have come, with its body in memory."""
        _check_head(answer.status, headers, accepted=self._accepted)
        body, truncated, waited = b"", None, 0.0
        if _has_body(request.method, answer.status, headers):
            patience = self._patience(request)
            most = request.options.max_body
            most = self._max_body if most is None else most
            room = BodyRoom(self._budget, hop.attempt, free=self._free_body, most=most)
            body, truncated = await self._body(answer, headers, patience, room, most=most)
            waited = room.waited
        return Response(
            request.url,
            request=request,
            status=answer.status,
            headers=headers,
            body=body,
            elapsed=timedelta(seconds=monotonic() - hop.sent - waited),
            truncated=truncated,
        )

    async def _saved(
        self, session: aiohttp.ClientSession, hop: Hop, request: Request, *, target: yarl.URL
    ) -> Response:
        """Return the response to a request for a file, its body on the disk."""
        async with self._files.transfer(hop.attempt, request) as transfer:
            while True:
                asked = transfer.headers(request.headers)
                answer = await self._asked(session, hop, request, target, headers=asked)
                try:
                    headers = _headers(answer.raw_headers)
                    if transfer.is_contradicted(answer.status, headers):
                        continue
                    if not transfer.is_file(answer.status):
                        return await self._page(answer, hop, request, headers=headers)
                    elapsed = timedelta(seconds=monotonic() - hop.sent)
                    await self._file(answer, headers, transfer, self._patience(request))
                finally:
                    if not answer.closed:
                        answer.close()
                response = Response(
                    request.url,
                    request=request,
                    # It is whole, whichever part of it has come by this answer.
                    status=200 if answer.status == 206 else answer.status,
                    headers=headers,
                    elapsed=elapsed,
                )
                return await transfer.kept(response)

    async def _file(
        self,
        answer: aiohttp.ClientResponse,
        headers: Mapping[str, str],
        transfer: FileTransfer,
        patience: float,
    ) -> None:
        """Stream the body into the file of *transfer*."""
        codings = [name for name in _codings(headers) if name != "identity"]
        decoder = StreamDecoder(codings)
        length = None if codings else answer.content_length
        await transfer.begin(answer.status, headers, length=length, coded=bool(codings))

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
        answer: aiohttp.ClientResponse,
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
        length = None if codings else answer.content_length
        if length is not None:
            room.expect(length)
        body = b""
        kind = headers.get("content-type", "") if 200 <= answer.status < 300 else None
        checked = False

        async def take(data: bytes) -> bool:
            nonlocal checked
            await _feed(decoder, data, room)
            checked = checked or self._check_start(decoder, kind)
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

    def _check_start(self, decoder: BodyDecoder, kind: str | None) -> bool:
        """Return whether enough has come to see that the body is to be read; raises `FetchError`.

        *kind* is what it is announced as, None for the body of an error page.
        """
        start = decoder.start(content_types.START)
        if kind is None:
            return True
        found = content_types.refused_start(start, content_type=kind, accepted=self._accepted)
        if found is not None:
            said = printable(kind) if kind else "of no type"
            raise FetchError(Reason.CONTENT_TYPE, f"a body {said} that is {found} is not read")
        return len(start) == content_types.START

    async def _stream(
        self,
        answer: aiohttp.ClientResponse,
        take: Callable[[bytes], Awaitable[bool]],
        patience: float,
    ) -> None:
        """Give the body to *take*, a chunk at a time, until it has enough or the body ends."""
        connection, content = answer.connection, answer.content
        protocol = connection.protocol if connection is not None else None
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
            known = protocol.exception() if protocol is not None else None
            if known is not None:
                raise known from None
            raise
        if protocol is not None and type(protocol.exception()) is aiohttp.ClientOSError:
            # A body without a length ends with its connection, and aiohttp
            # takes a reset for an end.
            raise FetchError(Reason.PAYLOAD_TRUNCATED, "the connection was reset within the body")

    async def _asked(
        self,
        session: aiohttp.ClientSession,
        hop: Hop,
        request: Request,
        target: yarl.URL,
        *,
        headers: Sequence[tuple[str, str]],
    ) -> aiohttp.ClientResponse:
        """Return the answer to a request whose headers have come."""
        proxy = None if hop.proxy is None or hop.proxy.is_socks else hop.proxy
        login = {} if proxy is None else _login(proxy)
        if login and target.scheme == "http":
            # In a tunnel the server would be told it; without one it goes with each request.
            headers = [*headers, *login.items()]
        jar = self._jar_of(hop.attempt)
        cookies = _cookies_to(target, hop.attempt, request, jar)
        if cookies:
            headers = _with_cookies(headers, cookies)
        answer = await session.request(
            request.method,
            target,
            headers=headers or None,
            data=request.body,
            allow_redirects=False,
            timeout=self._timeout(self._patience(request)),
            proxy=None
            if proxy is None
            else yarl.URL.build(scheme=proxy.scheme, host=proxy.host, port=proxy.port),
            proxy_headers=login or None,
        )
        hop.stage = Stage.PASSED
        if jar is not None and (told := answer.headers.getall("Set-Cookie", ())):
            jar.update_cookies_from_headers(told, answer.url)
        if proxy is not None and target.scheme == "http" and answer.status == 407:
            answer.close()
            # Else any site could put an end to the proxies.
            message = f"HTTP 407, of the site or of the proxy {proxy}"
            raise _login_refused(proxy, FetchError(Reason.HTTP_STATUS, message, status=407))
        return answer

    def _jar_of(self, attempt: Attempt) -> Jar | None:
        """Return where the cookies of an attempt are kept; None: nowhere."""
        if attempt.session is not None:
            return attempt.session.jar
        # With cookies of its own it is asked for as somebody else than all others.
        return None if attempt.request.options.cookies else self._jar

    def _opened(self) -> aiohttp.ClientSession:
        settings = self._settings
        if settings.cookies:
            # Its list of suffixes is loaded where it is wanted.
            from crawlcw.downloader.cookies import SiteCookies

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
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            request_class=PassingRequest,
            # Each attempt has the cookies of its own session, see `_cookies_to`.
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": settings.user_agent, "Accept-Encoding": ACCEPTED},
            trust_env=False,
            auto_decompress=False,
            timeout=self._timeout(self._read_timeout),
            read_bufsize=_CHUNK,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            max_headers=_MAX_HEADERS,
        )
        return self._session

    def _patience(self, request: Request) -> float:
        """Return for how many seconds a request may be silent."""
        # One that may take longer than `read_timeout` may be silent for as long.
        return max(self._read_timeout, request.options.timeout or 0.0)

    def _timeout(self, patience: float) -> aiohttp.ClientTimeout:
        # `connect` spans the look-up and all addresses of a name;
        # `sock_read` ends what `_stream` does not: the wait for headers.
        return aiohttp.ClientTimeout(
            total=None,
            connect=self._settings.connect_timeout.total_seconds(),
            sock_read=patience,
        )


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


def _login_refused(proxy: Proxy, otherwise: FetchError | None = None) -> ProxyFailedError:
    what = "asks for a user and a password" if proxy.user is None else "refuses its password"
    message = f"the proxy {proxy} {what} (HTTP 407)"
    return ProxyFailedError(message, for_good=True, otherwise=otherwise)


def _failure(error: Exception, hop: Hop) -> FetchError:
    """Return what *error* is called in crawlcw, a proxy's own failures apart."""
    proxy = hop.proxy
    if proxy is None:
        return failure_of(error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        if error.status == 407:
            return _login_refused(proxy)
        said = printable(f"{error.status} {error.message}".strip())
        return FetchError(Reason.CONNECT, f"the proxy {proxy} answered CONNECT by {said}")
    found = failure_of(error)
    if found.reason is Reason.DISCONNECTED and (wrong := _untrusted(error)) is not None:
        found = FetchError(Reason.TLS, f"the certificate is not trusted: {printable(wrong)}")
    if hop.stage is not Stage.DIALLING or found.reason is Reason.REFUSED_ADDRESS:
        behind = FetchError(found.reason, f"{found.message}, through the proxy {proxy}")
        if hop.stage in (Stage.DIALLING, Stage.PASSED) or found.reason not in _SILENCE:
            return behind
        # Greeting us is up to a SOCKS proxy alone. Later it may wait for the host.
        ungreeted = proxy.is_socks and hop.stage is Stage.REACHED
        message = f"the proxy {proxy} takes connections and does not answer"
        return ProxyFailedError(message, otherwise=None if ungreeted else behind)
    # With socks5 the host's name is looked up here, and is not the proxy's to know.
    looked_up = isinstance(error, aiohttp.ClientConnectorDNSError)
    if looked_up and not proxy.resolves_names and hop.at_host:
        return found
    # aiohttp's own sentence names the proxy once more, and the kind of TLS.
    is_tls = found.reason is Reason.TLS
    why = None if is_tls else getattr(getattr(error, "os_error", None), "strerror", None)
    why = why or found.message
    return ProxyFailedError(f"the proxy {proxy} cannot be reached: {printable(why)}")


async def _feed(decoder: BodyDecoder, data: bytes, room: BodyRoom) -> None:
    for size in decoder.pieces(data):
        if size > room.size:
            await room.make(size)


def _untrusted(error: BaseException | None) -> str | None:
    """Return what was wrong with a certificate, where asyncio has failed to say so."""
    # Within a tunnel over TLS, Python 3.11 raises a TypeError instead.
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return None if error is None else error.verify_message


def failure_of(error: Exception) -> FetchError:
    """Return what *error*, raised by aiohttp or below it, is called in crawlcw."""
    # aiohttp puts things of all kinds there, half a response among them.
    message = getattr(error, "message", None)
    text = message if isinstance(message, str) else str(error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        text = "the server hung up"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        # What is wrong with it, and not in which line of OpenSSL that was found.
        found = error.certificate_error
        wrong = getattr(found, "verify_message", "") or str(found)
        text = f"the certificate is not trusted: {wrong}"
    elif (
        isinstance(error, aiohttp.ClientConnectorError) and _reason(error) is Reason.REFUSED_ADDRESS
    ):
        text = error.os_error.strerror or text
    failure = FetchError(
        _reason(error), printable(text or type(error).__name__, limit=_MAX_MESSAGE)
    )
    if isinstance(error, aiohttp.ClientConnectorError):
        failure.refused = error.os_error.errno == errno.ECONNREFUSED
    return failure


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
            return Reason.HEADER_TOO_LARGE if _is_too_large(error) else Reason.PAYLOAD_TRUNCATED
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
        if _is_too_large(error):
            return Reason.HEADER_TOO_LARGE
        error = error.__cause__
    return Reason.PROTOCOL


def _is_too_large(error: BaseException) -> bool:
    # Of trailers, aiohttp keeps the text alone.
    text = str(error)[:_MAX_MESSAGE]
    return isinstance(error, LineTooLong) or any(known in text for known in _TOO_LARGE)


def _out_of_descriptors(error: Exception) -> bool:
    # Of a connection, or of a file that is saved.
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def _check_head(status: int, headers: Mapping[str, str], *, accepted: Sequence[str]) -> None:
    if status == 101:
        raise FetchError(Reason.PROTOCOL, "the server switched to a protocol nobody asked for")
    if not 100 <= status <= 599:
        raise FetchError(Reason.HTTP_STATUS, f"{status} is no status of HTTP", status=status)
    kind = headers.get("content-type", "")
    refused = content_types.refused(kind, accepted=accepted) if 200 <= status < 300 else None
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
        elif key == "x-robots-tag" and ":" not in text:
            # What is asked of every robot must not come to stand behind the name of one.
            found[key] = f"{text}, {found[key]}"
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
