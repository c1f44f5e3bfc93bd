"""The spider's `item` hook: items changed, split, dropped and refused before they are recorded."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from crawlcw import DropItem, Request, Response, Settings, Spider, run_spider
from crawlcw.api.spider import check
from crawlcw.api.user_code import Raised
from crawlcw.crawl.callbacks import (
    Produced,
    Scope,
)
from crawlcw.errors import Reason, SpiderError
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.transitions import Failed
from crawlcw.testing import ReplayDownloader
from tests.support.callbacks import run_callback
from tests.support.commands import invoke
from tests.support.ledgers import make_task

HOME = "http://a.example/"
PAGE = make_task(HOME)


class Teas(Spider):
    """Yields the numbers 1 to 3."""

    name = "teas"
    start_urls = [HOME]

    def parse(self, response: Response) -> Any:
        for n in (1, 2, 3):
            yield {"n": n}


async def ran(spider: Spider, *, within: float = 10.0) -> Produced | Failed:
    response = Response(HOME, request=Request(HOME), body=b"<h1>Tea</h1>")
    check(spider)
    return await run_callback(
        spider.parse,
        response,
        spider=spider,
        task=PAGE,
        scope=Scope.of(["a.example"], Settings()),
        within=within,
    )


async def produced_by(spider: Spider) -> Produced:
    produced = await ran(spider)
    assert isinstance(produced, Produced), produced
    return produced


def spider_with(item: Callable[..., Any], **attributes: Any) -> Spider:
    return type("Changed", (Teas,), {"item": item, **attributes})()


def change(self: Spider, item: Any, response: Response) -> Any:
    return {**item, "url": response.url}


def change_in_place(self: Spider, item: Any, response: Response) -> Any:
    item["url"] = response.url
    return item


async def change_later(self: Spider, item: Any, response: Response) -> Any:
    return {**item, "url": response.url}


class AsyncTeas(Teas):
    async def parse(self, response: Response) -> Any:
        for each in super().parse(response):
            yield each


@pytest.mark.parametrize("kind", [Teas, AsyncTeas])
@pytest.mark.parametrize("item", [change, change_in_place, change_later])
async def test_it_may_change_an_item(item: Callable[..., Any], kind: type[Teas]):
    produced = await produced_by(type("Changed", (kind,), {"item": item})())

    assert produced.items == [{"n": n, "url": HOME} for n in (1, 2, 3)]


def split(self: Spider, item: Any, response: Response) -> Any:
    for part in range(item["n"] - 1):
        yield {"part": part}


def split_into_a_list(self: Spider, item: Any, response: Response) -> Any:
    return [{"part": part} for part in range(item["n"] - 1)]


async def split_later(self: Spider, item: Any, response: Response) -> Any:
    for part in range(item["n"] - 1):
        yield {"part": part}


@pytest.mark.parametrize("item", [split, split_into_a_list, split_later])
async def test_it_may_split_an_item_and_none_that_come_of_it_are_counted(item: Callable[..., Any]):
    produced = await produced_by(spider_with(item))

    assert produced.items == [{"part": 0}, {"part": 0}, {"part": 1}]
    assert produced.items_dropped == {"item() yielded nothing": 1}


def drop(self: Spider, item: Any, response: Response) -> Any:
    if item["n"] > 1:
        raise DropItem("too many\x1b[31m")
    return item


async def drop_later(self: Spider, item: Any, response: Response) -> Any:
    return drop(self, item, response)


async def drop_while_yielding(self: Spider, item: Any, response: Response) -> Any:
    yield drop(self, item, response)


@pytest.mark.parametrize("item", [drop, drop_later, drop_while_yielding])
async def test_it_may_drop_an_item_for_a_reason_that_is_counted(item: Callable[..., Any]):
    produced = await produced_by(spider_with(item))

    assert produced.items == [{"n": 1}]
    assert produced.items_dropped == {"too many\\x1b[31m": 2}


async def hang_later(self: Spider, item: Any, response: Response) -> Any:
    await asyncio.Event().wait()


async def hang_while_yielding(self: Spider, item: Any, response: Response) -> Any:
    await asyncio.Event().wait()
    yield item


@pytest.mark.parametrize("item", [hang_later, hang_while_yielding])
async def test_one_that_awaits_for_ever_fails_its_page(item: Callable[..., Any]):
    failed = await ran(spider_with(item), within=0.05)

    assert isinstance(failed, Failed)
    assert failed.message == "TimeoutError: parse did not end within 0.05 s"


async def test_a_forgotten_return_loses_nothing_without_a_word():
    def item(self: Spider, item: Any, response: Response) -> Any:
        item["url"] = response.url

    failed = await ran(spider_with(item))

    assert isinstance(failed, Raised)
    assert failed.reason is Reason.PARSE_ERROR
    assert "item() returned None: return the item, or raise DropItem" in failed.message


async def test_what_it_raises_fails_the_page_with_its_place():
    def item(self: Spider, item: Any, response: Response) -> Any:
        return item["price"]

    failed = await ran(spider_with(item))

    assert isinstance(failed, Raised)
    assert failed.message == "KeyError: 'price'"
    assert failed.where.startswith(f"{__file__}:")
    assert 'return item["price"]' in (failed.traceback or "")


def test_a_callback_that_is_called_item_is_refused_before_the_crawl():
    def item(self: Spider, response: Response) -> Any:
        yield {}

    with pytest.raises(SpiderError, match="give a callback another name"):
        check(spider_with(item))


class Careless(Teas):
    """Forgets to ask one of its nodes for the text."""

    def parse(self, response: Response) -> Any:
        yield {"n": 1}
        yield {"n": 2, "t": response.css_first("h1")}
        yield {"n": 3}


async def test_an_invalid_item_fails_its_page_and_the_line_is_told():
    failed = await ran(Careless())

    assert isinstance(failed, Raised)
    assert failed.message == "InvalidItemError: 't' is a LexborNode: did you mean .text()?"
    line = Careless.parse.__code__.co_firstlineno + 2
    assert failed.where == f"{__file__}:{line}"


async def test_an_invalid_item_costs_itself_alone_where_the_spider_says_so():
    produced = await produced_by(type("Easy", (Careless,), {"invalid_items": "item"})())

    assert produced.items == [{"n": 1}, {"n": 3}]
    assert produced.items_dropped == {"'t' is a LexborNode: did you mean .text()?": 1}


class Shop(Spider):
    """Two callbacks, an `item` that drops, and pages that fail."""

    name = "shop"
    start_urls = [HOME]

    def parse(self, response: Response) -> Any:
        yield {"page": response.url}
        yield from response.follow_all("a", callback=self.parse_tea)

    def parse_tea(self, response: Response) -> Any:
        for n in range(3):
            yield {"tea": response.url, "n": n}

    def on_error(self, request: Request, error: Exception) -> Any:
        yield {"lost": request.url}

    async def item(self, item: Any, response: Response | None) -> Any:
        if item.get("n") == 2:
            raise DropItem("no price")
        return {**item, "seen": response is not None}


SHOP = {HOME: "<a href=/1>1</a><a href=/2>2</a><a href=/gone>3</a>"}
SHOP |= {f"{HOME}{n}": "<h1>Tea</h1>" for n in (1, 2)}


async def test_a_crawl_records_counts_and_reports_them_on_each_store(
    ledger_url: str,
):
    report = await run_spider(Shop(), ledger=ledger_url, downloader=ReplayDownloader(SHOP))

    counts = {"parse": 1, "parse_tea": 4, "on_error": 1}
    assert (report.items, report.items_by_callback) == (6, counts)
    assert report.items_dropped == {"no price": 2}
    ledger = await open_ledger(ledger_url, "shop")
    rows = [row.item async for row in ledger.queries.items()]
    counters = await ledger.workers.counters()
    await ledger.close()
    assert {"lost": f"{HOME}gone", "seen": False} in rows
    assert {"page": HOME, "seen": True} in rows
    assert (len(rows), counters.items_by_callback) == (6, counts)
    assert counters.items_dropped == {"no price": 2}

    told = invoke("stats", "shop", "--ledger", ledger_url, "--json")
    shown = invoke("stats", "shop", "--ledger", ledger_url)

    numbers = json.loads(told.stdout)
    assert numbers["items_by_callback"] == counts
    assert numbers["items_dropped"] == {"no price": 2}
    assert "items by callback" in shown.stdout
    assert "no price" in shown.stdout
