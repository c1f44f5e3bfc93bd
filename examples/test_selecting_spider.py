"""A shop with rules: XPath, forms, JSON-LD and metas, and items that are changed or dropped.

pip install 'crawlcw[xpath]'
pytest examples/test_selecting_spider.py
python examples/test_selecting_spider.py
"""

import asyncio
import sys

import pytest

from crawlcw import DropItem, Rule, Spider, open_ledger, run_spider
from crawlcw.testing import ReplayDownloader

HOME = "https://tea.example/"


class TeaShop(Spider):
    """Lists link to teas; a search form finds more of them."""

    name = "tea-shop"
    start_urls = [HOME]
    rules = [
        Rule(allow=r"/list/", deny=r"[?&]sort="),
        Rule(allow=r"/tea/", restrict="main", callback="parse_tea"),
    ]

    def parse(self, response):
        if response.css_first("form.search") is not None:
            yield response.form("form.search").submit(q="green")

    def parse_tea(self, response):
        offers = response.jsonld("Offer")
        yield {
            "name": response.xpath("//h1/text()").get(),
            "about": response.meta.get("description"),
            "price": offers[0]["price"] if offers else None,
        }

    def item(self, item, response):
        if item["price"] is None:
            raise DropItem("no price")
        return {**item, "url": response.url}


TEA = (
    "<meta name=description content='On {0}'><h1>{0}</h1>"
    '<script type="application/ld+json">{{"@type": "Offer", "price": {1}}}</script>'
)
SITE = {
    HOME: "<form class=search action=/list/found><input name=q><input type=hidden name=n value=9>"
    "</form><a href=/list/black>Black</a><a href='/list/black?sort=price'>By price</a>",
    HOME
    + "list/black": "<main><a href=/tea/assam>Assam</a><a href=/tea/assam.jpg>Picture</a></main>",
    HOME
    + "list/found?q=green&n=9": "<main><a href=/tea/sencha>Sencha</a><a href=/tea/x>X</a></main>",
    HOME + "tea/assam": TEA.format("Assam", 4),
    HOME + "tea/sencha": TEA.format("Sencha", 6),
    HOME + "tea/x": "<h1>Sold out</h1>",
}


async def crawled(ledger_url):
    """Crawl the shop; return the report, and the items."""
    report = await run_spider(TeaShop(), ledger=ledger_url, downloader=ReplayDownloader(SITE))
    ledger = await open_ledger(ledger_url, TeaShop.name)
    items = [row.item async for row in ledger.queries.items()]
    await ledger.close()
    return report, items


def test_a_shop_is_crawled_by_its_rules(tmp_path):
    report, items = asyncio.run(crawled(f"sqlite:///{tmp_path}/teas.db"))

    assert sorted(item["name"] for item in items) == ["Assam", "Sencha"]
    assert {item["about"] for item in items} == {"On Assam", "On Sencha"}
    assert report.items_by_callback == {"parse_tea": 2}
    assert report.items_dropped == {"no price": 1}
    assert report.failures == {}


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
