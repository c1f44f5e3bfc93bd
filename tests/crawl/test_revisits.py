"""Revisits in crawls of one process: answers from memory, a real ledger."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw.api.document import SavedFile
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.outcomes import Revisits
from crawlcw.errors import SpiderError
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Report
from crawlcw.model.task import Record, Status
from crawlcw.model.visits import RevisitPolicy
from crawlcw.testing import Replay, ReplayDownloader
from tests.support.examples import output_of
from tests.support.ledgers import START, make_task

HOME = "http://a.example/"
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class Pages(Spider):
    """Records every page and follows every link."""

    name = "pages"
    start_urls = [HOME]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.parsed: list[str] = []

    def parse(self, response: Response) -> Iterator[Any]:
        self.parsed.append(response.url)
        yield {"text": response.css_first("h1").text()}
        yield from response.follow_all("a")


class Web(ReplayDownloader):
    """Downloader that keeps the conditional headers, and answers 304 to a matching ETag."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.asked: dict[str, dict[str, str]] = {}

    async def fetch(self, request: Request, *, url: str) -> Response:
        headers = {name: value for name, value in request.headers if name.startswith("If-")}
        self.asked[url] = headers
        response = await super().fetch(request, url=url)
        tag = response.headers.get("etag")
        if tag is None or tag != headers.get("If-None-Match"):
            return response
        return Response(url, request=request, status=304, headers={"ETag": tag})


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "pages")
    yield ledger
    await ledger.close()


def page(text: str, *links: str, etag: str | None = None, **headers: str) -> Replay:
    body = f"<h1>{text}</h1>" + "".join(f'<a href="{link}">{link}</a>' for link in links)
    tag = {} if etag is None else {"ETag": etag, "Last-Modified": DATE}
    return Replay(headers={"Content-Type": "text/html", **tag, **headers}, body=body)


async def crawled(
    ledger: SqliteLedger, answers: dict[str, Any], spider: Spider | None = None, **settings: Any
) -> tuple[Report, Web, list[str]]:
    """Crawl; return the report, the web that answered, and the pages that were parsed."""
    web, spider = Web(answers), spider or Pages()
    chosen = {"concurrency": 8, "backoff_base": 0, "revisit": "0s", "max_retry": 1} | settings
    report = await assemble(spider, ledger, web, Settings(**chosen)).run()
    assert isinstance(spider, Pages)
    return report, web, spider.parsed


async def record(ledger: SqliteLedger, url: str) -> Record:
    found = await ledger.tasks.get(make_task(url).id)
    assert found is not None
    return found


async def items(ledger: SqliteLedger) -> set[str]:
    return {row.item["text"] async for row in ledger.queries.items()}


async def test_a_page_that_is_not_modified_is_not_parsed_and_one_that_is_has_its_links_followed(
    ledger: SqliteLedger,
):
    first = {
        HOME: page("home", "/same", "/other", etag='"h"'),
        HOME + "same": page("same", etag='W/"s"'),
        HOME + "other": page("old", etag='"1"'),
    }
    await crawled(ledger, first)
    second = first | {
        HOME + "other": page("new", "/", "/found", etag='"2"'),
        HOME + "found": page("found"),
    }

    report, web, parsed = await crawled(ledger, second)

    assert web.asked[HOME + "same"] == {"If-None-Match": 'W/"s"', "If-Modified-Since": DATE}
    assert web.asked[HOME + "found"] == {}
    assert set(parsed) == {HOME + "other", HOME + "found"}
    assert (report.pages, report.unchanged, report.items) == (4, 2, 2)
    assert report.drained
    assert await items(ledger) == {"home", "same", "new", "found"}
    assert (await ledger.workers.counters()).unchanged == 2
    assert (await record(ledger, HOME + "other")).task.visit.etag == '"2"'


@pytest.mark.parametrize(("keep_versions", "texts"), [(1, ["third"]), (2, ["second", "third"])])
async def test_the_items_of_as_many_visits_are_kept_as_the_setting_says(
    ledger: SqliteLedger, keep_versions: int, texts: list[str]
):
    for text in ("first", "second", "third"):
        await crawled(ledger, {HOME: page(text)}, keep_versions=keep_versions)

    assert [row.item["text"] async for row in ledger.queries.versions()] == texts


