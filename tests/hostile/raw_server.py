"""A minimal web server: raw bytes for each path, on a real socket of 127.0.0.1."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from tests.support.listeners import closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Endless:
    """An answer that begins with *head* and goes on with *again* until the client hangs up."""

    head: bytes
    again: bytes


@dataclass(slots=True)
class RawServer:
    """The running server, and its requests."""

    port: int
    requested: list[str] = field(default_factory=list)
    sent: int = 0  #: bytes, endless answers included

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextlib.asynccontextmanager
async def serving(pages: Mapping[str, bytes | Endless]) -> AsyncIterator[RawServer]:
    """Serve *pages*; any other path is a 404. Each connection serves one request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode("latin-1")
            state.requested.append(path)
            page = pages.get(path, response(b"", status="404 Not Found"))
            first = page.head if isinstance(page, Endless) else page
            writer.write(first)
            state.sent += len(first)
            await writer.drain()
            while isinstance(page, Endless):
                writer.write(page.again)
                state.sent += len(page.again)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await _listening(answer)
    state = RawServer(server.sockets[0].getsockname()[1])
    try:
        yield state
    finally:
        await closed(server)
        await server.wait_closed()


async def _listening(answer: object) -> asyncio.Server:
    # A usual port of web servers: a crawl refuses others.
    for port in range(8000, 9000):
        with contextlib.suppress(OSError):
            return await asyncio.start_server(answer, "127.0.0.1", port)  # type: ignore[arg-type]  # the callback of a stream
    raise OSError("no free port between 8000 and 8999")


def response(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n" % (
        status.encode(),
        len(body),
    )
    return head + headers + b"\r\n" + body
