"""HTTP exchanges of the archive: a request and its response, to and from HTTP/1.1 text.

Bodies are stored without content codings. As in other archives, the original headers
of the codings are renamed to `X-Orig-...`, and Content-Length is that of the stored
body. Control characters in header values are replaced, so that each stays one line.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.model import urls

#: Request headers with credentials, which are never stored.
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})
#: Headers of conditional requests, which the crawl adds, see `crawl.fetcher`.
_CONDITIONS = frozenset({"if-none-match", "if-modified-since"})
_SECRET_ANSWERS = frozenset({"set-cookie", "set-cookie2"})
_ORIGINAL = "x-orig-"
#: Headers that describe the transferred bytes, not the stored ones.
_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: Control characters and line ends, also the Unicode ones.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request to one URL, and its response."""

    url: str
    at: datetime  #: time of the request
    method: str = "GET"
    asked: tuple[tuple[str, str], ...] = ()  #: the headers of the request, without credentials
    sent: bytes | None = None  #: the body of the request
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()  #: of the response, without cookies
    body: bytes = field(default=b"", repr=False)  #: without content codings
    truncated: str | None = None  #: as `Response.truncated`

    def asking_only(self, headers: Collection[tuple[str, str]], *, url: str) -> "Exchange":
        """Return it at *url*, with only those request headers that are among *headers*."""
        kept = (each for each in self.asked if each in headers or each[0].lower() in _CONDITIONS)
        return replace(self, url=url, asked=tuple(kept))

    @classmethod
    def of(cls, request: Request, response: Response, *, at: datetime) -> "Exchange":
        """Return the exchange of *request* and *response*, without credentials and cookies."""
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
    """Return the request line and the headers, with the empty line."""
    url = urls.parse(exchange.url)
    lines = [f"{exchange.method} {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
    lines += _lines(pair for pair in exchange.asked if pair[0].lower() != "host")
    return _head(lines)


def response_head(exchange: Exchange, *, with_body: bool = True) -> bytes:
    """Return the status line and the headers, with the empty line.

    Without the body the headers are the original ones.
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
    """Return the status, the original headers by lower-case name, and the body.

    Raises `ValueError` if *content* is not an HTTP response.
    """
    head, separator, body = content.partition(b"\r\n\r\n")
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    if not separator or not version.startswith("HTTP/") or not status.isdecimal():
        raise ValueError("it is not an HTTP response")
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
    """Return *url* in the form for a record's field: printable ASCII, without spaces."""
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
