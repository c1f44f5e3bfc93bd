"""A site in a process of its own for tests of the dashboard.

    python -m tests.support.odd_shop

Prints its port, and then a line for each request. `/` links to a page that is missing until
a request for `/mend`, to one at which the spider fails, and to some with markup in their
titles and URLs. Under another host name, with a limit of its own, it has pages that answer
only after a request for `/open`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from html import escape

from aiohttp import web

from tests.support.process_site import serve

PAGES = 4
SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u202egnp.exe"
#: Links as written in the page; a spider resolves them as a browser does.
ODD = (
    '/odd?"><script>window.hacked=3</script>',
    "/odd/'-alert(1)-'",
    "/odd#javascript:alert(1)",
    "/odd/<img src=x onerror=window.hacked=4>",
)
SPIDER = """
from crawlcw import Settings, Spider


class Shop(Spider):
    name = "shop"
    start_urls = [
        "http://127.0.0.1:{port}/",
        *(f"http://localhost:{port}/page/{{n}}" for n in range({pages})),
    ]
    settings = Settings(
        per_host_concurrency=16, timeout="10m", read_timeout="10m", auto_throttle=False
    )

    def parse(self, response):
        title = response.css_first("title").text()
        if "/broken" in response.url:
            raise ValueError(f"no price: {{title}}")
        yield {{"title": title}}
        yield from response.follow_all("a")
"""


class Shop:
    """Pages that wait, fail, or contain markup."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._mended = False

    @web.middleware
    async def told(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        print(request.path, flush=True)
        return await handler(request)

    async def home(self, _request: web.Request) -> web.Response:
        links = ["/missing", "/broken", *ODD]
        return _page("home", "".join(f'<a href="{escape(link)}">x</a>' for link in links))

    async def page(self, request: web.Request) -> web.Response:
        await self._open.wait()
        return _page(request.path)

    async def missing(self, _request: web.Request) -> web.Response:
        if not self._mended:
            raise web.HTTPNotFound
        return _page("back again")

    async def odd(self, _request: web.Request) -> web.Response:
        return _page(SCRIPT)

    async def tell(self, request: web.Request) -> web.Response:
        if request.path == "/open":
            self._open.set()
        else:
            self._mended = True
        return web.Response(text="done")


def _page(title: str, body: str = "") -> web.Response:
    return web.Response(
        text=f"<title>{escape(title)}</title>{body}", content_type="text/html", charset="utf-8"
    )


async def main() -> None:
    shop = Shop()
    app = web.Application(middlewares=[shop.told])
    app.router.add_get("/", shop.home)
    app.router.add_get("/page/{n}", shop.page)
    app.router.add_get("/missing", shop.missing)
    app.router.add_get("/{odd:(odd|broken).*}", shop.odd)
    app.router.add_get("/{tell:open|mend}", shop.tell)
    await serve(app)


if __name__ == "__main__":
    asyncio.run(main())
