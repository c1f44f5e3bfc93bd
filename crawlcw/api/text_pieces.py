"""A body as text, a piece at a time: unpacked where it is gzip, decoded, and bounded.

So a sitemap of 50 MiB is never in memory as text, and one that was packed not as bytes.
"""

import codecs
import zlib
from collections.abc import Iterator

from crawlcw.api import charset
from crawlcw.errors import Reason, XmlError

#: What sitemaps.org allows for one file, unpacked.
LARGEST = 50 << 20
_GZIP = b"\x1f\x8b"
_PIECE = 1 << 16
#: Bytes in which a text says how it is encoded.
_HEAD = 1024
#: Each takes as long as some kilobytes of content.
_MAX_MEMBERS = 10_000


def text_pieces(body: bytes, *, content_type: str | None = None) -> Iterator[str]:
    """Yield *body* as text, with U+FFFD for bytes that are not of its encoding.

    The first bytes tell whether it is gzip. A byte order mark, *content_type* or the
    first lines name the encoding, as for a page. Raises `XmlError` where
    the gzip is corrupt or has no end, and, behind the first 50 MiB, where there is more.
    """
    pieces = _unpacked(body) if body.startswith(_GZIP) else _cut(body)
    decoder: codecs.IncrementalDecoder | None = None
    room = LARGEST
    for piece in pieces:
        if decoder is None:
            encoding = charset.choose(content_type, piece[:_HEAD])
            decoder = codecs.getincrementaldecoder(encoding)("replace")
            yield decoder.decode(piece).removeprefix("\ufeff")
        else:
            yield decoder.decode(piece[:room])
        room -= len(piece)
        if room < 0:
            raise XmlError(Reason.DOCUMENT_TOO_LARGE, f"it has more than {LARGEST >> 20} MiB")
    if decoder is not None:
        yield decoder.decode(b"", final=True)


def _cut(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def _unpacked(body: bytes) -> Iterator[bytes]:
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    members = 1
    for packed in _cut(body):
        rest = packed
        while rest:
            if inflate.eof:
                if not rest.startswith(_GZIP[:1]):
                    return  # browsers ignore what follows a member and is not another
                members += 1
                if members > _MAX_MEMBERS:
                    raise XmlError(Reason.CONTENT_ENCODING, "its gzip has too many members")
                inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            try:
                piece = inflate.decompress(rest, _PIECE)
            except zlib.error as error:
                raise XmlError(Reason.CONTENT_ENCODING, f"its gzip is corrupt: {error}") from None
            if piece:
                yield piece
            rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if not inflate.eof:
        raise XmlError(Reason.PAYLOAD_TRUNCATED, "its gzip data is cut off")
