"""Hooks of a spider around a download, and a downloader of its own."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from crawlcw.api.attempt import Downloader
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl
from crawlcw.errors import FetchError, Reason, SpiderError, StopCrawl
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import FinishReason, Report
from crawlcw.testing import Replay, ReplayDownloader

HOME = "http://a.example/"
ROBOTS = "http://a.example/robots.txt"


class Web(ReplayDownloader):
    """Downloader that keeps its requests and counts its closings."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.sent: dict[str, Request] = {}
        self.closed = 0

    async def fetch(self, request: Request, *, url: str) -> Response:
        self.sent[url] = request
        return await super().fetch(request, url=url)

    async def close(self) -> None:
        self.closed += 1


class Pages(Spider):
    name = "pages"
    start_urls = [HOME]
    settings = Settings(backoff_base=0, host_backoff_base=0.001, concurrency=8)

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url, "text": response.text, "asked": response.request.url}
        yield from response.follow_all("a")

    def on_error(self, request: Request, error: FetchError) -> Any:
        yield {"url": request.url, "reason": str(error.reason), "why": error.message}


@pytest.fixture
def place(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


async def crawled(
    spider: Spider, web: ReplayDownloader, place: str
) -> tuple[Report, list[dict[str, Any]]]:
    async with open_crawl(spider, ledger=place, downloader=web) as crawl:
        report = await crawl.run()
    ledger = await SqliteLedger.open(place.removeprefix("sqlite:///"), spider.name)
    found = [dict(row.item) async for row in ledger.queries.items()]
    await ledger.close()
    return report, found


# before_request -----------------------------------------------------------------


async def test_a_hook_changes_each_hop_and_neither_robots_nor_the_task(place: str):
    class Keyed(Pages):
        def before_request(self, request):
            request.set_header("x-hop", request.url)

    web = Web({HOME: Replay(status=302, headers={"Location": "/b"}), f"{HOME}b": "there"})
    await crawled(Keyed(), web, place)

    told = {url: dict(request.headers) for url, request in web.sent.items()}
    assert told == {ROBOTS: {}, HOME: {"x-hop": HOME}, f"{HOME}b": {"x-hop": f"{HOME}b"}}
    ledger = await SqliteLedger.open(place.removeprefix("sqlite:///"), "pages")
    tasks = await ledger.queries.find(TaskFilter(), limit=9)
    await ledger.close()
    assert {each.task.headers for each in tasks} == {()}


async def test_a_signature_in_the_url_is_for_the_server_alone(place: str):
    class Signed(Pages):
        async def start(self):
            yield Request(HOME, proxy="direct")

        async def before_request(self, request):
            await asyncio.sleep(0)
            return Request(f"{request.url}?sig=5ecret", headers={"X-Key": "1"})

    web = Web({f"{HOME}?sig=5ecret": "<a href=x>x</a>", f"{HOME}x?sig=5ecret": "x"})
    report, items = await crawled(Signed(), web, place)

    assert [item["url"] for item in sorted(items, key=lambda i: i["url"])] == [HOME, f"{HOME}x"]
    assert {item["asked"] for item in items} == {HOME, f"{HOME}x"}
    assert "5ecret" not in str(items)
    assert (report.pages, report.failures) == (2, {})
    assert web.sent[f"{HOME}?sig=5ecret"].options.proxy == "direct", "the task's option"


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (Request("https://a.example/"), "ValueError: it may change the URL only within its origin"),
        (Request("http://b.example/"), "ValueError: it may change the URL only within its origin"),
        (7, "TypeError: it returned int: return a Request, a Response or nothing"),
        (LookupError("no token"), "LookupError: no token"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
        (TimeoutError("of its own"), "TimeoutError: of its own"),
    ],
)
async def test_what_a_hook_does_wrong_fails_its_page_alone(place: str, returned: Any, why: str):
    class Wrong(Pages):
        def before_request(self, request):
            if request.url == f"{HOME}bad":
                if isinstance(returned, BaseException):
                    raise returned
                return returned
            return None

    web = Web({HOME: "<a href=bad>b</a><a href=good>g</a>", f"{HOME}good": "good"})
    report, items = await crawled(Wrong(), web, place)

    (failed,) = [item for item in items if "reason" in item]
    assert failed["reason"] == "parse-error"
    assert failed["why"].startswith(f"before_request raised {why}")
    assert (report.pages, report.failures) == (2, {"parse-error": 1})
    assert f"{HOME}bad" not in web.requested_urls
    assert report.finish_reason is FinishReason.DRAINED


