"""A web server that breaks every rule: raw bytes on real sockets of 127.0.0.1.

    python -m tests.hostile.server

serves until its standard input ends, and prints its port as a line. The pages are
in `endpoints`, and their expected outcomes in `catalogue`.
"""

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from tests.hostile import catalogue, endpoints
from tests.hostile.pages import KEEP, MIB, PAGE, PAGES, Exchange, response
from tests.support.docs import REPOSITORY
from tests.support.listeners import closed

__all__ = [
    "MIB",
    "PAGE",
    "HostileServer",
    "catalogue",
    "endpoints",
    "in_a_process",
    "response",
    "running",
]

_TLS_HANDSHAKE = b"\x16"
_NOT_FOUND = response(b"no such page", status="404 Not Found")


@dataclass
class HostileServer:
    """The running server: its port, and a log of its requests and connections."""

    port: int = 0
    requests: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seen_headers: dict[str, dict[str, str]] = field(default_factory=dict)
    seen_bodies: dict[str, bytes] = field(default_factory=dict)
    connections: int = 0
    open_connections: int = 0
    #: Connections and requests before the first request for each page.
    before: dict[str, tuple[int, int]] = field(default_factory=dict)

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
        self.counts[target] += 1
        self.seen_headers[target] = headers
        self.seen_bodies[target] = body
        path = target.partition("?")[0]
        self.before.setdefault(path, (self.connections, len(self.requests)))
        # The page of a folder also answers for the paths below it.
        page = PAGES.get(path) or PAGES.get(path[: path.find("/", 1) + 1])
        if page is None:
            writer.write(_NOT_FOUND)
            return KEEP
        return await page(
            Exchange(method, target, headers, body, reader, writer, self.counts[target])
        )


@contextlib.asynccontextmanager
async def running(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[HostileServer]:
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

    server = await _listening(serve, tls)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        await closed(server)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None,
) -> asyncio.Server:
    # A usual port of web servers, so that two hosts on it differ only in
    # their names.
    for port in range(8000, 9000):
        with contextlib.suppress(OSError):
            return await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    raise OSError("no free port between 8000 and 8999")


@contextlib.contextmanager
def in_a_process() -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Run the server in a process of its own, so that it does not slow down the crawl's loop."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.server"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


async def _serve_until_the_end_of_input() -> None:
    async with running() as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve_until_the_end_of_input())
