"""Options of one request that override the settings, and the arguments of an errback."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.counters import Report
from crawlcw.model.task import Record, Status
from crawlcw.testing import Replay, ReplayDownloader
from tests.hostile.sites import Answer, Asked, site
from tests.support.attempts import attempt
from tests.support.ledgers import make_task

HOME = "http://a.example/"


class Pages(Spider):
    """Records each page with its status, and each failure with its answer."""

    name = "pages"
    start_urls = [HOME]
    options: dict[str, Any] = {}

    async def start(self):
        for url in self.start_urls:
            yield Request(url, **self.options)

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url, "status": response.status, "text": response.text}
        yield from response.follow_all("a")

    def on_error(self, request: Request, error: FetchError) -> Iterator[Any]:
        answer = error.response
        told = None
        if answer is not None:
            told = [answer.status, answer.headers.get("x-why"), answer.css_first("p").text()]
            yield from answer.follow_all("a")
        yield {"failed": request.url, "reason": str(error.reason), "answer": told}


def missing(status: int = 404, body: str = "<p>gone</p>", **headers: str) -> Replay:
    return Replay(status=status, body=body, headers={"Content-Type": "text/html", **headers})


async def crawled(
    ledger: Ledger, answers: dict[str, Any], *, spider: Spider | None = None, **settings: Any
) -> tuple[Report, list[str]]:
    """Crawl; return the report and the requested pages in order."""
    web = ReplayDownloader(answers)
    quick = {"backoff_base": 0, "host_backoff_base": 0.001, "obey_robots": False}
    report = await assemble(
        spider or Pages(start_urls=[HOME]), ledger, web, Settings(**quick | settings)
    ).run()
    return report, web.requested_urls


def asking(**options: Any) -> Pages:
    spider = Pages()
    spider.options = options
    return spider


async def items(ledger: Ledger) -> list[dict[str, Any]]:
    return [dict(row.item) async for row in ledger.queries.items()]


async def record(ledger: Ledger, url: str) -> Record:
    found = await ledger.tasks.get(make_task(url).id)
    assert found is not None
    return found


async def test_a_task_keeps_what_its_request_asks_for(ledger: Ledger):
    asked = {
        "max_retry": 2,
        "timeout": "1m30s",
        "retry_statuses": "403,500-502",
        "accept_statuses": [404],
        "max_depth": 0,
    }
    await crawled(ledger, {HOME: "there"}, spider=asking(**asked))

    options = (await record(ledger, HOME)).task.options
    assert (options.max_retry, options.timeout, options.max_depth) == (2, 90.0, 0)
    assert options.retry_statuses == (403, 500, 501, 502)
    assert options.accept_statuses == (404,)


@pytest.mark.parametrize(
    ("options", "settings"),
    [({"accept_statuses": 404}, {}), ({}, {"accept_statuses": [404, 410]})],
    ids=["request", "settings"],
)
async def test_a_callback_may_be_given_a_404(ledger: Ledger, options: dict, settings: dict):
    page = missing(body="<p>gone</p><a href=/next>")
    report, _ = await crawled(
        ledger, {HOME: page, f"{HOME}next": "next"}, spider=asking(**options), **settings
    )

    assert {item["url"]: item["status"] for item in await items(ledger)} == {
        HOME: 404,
        f"{HOME}next": 200,
    }
    assert report.failures == {}
    assert (await record(ledger, HOME)).task.status is Status.FINISHED


@pytest.mark.parametrize(
    ("options", "settings"),
    [({"retry_statuses": [403]}, {}), ({}, {"retry_statuses": "403"})],
    ids=["request", "settings"],
)
async def test_statuses_to_try_again_may_be_named(ledger: Ledger, options: dict, settings: dict):
    answers = {HOME: [missing(403), missing(403), missing(500)]}
    _, asked = await crawled(ledger, answers, spider=asking(**options), **settings)

    assert asked == [HOME] * 3, "403 is tried again, and 500 is not"
    assert [error.message for error in (await record(ledger, HOME)).errors] == [
        "HTTP 403",
        "HTTP 403",
        "HTTP 500",
    ]


async def test_the_depth_of_a_request_holds_for_all_that_its_page_leads_to(ledger: Ledger):
    chain: dict[str, Any] = {HOME: "<a href=/1>"}
    chain |= {f"{HOME}{n}": f"<a href=/{n + 1}>" for n in range(1, 5)}

    _, asked = await crawled(ledger, chain, spider=asking(max_depth=2), max_depth=1)
    assert asked == [HOME, f"{HOME}1", f"{HOME}2"]

    # A crawl with a deeper limit does not override the request's own limit either.
    _, asked = await crawled(ledger, chain, spider=asking(max_depth=2), max_depth=9)
    assert asked == []


async def test_an_errback_is_told_the_answer_that_failed(ledger: Ledger):
    answers = {
        HOME: missing(410, "<p>sold out</p><a href=/similar><a href=tel:1>", **{"X-Why": "sold"}),
        f"{HOME}similar": "similar",
    }
    report, asked = await crawled(ledger, answers)

    (found,) = [item for item in await items(ledger) if "failed" in item]
    assert found["answer"] == [410, "sold", "sold out"]
    assert asked == [HOME, f"{HOME}similar"], "and its links are followed"
    assert report.links_dropped == {"refused-scheme": 1}


@pytest.fixture
def slow() -> Iterator[str]:
    """The URL of a page whose first byte comes after several read timeouts."""

    def answer(_: Asked) -> Answer:
        time.sleep(0.4)
        return 200, {}, "abcd"

    with site(answer) as running:
        yield f"{running.origin}/"


@pytest.mark.parametrize(
    ("timeout", "reason"),
    [(None, Reason.TIMEOUT_READ), ("10ms", Reason.TIMEOUT_TOTAL), (20, None)],
)
async def test_a_request_may_have_more_time_or_less(slow: str, timeout: Any, reason: Any):
    settings = Settings(timeout="10s", read_timeout="100ms")
    origin = slow.split("/")[2]
    request = Request(slow, timeout=timeout)
    async with AiohttpDownloader(settings, start_origins=[origin]) as web:
        if reason is None:
            response = await attempt(request, downloader=web, settings=settings)
            assert response.body == b"abcd"
        else:
            with pytest.raises(FetchError) as caught:
                await attempt(request, downloader=web, settings=settings)
            assert caught.value.reason is reason
            assert caught.value.deadline == (None if timeout is None else 0.01)
