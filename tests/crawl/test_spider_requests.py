"""Questions of a spider to its crawl: `Spider.has_pages`, and `Spider.fetch` without a task."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from crawlcw import FetchError, Reason, Report, Request, Response, Settings, Spider, SpiderError
from crawlcw.assembly import run_spider
from tests.support import loopback

#: One slot of the host, so a request that waits for a slot of its own page would wait for ever.
ONE_SLOT: dict[str, Any] = {"per_host_concurrency": 1, "backoff_base": "0s", "timeout": "5s"}


class Site:
    """A site that records the paths of its requests, in order, with their times."""

    def __init__(self) -> None:
        self.base = ""
        self.times: list[tuple[str, float]] = []

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.times if path != "/robots.txt"]

    async def page(self, request: web.Request) -> web.Response:
        self.times.append((request.path, asyncio.get_running_loop().time()))
        if request.path == "/robots.txt":
            return web.Response(text="User-agent: *\nDisallow: /private\n")
        if request.path.startswith("/moved"):
            return web.Response(status=302, headers={"Location": "/target"})
        status = 404 if request.path.startswith("/gone") else 200
        return web.Response(status=status, text=f"<p>{request.path}", content_type="text/html")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    served, app = Site(), web.Application()
    app.router.add_get("/{path:.*}", served.page)
    async with loopback.served(app) as served.base:
        yield served


@pytest.fixture
def crawl(site: Site, tmp_path: Path) -> Callable[..., Any]:
    async def crawl(spider: Spider, **settings: Any) -> Report:
        spider.start_urls = [f"{site.base}/start"]
        chosen = Settings(**{**ONE_SLOT, **settings})
        url = f"sqlite:///{tmp_path / 'crawl.db'}"
        return await run_spider(spider, ledger=url, settings=chosen)

    return crawl


class Pages(Spider):
    name = "pages"

    async def text(self, path: str) -> str:
        return (await self.fetch(Request(self.start_urls[0].replace("/start", path)))).text

    def parse(self, response: Response) -> Any:
        yield {"url": response.url}


async def test_start_waits_until_all_pages_are_done(site: Site, crawl: Callable[..., Any]):
    class Last(Pages):
        async def start(self) -> AsyncIterator[Request]:
            yield Request(self.start_urls[0])
            answers = [await self.has_pages()]
            while await self.has_pages():
                await asyncio.sleep(0.01)
            answers.append(await self.has_pages())
            yield Request(f"{self.start_urls[0]}/last", context={"answers": answers})

        def parse(self, response: Response) -> Any:
            yield {"answers": response.context.get("answers")}
            if response.url.endswith("start"):
                yield response.follow("/second")

    report = await crawl(Last())

    assert site.paths == ["/start", "/second", "/start/last"]
    assert (report.pages, report.items) == (3, 3)


class Everywhere(Pages):
    """Fetches one more URL in each place of its code."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    async def note(self, path: str) -> None:
        self.texts.append(await self.text(path))

    async def opened(self) -> None:
        await self.note("/of-opened")

    async def start(self) -> AsyncIterator[Request]:
        await self.note("/of-start")
        for url in (self.start_urls[0], f"{self.start_urls[0]}/../gone"):
            yield Request(url)

    async def before_request(self, request: Request) -> None:
        await self.note("/of-before-request")

    async def after_response(self, response: Response) -> None:
        await self.note("/of-after-response")

    async def parse(self, response: Response) -> Any:
        await self.note("/gone-of-parse")
        yield {"url": response.url}

    async def item(self, item: Any, response: Response | None) -> Any:
        await self.note("/moved-of-item")
        return item

    async def on_error(self, request: Request, error: FetchError) -> None:
        await self.note("/of-on-error")


@pytest.mark.parametrize("delay", ["0s", "20ms"])
async def test_a_spider_fetches_in_callbacks_hooks_and_start(
    delay: str, site: Site, crawl: Callable[..., Any]
):
    spider = Everywhere()

    report = await crawl(spider, delay=delay)

    of_pages = ["of-before-request", "of-after-response"] * 2
    expected = ["of-opened", "of-start", *of_pages, "gone-of-parse", "target", "of-on-error"]
    assert sorted(spider.texts) == sorted(f"<p>/{path}" for path in expected)
    # Two pages, and nine requests without a task.
    assert (report.pages, report.items, report.given_up) == (1, 1, 1)
    assert (report.fetched, report.counts.total) == (11, 2)


async def test_fetch_waits_for_the_delay_of_its_host(site: Site, crawl: Callable[..., Any]):
    class Repeating(Pages):
        async def parse(self, response: Response) -> Any:
            for number in range(3):
                yield {"text": await self.text(f"/{number}")}

    report = await crawl(Repeating(), delay="200ms", obey_robots=False)

    times = [time for _, time in site.times]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert (report.items, len(waits)) == (3, 3)
    assert min(waits) > 0.15


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/private", Reason.REFUSED_ROBOTS),
        ("http://elsewhere.example/", Reason.REFUSED_SCOPE),
        ("mailto:me@a.example", Reason.REFUSED_SCHEME),
    ],
)
async def test_fetch_raises_what_refuses_the_request(
    url: str, reason: Reason, site: Site, crawl: Callable[..., Any]
):
    reasons: list[Reason] = []

    class Refused(Pages):
        async def parse(self, response: Response) -> Any:
            try:
                await self.fetch(Request(site.base + url if url[0] == "/" else url))
            except FetchError as error:
                reasons.append(error.reason)

    report = await crawl(Refused())

    assert (report.pages, reasons) == (1, [reason])
    assert site.paths == ["/start"]


async def test_a_spider_asks_nothing_outside_of_a_crawl(site: Site, crawl: Callable[..., Any]):
    spider = Pages()
    await crawl(spider)

    with pytest.raises(SpiderError, match=r"Pages\.has_pages\(\) works only while a crawl runs"):
        await spider.has_pages()
    with pytest.raises(SpiderError, match=r"Pages\.fetch\(\) works only while a crawl runs"):
        await spider.fetch(Request(f"{site.base}/start"))
