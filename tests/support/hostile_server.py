"""A web server that breaks every rule: raw bytes on real sockets of 127.0.0.1.

A page is a function of an `Exchange`, registered under its path. It writes
whatever bytes it likes and returns; the connection is closed then, unless it
returns KEEP. Nothing here sleeps to wait for a client: a page that hangs
waits until the client hangs up, or until the server is closed.
"""

import asyncio
import contextlib
import gzip
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

import brotli

from crawlcw.downloader.decoding import zstd

KEEP = object()
MIB = 1 << 20
_TLS_HANDSHAKE = b"\x16"
PAGE = b"<html><title>a page</title></html>"


@dataclass
class Exchange:
    """One request, and the socket to answer it on."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: "HostileServer"

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hang(self) -> None:
        """Wait until the client has hung up."""
        while await self.reader.read(1 << 16):
            pass

    async def taken(self) -> None:
        """Wait until all is sent, so that what follows is a segment of its own."""
        transport = self.writer.transport
        transport.set_write_buffer_limits(high=0)
        await self.writer.drain()
        # Loopback delivers in order; a turn of the loop lets the client read.
        for _ in range(20):
            await asyncio.sleep(0)

    def reset(self) -> None:
        """Send RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Page = Callable[[Exchange], Awaitable[object]]
PAGES: dict[str, Page] = {}


