"""Questions of a spider to its crawl: `Spider.has_pages`, and `Spider.fetch` without a task."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from crawlcw import FetchError, Reason, Report, Request, Response, Settings, Spider, SpiderError
from crawlcw.api.sessions import LoginSession
from crawlcw.assembly import run_spider
from crawlcw.testing import Replay, ReplayDownloader
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
        if request.path.startswith("/cut"):
            assert request.transport is not None
            request.transport.abort()
        if request.path == "/visit":
            response = web.Response(text=request.headers.get("Cookie", ""))
            response.set_cookie("seen", "1")
            return response
        if request.path == "/large":
            return web.Response(text="<p>large" * 100_000, content_type="text/html")
        status = 404 if request.path.startswith("/gone") else 200
        return web.Response(status=status, text=f"<p>{request.path}", content_type="text/html")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    served, app = Site(), web.Application()
    app.router.add_route("*", "/{path:.*}", served.page)
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


# `Response.fetch`


async def test_a_callback_fetches_more_pages_through_the_same_layers(
    site: Site, crawl: Callable[..., Any]
):
    seen: list[tuple[str, str]] = []

    async def layer(attempt: Any, request: Request, call_next: Any) -> Response:
        seen.append((attempt.purpose, request.url.removeprefix(site.base)))
        answer: Response = await call_next(attempt, request)
        return answer

    class Beside(Pages):
        layers = [layer]
        texts: list[str] = []

        def before_request(self, request: Request) -> None:
            request.set_header("X-Hook", "1")

        async def parse(self, response: Response) -> Any:
            stock = await response.fetch("stock.json")
            target = await response.fetch(Request(f"{site.base}/moved", method="POST", body="x"))
            again = await target.fetch("gone")
            yield {"texts": [stock.text, target.text, again.text], "status": again.status}

    report = await crawl(Beside())

    assert site.paths == ["/start", "/stock.json", "/moved", "/target", "/gone"]
    assert seen == [
        ("page", "/start"),
        *(("fetch", path) for path in ("/stock.json", "/moved", "/target", "/gone")),
    ]
    assert (report.pages, report.items, report.taskless, report.fetched) == (1, 1, 3, 4)
    assert report.counts.total == 1


@pytest.mark.parametrize("delay", ["0s", "10ms"])
async def test_pages_that_all_wait_for_a_fetch_do_not_lock_their_host(
    delay: str, site: Site, crawl: Callable[..., Any]
):
    number = 6

    class Waiting(Pages):
        running = 0
        all_run = asyncio.Event()

        async def parse(self, response: Response) -> Any:
            if response.url.endswith("start"):
                for path in range(number):
                    yield response.follow(f"/{path}")
                return
            self.running += 1
            if self.running == number:
                self.all_run.set()
            await self.all_run.wait()
            answers = await asyncio.gather(*(response.fetch(f"?part={part}") for part in "ab"))
            yield {"texts": [answer.text for answer in answers]}

    report = await crawl(Waiting(), delay=delay, concurrency=number)

    assert (report.pages, report.items, report.taskless) == (1 + number, number, 2 * number)
    assert report.failures == {}


async def test_a_fetch_uses_the_session_of_its_page(site: Site, crawl: Callable[..., Any]):
    kept: list[dict[str, Any]] = []

    class Visitor(Pages):
        async def login(self, session: LoginSession) -> None:
            session.add_cookies(site.base, {"user": "7"})

        def item(self, item: Any, response: Response | None) -> Any:
            kept.append(item)
            return item

        async def parse(self, response: Response) -> Any:
            for _ in range(2):
                visit = await response.fetch("/visit")
                yield {"cookies": visit.text, "session": visit.session.name}
            other = Request(f"{site.base}/visit", session="other")
            with pytest.raises(SpiderError, match="uses the page's session, not 'other'"):
                await response.fetch(other)

    report = await crawl(Visitor())

    assert report.pages == 1
    assert [item["session"] for item in kept] == ["default"] * 2
    assert [item["cookies"] for item in kept] == ["user=7", "user=7; seen=1"]


async def test_an_error_of_a_fetch_fails_the_page_as_any_error_of_its_callback(
    site: Site, crawl: Callable[..., Any]
):
    errors: list[FetchError] = []

    class Failing(Pages):
        async def parse(self, response: Response) -> Any:
            yield {"url": (await response.fetch("/cut")).url}

        def on_error(self, request: Request, error: FetchError) -> None:
            errors.append(error)

    report = await crawl(Failing())

    assert (report.pages, report.items, report.given_up) == (0, 0, 1)
    assert [error.reason for error in errors] == [Reason.PARSE_ERROR]
    assert "disconnected" in errors[0].message
    assert site.paths.count("/start") == 1


async def test_a_page_sends_at_most_a_hundred_requests(site: Site, crawl: Callable[..., Any]):
    messages: list[str] = []

    class Greedy(Pages):
        async def parse(self, response: Response) -> None:
            try:
                for number in range(1000):
                    await response.fetch(f"/{number}")
            except SpiderError as error:
                messages.append(str(error))

    report = await crawl(Greedy())

    assert (report.pages, report.taskless, len(site.paths)) == (1, 100, 101)
    assert messages == [
        "a page may send 100 requests by response.fetch(): yield the other requests"
    ]


async def test_fetches_count_for_max_pages(site: Site, crawl: Callable[..., Any]):
    class Counted(Pages):
        async def parse(self, response: Response) -> Any:
            await response.fetch("/beside")
            yield response.follow(f"{response.url}/next")

    report = await crawl(Counted(), max_pages=4)

    assert (report.finish_reason, report.pages, report.taskless) == ("max-pages", 2, 2)


async def test_a_page_that_a_process_parses_first_may_fetch(site: Site, crawl: Callable[..., Any]):
    class Large(Pages):
        async def parse(self, response: Response) -> Any:
            if response.url.endswith("start"):
                yield response.follow("/large")
                return
            number = len(response.css("p"))
            yield {"parts": number, "text": (await response.fetch("/beside")).text}

    report = await crawl(Large())

    assert (report.pages, report.items, report.taskless) == (2, 1, 1)


async def test_a_response_outside_of_a_crawl_fetches_nothing():
    response = Response("http://a.example/", request=Request("http://a.example/"))

    with pytest.raises(SpiderError, match="works only in the callback of a page"):
        await response.fetch("/next")


async def test_a_start_url_that_redirects_to_its_apex_may_fetch_there(tmp_path: Path):
    www, apex = "http://www.a.example/", "http://a.example/"
    site = {www: Replay(status=301, headers={"Location": apex}), apex: "home"}
    site |= {f"{apex}stock": "7", "http://other.example/": "other"}

    class Apex(Spider):
        name = "apex"
        start_urls = [www]

        async def parse(self, response: Response) -> Any:
            yield {"stock": (await response.fetch("stock")).text}
            with pytest.raises(FetchError, match="not in allowed_hosts"):
                await response.fetch("http://other.example/")

    url = f"sqlite:///{tmp_path / 'crawl.db'}"
    report = await run_spider(Apex(), ledger=url, downloader=ReplayDownloader(site))

    assert (report.items, report.taskless, report.failures) == (1, 1, {})
