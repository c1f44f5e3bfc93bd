"""Spiders whose `response.css` returns parsel's selectors, as Scrapy's does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Response, Spider, SpiderError, run_spider
from crawlcw.api import markup
from crawlcw.testing import ReplayDownloader
from tests.support.commands import invoke
from tests.support.needed import module

pytestmark = pytest.mark.quick

module("parsel", extra="xpath")
itemloaders = module("itemloaders", extra="ports")
HOME = "https://shop.example/"
PAGE = "<base href=/b/><h1 id=top> Tea </h1><p>price 3.50</p><a href=1>one</a><a href=2>two</a>"


class Shop(Spider):
    name = "shop"
    start_urls = (HOME,)
    selectors = "parsel"

    def parse(self, response: Response) -> Any:
        page: Any = response
        loader = itemloaders.ItemLoader(item={}, selector=response.selector)
        loader.default_output_processor = itemloaders.processors.TakeFirst()
        loader.add_css("loaded", "h1::text", itemloaders.processors.MapCompose(str.strip))
        yield {
            "text": page.css("h1::text").get(),
            "id": page.css("h1")[0].attrib["id"],
            "price": page.css("p").re_first(r"[\d.]+"),
            "first": page.css_first("a").attrib["href"],
            "none": page.css_first("table"),
            **loader.load_item(),
        }
        yield from response.follow_all(page.css("a")[:1])
        yield from response.follow_all("a[href='2']")


ITEM = {"text": " Tea ", "id": "top", "price": "3.50", "first": "1", "none": None, "loaded": "Tea"}


@pytest.mark.parametrize("filler", [0, markup.LARGE], ids=["small", "large"])
async def test_css_returns_selectors_on_small_and_large_pages(tmp_path: Path, filler: int):
    pages = dict.fromkeys((HOME, f"{HOME}b/1", f"{HOME}b/2"), PAGE + "<!-- x -->" * (filler // 10))
    ledger = f"sqlite:///{tmp_path}/shop.db"

    report = await run_spider(Shop(), ledger=ledger, downloader=ReplayDownloader(pages))

    assert (report.items, report.failures) == (3, {})
    exported = await asyncio.to_thread(invoke, "export", "shop", "--ledger", ledger, "-o-:csv")
    header, *rows = exported.stdout.splitlines()
    assert (header, set(rows)) == (",".join(ITEM), {" Tea ,top,3.50,1,,Tea"})


def test_another_kind_of_selectors_is_refused(tmp_path: Path):
    class Wrong(Shop):
        selectors = "lxml"  # type: ignore[assignment]

    with pytest.raises(SpiderError, match=r"Wrong\.selectors = 'lxml': write"):
        asyncio.run(run_spider(Wrong(), ledger=f"sqlite:///{tmp_path}/wrong.db"))


def test_without_parsel_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("crawlcw.api.spider.find_spec", lambda _: None)

    with pytest.raises(SpiderError, match=r"pip install 'crawlcw\[xpath\]'"):
        asyncio.run(run_spider(Shop(), ledger=f"sqlite:///{tmp_path}/shop.db"))