@pytest.mark.parametrize(
    ("bounds", "hours"), [({"revisit_max": "3h"}, 3), ({"revisit_min": "48h"}, 48), ({}, 24)]
)
async def test_adaptive_visits_keep_within_the_bounds_of_the_settings(
    ledger: SqliteLedger, bounds: dict[str, str], hours: int
):
    await crawled(ledger, {HOME: page("new")}, revisit="adaptive", **bounds)

    known = (await record(ledger, HOME)).task.visit
    assert known is not None
    assert known.interval == timedelta(hours=hours).total_seconds()


async def test_the_same_body_counts_as_unchanged_where_a_server_knows_no_validators(
    ledger: SqliteLedger,
):
    await crawled(ledger, {HOME: page("home", "/a"), HOME + "a": page("a")})

    report, web, parsed = await crawled(ledger, {HOME: page("home", "/a"), HOME + "a": page("b")})

    assert web.asked[HOME] == {}
    assert parsed == [HOME + "a"]
    assert (report.unchanged, await items(ledger)) == (1, {"home", "b"})


async def test_the_validators_of_a_page_are_not_sent_to_where_it_redirects(
    ledger: SqliteLedger,
):
    await crawled(ledger, {HOME: page("home", etag='"1"')})
    moved = {HOME: Replay(status=301, headers={"Location": "/new"})}

    # The same ETag, of another page.
    report, web, parsed = await crawled(ledger, moved | {HOME + "new": page("new", etag='"1"')})

    assert web.asked[HOME]["If-None-Match"] == '"1"'
    assert web.asked[HOME + "new"] == {}
    assert (parsed, report.unchanged) == ([HOME + "new"], 0)


async def test_a_page_that_is_gone_keeps_its_items_and_is_asked_for_again(ledger: SqliteLedger):
    await crawled(ledger, {HOME: page("home", "/a", etag='"1"'), HOME + "a": page("a")})
    await crawled(ledger, {HOME: page("home", "/a", etag='"1"')})
    gone = await record(ledger, HOME + "a")

    report, _, parsed = await crawled(
        ledger, {HOME: page("home", etag='"2"'), HOME + "a": page("b")}
    )

    assert (gone.task.status, gone.task.reason) == (Status.IGNORED, "http-status")
    assert gone.items == ({"text": "a"},)
    assert set(parsed) == {HOME, HOME + "a"}
    assert (report.pages, await items(ledger)) == (2, {"home", "b"})


async def test_a_crawl_ends_though_pages_are_to_be_visited_later(ledger: SqliteLedger):
    await crawled(ledger, {HOME: page("home", etag='"1"')}, revisit="7d")

    report, web, _ = await crawled(ledger, {HOME: page("home", etag='"1"')}, revisit="7d")

    task = (await record(ledger, HOME)).task
    assert (report.drained, report.pages, web.requested_urls) == (True, 0, [])
    assert (task.status, task.due) == (Status.FINISHED, None)
    assert task.visit is not None
    assert task.revisit == task.visit.time + timedelta(days=7)


async def test_a_request_says_when_its_own_page_is_visited_again(ledger: SqliteLedger):
    class Own(Pages):
        def parse(self, response: Response) -> Iterator[Any]:
            yield from super().parse(response)
            if response.url == HOME:
                yield Request(HOME + "once", revisit="never")
                yield Request(HOME + "often", revisit="adaptive")

    answers = {HOME: page("home"), HOME + "once": page("once"), HOME + "often": page("often")}
    await crawled(ledger, answers, Own())

    _, web, _ = await crawled(ledger, answers, Own())

    assert web.requested_urls == [HOME]
    assert (await record(ledger, HOME + "once")).task.revisit is None
    often = (await record(ledger, HOME + "often")).task.visit
    assert often is not None
    assert often.interval == timedelta(days=1).total_seconds()


def test_a_wrong_revisit_is_the_requests_mistake():
    with pytest.raises(SpiderError, match=r"Request\(revisit=\.\.\.\): 'often' is neither"):
        Request(HOME, revisit="often")


def test_saved_files_are_the_same_where_their_bytes_are():
    def saved(digest: str) -> Response:
        file = SavedFile(path=digest, sha256=digest, size=1)
        return Response(HOME, request=Request(HOME), file=file)

    revisits = Revisits(RevisitPolicy())
    seen, _ = revisits.changed(make_task(HOME), saved("d1"), now=START)

    assert [revisits.is_same(seen, saved(each)) for each in ("d1", "d2")] == [True, False]


def test_the_example_runs(tmp_path):
    first, second = output_of("revisits.py", tmp_path).splitlines()

    assert first.startswith("first run: ")
    assert "0 of them unchanged, 240 new items, 240 in all" in first
    assert second.endswith(" of them unchanged, 0 new items, 240 in all")
