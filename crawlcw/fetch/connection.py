"""One connection to a server: its receiving end, and how far its origin is trusted.

aiohttp's parser reads the answers. A server may do more than answer:

- **Bytes while nothing was asked for**, or more than one answer: the connection ends, and its
  origin is remembered.
- **Interim responses, framing, silence between them**: aiohttp bounds headers and leaves these
  to the server. Interim responses and extensions of chunks may come for ever, and after an
  interim response aiohttp waits without a deadline.
- **Content-Length that is repeated** (RFC 9110, section 8.6). Equal ones are one: some servers
  add theirs to that of the program behind them. The parser refuses such a head, so it is
  rewritten before; different ones stay refused. A head that comes in pieces is held back
  until it is whole, for any of them may have one.

A server that answers without being asked does so by an endpoint that is broken: others at the
same origin may be in order. So each endpoint has to show how it behaves, by connections that
were silent for `REST` seconds after one of its answers. An endpoint is a path without the
numbers in it, and without the values of its query: `/page/7?id=3` and `/page/8?id=4` are one.

    what is known                                        rest after its answer
    an endpoint with fewer than `CLEAN_RESTS` of these   REST
    an endpoint with as many                             none
    any endpoint of a folder that has shown
    `CLEAN_ENDPOINTS` clean ones (`/wiki/Crawler`)       none
    an origin that broke the rules of HTTP               REST
    an origin that spoke without being asked             never used again
"""

import asyncio
import math
import re
import select
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

import yarl
from aiohttp import ClientConnectionError, ClientPayloadError, ServerDisconnectedError
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader

if sys.platform != "win32":
    import fcntl
    import termios

#: What some servers say before they close an idle connection, RFC 9110, section 15.5.9.
_GOODBYES = (b"HTTP/1.1 408", b"HTTP/1.0 408")
#: Of one request. Two are usual (103 Early Hints); some servers send them for ever.
_MAX_INTERIM = 100
#: Bytes on the wire that are no content. A body in chunks of a few bytes is mostly that.
_MAX_FRAMING = 1 << 24
#: A head that is longer is not looked at; its parts are the parser's to bound.
_LONGEST_HEAD = 1 << 14
_LENGTH = b"\ncontent-length:"
_HEAD_END = re.compile(rb"\n\r?\n")
#: What begins an interim response; a further head comes behind it.
_INTERIM = (b"HTTP/1.1 1", b"HTTP/1.0 1")
#: How the parser of aiohttp bounds a head.
_MAX_LINE = 1 << 16
_MAX_HEADERS = 1000
_CHUNK = 1 << 16

#: Seconds. Late answers came within 50 ms of the first where they were measured.
REST = 0.1
CLEAN_RESTS = 2
CLEAN_ENDPOINTS = 24

#: Bounds of the memory. A forgotten origin or endpoint has to show its behaviour again.
_ORIGINS = 4_000
_OUTSPOKEN = 50_000
_COUNTS = 64  #: of one origin

_NUMBER = re.compile(r"\d+")
_VALUE = re.compile(r"=[^&]*")


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """An origin, asked directly or through one proxy."""

    url: yarl.URL
    host: str  #: as the header says it
    #: Of kept connections and of `Origin`; the proxy is part of it, for a fault may be the proxy's.
    key: ConnectionKey


class Endpoint(NamedTuple):
    """What of a site answers a URL, as far as its text tells."""

    folder: int
    name: int


def endpoint_of(address: str) -> Endpoint:
    """Return the endpoint of a URL, or of its path and query."""
    path, _, query = address.partition("?")
    folder, _, name = _NUMBER.sub("0", path).rpartition("/")
    names = _VALUE.sub("", query) if query else ""
    # Hashes, for a server chooses how long its paths are.
    return Endpoint(hash((folder, None)), hash((folder, name, names)))


@dataclass(slots=True)
class Origin:
    """What one origin has shown."""

    spoke_unasked: bool = False
    broke_http: bool = False
    opening: float = 0.0  #: the fewest seconds that a new connection took; 0: none yet
    waiting: int = 0  #: requests that wait for a connection to have rested
    _clean: dict[int, int] = field(default_factory=dict)  #: the latest last

    def rest_after(self, endpoint: Endpoint) -> float:
        """Return for how many seconds a connection rests after an answer of *endpoint*."""
        if self.spoke_unasked:
            return math.inf
        if self.broke_http:
            return REST
        clean = self._clean.get
        trusted = clean(endpoint.name, 0) >= CLEAN_RESTS
        return 0.0 if trusted or clean(endpoint.folder, 0) >= CLEAN_ENDPOINTS else REST

    def rested(self, endpoint: Endpoint) -> None:
        """Note that a connection was silent for `REST` seconds after an answer of *endpoint*."""
        if endpoint.name not in self._clean:
            self._count(endpoint.folder)
        self._count(endpoint.name)

    def _count(self, shown: int) -> None:
        self._clean[shown] = self._clean.pop(shown, 0) + 1
        if len(self._clean) > _COUNTS:
            del self._clean[next(iter(self._clean))]


