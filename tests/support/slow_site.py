"""A site with slow pages in a process of its own, for tests of signals and of `kill -9`.

    python -m tests.support.slow_site

Prints its port, and then a line for each request as it arrives. `/` links to
the pages, which answer only after a request for `/open`.
"""

import asyncio

from aiohttp import web

from tests.support.process_site import serve

PAGES = 30


class SlowSite:
    """Pages that wait for a door to be opened."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    async def home(self, request: web.Request) -> web.Response:
        links = "".join(f'<a href="/page/{n}">{n}</a>' for n in range(PAGES))
        return web.Response(text=links, content_type="text/html")

    async def page(self, request: web.Request) -> web.Response:
        print(request.path, flush=True)
        await self._open.wait()
        return web.Response(text=f"<h1>{request.path}</h1>", content_type="text/html")

    async def open(self, request: web.Request) -> web.Response:
        self._open.set()
        return web.Response(text="open")


async def main() -> None:
    site = SlowSite()
    app = web.Application()
    app.router.add_get("/", site.home)
    app.router.add_get("/page/{n}", site.page)
    app.router.add_get("/open", site.open)
    await serve(app)


if __name__ == "__main__":
    asyncio.run(main())
