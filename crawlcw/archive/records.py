"""Write pages, and the redirects that lead to pages, as WARC 1.1 records in gzip members.

The layer `Record` notes each exchange (a request and its response) in the page's attempt. `Bodies`
writes the exchanges of finished pages to WARC files. The WARC files contain no robots.txt, no
logins, no probes, and no responses that a hook has made.

Bodies are stored decoded, for example without gzip. As in other archives, the header
Content-Encoding becomes `X-Orig-Content-Encoding`, and Content-Length is the length of the stored
body. Control characters in header values are replaced, so that each header stays one line.

warcio makes the records. This module compresses the records itself, because warcio uses gzip's
highest level, which takes longer than all other work for a page.
"""

import importlib.util
import io
import re
import string
import zlib
from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha1
from http.client import responses
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from crawlcw.api.attempt import Attempt, Next, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import UsageError
from crawlcw.model import urls

_SPECIFICATION = "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"
_GZIP = zlib.MAX_WBITS + 16
#: zlib level 3 takes a third of the time of zlib's default level. Its files are a tenth larger.
_LEVEL = 3
_NOT_MODIFIED_PROFILE = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
_SAME_BODY_PROFILE = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
_NOT_MODIFIED = 304
#: Methods that warcio and other readers know; requests of other methods are not stored.
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "PATCH"}
)
#: Maximum number of bytes of a WARC record's header together with its HTTP header.
_LONGEST_HEADS = 4 << 20

#: Request headers with credentials, which are never stored.
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})
#: Headers that `crawl.fetcher` adds to make a request conditional.
_CONDITIONS = frozenset({"if-none-match", "if-modified-since"})
_SECRET_ANSWERS = frozenset({"set-cookie", "set-cookie2"})
_ORIGINAL = "x-orig-"
#: Headers that describe the transferred bytes, not the stored bytes.
_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: Control characters and line ends, also those of Unicode.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request to one URL, and its response."""

    url: str
    requested_at: datetime
    method: str = "GET"
    request_headers: tuple[tuple[str, str], ...] = ()  #: without credentials
    request_body: bytes | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()  #: headers of the response, without cookies
    body: bytes = field(default=b"", repr=False)  #: without content codings
    truncated: str | None = None  #: as `Response.truncated`

    @classmethod
    def of(cls, request: Request, response: Response, *, requested_at: datetime) -> "Exchange":
        """Return the exchange of *request* and *response*, without credentials and cookies."""
        return cls(
            url=response.url,
            requested_at=requested_at,
            method=request.method,
            request_headers=tuple(
                pair for pair in request.headers if pair[0].lower() not in _SECRET
            ),
            request_body=request.body,
            status=response.status,
            headers=tuple(
                (name, value)
                for name, value in response.headers.items()
                if name not in _SECRET_ANSWERS
            ),
            body=response.body,
            truncated=response.truncated,
        )


class Record:
    """The layer that notes a response for the WARC files before hooks change the response."""

    purposes = frozenset({Purpose.PAGE})

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response."""
        sent_at = datetime.now(UTC)
        response = await call_next(attempt, request)
        # The WARC file does not repeat a body that `save_to` has written to its own file.
        if attempt.exchanges is not None and response.file is None:
            # Hooks and sessions may add a signature or a key to the URL, which must not be stored.
            url = response.url if request.url == attempt.url else attempt.url
            exchange, headers = (
                Exchange.of(request, response, requested_at=sent_at),
                attempt.request.headers,
            )
            pairs = (
                pair
                for pair in exchange.request_headers
                if pair in headers or pair[0].lower() in _CONDITIONS
            )
            attempt.exchanges.append(replace(exchange, url=url, request_headers=tuple(pairs)))
        return response


class DamagedRecordError(Exception):
    """A WARC record is damaged, or is not at its recorded offset in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response that was read from its WARC record."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool


def check_installed() -> None:
    """Raise `UsageError` if warcio is not installed."""
    if importlib.util.find_spec("warcio") is None:
        raise UsageError("keep_bodies needs warcio: `pip install 'crawlcw[warc]'`")


class Packer:
    """Creates records; not thread-safe."""

    def __init__(self) -> None:
        # Create the WARC writer once, because its constructor looks up the host name.
        from warcio.warcwriter import WARCWriter

        self._out = io.BytesIO()
        self._writer: Any = WARCWriter(self._out, gzip=False, warc_version="1.1")

    def about_the_file(self, name: str, *, spider: str) -> bytes:
        """Return a WARC file's warcinfo record, which names software, format and spider."""
        # Import `importlib.metadata` late, because it loads more slowly than this package.
        from importlib.metadata import PackageNotFoundError, version

        try:
            software = f"crawlcw/{version('crawlcw')}"
        except PackageNotFoundError:
            software = "crawlcw"
        fields = {
            "software": software,
            "format": "WARC File Format 1.1",
            "conformsTo": _SPECIFICATION,
            "isPartOf": uri(spider),
        }
        return self._packed(self._writer.create_warcinfo_record(name, fields))

    def pair(self, exchange: Exchange) -> tuple[bytes, bytes]:
        """Return the records of a response and of its request.

        The request's record is empty for a method that WARC readers do not know.
        """
        # WARC 1.1, section 5.13.
        reason = "length" if exchange.truncated == "bytes" else "unspecified"
        is_whole = exchange.truncated is None and not _is_unread_redirect(exchange)
        truncation = {} if is_whole else {"WARC-Truncated": reason}
        response = self._record(
            "response",
            exchange,
            head=response_head(exchange),
            body=exchange.body,
            fields=truncation,
        )
        packed_response = self._packed(response)
        if exchange.method not in _METHODS:
            return packed_response, b""
        request = self._record(
            "request",
            exchange,
            head=request_head(exchange),
            body=exchange.request_body or b"",
            fields={"WARC-Concurrent-To": response.rec_headers.get_header("WARC-Record-ID")},
        )
        return packed_response, self._packed(request)

    def revisit(self, exchange: Exchange) -> bytes:
        """Return the revisit record of a page that has not changed."""
        if exchange.status == _NOT_MODIFIED:
            fields = {"WARC-Profile": _NOT_MODIFIED_PROFILE}
        else:
            digest = b32encode(sha1(exchange.body, usedforsecurity=False).digest()).decode()
            fields = {"WARC-Profile": _SAME_BODY_PROFILE, "WARC-Payload-Digest": f"sha1:{digest}"}
        fields["WARC-Refers-To-Target-URI"] = uri(exchange.url)
        head = response_head(exchange, with_body=False)
        return self._packed(self._record("revisit", exchange, head=head, body=b"", fields=fields))

    def _record(
        self,
        kind: str,
        exchange: Exchange,
        *,
        head: bytes,
        body: bytes,
        fields: Mapping[str, str],
    ) -> Any:
        date = exchange.requested_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        # Do not use warcio's own class for headers, because it would change non-ASCII characters.
        headers = SimpleNamespace(headers_buff=head, compute_headers_buffer=lambda _: None)
        return self._writer.create_warc_record(
            uri(exchange.url),
            kind,
            payload=io.BytesIO(body),
            length=len(body),
            http_headers=headers,
            warc_headers_dict={"WARC-Date": date, **fields},
        )

    def _packed(self, record: Any) -> bytes:
        """Return a WARC record compressed as a gzip member."""
        self._out.seek(0)
        self._out.truncate()
        self._writer.write_record(record)
        return zlib.compress(self._out.getvalue(), _LEVEL, _GZIP)