@pytest.mark.parametrize("where", ["before_request", "downloader"])
@pytest.mark.parametrize("error", [None, KeyError("x")], ids=["returns", "raises"])
async def test_code_that_cancels_its_own_task_fails_its_page_alone(
    place: str, where: str, error: Exception | None
):
    def cancel(url: str) -> None:
        task = asyncio.current_task()
        if task is not None and url.endswith("bad"):
            task.cancel()
            if error is not None:
                raise error

    class Odd(Counting):
        async def fetch(self, request, *, url):
            response = await super().fetch(request, url=url)
            if where == "downloader":
                cancel(url)
            return response

    class Wrong(Pages):
        def before_request(self, request):
            if where == "before_request":
                cancel(request.url)

        def downloader(self, default):
            return Odd(default)

    web = Web({HOME: "<a href=bad>b</a><a href=good>g</a>", f"{HOME}bad": "", f"{HOME}good": ""})
    report, items = await crawled(Wrong(), web, place)

    (failed,) = [item for item in items if "reason" in item]
    assert failed["why"].startswith(f"{where} raised {'KeyError' if error else 'CancelledError'}")
    assert (report.pages, report.failures) == (2, {"parse-error": 1})
    assert report.finish_reason is FinishReason.DRAINED


async def test_a_hook_that_raises_on_all_first_pages_ends_the_crawl(place: str):
    class Broken(Pages):
        start_urls = [f"{HOME}{n}" for n in range(60)]

        def after_response(self, response):
            raise KeyError("x")

    report, _ = await crawled(Broken(), Web(dict.fromkeys(Broken.start_urls, "")), place)

    assert report.finish_reason is FinishReason.CALLBACK_BROKEN
    assert "after_response raised on each of its first 20 pages" in report.detail


async def test_a_hook_may_answer_itself(place: str):
    class Known(Pages):
        def before_request(self, request):
            return Response("http://elsewhere.example/", request=request, body=b"known")

    web = Web({})
    _, items = await crawled(Known(), web, place)

    assert web.requested_urls == [ROBOTS]
    assert items == [{"url": HOME, "text": "known", "asked": HOME}]


# after_response -----------------------------------------------------------------


async def test_a_hook_sees_every_answer_and_may_change_or_replace_it(place: str):
    seen = []

    class Changing(Pages):
        async def after_response(self, response):
            seen.append((response.url, response.status))
            if response.status == 200:
                return Response(response.url, request=response.request, body=b"replaced")
            response.headers = {**response.headers, "location": "/c"}
            return None

    web = Web({HOME: Replay(status=302, headers={"Location": "/b"}), f"{HOME}c": "there"})
    _, items = await crawled(Changing(), web, place)

    assert seen == [(HOME, 302), (f"{HOME}c", 200)]
    assert [item["text"] for item in items] == ["replaced"]


async def test_a_hook_may_have_a_page_tried_again(place: str):
    class Patient(Pages):
        def after_response(self, response):
            if "captcha" in response.text:
                raise FetchError(Reason.HTTP_STATUS, "a captcha", status=503)

    web = Web({HOME: ["captcha", "there"]})
    report, items = await crawled(Patient(), web, place)

    assert web.requested_urls == [ROBOTS, HOME, HOME]
    assert [item["text"] for item in items] == ["there"]
    assert report.counts.by_status.keys() == {50}


async def test_a_hook_may_end_the_crawl(place: str):
    class Ending(Pages):
        def after_response(self, response):
            raise StopCrawl("enough")

    report, items = await crawled(Ending(), Web({HOME: "there"}), place)

    assert (report.finish_reason, report.detail) == (FinishReason.STOPPED_BY_SPIDER, "enough")
    assert items == []
    assert report.counts.by_status.keys() == {0}, "the page is not finished"


async def test_a_hook_that_hangs_is_ended_and_its_time_is_not_the_servers(place: str):
    class Hanging(Pages):
        settings = Settings(timeout="1ms", callback_timeout="100ms", max_retry=1)

        async def before_request(self, request):
            await asyncio.Event().wait()

    _, items = await crawled(Hanging(), Web({HOME: "there"}), place)

    assert [item["why"] for item in items] == [
        "before_request raised TimeoutError: before_request did not end within 0.1 s"
    ]


# A downloader of its own --------------------------------------------------------


