"""Body of a response: its content codings, its memory, and the bodies that are not read.

- **Codings.** The limit counts *decoded* bytes, and no step returns more than one piece at a
  time, because 52 bytes of brotli can stand for gigabytes. This module notices a stream that ends
  too early, because with a correct Content-Length nothing else notices it. A page whose stream ends
  too early is marked, and a file fails.
- **Memory.** A budget counts bytes. Waiting requests for shares are served in their order, so small
  shares do not keep a large share waiting. A holder of a share never waits for another share, or
  for a request that waits for one, because holders could wait for each other. So the further shares
  of a holder may exceed the limit.
- **Bodies that are not read** have no end or no text, by Content-Type and first bytes. A
  picture that calls itself HTML is still a picture. PDF, and bodies that are only called
  `application/octet-stream`, are read: spiders want them, and nothing distinguishes them.
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

#: The value of Accept-Encoding: all codings that have a decoder in this module.
ACCEPTED = "gzip, deflate, br, zstd"
CODED = ("content-encoding", "transfer-encoding")
_PIECE = 1 << 16
_MAX_CODINGS = 3
#: Number of coded bytes that a body may have beyond the limit, because gzip
#: members without content, and bytes after a stream, give no decoded bytes.
_RAW_SLACK = 1 << 20
#: Each stream takes as much time as some kilobytes of content. Normal bodies have at most some
#: hundreds of streams.
_MAX_STREAMS = 10_000
#: The limit of decoded bytes for each byte of a file on the wire, because the file may have no
#: other limit.
_MOST_SWELLING = 100
_SWELLING_FROM = 64 << 20
#: RFC 9659: a window of at most 8 MiB.
_ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
#: Codings of IANA's list and of archives that have no decoder in this module. Any other name is no
#: coding (`aws-chunked`, a charset, a media type), so browsers show the body as it is.
_WITHOUT_DECODER = frozenset(
    {
        *("aes128gcm", "bzip2", "compress", "dcb", "dcz", "exi", "lz4", "lzma", "pack200-gzip"),
        *("sdch", "snappy", "xz"),
    }
)


class BodyDecoder:
    """Removes the codings of a body, one piece at a time.

    *codings* are the codings of Content-Encoding, in the order in which they were applied. A body
    over *limit* decoded bytes is cut at the limit. Without a limit, as for a file, a body fails if
    it swells to more than a hundred times its bytes on the wire. The constructor and `pieces` raise
    `FetchError` (`content-encoding`), also for a coding without a decoder or a corrupt stream.
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
        #: Whether the body was cut: then more input has no use.
        self.is_full = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes from the wire, and yield the decoded bytes."""
        self._wire_size += len(data)
        try:
            for piece in _through(self._stages, data):
                self.size += len(piece)
                if self._limit is None:
                    if self.size > _SWELLING_FROM + _MOST_SWELLING * self._wire_size:
                        raise _OverfedError
                # One byte over the limit distinguishes a body that is cut from one that just fits.
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
        """The coding whose end is missing if the body ends now; "" for a whole body."""
        errors = [] if self.is_full else [stage.missing for stage in self._stages if stage.missing]
        return errors[0] if errors else ""

    @property
    def lacks_content(self) -> bool:
        """Whether more is missing than the checksum after the content."""
        return any(stage.missing and stage.lacks_content for stage in self._stages)


def codings_of(headers: Mapping[str, str]) -> list[str]:
    """Return the codings of a body, in the order in which they were applied."""
    # RFC 9112, section 6.1: transfer codings were applied after content codings. aiohttp decodes
    # the chunks and leaves the other codings.
    header_text = ",".join(headers[name] for name in CODED if name in headers)
    names = [part.strip().lower().removeprefix("x-") for part in header_text.split(",")]
    return [name for name in names if name in _CODINGS or name in _WITHOUT_DECODER]


class _Zlib:
    """A decompressor with the methods of the decompressor in the zstd module."""

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
        # After a full piece, more output may follow without input. Only a full piece leaves input.
        self.needs_input = len(output) < max_length
        return output

    @property
    def awaits_checksum(self) -> bool:
        """Whether all of the content has come, but not the checksum."""
        # zlib does not tell this. At the checksum, any bytes lead to the end and give no content.
        # Before the checksum, zeros or ones may be the code of the end, but not both.
        return all(map(self._is_checksum, (b"\0", b"\xff")))

    def _is_checksum(self, byte: bytes) -> bool:
        probe = self._inflate.copy()
        try:
            # The checksum of gzip has eight bytes (RFC 1952, section 2.3.1), that of zlib four.
            return not any(probe.decompress(byte) for _ in range(8)) and probe.eof
        except zlib.error as error:
            # Exclude "incorrect header check", because a stream of one byte causes that.
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
        # The limit is soft: brotli checks it, and leaves input, only after an internal buffer.
        output = bytes(self._decoder.process(data, output_buffer_limit=max_length))
        self.needs_input = len(output) < max_length
        return output


_Engine: TypeAlias = _Zlib | _Brotli | zstd.ZstdDecompressor


class _OverfedError(Exception):
    """A stage got more bytes or streams than a body within the limit has."""


class _Stage:
    """One coding: a stream or, with gzip and zstd, several streams in a row."""

    def __init__(self, name: str, *, room: int) -> None:
        """Accept at most *room* bytes."""
        coding = _CODINGS.get(name)
        if coding is None:
            raise FetchError(Reason.CONTENT_ENCODING, f"no decoder is available for {name!r}")
        self._name = name
        self._new_engine, self._magic, self._peek_size = coding
        self._room = room
        self._engine: _Engine | None = None
        self._head = b""  #: fewer bytes than `peek`
        self._streams = 0
        self._has_ended = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded pieces of *data*; raises `_OverfedError`."""
        self._room -= len(data)
        if self._room < 0:
            raise _OverfedError
        while data and not self._has_ended:
            engine = self._engine
            if engine is None:
                data = self._head + data
                if self._streams and data[:1] != self._magic:
                    # After a stream, browsers ignore bytes that do not start another stream. Only
                    # some codings allow several streams.
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
                self._streams += 1
                if self._streams > _MAX_STREAMS:
                    raise _OverfedError

    @property
    def missing(self) -> str:
        """The error of the stream if it ends now; "" at its end."""
        # A coded body without any bytes is empty, as in many responses without content.
        is_open = self._engine is not None or self._head
        return f"the {self._name} stream is incomplete" if is_open else ""

    @property
    def lacks_content(self) -> bool:
        """Whether more than a checksum is missing, if that can be known."""
        return not (isinstance(self._engine, _Zlib) and self._engine.awaits_checksum)


