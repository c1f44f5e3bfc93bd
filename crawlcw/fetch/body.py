"""Bodies of responses: how to decode them, limit their memory, and refuse some of them.

- **Codings.** The size limit counts *decoded* bytes. A decoder yields one small piece at a time,
  because 52 bytes of brotli can become gigabytes. A compressed stream may end too early although
  the Content-Length is correct, and only this module notices such an end. A page whose stream ends
  too early is marked as incomplete, and the download of a file fails.
- **Memory.** A `MemoryBudget` limits the memory that all bodies take together. Tasks get shares of
  the budget in the order in which they ask, so small shares cannot delay a large share forever. If
  two tasks with a share waited for more bytes, they could wait for each other. So a task with a
  share gets more bytes immediately, even if the bodies then exceed the budget.
- **Refused bodies.** A body is refused if its Content-Type or its first bytes show an endless body
  or a body that is not text. An image is refused even if its Content-Type is HTML. PDF is read,
  because spiders want PDF files. `application/octet-stream` is read, because it may be text.
"""

import asyncio
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import brotli

from crawlcw.errors import FetchError, Reason
from crawlcw.model.sanitize import printable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Value of Accept-Encoding, with all codings that this module can decode.
ACCEPTED = "gzip, deflate, br, zstd"
CODED = ("content-encoding", "transfer-encoding")
_PIECE = 1 << 16
_MAX_CODINGS = 3
#: The coded bytes of a body may exceed the limit of its decoded bytes by this number, because some
#: coded bytes, such as empty gzip members, decode to nothing.
_RAW_SLACK = 1 << 20
#: Maximum number of compressed streams in one body, because each stream costs as much time as some
#: kilobytes of content. Normal bodies have at most some hundreds of streams.
_MAX_STREAMS = 10_000
#: Maximum number of decoded bytes per received byte; it also limits files without a size limit.
_MOST_SWELLING = 100
_SWELLING_FROM = 64 << 20
#: RFC 9659 limits the window of zstd to 8 MiB.
_ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
#: Names of known codings for which this module has no decoder. This module and browsers ignore an
#: unknown name, such as `aws-chunked` or a charset.
_WITHOUT_DECODER = frozenset(
    {
        *("aes128gcm", "bzip2", "compress", "dcb", "dcz", "exi", "lz4", "lzma", "pack200-gzip"),
        *("sdch", "snappy", "xz"),
    }
)


class BodyDecoder:
    """Decodes the content codings of a body, one piece at a time.

    *codings* are the names in Content-Encoding, in the order in which the server applied the
    codings. A body with more than *limit* decoded bytes is cut at the limit. Without *limit*, a
    body fails if its decoded bytes are more than a hundred times its received bytes. The
    constructor and `pieces` raise `FetchError` (`content-encoding`) for such a body, for an unknown
    coding, and for a corrupt stream.
    """

    def __init__(self, codings: Sequence[str] = (), *, limit: int | None = None) -> None:
        if len(codings) > _MAX_CODINGS:
            message = (
                f"{len(codings)} nested content codings, but at most {_MAX_CODINGS} are allowed"
            )
            raise FetchError(Reason.CONTENT_ENCODING, message)
        room = sys.maxsize if limit is None else limit + _RAW_SLACK
        self._stages = [_Stage(name, room=room) for name in reversed(codings)]
        self._limit = limit
        self._wire_size = 0
        self.size = 0  #: decoded bytes
        #: Whether the body was cut at the limit; after the cut, the decoder needs no more input.
        self.is_full = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes from the wire, and yield the decoded bytes."""
        self._wire_size += len(data)
        try:
            for piece in _decoded_through(self._stages, data):
                self.size += len(piece)
                if self._limit is None:
                    if self.size > _SWELLING_FROM + _MOST_SWELLING * self._wire_size:
                        raise _OverfedError
                # A body of exactly the limit is complete; only a longer body is cut.
                elif self.size > self._limit:
                    last_piece = piece[: self._limit - self.size]
                    self.is_full, self.size = True, self._limit
                    yield last_piece
                    return
                yield piece
        except _OverfedError:
            self.is_full = True
            if self._limit is None:
                message = f"{self._wire_size:,} bytes decompress to more than {self.size:,}"
                raise FetchError(Reason.CONTENT_ENCODING, message) from None

    @property
    def missing(self) -> str:
        """Message that a stream is incomplete if the body ends now, or "" if all are complete."""
        errors = [] if self.is_full else [stage.missing for stage in self._stages if stage.missing]
        return errors[0] if errors else ""

    @property
    def lacks_content(self) -> bool:
        """Whether content (not only a checksum) would be missing if the body ended now."""
        return any(stage.missing and stage.lacks_content for stage in self._stages)


def codings_of(headers: Mapping[str, str]) -> list[str]:
    """Return the codings of a body, in the order in which the server applied them."""
    # Servers apply transfer codings last (RFC 9112, section 6.1); aiohttp decodes only `chunked`.
    header_text = ",".join(headers[name] for name in CODED if name in headers)
    names = [part.strip().lower().removeprefix("x-") for part in header_text.split(",")]
    return [name for name in names if name in _CODINGS or name in _WITHOUT_DECODER]


class _Zlib:
    """Decompressor for gzip and deflate, with the methods of the zstd module's decompressor."""

    def __init__(self, wbits: int) -> None:
        self._inflate = zlib.decompressobj(wbits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        output = self._inflate.decompress(data or self._inflate.unconsumed_tail, max_length)
        # If the output has *max_length* bytes, more output may follow without new input.
        self.needs_input = len(output) < max_length
        return output

    @property
    def awaits_checksum(self) -> bool:
        """Whether all content has been decoded, but the checksum is missing."""
        # zlib does not tell whether the checksum comes next. So give 0x00 to a copy of the
        # decompressor and 0xFF to a second copy. If both return no content, the checksum is next.
        return all(map(self._is_checksum, (b"\0", b"\xff")))

    def _is_checksum(self, byte: bytes) -> bool:
        probe = self._inflate.copy()
        try:
            # gzip's checksum has eight bytes (RFC 1952, section 2.3.1), and zlib's has four.
            return not any(probe.decompress(byte) for _ in range(8)) and probe.eof
        except zlib.error as error:
            # zlib finds a wrong checksum only after the whole content.
            return str(error).endswith(("data check", "length check"))


class _Brotli:
    unused_data = b""

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._decoder.is_finished())

    def decompress(self, data: bytes, max_length: int) -> bytes:
        # brotli fills an internal buffer before it checks the limit, so the output may exceed it.
        output = bytes(self._decoder.process(data, output_buffer_limit=max_length))
        self.needs_input = len(output) < max_length
        return output


