"""How pages of the hostile server are written: as bytes, or as functions of an `Exchange`.

A page is a function of an `Exchange`, registered under its path. It writes
whatever bytes it likes and returns; the connection is closed then, unless it
returns KEEP. Nothing here sleeps to wait for a client: a page that hangs
waits until the client hangs up, or until the server is closed.
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
    number: int  #: how often this target was asked for, this time included

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

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

    async def pause(self, seconds: float) -> bool:
        """Keep the pace of a slow page; return whether the client is still there."""
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
    assert path not in PAGES, f"{path} is another page already"
    PAGES[path] = function


def page(path: str) -> Callable[[Page], Page]:
    """Register a page that is written out in code."""

    def register(function: Page) -> Page:
        _register(path, function)
        return function

    return register


def fixed(
    path: str, data: bytes | Callable[[], bytes], *, keep: bool = False, reset: bool = False
) -> None:
    """Register a page that sends *data*, or what that returns, whatever was asked."""

    async def send(exchange: Exchange) -> object:
        # A bomb takes seconds to make, on a busy machine, and others are not to wait for it.
        await exchange.send(await asyncio.to_thread(data) if callable(data) else data)
        if reset:
            exchange.reset()
        return KEEP if keep else None

    _register(path, send)


def hanging(path: str, data: bytes) -> None:
    """Register a page that sends *data* and then says nothing more."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(data)
        await exchange.hang()
        return None

    _register(path, send)


def in_two(path: str, first: bytes, second: bytes) -> None:
    """Register a page that sends two segments and hangs."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(first)
        await exchange.taken()
        await exchange.send(second)
        await exchange.hang()
        return None

    _register(path, send)


def endless(path: str, head: bytes, again: bytes) -> None:
    """Register a page that sends *again* for ever, as fast as it is read."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(head)
        while True:
            await exchange.send(again)
            # A drain that need not wait does not let others run.
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
    """Register a page that answers, and *after* some seconds sends what nobody asked for."""

    async def send(exchange: Exchange) -> object:
        await exchange.send(response(b"asked for"))
        await exchange.taken()
        if after:
            await asyncio.sleep(after)  # the pace of the page: it is late by that
        await exchange.send(late)
        return KEEP

    _register(path, send)


def redirect(path: str, location: bytes | None, *, status: str = "302 Found") -> None:
    headers = b"" if location is None else b"Location: " + location + b"\r\n"
    fixed(path, response(b"", status=status, headers=headers), keep=True)