@dataclass
class HostileServer:
    """The running server: where it is, and what it has seen."""

    port: int = 0
    requests: list[str] = field(default_factory=list)
    seen_headers: dict[str, dict[str, str]] = field(default_factory=dict)
    seen_bodies: dict[str, bytes] = field(default_factory=dict)
    connections: int = 0
    open_connections: int = 0

    @property
    def origin(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str, *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            while await self._answer(reader, writer) is KEEP:
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up, as it should
        finally:
            self.open_connections -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        first = await reader.readexactly(1)
        if first == _TLS_HANDSHAKE:
            writer.write(response(b"plain HTTP here", status="400 Bad Request"))
            return None
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split(" ", 2)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(target)
        self.seen_headers[target] = headers
        self.seen_bodies[target] = body
        page = PAGES[target.partition("?")[0]]
        return await page(Exchange(method, target, headers, body, reader, writer, self))


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[HostileServer]:
    """Run the server on a free port; at the end every connection is closed."""
    state = HostileServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await state.serve(reader, writer)

    server = await _listening(serve)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> asyncio.Server:
    # A port of the web's own, so that two hosts on it differ in nothing but
    # their names.
    for port in range(8000, 9000):
        with contextlib.suppress(OSError):
            return await asyncio.start_server(serve, "127.0.0.1", port)
    raise OSError("no free port between 8000 and 8999")


def response(body: bytes = PAGE, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n" % (status.encode(), len(body))
    return head + headers + b"\r\n" + body


def page(path: str) -> Callable[[Page], Page]:
    """Register a page that is written out in code."""

    def register(function: Page) -> Page:
        PAGES[path] = function
        return function

    return register


def fixed(path: str, data: bytes, *, keep: bool = False, reset: bool = False) -> None:
    """Register a page that sends *data*, whatever was asked."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(data)
        if reset:
            exchange.reset()
        return KEEP if keep else None

    PAGES[path] = send


def hanging(path: str, data: bytes) -> None:
    """Register a page that sends *data* and then says nothing more."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(data)
        return await exchange.hang()

    PAGES[path] = send


def in_two(path: str, first: bytes, second: bytes) -> None:
    """Register a page that sends two segments and hangs."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(first)
        await exchange.taken()
        await exchange.send(second)
        return await exchange.hang()

    PAGES[path] = send


def endless(path: str, head: bytes, again: bytes) -> None:
    """Register a page that sends *again* for ever, as fast as it is read."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(head)
        while True:
            await exchange.send(again)
            # A drain that need not wait does not let others run.
            await asyncio.sleep(0)

    PAGES[path] = send


def redirect(path: str, location: bytes | None, *, status: str = "302 Found") -> None:
    headers = b"" if location is None else b"Location: " + location + b"\r\n"
    fixed(path, response(b"", status=status, headers=headers), keep=True)


# 1. Transport -----------------------------------------------------------------

fixed("/ok", response(), keep=True)
fixed("/fin", b"")
fixed("/fin-in-status", b"HTTP/1.1 20")
fixed("/fin-in-headers", b"HTTP/1.1 200 OK\r\nContent-Le")
fixed("/rst", b"", reset=True)
fixed("/close-delimited", b"HTTP/1.1 200 OK\r\n\r\n" + PAGE)
fixed("/http-1.0", b"HTTP/1.0 200 OK\r\n\r\n" + PAGE)
fixed("/two-at-once", response() + response(b"POISON"))
fixed("/cl-too-long", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
fixed("/chunks-without-end", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
hanging("/silent", b"")
hanging("/silent-in-headers", b"HTTP/1.1 200 OK\r\nServer: slow\r\n")
hanging("/silent-in-body", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
hanging(
    "/switching", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
)
in_two(
    "/malformed-chunk-later",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    b"zzz\r\nnot a chunk\r\n",
)
in_two("/204-and-a-body-later", b"HTTP/1.1 204 No Content\r\n\r\n", b"surprise")
endless("/endless-continue", b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
endless("/endless-body", b"HTTP/1.1 200 OK\r\n\r\n", b"x" * (1 << 16))
endless("/endless-header", b"HTTP/1.1 200 OK\r\nX: ", b"x" * (1 << 16))


@page("/rst-in-body")
async def _rst_in_body(exchange: Exchange) -> object:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
    await exchange.taken()
    exchange.reset()
    return None


@page("/rst-in-close-delimited")
async def _rst_in_close_delimited(exchange: Exchange) -> object:
    await exchange.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
    await exchange.taken()
    exchange.reset()
    return None


@page("/drip")
async def _drip(exchange: Exchange) -> object:
    await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        await exchange.send(b"x")
        with contextlib.suppress(TimeoutError):
            # The pace of the page, ended early by the client's hanging up.
            if not await asyncio.wait_for(exchange.reader.read(1), 0.05):
                return None


@page("/poison")
async def _poison(exchange: Exchange) -> object:
    """Answers, and then once more without being asked."""
    await exchange.send(response(b"asked for"))
    await exchange.taken()
    await exchange.send(response(b"POISON"))
    return KEEP


@page("/poison-in-part")
async def _poison_in_part(exchange: Exchange) -> object:
    """Answers, and begins another answer without being asked."""
    await exchange.send(response(b"asked for"))
    await exchange.taken()
    await exchange.send(b"HTTP/1.1 200 OK\r\nX-Half:")
    return KEEP


# 2. HTTP ----------------------------------------------------------------------

fixed("/long-header", response(headers=b"Content-Security-Policy: " + b"x" * 20_000 + b"\r\n"))
fixed("/300-headers", response(headers=b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(300))))
fixed("/2000-headers", response(headers=b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(2000))))
fixed("/header-too-long", response(headers=b"X: " + b"x" * 100_000 + b"\r\n"))
fixed("/8-bit-header", response(headers=b"X-Name: caf\xe9\r\nX-Utf: caf\xc3\xa9\r\n"))
fixed("/header-twice", response(headers=b"Vary: A\r\nvary: B\r\n"))
fixed("/http-0.9", b"<html>no status line</html>")
fixed("/icy", b"ICY 200 OK\r\n\r\nmusic")
fixed("/ssh", b"SSH-2.0-OpenSSH_9.6\r\n")
fixed("/nul-header", response(headers=b"X: a\0b\r\n"))
fixed("/no-colon", response(headers=b"nonsense\r\n"))
fixed("/negative-length", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n")
fixed("/two-lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nhalf")
fixed(
    "/cl-and-te",
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\nhalf\r\n0\r\n\r\n",
)
fixed("/malformed-chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\nx\r\n")
for _status in ("000", "099", "600", "999"):
    fixed(f"/status-{_status}", response(status=f"{_status} What"))
fixed("/status-abc", response(status="abc What"))
fixed("/status-2000", response(status="2000 What"))
fixed("/status-404", response(b"not here", status="404 Not Found"), keep=True)
fixed("/status-206", response(status="206 Partial Content"), keep=True)
fixed("/204-with-body", response(b"surprise", status="204 No Content"), keep=True)
fixed("/205-with-body", response(b"surprise", status="205 Reset Content"), keep=True)
fixed("/304", b"HTTP/1.1 304 Not Modified\r\n\r\n", keep=True)
fixed(
    "/head", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nContent-Encoding: gzip\r\n\r\n", keep=True
)
fixed(
    "/tiny-chunks",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1\r\nx\r\n" * 20_000
    + b"0\r\n\r\n",
    keep=True,
)
fixed("/set-cookie", response(headers=b"Set-Cookie: id=7\r\nSet-Cookie: \x01=\r\n"), keep=True)


# 3. Content -------------------------------------------------------------------


def coded(path: str, body: bytes, coding: str) -> None:
    fixed(path, response(body, headers=b"Content-Encoding: %s\r\n" % coding.encode()), keep=True)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ZEROS = bytes(64 * MIB)
coded("/gzip", gzip.compress(PAGE), "gzip")
coded("/x-gzip", gzip.compress(PAGE), "x-GZIP")
coded("/gzip-members", gzip.compress(PAGE[:9]) + gzip.compress(PAGE[9:]), "gzip")
coded("/gzip-and-garbage", gzip.compress(PAGE) + b"\0\0garbage", "gzip")
coded("/deflate", zlib.compress(PAGE), "deflate")
coded("/raw-deflate", raw_deflate(PAGE), "deflate")
coded("/br", brotli.compress(PAGE), "br")
coded("/zstd", zstd.compress(PAGE), "zstd")
coded("/identity", PAGE, "identity")
coded("/stacked", brotli.compress(gzip.compress(PAGE)), "gzip, br")
coded("/truncated-gzip", gzip.compress(PAGE)[:-9], "gzip")
coded("/bad-crc", gzip.compress(PAGE)[:-8] + bytes(8), "gzip")
coded("/not-gzip", PAGE, "gzip")
coded("/not-br", PAGE, "br")
coded("/not-zstd", PAGE, "zstd")
coded("/unknown-coding", PAGE, "frobnicate")
coded("/too-many-codings", PAGE, "gzip, gzip, gzip, gzip")
coded("/gzip-bomb", gzip.compress(ZEROS), "gzip")
coded("/deflate-bomb", zlib.compress(ZEROS), "deflate")
coded("/br-bomb", brotli.compress(ZEROS, quality=1), "br")
coded("/zstd-bomb", zstd.compress(ZEROS), "zstd")
coded("/gzip-gzip-bomb", gzip.compress(gzip.compress(ZEROS)), "gzip, gzip")
coded("/gzip-of-nothing", gzip.compress(b"") * 100_000, "gzip")
fixed(
    "/te-gzip",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    + b"%x\r\n%s\r\n0\r\n\r\n" % (len(gzip.compress(PAGE)), gzip.compress(PAGE)),
)
fixed(
    "/te-unknown",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: frobnicate, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
)
endless("/video", b"HTTP/1.1 200 OK\r\nContent-Type: Video/mp4\r\n\r\n", b"x" * 1000)
endless("/events", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b"data: x\n\n")
fixed(
    "/length-10-to-18",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1%s\r\n\r\n%s" % (b"0" * 18, PAGE * 9000),
)


# 4. Redirects -----------------------------------------------------------------

for _code in (301, 302, 303, 307, 308):
    redirect(f"/{_code}", b"/ok", status=f"{_code} Elsewhere")
redirect("/loop", b"/loop")
redirect("/ping", b"/pong")
redirect("/pong", b"/ping")
redirect("/no-location", None)
redirect("/empty-location", b"")
redirect("/bad-location", b"http://[")
redirect("/bad-port", b"http://127.0.0.1:99999/")
redirect("/backslash", rb"\\example.com\path")
redirect("/to-file", b"file:///etc/passwd")
redirect("/to-javascript", b"javascript:alert(1)")
redirect("/with-password", b"http://user:secret@127.0.0.1/")
redirect("/latin-1-location", b"/synspr\xf8ve")
redirect("/utf-8-location", "/synsprøve".encode())
redirect("/to-fragment", b"/ok#part")
endless("/302-with-endless-body", b"HTTP/1.1 302 Found\r\nLocation: /ok\r\n\r\n", b"x" * 1000)
fixed("/synspr%F8ve", response(b"latin-1"), keep=True)
fixed("/synspr%C3%B8ve", response(b"utf-8"), keep=True)


@page("/endless-redirects")
async def _endless_redirects(exchange: Exchange) -> object:
    number = int(exchange.target.partition("?")[2] or 0) + 1
    location = b"Location: /endless-redirects?%d\r\n" % number
    await exchange.send(response(b"", status="302 Found", headers=location))
    return KEEP


@page("/to")
async def _to(exchange: Exchange) -> object:
    """Redirects to what the query says, with the status it begins with."""
    status, _, location = unquote(exchange.target).partition("?")[2].partition(",")
    headers = b"Location: %s\r\n" % location.encode()
    await exchange.send(response(b"", status=f"{status} Elsewhere", headers=headers))
    return KEEP


@page("/cookie-gate")
async def _cookie_gate(exchange: Exchange) -> object:
    if "pass=1" in exchange.headers.get("cookie", ""):
        await exchange.send(response(b"inside"))
    else:
        gate = b"Location: /cookie-gate\r\nSet-Cookie: pass=1\r\n"
        await exchange.send(response(b"", status="302 Found", headers=gate))
    return KEEP
