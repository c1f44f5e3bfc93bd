"""A site with endless pages, in a thread; it counts requests and can hold back answers."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: "


class EndlessSite:
    """`/` links to `/first/0` and so on; pages below `/held/` are answered after `release`."""

    def __init__(self, *, links: int) -> None:
        self.hits: Counter[str] = Counter()
        self.url = ""
        self._start = "".join(f'<a href="/first/{n}">{n}</a>' for n in range(links)).encode()
        self._released = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def pages(self) -> int:
        """The number of requests for pages."""
        return self.hits.total() - self.hits["/robots.txt"]

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                self.hits[path] += 1
                if path.startswith("/held/"):
                    await self._released.wait()
                body = self._start if path == "/" else b"" if path == "/robots.txt" else b"<p>page"
                writer.write(f"{_HEAD}{len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    def run(self, ready: threading.Event) -> None:
        self._loop.run_until_complete(self._run(ready))
        self._loop.close()

    async def _run(self, ready: threading.Event) -> None:
        self._ended = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        ready.set()
        await self._ended.wait()
        server.close()
        self._released.set()
        for writer in list(self._writers):
            writer.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)


@contextmanager
def running(*, links: int) -> Iterator[EndlessSite]:
    site = EndlessSite(links=links)
    ready = threading.Event()
    thread = threading.Thread(target=site.run, args=[ready])
    thread.start()
    ready.wait()
    try:
        yield site
    finally:
        site.end()
        thread.join()
