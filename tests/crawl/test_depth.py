"""`max_depth` of settings and requests, on a real server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from crawlcw import Report, Request, Response, Settings, Spider
from crawlcw.assembly import run_spider
from tests.support import loopback


class Chain:
    """A chain of pages `/0`, `/1` ...; the second server redirects `/start` to the first."""

    def __init__(self) -> None:
        self.base = self.redirecting = ""
        self.paths: list[str] = []

    async def page(self, request: web.Request) -> web.Response:
        if request.path == "/robots.txt":
            return web.Response(status=404)
        self.paths.append(request.path)
        if request.path == "/start":
            return web.Response(status=301, headers={"Location": f"{self.base}/0"})
        link = f"<a href=/{int(request.path[1:]) + 1}>next</a>"
        return web.Response(text=link, content_type="text/html")


@pytest.fixture
async def chain() -> AsyncIterator[Chain]:
    chain = Chain()
    apps = [web.Application(), web.Application()]
    for app in apps:
        app.router.add_get("/{path:.*}", chain.page)
    async with loopback.served(apps[0]) as chain.base, loopback.served(apps[1]) as second:
        chain.redirecting = second
        yield chain


class Pages(Spider):
    name = "pages"
    allowed_hosts = "*"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(start_urls=[url])
        self.options = options

    async def start(self) -> AsyncIterator[Request]:
        for url in self.start_urls:
            yield Request(url, **self.options)

    def parse(self, response: Response) -> Any:
        yield from response.follow_all("a")


async def crawl(spider: Spider, path: Path, **settings: Any) -> Report:
    chosen = Settings(allow_private="127.0.0.1", any_port=True, max_pages=9, **settings)
    return await run_spider(spider, ledger=f"sqlite:///{path / 'crawl.db'}", settings=chosen)


@pytest.mark.parametrize(
    ("settings", "options", "pages"),
    [
        ({"max_depth": 0}, {}, 1),
        ({}, {"max_depth": 0}, 1),
        ({"max_depth": 2}, {"max_depth": 0}, 1),
        ({"max_depth": 0}, {"max_depth": 1}, 2),
        ({"max_depth": "none"}, {}, 9),
    ],
)
@pytest.mark.parametrize("start", ["/0", "/start"], ids=["page", "redirect"])
async def test_a_depth_of_zero_means_the_pages_of_start_urls(
    start: str,
    settings: dict[str, Any],
    options: dict[str, Any],
    pages: int,
    chain: Chain,
    tmp_path: Path,
):
    url = f"{chain.redirecting if start == '/start' else chain.base}{start}"

    report = await crawl(Pages(url, **options), tmp_path, **settings)

    # The page to which a start URL redirects is its page, on another host as well.
    assert report.pages == pages
    assert sorted({path for path in chain.paths if path != "/start"}) == [
        f"/{number}" for number in range(pages)
    ]
