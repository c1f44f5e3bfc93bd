"""Pages of the hostile server: fixed bytes, or functions of an `Exchange`.

A page is a function of an `Exchange`, registered under its path. It writes any
bytes and returns. The server then closes the connection, unless the page
returns KEEP. No page sleeps to wait for a client: a page that hangs waits until
the client hangs up or the server is closed.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

KEEP = object()
MIB = 1 << 20
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
    number: int  #: requests for this target so far, this one included

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hang(self) -> None:
        """Wait until the client hangs up."""
        while await self.reader.read(1 << 16):
            pass

    async def taken(self) -> None:
        """Wait until everything is sent, so that the next bytes are a segment of their own."""
        transport = self.writer.transport
        transport.set_write_buffer_limits(high=0)
        await self.writer.drain()
        # Loopback delivers in order; a turn of the loop lets the client read.
        for _ in range(20):
            await asyncio.sleep(0)

    async def pause(self, seconds: float) -> bool:
        """Wait as a slow page does; return whether the client is still connected."""
        try:
            return bool(await asyncio.wait_for(self.reader.read(1), seconds))
        except TimeoutError:
            return True

    def reset(self) -> None:
        """Send RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Page = Callable[[Exchange], Awaitable[object]]
PAGES: dict[str, Page] = {}


def response(body: bytes = PAGE, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n" % (status.encode(), len(body))
    return head + headers + b"\r\n" + body


def chunked(*chunks: bytes, headers: bytes = b"", end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + headers + b"\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def _register(path: str, function: Page) -> None:
    assert path not in PAGES, f"{path} is registered already"
    PAGES[path] = function


def page(path: str) -> Callable[[Page], Page]:
    """Register a function as the page of *path*."""

    def register(function: Page) -> Page:
        _register(path, function)
        return function

    return register


def fixed(
    path: str, data: bytes | Callable[[], bytes], *, keep: bool = False, reset: bool = False
) -> None:
    """Register a page that sends *data*, or its result if it is a function."""

    async def send(exchange: Exchange) -> object:
        # In a thread: a bomb takes seconds to make, and other pages must not wait for it.
        await exchange.send(await asyncio.to_thread(data) if callable(data) else data)
        if reset:
            exchange.reset()
        return KEEP if keep else None

    _register(path, send)


def hanging(path: str, data: bytes, *more: bytes) -> None:
    """Register a page that sends *data*, and *more* as segments of their own, and then hangs."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(data)
        for segment in more:
            await exchange.taken()
            await exchange.send(segment)
        await exchange.hang()
        return None

    _register(path, send)


def endless(path: str, head: bytes, again: bytes) -> None:
    """Register a page that sends *again* for ever, as fast as it is read."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(head)
        while True:
            await exchange.send(again)
            # A drain with room in its buffer does not yield to other tasks.
            await asyncio.sleep(0)

    _register(path, send)


def dripping(path: str, head: bytes, again: bytes, *, pace: float = 0.05) -> None:
    """Register a page that sends *again* for ever, every *pace* seconds."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(head)
        while await exchange.pause(pace):
            await exchange.send(again)
        return None

    _register(path, send)


def unasked(path: str, late: bytes, *, after: float = 0.0) -> None:
    """Register a page that answers, and sends an unsolicited answer *after* some seconds."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(response(b"asked for"))
        await exchange.taken()
        if after:
            await asyncio.sleep(after)  # the delay that the page is about
        await exchange.send(late)
        return KEEP

    _register(path, send)


def redirect(path: str, location: bytes | None, *, status: str = "302 Found") -> None:
    headers = b"" if location is None else b"Location: " + location + b"\r\n"
    fixed(path, response(b"", status=status, headers=headers), keep=True)
