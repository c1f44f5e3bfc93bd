"""A site with endless pages, in a thread; it counts requests and can hold back answers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from tests.support import loopback
from tests.support.site_threads import in_thread


class EndlessSite:
    """`/` links to `/first/0` and so on; pages below `/held/` are answered after `release`."""

    def __init__(self, *, links: int) -> None:
        self.hits: Counter[str] = Counter()
        self.url = ""
        self._start = "".join(f'<a href="/first/{n}">{n}</a>' for n in range(links))
        self._released = asyncio.Event()

    @property
    def pages(self) -> int:
        """The number of requests for pages."""
        return self.hits.total() - self.hits["/robots.txt"]

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    async def _answer(self, request: web.Request) -> web.Response:
        self.hits[request.path] += 1
        if request.path.startswith("/held/"):
            await self._released.wait()
        body = {"/": self._start, "/robots.txt": ""}.get(request.path, "<p>page")
        return web.Response(text=body, content_type="text/html")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        async with loopback.served(app) as address:
            self.url = f"{address}/"
            yield
            self._released.set()


@contextmanager
def running(*, links: int) -> Iterator[EndlessSite]:
    site = EndlessSite(links=links)
    with in_thread(site.served()):
        yield site