def _deflate(start: bytes) -> _Engine:
    # RFC 9110, section 8.4.1.2: some servers send the raw stream without its zlib
    # wrapper. RFC 1950, section 2.2, says how to check the two bytes of the wrapper.
    has_wrapper = (
        start[0] & 0x0F == 8 and start[0] >> 4 <= 7 and (start[0] << 8 | start[1]) % 31 == 0
    )
    return _Zlib(zlib.MAX_WBITS if has_wrapper else -zlib.MAX_WBITS)


#: By name: how the first bytes make its decompressor; the first byte of a further stream, if there
#: may be one; and how many bytes show the kind of stream.
_CODINGS: dict[str, tuple[Callable[[bytes], _Engine], bytes, int]] = {
    "gzip": (lambda _: _Zlib(16 + zlib.MAX_WBITS), b"\x1f", 1),
    "deflate": (_deflate, b"", 2),
    "br": (lambda _: _Brotli(), b"", 1),
    "zstd": (lambda _: zstd.ZstdDecompressor(options=_ZSTD_OPTIONS), b"\x28", 1),
}


def _through(stages: Sequence[_Stage], data: bytes) -> Iterator[bytes]:
    if not stages:
        yield data
        return
    for piece in stages[0].pieces(data):
        yield from _through(stages[1:], piece)


#: Number of bytes of a body that show its type.
LOOK = 512
#: Types that are read, although other types of the same family are not.
_TEXT = ("image/svg+xml",)
_REFUSED = (
    *("audio/", "video/", "image/", "font/", "text/event-stream"),
    *("application/ogg", "application/font-", "application/vnd.ms-fontobject"),
    *("application/zip", "application/x-zip-compressed", "application/java-archive"),
    *("application/x-7z-compressed", "application/vnd.rar", "application/x-rar-compressed"),
    *("application/x-tar", "application/x-iso9660-image", "application/x-msdownload"),
    *("application/vnd.android.package-archive", "application/wasm"),
)
#: WHATWG MIME Sniffing, section 6, except signatures with which a text may begin.
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
#: Matches any of these signatures. Most pages begin with no signature, so one check is enough.
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

    *accepted* are types that are read in any case: `image/png`, `image/*`, `*/*`.
    *declared_type* is the type from the server, if the bytes show another type.
    """
    if not kind.startswith(_REFUSED) or kind in _TEXT:
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

    It checks only bodies whose *declared_type* is that of pages or says nothing.
    """
    if SIGNED.match(start) is not None and declared_type in _SAYS_NOTHING:
        actual_type = next(
            kind for offset, mark, kind in _SIGNATURES if start.startswith(mark, offset)
        )
        check_type(actual_type, accepted, declared_type=declared_type)


@dataclass(slots=True, eq=False)
class Share:
    """A part of a budget."""

    budget: "MemoryBudget"
    size: int

    def shrink(self, size: int) -> None:
        """Keep at most *size* bytes, and return the other bytes to the budget."""
        if size < self.size:
            self.budget.used -= self.size - size
            self.budget.freed.set()
            self.size = size


class MemoryBudget:
    """A number of bytes for the one event loop that uses it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.freed = asyncio.Event()
        self._turn = asyncio.Lock()  # first come, first served

    async def take(self, size: int, *, waits: bool = True) -> Share:
        """Take *size* bytes, at most the whole budget; over the limit unless the caller *waits*."""
        size = min(size, self.limit)
        # If there is room and no caller waits, skip the lock, whose queue costs each page one round
        # of the event loop. So a share that is requested between two turns is first.
        if waits and (self._turn.locked() or self.used + size > self.limit):
            async with self._turn:
                while self.used + size > self.limit:
                    self.freed.clear()
                    await self.freed.wait()
        self.used += size
        return Share(self, size)
