"""An invalid item of `extract` fails its page or only itself, as `invalid_items` says."""

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from crawlcw import Css, Response, Settings, Spider, run_spider
from crawlcw.api.user_code import Raised
from crawlcw.crawl.callbacks import Produced, Runner, Scope
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.transitions import Failed
from crawlcw.testing import ReplayDownloader
from tests.items.kinds import URL, page
from tests.support.ledgers import START, make_task

pytestmark = pytest.mark.quick

MARKUP = "<article><h2>One</h2></article><article></article><article><h2>Three</h2></article><a>"
REASON = "Book.title is missing: no value from Css('h2')"


@dataclasses.dataclass
class Book:
    title: Annotated[str, Css("h2")]


class Books(Spider):
    name = "books"
    start_urls = [URL]

    def parse(self, response: Response) -> Any:
        yield {"title": "before"}
        yield from response.extract_all(Book, "article")
        yield response.follow("/next")


class OneBook(Books):
    def parse(self, response: Response) -> Any:
        yield {"title": "before"}
        yield response.extract(Book)
        yield response.follow("/next")


class ReturnedBook(Books):
    def parse(self, response: Response) -> Any:
        return response.extract(Book)


class UsedBook(Books):
    def parse(self, response: Response) -> Any:
        book = response.extract(Book)
        yield {"title": book.title.upper()}


class ChangedBook(Books):
    def parse(self, response: Response) -> Any:
        book = response.extract(Book)
        book.title = "changed"
        yield book


class HookedBook(OneBook):
    def item(self, item: Any, response: Response | None) -> Any:
        title = item["title"] if isinstance(item, dict) else item.title
        return {"title": title.upper()}


async def ran(spider: type[Spider], markup: str, *, invalid_items: str) -> Produced | Failed:
    made = type("Made", (spider,), {"invalid_items": invalid_items})()
    runner = Runner(
        made,
        scope=Scope.of(["shop.example"], Settings()),
        known_ids=frozenset(),
        now=lambda: START,
        watchdog=Watchdog(Stats(), limit=timedelta(seconds=10)),
        parsing=Parsing(Settings()),
        state=KeptState(made, None),
        write=None,
    )
    return await runner.run("parse", page(markup), task=make_task(URL))


@pytest.mark.parametrize(
    ("spider", "markup"),
    [(Books, MARKUP), *((s, "<p>") for s in (OneBook, ReturnedBook, UsedBook, HookedBook))],
)
async def test_an_invalid_item_fails_its_page(spider: type[Spider], markup: str):
    failed = await ran(spider, markup, invalid_items="page")

    assert isinstance(failed, Raised)
    assert failed.message == f"InvalidItemError: {REASON} (page {URL})"
    assert failed.where.startswith(f"{__file__}:")


async def test_invalid_blocks_are_left_out_and_counted():
    produced = await ran(Books, MARKUP, invalid_items="item")

    assert isinstance(produced, Produced)
    assert produced.items == [{"title": "before"}, {"title": "One"}, {"title": "Three"}]
    assert produced.items_dropped == {REASON: 1}
    assert len(produced.tasks) == 1


@pytest.mark.parametrize("spider", [OneBook, HookedBook])
async def test_an_invalid_item_costs_itself_alone(spider: type[Spider]):
    produced = await ran(spider, "<p>", invalid_items="item")

    assert isinstance(produced, Produced)
    assert len(produced.items) == 1
    assert produced.items_dropped == {REASON: 1}
    assert len(produced.tasks) == 1


async def test_a_returned_invalid_item_costs_itself_alone():
    produced = await ran(ReturnedBook, "<p>", invalid_items="item")

    assert isinstance(produced, Produced)
    assert (produced.items, produced.items_dropped) == ([], {REASON: 1})


@pytest.mark.parametrize("spider", [UsedBook, ChangedBook])
async def test_a_callback_that_uses_an_invalid_item_fails(spider: type[Spider]):
    """The links behind the line would be lost without a trace."""
    failed = await ran(spider, "<p>", invalid_items="item")

    assert isinstance(failed, Raised)
    assert failed.message == f"InvalidItemError: {REASON} (page {URL})"


async def test_a_valid_item_is_recorded_in_both_ways():
    for invalid_items in ("page", "item"):
        produced = await ran(HookedBook, "<h2>Tea</h2>", invalid_items=invalid_items)

        assert isinstance(produced, Produced)
        assert produced.items == [{"title": "BEFORE"}, {"title": "TEA"}]


async def test_a_crawl_counts_invalid_items_by_their_reason(tmp_path: Path):
    spider = type("Easy", (Books,), {"invalid_items": "item"})()
    pages = ReplayDownloader({URL: MARKUP, "https://shop.example/next": "<article>"})

    report = await run_spider(spider, ledger=f"sqlite:///{tmp_path}/l.db", downloader=pages)

    # On both pages the item "before" is valid; the second page has no book with a title.
    assert (report.items, report.pages) == (4, 2)
    assert report.items_dropped == {REASON: 2}
