"""A server of large generated files, which interrupts and changes them on request."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate

from tests.support.site_threads import in_thread

BLOCK = 1 << 16
_PATTERN = bytes(range(256)) * (BLOCK // 256)


@dataclass(frozen=True, kw_only=True)
class Media:
    """One version of one file; all pieces of all versions differ."""

    size: int
    version: int = 1
    etag: str | None = '"v{}"'  #: `{}`: the version
    changed: float | None = None  #: time of the last change, in seconds since 1970
    kind: str = "video/mp4"
    ranges: bool = True  #: whether it obeys Range
    checks: bool = True  #: whether it obeys If-Range
    range_from: int | None = None  #: fixed start of each range, instead of the requested one
    range_size: int | None = None  #: limit of each range in bytes
    range_body: int | None = None  #: bytes really sent of each range
    parts_tell: bool = True  #: whether a part has validators
    parts_total: str = "{}"  #: the total of a range; `{}`: the size
    chunked: bool = False  #: chunked, without a length
    headers: tuple[str, ...] = ()
    pause: float = 0.0  #: seconds between pieces
    step: int = BLOCK  #: bytes of a piece
    body: bytes | None = None  #: instead of the generated one

    def piece(self, start: int, end: int) -> bytes:
        if self.body is not None:
            return self.body[start:end]
        first = start // BLOCK
        blocks = b"".join(self._block(n) for n in range(first, -(-end // BLOCK)))
        return blocks[start - first * BLOCK : end - first * BLOCK]

    def _block(self, number: int) -> bytes:
        head = b"%d:%d;" % (self.version, number)
        return head + _PATTERN[len(head) :]

    @property
    def sha256(self) -> str:
        made = hashlib.sha256()
        for start in range(0, self.size, 16 * BLOCK):
            made.update(self.piece(start, min(start + 16 * BLOCK, self.size)))
        return made.hexdigest()

    @property
    def validator(self) -> str | None:
        return self.etag and self.etag.format(self.version)


@dataclass
class MediaSite:
    """The server's files, its received requests, and its next behaviour."""

    files: dict[str, Media] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    #: Sizes at which the next bodies are cut off; None: complete.
    cuts: deque[int | None] = field(default_factory=deque)
    hangs_up: bool = False  #: whether it closes the connection then
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0  #: bytes of bodies
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def ranges(self) -> list[str | None]:
        """Return the Range of each request."""
        return [headers.get("range") for _, headers in self.asked]

    def change(self, path: str) -> None:
        """Serve another version of a file from now on."""
        self.files[path] = replace(self.files[path], version=self.files[path].version + 1)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._one(head.decode("latin-1"), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, head: str, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.strip().split("\r\n")
        path = first.split(" ")[1]
        headers = {
            name.lower(): value for name, _, value in (each.partition(": ") for each in lines)
        }
        if path == "/robots.txt":
            writer.write(b"HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n")
            return
        self.asked.append((path, headers))
        if path in self.pages:
            body = self.pages[path].encode()
            kind = b"Content-Type: text/html\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (kind, len(body)))
            writer.write(body)
            return
        if path in self.moved:
            location = self.moved[path].encode()
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: %s\r\n" % location)
            writer.write(b"Content-Length: 0\r\n\r\n")
            return
        media = self.files.get(path)
        if media is None:
            writer.write(b"HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n")
            return
        await self._send(media, headers, writer)

    async def _send(
        self, media: Media, asked: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        start = self._start(media, asked)
        if start >= media.size > 0:
            head = f"HTTP/1.1 416 Range\r\nContent-Range: bytes */{media.size}\r\n"
            writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
            return
        lines = [f"Content-Type: {media.kind}", f"Date: {formatdate(usegmt=True)}", *media.headers]
        tells = media.parts_tell or not start
        if media.validator is not None and tells:
            lines.append(f"ETag: {media.validator}")
        if media.changed is not None and tells:
            lines.append(f"Last-Modified: {formatdate(media.changed, usegmt=True)}")
        stop = media.size
        if start:
            start = start if media.range_from is None else media.range_from
            stop = min(stop, start + (media.range_size or media.size))
            total = media.parts_total.format(media.size)
            lines.append(f"Content-Range: bytes {start}-{stop - 1}/{total}")
            stop = stop if media.range_body is None else start + media.range_body
        lines.append(
            "Transfer-Encoding: chunked" if media.chunked else f"Content-Length: {stop - start}"
        )
        status = "206 Partial" if start else "200 OK"
        writer.write("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode())
        cut = self.cuts.popleft() if self.cuts else None
        end = stop if cut is None else min(stop, start + cut)
        for begin in range(start, end, media.step):
            piece = media.piece(begin, min(begin + media.step, end))
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if media.chunked else piece)
            await writer.drain()
            self.sent += len(piece)
            if media.pause:
                await asyncio.sleep(media.pause)
        if end < stop:
            if not self.hangs_up:
                await asyncio.Event().wait()
            raise ConnectionError
        if media.chunked:
            writer.write(b"0\r\n\r\n")

    def _start(self, media: Media, asked: dict[str, str]) -> int:
        if not media.ranges or "range" not in asked:
            return 0
        told = asked.get("if-range")
        changed = media.changed and formatdate(media.changed, usegmt=True)
        if media.checks and told is not None and told not in (media.validator, changed):
            return 0
        return int(asked["range"].removeprefix("bytes=").removesuffix("-"))


@asynccontextmanager
async def running(**files: Media) -> AsyncIterator[MediaSite]:
    """Serve *files*, each at `/NAME.mp4`, in this event loop."""
    site = MediaSite({f"/{name}.mp4": media for name, media in files.items()})
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(site.answer(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close


@contextmanager
def served(**files: Media) -> Iterator[MediaSite]:
    """Serve files in a thread, for crawls in other processes."""
    with in_thread(running(**files)) as site:
        yield site
