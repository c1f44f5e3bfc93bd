"""Read heads that violate HTTP, and bodies in chunks, as browsers do.

aiohttp's parser refuses a whole head if one line is not a header. It refuses a chunk if the size
line has a blank, or if a line ends with a bare line feed. Browsers accept such invalid responses,
so this module mends them. A connection is not used again after a mended response. A proxy may see
the response's end at a different byte, and treat later bytes as a second response.
"""

import re

from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

_FOLD = re.compile(rb"\r?\n[ \t]+")
_LINE_END = re.compile(rb"\r?\n")
_BARE_CR = re.compile(rb"\r(?!\n)")
#: Pattern for a header line, even with blanks before the colon (RFC 9110, section 5.6.2).
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:(.*)", re.DOTALL)
_LENGTH = re.compile(rb"[0-9]{1,18}")
#: Pattern for a chunk's line end, followed by the next chunk's size line (RFC 9112, section 7.1).
_SIZE = re.compile(rb"(\r?)\n0*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*?)?(\r?)\n")
_SIZE_BEGUN = re.compile(rb"\r?(?:\n(?:[0-9A-Fa-f]+[ \t]*(?:;[^\n]*|\r)?)?)?")
_LAST_BEGUN = re.compile(rb"\r?\n0+[ \t]*(?:;[^\n]*|\r)?")
_TRAILERS_END = re.compile(rb"\n\r?\n")
_MAX_SIZE_LINE = 1 << 14
_MAX_TRAILERS = 1 << 16


def mended(head: bytes) -> bytes:
    """Return the response head with only its valid header lines and at most one Content-Length.

    An invalid Content-Length is dropped, so the body ends when the connection closes. If a response
    has a Transfer-Encoding, its Content-Length is dropped. Raises `HttpProcessingError` for two
    different lengths.
    """
    status, *lines = _LINE_END.split(_FOLD.sub(b" ", head).rstrip())
    head_lines, lengths, is_coded = [status], set[bytes](), False
    for line in lines:
        header = _HEADER.fullmatch(_BARE_CR.sub(b" ", line))
        if header is None:
            continue
        name, value = header[1].lower(), header[2].strip()
        if name == b"content-length":
            lengths |= {length.strip() for length in value.split(b",")}
            continue
        if name == b"transfer-encoding":
            if value.lower() in (b"", b"identity"):
                continue
            is_coded = True
        head_lines.append(header[1] + b": " + value)
    if not is_coded and lengths:
        length = lengths.pop()
        if lengths:
            raise HttpProcessingError(
                message="the response has two different values of Content-Length"
            )
        if _LENGTH.fullmatch(length):
            head_lines.append(b"Content-Length: " + length)
    return b"\r\n".join([*head_lines, b"", b""])


class Chunks:
    """Decodes a body with chunked transfer coding, after aiohttp has parsed the response's head.

    Blanks and extensions after a chunk's size are ignored, and lines may end with a bare line feed.
    """

    __slots__ = (
        "_has_bare_lf",
        "_is_last",
        "_missing_bytes",
        "_payload",
        "_trailer_bytes",
        "_unparsed_bytes",
    )

    def __init__(self, payload: StreamReader) -> None:
        """Feed the content of all chunks to *payload*."""
        self._payload = payload
        #: The bytes that are not parsed yet, such as a part of a size line. The initial value is a
        #: line end, because the pattern `_SIZE` begins with a line end.
        self._unparsed_bytes = b"\r\n"
        self._missing_bytes = 0  #: number of missing bytes of the current chunk
        self._has_bare_lf = False
        self._is_last = False  #: whether the last chunk has been parsed
        self._trailer_bytes = 0  #: bytes of the trailers

    def feed_data(self, data: bytes) -> tuple[tuple[()], bool, bytes]:
        """Decode *data*; raises `HttpProcessingError` for bad chunks or bytes after the body."""
        if self._unparsed_bytes:
            data = self._unparsed_bytes + data
        pieces: list[bytes] = []
        start, missing = 0, self._missing_bytes
        while not self._is_last:
            if missing:
                piece = data[start : start + missing]
                pieces.append(piece)
                start += len(piece)
                missing -= len(piece)
                if missing:
                    break
            size = _SIZE.match(data, start)
            if size is None:
                line = data[start:]
                if len(line) > _MAX_SIZE_LINE or not _SIZE_BEGUN.fullmatch(line):
                    raise HttpProcessingError(message=f"not the size of a chunk: {line[:50]!r}")
                break
            data_cr, digits, size_cr = size.groups()
            if not (data_cr and size_cr):
                self._has_bare_lf = True
            start, missing = size.end(), int(digits, 16)
            if not missing:
                # Keep the last line feed, because the pattern `_TRAILERS_END` begins with one.
                start, self._is_last = start - 1, True
        self._payload.feed_data(b"".join(pieces))
        self._missing_bytes, self._unparsed_bytes = missing, data[start:]
        if self._is_last:
            self._end()
        return (), False, b""

    def _end(self) -> None:
        """Drop the trailers of the body, and end the body after the trailers."""
        trailers_end = _TRAILERS_END.search(self._unparsed_bytes)
        if trailers_end is None:
            self._trailer_bytes += len(self._unparsed_bytes) - 2
            if self._trailer_bytes > _MAX_TRAILERS:
                raise LineTooLong(b"trailers", _MAX_TRAILERS)
            self._unparsed_bytes = self._unparsed_bytes[-2:]
            return
        self._payload.feed_eof()
        if trailers_end.end() < len(self._unparsed_bytes):
            raise HttpProcessingError(message="bytes after the last chunk")
        if self._has_bare_lf:  # a proxy may find the body's end elsewhere
            raise HttpProcessingError(message="bare line feeds between chunks")

    def pause_reading(self) -> None:
        """Do nothing, because the payload already has all content of the received bytes."""

    def feed_eof(self) -> None:
        """End the body with its connection; raises `HttpProcessingError` if bytes are missing."""
        if self._payload.is_eof():
            return
        # Some servers omit the line end after the last size "0", or omit the last empty line.
        if not self._is_last and (
            self._missing_bytes or not _LAST_BEGUN.fullmatch(self._unparsed_bytes)
        ):
            raise HttpProcessingError(message="the last chunk is missing")
        self._payload.feed_eof()
