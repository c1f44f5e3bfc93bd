"""One request and its answer, as they are kept: as HTTP writes them down, and read back from that.

A body is kept out of its content codings. The headers say so: what told of the
codings is named `X-Orig-...`, as other archives do it, and Content-Length is that of the
body in the file. Whatever a server has put into a header, it stays one line.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.model import urls

#: What says who asks, and what an answer makes him: it is in no file.
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})
#: What a crawl itself asks, see `crawl.fetcher`.
_CONDITIONS = frozenset({"if-none-match", "if-modified-since"})
_SECRET_ANSWERS = frozenset({"set-cookie", "set-cookie2"})
_ORIGINAL = "x-orig-"
#: What is true of the bytes on their way, and not of those that are kept.
_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: No line ends within a value, for any reader.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What was asked for at one URL, and what came."""

    url: str
    at: datetime  #: when it was asked for
    method: str = "GET"
    asked: tuple[tuple[str, str], ...] = ()  #: the headers of the request, without any secret
    sent: bytes | None = None  #: the body of the request
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()  #: of the answer, likewise
    body: bytes = field(default=b"", repr=False)  #: out of its content codings
    truncated: str | None = None  #: as `Response.truncated`

    def asking_only(self, headers: Collection[tuple[str, str]], *, url: str) -> "Exchange":
        """Return it at *url*, without the headers of the request that are not among *headers*."""
        kept = (each for each in self.asked if each in headers or each[0].lower() in _CONDITIONS)
        return replace(self, url=url, asked=tuple(kept))

    @classmethod
    def of(cls, request: Request, response: Response, *, at: datetime) -> "Exchange":
        """Return what *request* and *response* are, without what nobody is to read."""
        return cls(
            url=response.url,
            at=at,
            method=request.method,
            asked=tuple(pair for pair in request.headers if pair[0].lower() not in _SECRET),
            sent=request.body,
            status=response.status,
            headers=tuple(
                (name, value)
                for name, value in response.headers.items()
                if name not in _SECRET_ANSWERS
            ),
            body=response.body,
            truncated=response.truncated,
        )


def request_head(exchange: Exchange) -> bytes:
    """Return the request line and the headers, with the empty line behind them."""
    url = urls.parse(exchange.url)
    lines = [f"{exchange.method} {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
    lines += _lines(pair for pair in exchange.asked if pair[0].lower() != "host")
    return _head(lines)


def response_head(exchange: Exchange, *, with_body: bool = True) -> bytes:
    """Return the status line and the headers, with the empty line behind them.

    Without its body it is as it came.
    """
    lines = [f"HTTP/1.1 {exchange.status} {_phrase(exchange.status)}"]
    if not with_body:
        return _head([*lines, *_lines(exchange.headers)])
    lines += _lines(
        (f"x-orig-{name}" if name.lower() in _OF_THE_WIRE else name, value)
        for name, value in exchange.headers
    )
    return _head([*lines, f"Content-Length: {len(exchange.body)}"])


def parsed(content: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers by lower-case name, and the body of what was written.

    The headers are those of the answer as it came. Raises `ValueError` where it is no answer.
    """
    head, separator, body = content.partition(b"\r\n\r\n")
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    if not separator or not version.startswith("HTTP/") or not status.isdecimal():
        raise ValueError("it is no answer of HTTP")
    headers: dict[str, str] = {}
    original: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        key = name.strip().lower()
        if key.removeprefix(_ORIGINAL) in _OF_THE_WIRE and key.startswith(_ORIGINAL):
            original[key.removeprefix(_ORIGINAL)] = value.strip()
        else:
            headers[key] = value.strip()
    return int(status), {**headers, **original}, body


def uri(url: str) -> str:
    """Return *url* as the field of a record takes it: printable ASCII, without a space."""
    return re.sub(r"[^\x21-\x7e]", lambda found: _quoted(found[0]), url)


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _lines(headers: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{name}: {_CONTROLS.sub(' ', value).strip()}"
        for name, value in headers
        if _NAME.fullmatch(name)
    ]


def _head(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