class Counting:
    """Wraps another downloader."""

    def __init__(self, inner: Downloader) -> None:
        self.inner = inner
        self.urls: list[str] = []
        self.closed = 0

    async def fetch(self, request: Request, *, url: str) -> Response:
        self.urls.append(url)
        return await self.inner.fetch(request, url=url)

    async def close(self) -> None:
        self.closed += 1


async def test_a_spider_wraps_its_downloader_and_both_are_closed(place: str):
    class Wrapped(Pages):
        def downloader(self, default):
            self.own = Counting(default)
            return self.own

    spider, web = Wrapped(), Web({HOME: "there"})
    _, items = await crawled(spider, web, place)

    assert spider.own.urls == web.requested_urls == [ROBOTS, HOME]
    assert (spider.own.closed, web.closed) == (1, 1)
    assert [item["text"] for item in items] == ["there"]


async def test_a_downloader_that_does_not_close_is_left_after_the_grace(
    place: str, caplog: pytest.LogCaptureFixture
):
    class Unclosing(Counting):
        async def close(self) -> None:
            await asyncio.Event().wait()

    class Wrapped(Pages):
        settings = Settings(grace="10ms")

        def downloader(self, default):
            return Unclosing(default)

    web = Web({HOME: "there"})
    report, _ = await crawled(Wrapped(), web, place)

    assert (report.finish_reason, web.closed) == (FinishReason.DRAINED, 1)
    assert "TimeoutError: it did not close within the grace period" in caplog.text


async def test_a_spider_replaces_its_downloader(place: str):
    class Replaced(Pages):
        def downloader(self, default):
            return Web({HOME: "another's"})

    web = Web({})
    _, items = await crawled(Replaced(), web, place)

    assert [item["text"] for item in items] == ["another's"]
    assert (web.requested_urls, web.closed) == ([], 1)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "returned NoneType, which is not a Downloader"),
        (object(), "returned object, which is not a Downloader: it needs `async def fetch"),
        (ZeroDivisionError("oh"), r"downloader\(\) raised ZeroDivisionError: oh"),
        (SpiderError("set a key first"), "^set a key first"),
    ],
)
async def test_what_is_no_downloader_is_the_spiders_mistake(place: str, made: Any, said: str):
    class Wrong(Pages):
        def downloader(self, default):
            if isinstance(made, Exception):
                raise made
            return made

    web = Web({})
    with pytest.raises(SpiderError, match=said):
        await crawled(Wrong(), web, place)
    assert web.closed == 1


@pytest.mark.parametrize(
    ("done", "reason", "why"),
    [
        (KeyError("x"), "parse-error", "downloader raised KeyError: 'x'"),
        (ConnectionResetError("gone"), "disconnected", "ConnectionResetError: gone"),
        (TimeoutError("slow"), "timeout-read", "TimeoutError: slow"),
        (FetchError(Reason.BODY_TOO_LARGE, "too much"), "body-too-large", "too much"),
        ("text", "parse-error", "fetch() returned str, not a crawlcw.Response"),
        (
            Response("http://b.example/", request=Request(HOME)),
            "parse-error",
            "fetch() returned the response of another URL: it must not follow redirects",
        ),
    ],
)
async def test_what_an_own_downloader_does_wrong_fails_its_page_alone(
    place: str, done: Any, reason: str, why: str
):
    class Odd(Counting):
        async def fetch(self, request, *, url):
            if not url.endswith("bad"):
                return await super().fetch(request, url=url)
            if isinstance(done, BaseException):
                raise done
            return done

    class Wrong(Pages):
        settings = Settings(max_retry=1, backoff_base=0, host_backoff_base=0.001)

        def downloader(self, default):
            return Odd(default)

    report, items = await crawled(Wrong(), Web({HOME: "<a href=bad>b</a>"}), place)

    (failed,) = [item for item in items if "reason" in item]
    assert failed["reason"] == reason
    assert why in failed["why"]
    assert report.pages == 1


async def test_the_secrets_of_the_settings_reach_an_own_downloader_and_no_hook(place: str):
    class Both(Pages):
        settings = Settings(headers={"X-Key": "5ecret"})
        seen: list[Any] = []

        def downloader(self, default):
            return Counting(default)

        def before_request(self, request):
            self.seen.append(request.headers)

        def after_response(self, response):
            self.seen.append(response.request.headers)

    web = Web({HOME: "there"})
    await crawled(Both(), web, place)

    assert Both.seen == [(), ()]
    assert web.sent[HOME].headers == (("X-Key", "5ecret"),)
