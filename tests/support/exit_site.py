"""A site that records the source address, and so the proxy, of each request, and can ban some.

Page `/p/N` links to `/p/2N+1` and `/p/2N+2`, and `/m/N` redirects to it. The site runs in a
thread of the tests' own process.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from crawlcw import Spider
from tests.support.site_threads import in_thread

#: Settings without waits after failures.
QUICK: dict[str, Any] = {
    "backoff_base": "0s",
    "backoff_max": "0s",
    "host_backoff_base": "50ms",
    "host_backoff_max": "50ms",
    "per_host_concurrency": 4,
}


class ExitSpider(Spider):
    """Follows all links."""

    name = "exits"

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.split("/", 3)[3], "session": response.session.name}
        yield from response.follow_all("a")


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page, as the server received it."""

    path: str
    exit: str  #: its source address
    visitor: str  #: its cookie `visitor`, or ""
    at: float  #: monotonic time


@dataclass(slots=True)
class ExitSite:
    """The state of the site; only its thread writes it."""

    pages: int
    host: str = "127.0.0.1"
    port: int = 0
    scheme: str = "http"
    banned: set[str] = field(default_factory=set)  #: addresses that get 403
    forbidden: set[int] = field(default_factory=set)  #: pages that are always 403
    broken: set[int] = field(default_factory=set)  #: pages that are always 500
    sets_cookie: bool = False
    says: int = 200  #: the status of every page
    visits: list[Visit] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def start(self) -> str:
        return f"{self.url}/p/0"

    @property
    def exits(self) -> Counter[str]:
        """Return the number of requests for pages by source address."""
        return Counter(each.exit for each in self.visits)

    async def page(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        visitor = request.cookies.get("visitor", "")
        exit_, now = str(request.remote), asyncio.get_running_loop().time()
        self.visits.append(Visit(request.path, exit_, visitor, now))
        if exit_ in self.banned or number in self.forbidden:
            return web.Response(status=403, text="go away")
        if number in self.broken:
            return web.Response(status=500)
        below = (2 * number + 1, 2 * number + 2)
        links = "".join(f'<a href="/p/{each}">{each}</a>' for each in below if each < self.pages)
        text = f"<p>{number}{links}"
        response = web.Response(status=self.says, text=text, content_type="text/html")
        if self.sets_cookie and not visitor:
            response.set_cookie("visitor", f"{exit_}-{len(self.visits)}", max_age=3600)
        return response

    async def moved(self, request: web.Request) -> web.Response:
        number = request.match_info["number"]
        return web.Response(status=302, headers={"Location": f"/p/{number}"})


@contextmanager
def served(
    pages: int = 1, *, certificate: Path | None = None, **options: Any
) -> Iterator[ExitSite]:
    """Serve a site of *pages* pages on its own port."""
    site = ExitSite(pages, scheme="http" if certificate is None else "https", **options)
    with in_thread(_running(site, certificate)):
        yield site


@asynccontextmanager
async def _running(site: ExitSite, certificate: Path | None) -> AsyncIterator[None]:
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    app = web.Application()
    app.router.add_get("/p/{number}", site.page)
    app.router.add_get("/m/{number}", site.moved)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, site.host, site.port, ssl_context=context).start()
    site.port = runner.addresses[0][1]
    yield
    assert runner.server is not None
    transports = [each.transport for each in runner.server.connections]
    await runner.cleanup()
    for transport in transports:
        # A TLS connection would wait for the client's close_notify.
        if transport is not None:
            transport.abort()