def _is_unread_redirect(exchange: Exchange) -> bool:
    """Return whether a redirect may have had a body that the transport did not read."""
    headers = dict(exchange.headers)
    is_redirect = 300 <= exchange.status < 400 and "location" in headers
    return is_redirect and not exchange.body and headers.get("content-length") != "0"


def read(packed: bytes, *, max_size: int) -> Answer:
    """Return the response in *packed*, the compressed bytes of a WARC record.

    Raises `DamagedRecordError` if the record is damaged or its body exceeds *max_size* bytes.
    """
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    content = io.BytesIO(_unpacked(packed, max_size + _LONGEST_HEADS))
    try:
        record = next(iter(ArchiveIterator(content, no_record_parse=True)), None)
        if record is None or record.rec_type != "response":
            raise DamagedRecordError("there is no response record")
        fields = record.rec_headers
        status, headers, body = parsed(record.raw_stream.read())
    except (ArchiveLoadFailed, EOFError, ValueError) as error:
        raise DamagedRecordError(f"it is not a WARC record: {error}") from None
    return Answer(
        url=fields.get_header("WARC-Target-URI") or "",
        status=status,
        headers=headers,
        body=body,
        is_cut=fields.get_header("WARC-Truncated") is not None,
    )


def _unpacked(packed: bytes, max_size: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP)
    try:
        content = decompressor.decompress(packed, max_size)
    except zlib.error as error:
        raise DamagedRecordError(f"it cannot be decompressed: {error}") from None
    if not decompressor.eof:
        problem = "it is too large" if decompressor.unconsumed_tail else "its end is missing"
        raise DamagedRecordError(problem)
    return content


def request_head(exchange: Exchange) -> bytes:
    """Return the request line and the headers, with the empty line that ends them."""
    url = urls.parse(exchange.url)
    lines = [f"{exchange.method} {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
    lines += _lines(pair for pair in exchange.request_headers if pair[0].lower() != "host")
    return _head(lines)


def response_head(exchange: Exchange, *, with_body: bool = True) -> bytes:
    """Return the status line and the headers, with the empty line that ends them.

    If the body was not stored, the headers keep their original names.
    """
    lines = [f"HTTP/1.1 {exchange.status} {responses.get(exchange.status, 'Unknown')}"]
    if not with_body:
        return _head([*lines, *_lines(exchange.headers)])
    lines += _lines(
        (f"x-orig-{name}" if name.lower() in _OF_THE_WIRE else name, value)
        for name, value in exchange.headers
    )
    return _head([*lines, f"Content-Length: {len(exchange.body)}"])


def parsed(content: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the original headers, and the body; header names are in lower case.

    Raises `ValueError` if *content* is not an HTTP response.
    """
    head, separator, body = content.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("utf-8", "replace").split("\r\n")
    version, _, status_text = status_line.partition(" ")
    status = status_text.partition(" ")[0]
    if not separator or not version.startswith("HTTP/") or not status.isdecimal():
        raise ValueError("it is not an HTTP response")
    headers: dict[str, str] = {}
    original_headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        lower_name = name.strip().lower()
        if lower_name.removeprefix(_ORIGINAL) in _OF_THE_WIRE and lower_name.startswith(_ORIGINAL):
            original_headers[lower_name.removeprefix(_ORIGINAL)] = value.strip()
        else:
            headers[lower_name] = value.strip()
    return int(status), {**headers, **original_headers}, body


def uri(url: str) -> str:
    """Return *url* as printable ASCII without spaces, for a field of a WARC record."""
    return quote(url, safe=string.punctuation, errors="surrogatepass")


def _lines(headers: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{name}: {_CONTROLS.sub(' ', value).strip()}"
        for name, value in headers
        if _NAME.fullmatch(name)
    ]


def _head(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")
