"""Values that poison a store, yielded by whole crawls: HOSTILE section 6, on both ledgers."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import multidict
import pytest
import yarl

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import run_spider
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.counters import Report
from crawlcw.model.task import Status
from crawlcw.testing import Replay, ReplayDownloader
from tests.hostile.memory_web import HOME, SETTINGS, Crawled, links, looked_up
from tests.support.ledgers import make_tasks

PAGE = "http://a.example/page"


class Storing(Spider):
    """Yields the result of *made* for the first page, as an item and as a context."""

    name = "storing"
    start_urls = [HOME]

    def __init__(self, made: Callable[[Response], Any]) -> None:
        super().__init__()
        self.made = made
        self.contexts: list[Mapping[str, Any]] = []

    def parse(self, response: Response) -> Iterator[Any]:
        self.contexts.append(response.context)
        if response.url == HOME:
            value = self.made(response)
            yield {"value": value}
            yield Request(PAGE, context={"value": value})
        yield {"url": response.url}


async def stored(
    ledger_url: str, made: Callable[[Response], Any], answer: Any = "x"
) -> tuple[Any, Any, Crawled]:
    """Return the value from the item, the value from the context, and the crawl."""
    spider = Storing(made)
    report = await run_spider(
        spider,
        ledger=ledger_url,
        settings=Settings(**SETTINGS),
        downloader=ReplayDownloader({HOME: answer, PAGE: "y"}),
    )
    crawled = await looked(ledger_url, spider.name, report)
    assert {crawled.outcome(url) for url in (HOME, PAGE)} == {"finished"}
    (item,) = [item["value"] for item in crawled.items if "value" in item]
    return item, spider.contexts[1]["value"], crawled


async def looked(ledger_url: str, name: str, report: Report) -> Crawled:
    ledger = await open_ledger(ledger_url, name)
    try:
        return await looked_up(ledger, report)
    finally:
        await ledger.close()


def of_json(response: Response) -> Any:
    return response.json()


def deep(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


@dataclass
class Thing:
    at: datetime
    url: yarl.URL


HEADERS = multidict.CIMultiDict([("Vary", "a"), ("Vary", "b")])
OPERATORS = {
    "$set": {"status": 50},
    "$where": "sleep(1)",
    "a.b": 1,
    "": 2,
    "_id": 3,
    "$ref": "x",
    "$id": 4,
    "$function": {"body": "1"},
    "%24set": 5,
    "%": 6,
    "$ne": None,
    "$lease.token": 7,
}


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        pytest.param(lambda _: "a\ud800b\udfff", "a\ufffdb\ufffd", id="HOSTILE 6.1 value"),
        pytest.param(lambda _: {"a\ud800": 1}, {"a\ufffd": 1}, id="HOSTILE 6.1 key"),
        pytest.param(lambda _: {"a\0b": "c\0d"}, {"a\0b": "c\0d"}, id="HOSTILE 6.2 NUL"),
        pytest.param(lambda _: OPERATORS, OPERATORS, id="HOSTILE 6.3 keys"),
        pytest.param(lambda _: "$lease.token", "$lease.token", id="HOSTILE 6.5 a field's path"),
        pytest.param(lambda _: 2**63, str(2**63), id="HOSTILE 6.7 large"),
        pytest.param(lambda _: -(2**63) - 1, str(-(2**63) - 1), id="HOSTILE 6.7 small"),
        pytest.param(lambda _: 10**9999, hex(10**9999), id="HOSTILE 6.7 huge"),
        pytest.param(lambda _: float("nan"), None, id="HOSTILE 3.19 not a number"),
        pytest.param(
            lambda _: datetime.max.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC, microsecond=999000),
            id="HOSTILE 6.9 the last date",
        ),
        pytest.param(lambda _: "1143677-01-01", "1143677-01-01", id="HOSTILE 6.9 text"),
        pytest.param(
            lambda _: datetime.min.replace(tzinfo=UTC),
            datetime.min.replace(tzinfo=UTC),
            id="HOSTILE 6.9 the first",
        ),
        pytest.param(
            lambda _: [*HEADERS.items()], [["Vary", "a"], ["Vary", "b"]], id="HOSTILE 6.11 pairs"
        ),
        pytest.param(lambda _: yarl.URL("http://x/"), "http://x/", id="HOSTILE 6.12 a URL"),
        pytest.param(
            lambda _: {1: {2}, None: (3,)}, {"1": [2], "None": [3]}, id="HOSTILE 6.12 int"
        ),
        pytest.param(
            lambda _: Thing(datetime(2026, 1, 1, tzinfo=UTC), yarl.URL("http://x/")),
            {"at": datetime(2026, 1, 1, tzinfo=UTC), "url": "http://x/"},
            id="HOSTILE 6.12 an object",
        ),
    ],
)
async def test_a_value_that_stores_refuse_is_kept_as_one_they_take(
    made: Callable[[Response], Any], kept: Any, ledger_url: str
):
    """HOSTILE 6.1, HOSTILE 6.2, HOSTILE 6.3, HOSTILE 6.5, HOSTILE 6.7, HOSTILE 6.9, HOSTILE 6.11,
    HOSTILE 6.12: in items and in contexts.
    """
    item, context, _ = await stored(ledger_url, made)

    assert (item, context) == (kept, kept)


async def test_json_of_a_page_is_data_and_nothing_else(ledger_url: str):
    r"""HOSTILE 6.1, HOSTILE 6.3, HOSTILE 6.4: for example `{"$set": {"status": 50}}`."""
    page = (
        '{"$set": {"status": 50, "lock": null}, "x": "\\ud800", "$ne": null, "status": "finished"}'
    )

    item, context, crawled = await stored(ledger_url, of_json, page)

    kept = json.loads(page.replace("\\ud800", "\ufffd"))
    assert (item, context) == (kept, kept)
    assert crawled.report.pages == 2


async def test_what_is_nested_deeply_becomes_text(ledger_url: str):
    """HOSTILE 6.6: 300 levels."""
    item, context, _ = await stored(ledger_url, lambda _: deep(300))

    levels = 0
    while isinstance(item, list):
        item, levels = item[0], levels + 1
    assert 40 < levels <= 50
    assert '"end"' in item
    assert context is not None


@pytest.mark.parametrize(
    ("body", "fails"),
    [
        ("[" * 100_000, True),
        ("[" * 100_000 + "]" * 100_000, True),
        ("1" * 5000, True),
        ("[NaN, Infinity, -Infinity, 1e999]", False),
    ],
)
async def test_json_that_breaks_parsers_fails_its_page_alone(
    body: str, fails: bool, ledger_url: str
):
    """HOSTILE 3.19."""

    class Json(Spider):
        name = "storing"
        start_urls = [HOME, PAGE]

        def parse(self, response: Response) -> Any:
            return {"value": response.json()}

    report = await run_spider(
        Json(),
        ledger=ledger_url,
        settings=Settings(**SETTINGS),
        downloader=ReplayDownloader({HOME: body, PAGE: "7"}),
    )
    crawled = await looked(ledger_url, "storing", report)

    assert crawled.outcome(HOME) == ("parse-error" if fails else "finished")
    assert {"value": 7} in crawled.items


@pytest.mark.thorough
@pytest.mark.representative("sqlite", "text")
@pytest.mark.parametrize(
    "large",
    [
        lambda number: {"text": f"{number}" + "x" * (17 << 20)},
        # 3 MB of JSON are 18 MB of BSON.
        lambda number: {"list": [number] * 1_600_000},
    ],
    ids=["text", "list"],
)
async def test_a_page_that_is_too_large_for_a_store_takes_no_other_along(
    large: Callable[[int], Any], ledger_url: str
):
    """HOSTILE 6.8, HOSTILE 6.10: it is kept whole or fails alone, and is not tried again."""

    class Large(Spider):
        name = "storing"
        start_urls = [f"http://a.example/{n}" for n in range(6)]

        def parse(self, response: Response) -> Any:
            number = int(response.url[-1])
            return large(number) if number == 3 else {"n": number}

    pages = ReplayDownloader(dict.fromkeys(Large.start_urls, "x"))
    report = await run_spider(
        Large(), ledger=ledger_url, settings=Settings(**SETTINGS), downloader=pages
    )
    crawled = await looked(ledger_url, "storing", report)

    assert sorted(item["n"] for item in crawled.items if "n" in item) == [0, 1, 2, 4, 5]
    outcome = crawled.outcome("http://a.example/3")
    kept = [item for item in crawled.items if "n" not in item]
    assert (outcome, kept) == ("finished", [large(3)]) or (
        outcome in ("document-too-large", "store-rejected") and not kept
    )
    assert pages.requested_urls.count("http://a.example/3") == 1


async def test_a_context_that_is_too_large_takes_no_other_link_along(ledger_url: str):
    """HOSTILE 6.8, HOSTILE 6.10: the page is finished, and its other links are followed."""

    class Large(Spider):
        name = "storing"
        start_urls = [HOME]

        def parse(self, response: Response) -> Iterator[Any]:
            yield {"url": response.url}
            if response.url == HOME:
                for n in range(4):
                    pad = "x" * (17 << 20) if n == 2 else ""
                    yield Request(f"http://a.example/{n}", context={"pad": pad})

    pages = ReplayDownloader({HOME: "x"} | {f"http://a.example/{n}": "x" for n in range(4)})
    report = await run_spider(
        Large(), ledger=ledger_url, settings=Settings(**SETTINGS), downloader=pages
    )
    crawled = await looked(ledger_url, "storing", report)

    assert {"http://a.example/0", "http://a.example/1", "http://a.example/3"} <= set(crawled.pages)
    assert crawled.outcome(HOME) == "finished"
    assert crawled.report.drained


async def test_a_context_and_items_that_are_too_large_together_harm_nobody(ledger_url: str):
    """HOSTILE 6.8: the items of the attempt make the document of its context too large."""

    class Growing(Spider):
        name = "storing"
        start_urls = [HOME]

        def parse(self, response: Response) -> Iterator[Any]:
            if response.url == HOME:
                yield Request(PAGE, context={"pad": "x" * (14 << 20)})
                yield Request("http://a.example/other")
            else:
                yield {"pad": "y" * (4 << 20)} if response.context else {"url": response.url}

    pages = ReplayDownloader(dict.fromkeys((HOME, PAGE, "http://a.example/other"), "x"))
    report = await run_spider(
        Growing(), ledger=ledger_url, settings=Settings(**SETTINGS), downloader=pages
    )
    crawled = await looked(ledger_url, "storing", report)

    assert crawled.outcome("http://a.example/other") == "finished"
    assert crawled.outcome(PAGE) in ("finished", "store-rejected", "document-too-large")
    assert len(crawled.items) == (2 if crawled.outcome(PAGE) == "finished" else 1)
    assert pages.requested_urls.count(PAGE) == 1


async def test_nothing_that_is_indexed_is_long(ledger_url: str):
    """HOSTILE 6.13, HOSTILE 6.14: indexed values are bounded, and of fixed types."""

    class Long(Spider):
        name = "storing"
        start_urls = [HOME]
        allowed_hosts = ["*"]

        def parse(self, response: Response) -> Iterator[Any]:
            yield {"key": ["x"] * 100_000, "url": response.url, "host": "x" * (5 << 20)}
            yield Request("http://a.example/?" + "x" * (5 << 20))
            yield Request("http://" + "a" * (1 << 20) + ".example/")
            yield Request("http://a.example/?" + "x" * 1900, context={"host": ["x"] * 100_000})

    pages = {HOME: Replay(headers={"Content-Type": "text/html;" + "x" * 60_000}, body="x")}
    report = await run_spider(
        Long(), ledger=ledger_url, settings=Settings(**SETTINGS), downloader=ReplayDownloader(pages)
    )
    crawled = await looked(ledger_url, "storing", report)

    assert crawled.outcome(HOME) == "finished"
    assert {len(url) < 2000 for url in crawled.records} == {True}
    assert {len(record.task.host) < 255 for record in crawled.records.values()} == {True}
    assert crawled.report.links_dropped == {"url-too-long": 2}
    response = crawled.records[HOME].response
    assert response is not None
    assert len(response.content_type or "") <= 200


async def test_many_who_add_the_same_task_add_it_once(ledger_url: str):
    """HOSTILE 6.15: an existing task is no error."""
    ledger = await open_ledger(ledger_url, "storing")
    try:
        tasks = make_tasks(50)

        added = await asyncio.gather(*(ledger.tasks.add(tasks) for _ in range(20)))

        assert sum(each.new for each in added) == 50
        assert (await ledger.queries.counts())[Status.TODO] == 50
    finally:
        await ledger.close()


async def test_a_page_of_links_is_stored_bounded(ledger_url: str):
    """HOSTILE 3.20: thousands of links, a URL of 1 MiB, 1,000 titles."""

    class Links(Spider):
        name = "storing"
        start_urls = [HOME]

        def parse(self, response: Response) -> Iterator[Any]:
            title = response.css_first("title")
            yield {"title": title.text() if title else None}
            yield from response.follow_all("a", self.nothing)

        def nothing(self, response: Response) -> None:
            pass

    addresses = links("/" + "x" * (1 << 20), *(f"/{n}" for n in range(8_000)))
    page = "<title>first</title>" + "<title>x</title>" * 1000 + addresses
    report = await run_spider(
        Links(),
        ledger=ledger_url,
        settings=Settings(**SETTINGS, max_links_per_page=50, per_host_concurrency=100),
        downloader=ReplayDownloader({HOME: page}),
    )
    crawled = await looked(ledger_url, "storing", report)

    assert {"title": "first"} in crawled.items
    assert len(crawled.records) == 51
    assert report.links_dropped == {"max-links-per-page": 7_950, "url-too-long": 1}
