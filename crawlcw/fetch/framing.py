"""Read heads that violate HTTP, and bodies in chunks, as browsers do.

aiohttp's parser refuses a head because of one line that is not a header, and a chunk because of a
blank or a bare line feed. A browser reads these, so a site that sends them works. The connection of
a mended response is not used again: a proxy that reads the response differently may read a part of
it as a second response.
"""

import re

from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

_FOLD = re.compile(rb"\r?\n[ \t]+")
_LINE_END = re.compile(rb"\r?\n")
_BARE_CR = re.compile(rb"\r(?!\n)")
#: RFC 9110, section 5.6.2; many servers put blanks between a name and its colon.
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:(.*)", re.DOTALL)
_LENGTH = re.compile(rb"[0-9]{1,18}")
#: The end of a chunk's data, and the line before the next chunk (RFC 9112, section 7.1).
_SIZE = re.compile(rb"(\r?)\n0*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*?)?(\r?)\n")
_SIZE_BEGUN = re.compile(rb"\r?(?:\n(?:[0-9A-Fa-f]+[ \t]*(?:;[^\n]*|\r)?)?)?")
_LAST_BEGUN = re.compile(rb"\r?\n0+[ \t]*(?:;[^\n]*|\r)?")
_TRAILERS_END = re.compile(rb"\n\r?\n")
_MAX_SIZE_LINE = 1 << 14
_MAX_TRAILERS = 1 << 16


def mended(head: bytes) -> bytes:
    """Return the response head with only its valid header lines and at most one Content-Length.

    An invalid Content-Length is dropped, so the body ends with its connection. A length beside a
    transfer coding is dropped too (RFC 9112, section 6.3). Raises `HttpProcessingError` for two
    lengths.
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
    """Decodes a body in chunks; it replaces aiohttp's parser after the head of a response.

    Blanks and extensions after a size are ignored, and lines may end with a bare line feed.
    """

    __slots__ = ("_has_bare_lf", "_is_last", "_missing", "_payload", "_rest", "_trailers")

    def __init__(self, payload: StreamReader) -> None:
        """Feed the content to *payload*."""
        self._payload = payload
        #: The beginning of a line. A size follows the end of the previous chunk; the first size
        #: follows the end of the head.
        self._rest = b"\r\n"
        self._missing = 0  #: missing bytes of the chunk
        self._has_bare_lf = False
        self._is_last = False  #: whether the last chunk has come
        self._trailers = 0  #: bytes of the trailers

    def feed_data(self, data: bytes) -> tuple[tuple[()], bool, bytes]:
        """Process the next bytes; raises `HttpProcessingError`, also for bytes after the body."""
        if self._rest:
            data = self._rest + data
        pieces: list[bytes] = []
        start, missing = 0, self._missing
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
                # Keep its line feed: without trailers, it belongs to the end.
                start, self._is_last = start - 1, True
        self._payload.feed_data(b"".join(pieces))
        self._missing, self._rest = missing, data[start:]
        if self._is_last:
            self._end()
        return (), False, b""

    def _end(self) -> None:
        """Drop the trailers, and end the body after them."""
        trailers_end = _TRAILERS_END.search(self._rest)
        if trailers_end is None:
            self._trailers += len(self._rest) - 2
            if self._trailers > _MAX_TRAILERS:
                raise LineTooLong(b"trailers", _MAX_TRAILERS)
            self._rest = self._rest[-2:]
            return
        self._payload.feed_eof()
        if trailers_end.end() < len(self._rest):
            raise HttpProcessingError(message="bytes after the last chunk")
        if self._has_bare_lf:  # other readers may see another end
            raise HttpProcessingError(message="bare line feeds between chunks")

    def pause_reading(self) -> None:
        """Do nothing, because the payload already has all content of the received bytes."""

    def feed_eof(self) -> None:
        """End the body with its connection; raises `HttpProcessingError` for half a body."""
        if self._payload.is_eof():
            return
        # Some servers end with "0", or without the empty line after it.
        if not self._is_last and (self._missing or not _LAST_BEGUN.fullmatch(self._rest)):
            raise HttpProcessingError(message="the last chunk is missing")
        self._payload.feed_eof()