class Origins:
    """The origins that were asked lately, and longer those that spoke without being asked."""

    def __init__(self) -> None:
        self._origins: OrderedDict[ConnectionKey, Origin] = OrderedDict()
        self._outspoken: OrderedDict[ConnectionKey, None] = OrderedDict()

    def of(self, key: ConnectionKey) -> Origin:
        """Return what is known of an origin."""
        found = self._origins.get(key)
        if found is None:
            found = self._origins[key] = Origin(spoke_unasked=key in self._outspoken)
            if len(self._origins) > _ORIGINS:
                self._origins.popitem(last=False)
        else:
            self._origins.move_to_end(key)
        return found

    def spoke_unasked(self, key: ConnectionKey) -> None:
        """Note that bytes came from an origin without a request."""
        self.of(key).spoke_unasked = True
        self._outspoken[key] = None
        self._outspoken.move_to_end(key)
        if len(self._outspoken) > _OUTSPOKEN:
            self._outspoken.popitem(last=False)

    def broke_http(self, key: ConnectionKey) -> None:
        """Note that an answer of an origin was no HTTP."""
        self.of(key).broke_http = True


class Listener(ResponseHandler):
    """The receiving end of a connection; hangs up on a server that does not keep to HTTP."""

    # With aiohttp's they are more than Python shares the keys of, and each access would take
    # longer.
    __slots__ = (
        *("site", "endpoint", "is_resting", "sent_at", "sending", "message", "content"),
        *("_origins", "_can_be_told", "_answers", "_descriptor", "_poll", "_wire", "_interim"),
        *("_awaits_another", "_head"),
    )

    message: RawResponseMessage  #: head of the answer
    content: StreamReader  #: body of the answer

    def __init__(self, loop: asyncio.AbstractEventLoop, *, origins: Origins) -> None:
        super().__init__(loop)
        self.site: Site | None = None  #: its origin; None: a tunnel is not open yet
        self.endpoint = Endpoint(0, 0)
        self.is_resting = False  #: whether nothing is to come until the next request
        #: When the request was sent, by the monotonic clock, and never earlier than it was.
        self.sent_at = 0.0
        #: The rest of a large request, on its way to a server that may answer before.
        self.sending: asyncio.Task[None] | None = None
        self._origins = origins
        #: Whether the next bytes can be told from an answer by what is acknowledged.
        self._can_be_told = False
        self._answers = 0
        self._descriptor = -1
        self._poll: select.poll | None = None
        self._wire = 0  #: bytes that have come since the request
        self._interim = 0
        self._awaits_another = False  #: what came last was an interim response
        #: Bytes of a head that has no end yet; None: no head is awaited.
        self._head: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection, or one that TLS has begun on."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        self._descriptor = sock.fileno() if sock is not None else -1
        if self._descriptor >= 0 and sys.platform != "win32":
            # Not `select`, which knows no descriptor above 1,023.
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLIN)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of the descriptor, which may be another connection's soon."""
        self._poll, self._descriptor = None, -1
        head, self._head = self._head, None
        if head:
            # The parser says what is wrong with a head that has no end.
            super().data_received(head)
        if isinstance(exc, OSError) and self._payload is not None and not self._payload.is_eof():
            # A body without a length ends with its connection, and aiohttp takes a reset for
            # an end.
            self._payload.set_exception(
                ClientPayloadError("the connection was reset within the body")
            )
        super().connection_lost(exc)

    async def ask(
        self,
        request: bytes,
        endpoint: Endpoint,
        *,
        answered_when_read: bool,
        is_head: bool,
        patience: float,
    ) -> None:
        """Send a request, and wait for the head of its answer.

        Where *answered_when_read*, none comes before the request is read. The server may be
        silent for *patience* seconds. The answer to a HEAD has no body.
        """
        self.endpoint = endpoint
        # Over a new connection a server may say that it is too busy to read.
        self._can_be_told = answered_when_read and self.is_resting
        self.is_resting = self._awaits_another = False
        self._answers = self._interim = self._wire = 0
        self._head = b""
        self.sending = None
        self.set_response_params(
            skip_payload=is_head,
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=patience,
            read_bufsize=_CHUNK,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            max_headers=_MAX_HEADERS,
        )
        if self.transport is None or self.transport.is_closing():
            raise ServerDisconnectedError
        self._note_sent()
        # uvloop sends when it has come round.
        self._loop.call_soon(self._note_sent)
        self.transport.write(request)
        if self.writing_paused:
            self.sending = asyncio.create_task(self._send())
        else:
            self.start_timeout()
        self.message, self.content = await self.read()
        self.content.on_eof(self._rest)

    def _note_sent(self) -> None:
        self.sent_at = monotonic()

    async def _send(self) -> None:
        """Wait until the system has taken all of a request, and begin to wait for its answer."""
        try:
            await self._drain_helper()
        except (OSError, ClientConnectionError):
            return  # `connection_lost` tells the reader
        self.start_timeout()

    def _rest(self) -> None:
        self.is_resting = not self.upgraded
        if self.sending is not None and not self.sending.done():
            self.force_close()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading where that was paused; aiohttp calls this after each read of a body."""
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

    def readable(self) -> bool:
        """Return whether bytes, or the connection's end, wait to be read."""
        if sys.platform == "win32" and self._descriptor >= 0:
            return bool(select.select([self._descriptor], [], [], 0)[0])
        return self._poll is not None and bool(self._poll.poll(0))

    def is_unacknowledged(self) -> bool:
        """Return whether bytes sent have not been acknowledged; false where that is not known."""
        if sys.platform != "linux" or self._descriptor < 0:
            return False
        try:
            # tcp(7) calls it SIOCOUTQ: an int, the number of these bytes.
            return any(fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return False

    def data_received(self, data: bytes) -> None:
        """Take the next bytes from the wire."""
        # aiohttp calls this without data when the last body has been taken.
        if data:
            if self.is_resting or self._can_be_told:
                if self._is_unasked(data):
                    return
                self._can_be_told = False
            self._wire += len(data)
            if self._head is not None:
                data = self._looked_at(self._head + data)
                if not data:
                    self.start_timeout()  # it has not been silent
                    return
        super().data_received(data)
        if self._wire > _MAX_FRAMING:
            content = self._payload.total_bytes if self._payload is not None else 0
            if self._wire - content > _MAX_FRAMING:
                self._refuse("more framing than content")
                return
        if self._awaits_another and self.is_connected():
            # aiohttp's timer has ended with the interim response.
            self.start_timeout()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the head of a response; a second one answers no request."""
        status = data[0].code
        self._awaits_another = 100 <= status < 200 and status != 101
        if self._awaits_another:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                self._refuse("interim responses without end")
            return
        self._answers += 1
        if self._answers > 1:
            # Dropped, for there may be thousands; the first is still good.
            self._note_unasked()
            self.force_close()
            return
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *more: BaseException) -> None:
        """Remember an answer that was no HTTP, and tell the reader of its body."""
        if isinstance(exc, HttpProcessingError):
            if self.site is not None:
                self._origins.broke_http(self.site.key)
            if self._payload is not None and not self._payload.is_eof():
                # aiohttp drops its timer, and would leave the reader waiting for ever.
                self._payload.set_exception(exc)
        super().set_exception(exc, *more)

    def _is_unasked(self, data: bytes) -> bool:
        """Return whether bytes came before the request, and hang up on those that did."""
        if not self.is_resting and not self.is_unacknowledged():
            return False
        if not data.startswith(_GOODBYES):
            self._note_unasked()
        if self.is_resting:
            # Not one byte is kept: a server could send them for as long as
            # the connection stands.
            self.close()
            return True
        if self.transport is not None:
            self.transport.close()
        # The request is repeated, if it may be, on a new connection.
        self.set_exception(ServerDisconnectedError("an answer before the request"))
        return True

    def _note_unasked(self) -> None:
        if self.site is not None:
            self._origins.spoke_unasked(self.site.key)

    def _refuse(self, why: str) -> None:
        if self.transport is not None:
            self.transport.close()
        self.set_exception(HttpProcessingError(message=why))

    def _looked_at(self, data: bytes) -> bytes:
        """Return what of *data*, with which an answer begins, may be parsed; keep the rest."""
        begin = 0
        while found := _HEAD_END.search(data, begin):
            end = found.end()
            lower = data[begin:end].lower()
            at = lower.find(_LENGTH)
            if at >= 0 and (
                lower.find(_LENGTH, at + 1) > 0 or b"," in lower[at : lower.find(b"\n", at + 1)]
            ):
                head = _merged(data[begin:end])
                data, end = data[:begin] + head + data[end:], begin + len(head)
            if not data.startswith(_INTERIM, begin):
                self._head = None
                return data
            begin = end
        rest = data[begin:]
        is_head = b"HTTP/".startswith(rest[:5]) and len(rest) <= _LONGEST_HEAD
        self._head = rest if is_head else None
        return data[:begin] if is_head else data


def _merged(head: bytes) -> bytes:
    """Return a head with one Content-Length for several equal ones, else as it is."""
    lines = head.split(b"\n")
    places = [n for n, line in enumerate(lines) if line.lower().startswith(_LENGTH[1:])]
    values = {value.strip() for n in places for value in lines[n].partition(b":")[2].split(b",")}
    value = values.pop()
    # A line that goes on in the next one would go on in another.
    if values or not value.isdigit() or any(line.startswith((b" ", b"\t")) for line in lines):
        return head
    lines[places[0]] = b"Content-Length: %s\r" % value
    return b"\n".join(line for n, line in enumerate(lines) if n not in places[1:])
