"""WARC 1.1 records as bytes, by warcio: each is one gzip member.

Compression is done here: warcio uses gzip's highest level, which takes longer than all
other work for a page.
"""

import importlib.util
import io
import zlib
from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from crawlcw.archive.exchange import Exchange, parsed, request_head, response_head, uri
from crawlcw.errors import UsageError

_SPECIFICATION = "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"
_GZIP = zlib.MAX_WBITS + 16
#: A third of the time of zlib's default level, for files that are a tenth larger.
_LEVEL = 3
_UNCHANGED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
_SAME = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
_NOT_MODIFIED = 304
#: Methods that warcio and other readers know; requests of other methods are not stored.
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "PATCH"}
)
#: Bytes of a record's header and of the HTTP header in it.
_LONGEST_HEADS = 4 << 20


class DamagedRecordError(Exception):
    """A record is missing at its place, or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response read back from its record."""

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
        # Created once: it looks up the host name.
        from warcio.warcwriter import WARCWriter

        self._out = io.BytesIO()
        self._writer: Any = WARCWriter(self._out, gzip=False, warc_version="1.1")

    def about_the_file(self, name: str, *, spider: str) -> bytes:
        """Return the warcinfo record of a file: software, format, spider."""
        # Imported here: it loads slower than the rest of this package.
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

        The latter is empty for a method that WARC readers do not know.
        """
        # WARC 1.1, section 5.13.
        why = "length" if exchange.truncated == "bytes" else "unspecified"
        cut = {} if exchange.truncated is None else {"WARC-Truncated": why}
        answer = self._record(
            "response", exchange, head=response_head(exchange), body=exchange.body, fields=cut
        )
        answered = self._packed(answer)
        if exchange.method not in _METHODS:
            return answered, b""
        asked = self._record(
            "request",
            exchange,
            head=request_head(exchange),
            body=exchange.sent or b"",
            fields={"WARC-Concurrent-To": answer.rec_headers.get_header("WARC-Record-ID")},
        )
        return answered, self._packed(asked)

    def revisit(self, exchange: Exchange) -> bytes:
        """Return the revisit record of a page that has not changed."""
        if exchange.status == _NOT_MODIFIED:
            fields = {"WARC-Profile": _UNCHANGED}
        else:
            digest = b32encode(sha1(exchange.body, usedforsecurity=False).digest()).decode()
            fields = {"WARC-Profile": _SAME, "WARC-Payload-Digest": f"sha1:{digest}"}
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
        date = exchange.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return self._writer.create_warc_record(
            uri(exchange.url),
            kind,
            payload=io.BytesIO(body),
            length=len(body),
            http_headers=_Head(head),
            warc_headers_dict={"WARC-Date": date, **fields},
        )

    def _packed(self, record: Any) -> bytes:
        """Return a record as a gzip member."""
        self._out.seek(0)
        self._out.truncate()
        self._writer.write_record(record)
        return zlib.compress(self._out.getvalue(), _LEVEL, _GZIP)


def read(packed: bytes, *, most: int) -> Answer:
    """Return the response in record *packed*.

    Raises `DamagedRecordError`, also for a body of more than *most* bytes.
    """
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    content = io.BytesIO(_unpacked(packed, most + _LONGEST_HEADS))
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


class _Head:
    """HTTP headers for warcio: its own class would change non-ASCII characters."""

    def __init__(self, content: bytes) -> None:
        self.headers_buff = content

    def compute_headers_buffer(self, _header_filter: object = None) -> None:
        """Do nothing: the headers are bytes already."""


def _unpacked(packed: bytes, most: int) -> bytes:
    unpacking = zlib.decompressobj(_GZIP)
    try:
        content = unpacking.decompress(packed, most)
    except zlib.error as error:
        raise DamagedRecordError(f"it cannot be decompressed: {error}") from None
    if not unpacking.eof:
        why = "it is too large" if unpacking.unconsumed_tail else "its end is missing"
        raise DamagedRecordError(why)
    return content