_Engine: TypeAlias = _Zlib | _Brotli | zstd.ZstdDecompressor


class _OverfedError(Exception):
    """A compressed body exceeds a limit of this module: it has too many bytes or streams."""


class _Stage:
    """Decoder of one coding of a body; a gzip or zstd body may have several streams in a row."""

    def __init__(self, name: str, *, room: int) -> None:
        """Accept at most *room* bytes of input."""
        coding = _CODINGS.get(name)
        if coding is None:
            raise FetchError(Reason.CONTENT_ENCODING, f"no decoder is available for {name!r}")
        self._name = name
        self._new_engine, self._magic, self._peek_size = coding
        self._max_bytes = room
        self._engine: _Engine | None = None
        self._head = b""  #: first bytes, too few to choose a decompressor
        self._stream_count = 0
        self._has_ended = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded pieces of *data*; raises `_OverfedError` if the body is too large."""
        self._max_bytes -= len(data)
        if self._max_bytes < 0:
            raise _OverfedError
        while data and not self._has_ended:
            engine = self._engine
            if engine is None:
                data = self._head + data
                if self._stream_count and data[:1] != self._magic:
                    # Browsers also ignore bytes that follow a stream and do not begin a new stream.
                    self._has_ended = True
                    return
                if len(data) < self._peek_size:
                    self._head = data
                    return
                self._head = b""
                engine = self._engine = self._new_engine(data)
            while True:
                try:
                    piece = engine.decompress(data, _PIECE)
                except (zlib.error, brotli.error, zstd.ZstdError) as error:
                    message = f"the body is not {self._name}, as Content-Encoding says: {error}"
                    raise FetchError(Reason.CONTENT_ENCODING, message) from None
                data = b""
                if piece:
                    yield piece
                if engine.eof or engine.needs_input:
                    break
            if engine.eof:
                data = engine.unused_data
                self._engine = None
                self._stream_count += 1
                if self._stream_count > _MAX_STREAMS:
                    raise _OverfedError

    @property
    def missing(self) -> str:
        """Message that this stream is incomplete if the body ends now; "" if it is complete."""
        # A coded body without any bytes is complete, as in many responses without content.
        is_open = self._engine is not None or self._head
        return f"the {self._name} stream is incomplete" if is_open else ""

    @property
    def lacks_content(self) -> bool:
        """Whether content would be missing if the body ended now; true if the codec cannot say."""
        return not (isinstance(self._engine, _Zlib) and self._engine.awaits_checksum)


def _deflate(start: bytes) -> _Engine:
    # Some servers send a raw deflate stream without its zlib wrapper (RFC 9110, section 8.4.1.2).
    # RFC 1950, section 2.2, says how to check the two bytes of the wrapper.
    has_wrapper = (
        start[0] & 0x0F == 8 and start[0] >> 4 <= 7 and (start[0] << 8 | start[1]) % 31 == 0
    )
    return _Zlib(zlib.MAX_WBITS if has_wrapper else -zlib.MAX_WBITS)


#: For each coding: (1) a function that makes a decompressor from the first bytes of a body, (2) the
#: first byte of each further stream, or b"" if a body is one stream, (3) how many first bytes.
_CODINGS: dict[str, tuple[Callable[[bytes], _Engine], bytes, int]] = {
    "gzip": (lambda _: _Zlib(16 + zlib.MAX_WBITS), b"\x1f", 1),
    "deflate": (_deflate, b"", 2),
    "br": (lambda _: _Brotli(), b"", 1),
    "zstd": (lambda _: zstd.ZstdDecompressor(options=_ZSTD_OPTIONS), b"\x28", 1),
}


def _decoded_through(stages: Sequence[_Stage], data: bytes) -> Iterator[bytes]:
    if not stages:
        yield data
        return
    for piece in stages[0].pieces(data):
        yield from _decoded_through(stages[1:], piece)


#: Number of first bytes of a body that are enough to see its type.
LOOK = 512
#: Image types that are read, although all other images are refused.
_READABLE_IMAGE_TYPES = ("image/svg+xml",)
_REFUSED_TYPES = (
    *("audio/", "video/", "image/", "font/", "text/event-stream"),
    *("application/ogg", "application/font-", "application/vnd.ms-fontobject"),
    *("application/zip", "application/x-zip-compressed", "application/java-archive"),
    *("application/x-7z-compressed", "application/vnd.rar", "application/x-rar-compressed"),
    *("application/x-tar", "application/x-iso9660-image", "application/x-msdownload"),
    *("application/vnd.android.package-archive", "application/wasm"),
)
#: First bytes of binary formats (WHATWG MIME Sniffing, section 6), with offset and type. Signatures
#: that may also begin a text are omitted.
_SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (8, b"WEBPVP", "image/webp"),
    (0, b"\0\0\1\0", "image/x-icon"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
    (0, b"OggS\0", "application/ogg"),
    (0, b"ID3\3", "audio/mpeg"),
    (8, b"WAVE", "audio/wave"),
    (0, b"wOFF", "font/woff"),
    (0, b"wOF2", "font/woff2"),
    (0, b"PK\3\4", "application/zip"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\7", "application/vnd.rar"),
    (0, b"\0asm", "application/wasm"),
)
#: Pattern that matches the signature of any binary format, so that most pages need only one check.
SIGNED = re.compile(
    b"|".join(b".{%d}%b" % (offset, re.escape(mark)) for offset, mark, _ in _SIGNATURES), re.DOTALL
)
#: Types that servers send for bodies of unknown type.
_SAYS_NOTHING = ("", "text/html", "text/plain", "application/xhtml+xml", "application/octet-stream")


def check_type(
    kind: str,
    accepted: Sequence[str],
    *,
    status: int | None = None,
    declared_type: str | None = None,
) -> None:
    """Raise `FetchError` for a body of *kind* if it must not be read.

    *accepted* are types that are never refused, such as `image/png`, `image/*`, `*/*`. If *kind*
    comes from the body's first bytes, *declared_type* is the Content-Type, else None.
    """
    if not kind.startswith(_REFUSED_TYPES) or kind in _READABLE_IMAGE_TYPES:
        return
    family = kind.partition("/")[0]
    if any(accepted_type.lower() in (kind, f"{family}/*", "*/*") for accepted_type in accepted):
        return
    message = f"{printable(kind)} is not text: add it to `accept_types` to read it"
    if declared_type is not None:
        message = f"the body is {kind}, although its Content-Type is {declared_type or 'missing'}"
    raise FetchError(Reason.CONTENT_TYPE, message, status=status)


def check_start(start: bytes, declared_type: str, accepted: Sequence[str]) -> None:
    """Raise `FetchError` for a body that begins with *start*, if it must not be read.

    A body is checked only if *declared_type* does not tell the type of the content.
    """
    if SIGNED.match(start) is not None and declared_type in _SAYS_NOTHING:
        actual_type = next(
            kind for offset, mark, kind in _SIGNATURES if start.startswith(mark, offset)
        )
        check_type(actual_type, accepted, declared_type=declared_type)


@dataclass(slots=True, eq=False)
class Share:
    """Number of bytes that one task has taken from a memory budget."""

    budget: "MemoryBudget"
    size: int

    def shrink(self, size: int) -> None:
        """Keep at most *size* bytes, and return the other bytes to the budget."""
        if size < self.size:
            self.budget.used -= self.size - size
            self.budget.freed.set()
            self.size = size


class MemoryBudget:
    """Limit of the bytes that all bodies of one event loop may have in memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.freed = asyncio.Event()
        self._turn = asyncio.Lock()  # waiting tasks, in their order

    async def take(self, size: int, *, waits: bool = True) -> Share:
        """Take *size* bytes, or the whole budget if it is less; wait for free bytes if *waits*."""
        size = min(size, self.limit)
        # The lock costs time, so take it only if another caller waits or too few bytes are free.
        if waits and (self._turn.locked() or self.used + size > self.limit):
            async with self._turn:
                while self.used + size > self.limit:
                    self.freed.clear()
                    await self.freed.wait()
        self.used += size
        return Share(self, size)
