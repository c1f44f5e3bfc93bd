"""A site on loopback for the ports, which records its requests."""

import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from crawlcw import Report, Settings, Spider, run_spider
from crawlcw.ledger_opening import open_ledger

#: A page as text, as bytes with their content type, or as a function of the request.
Page = str | tuple[bytes, str] | Callable[[web.Request], web.Response]


@dataclass(kw_only=True)
class Site:
    """Pages by path, with robots.txt, and the requests for them."""

    pages: dict[str, Page] = field(default_factory=dict)
    seen: list[web.Request] = field(default_factory=list)
    url: str = ""

    @property
    def paths(self) -> Counter[str]:
        """Return the number of requests by path with query, without robots.txt."""
        return Counter(each.path_qs for each in self.seen if each.path != "/robots.txt")

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.seen.append(request)
        found = self.pages.get(request.path)
        if found is None:
            return web.Response(status=404)
        if callable(found):
            return found(request)
        if isinstance(found, str):
            return web.Response(text=found, content_type="text/html")
        return web.Response(body=found[0], headers={"Content-Type": found[1]})


@asynccontextmanager
async def recorded(pages: Mapping[str, Page], *hosts: str) -> AsyncIterator[Site]:
    """Serve *pages* by their paths, at 127.0.0.1 and at the same port of other *hosts*."""
    site = Site(pages=dict(pages))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = 0
    for host in ("127.0.0.1", *hosts):
        listening = socket.create_server((host, port))
        port = listening.getsockname()[1]
        await web.SockSite(runner, listening).start()
    site.url = f"http://127.0.0.1:{port}"
    try:
        yield site
    finally:
        await runner.cleanup()


@dataclass(frozen=True, kw_only=True)
class Crawled:
    """Result of a crawl."""

    report: Report
    items: list[dict[str, Any]]  #: items of the whole ledger, sorted


def ledger_of(folder: Path) -> str:
    return f"sqlite:///{folder}/ports.db"


async def crawled(spider: Spider, folder: Path, **settings: Any) -> Crawled:
    """Crawl to the end, with the spider's settings but for its waits, and those given."""
    quick = {"delay": 0.0, "backoff_base": "1ms"}
    chosen = Settings(**{**vars(spider.settings), **quick, **settings})
    report = await run_spider(spider, ledger=ledger_of(folder), settings=chosen)
    assert report.drained
    ledger = await open_ledger(ledger_of(folder), spider.name)
    items = [dict(row.item) async for row in ledger.queries.items()]
    await ledger.close()
    return Crawled(report=report, items=sorted(items, key=repr))
