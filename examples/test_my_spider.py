"""Test a spider without its site: one page by hand, and a whole crawl from memory.

    pytest examples/test_my_spider.py
    python examples/test_my_spider.py

The `ReplayDownloader` answers instead of the servers; everything else is real,
including a ledger in a temporary folder.
"""

import asyncio
import sys

import pytest

from crawlcw import Request, Response, Spider, run_spider
from crawlcw.testing import Replay, ReplayDownloader

HOME = "https://tea.example/"


class Teas(Spider):
    """The spider under test."""

    name = "teas"
    start_urls = [HOME]

    def parse(self, response):
        for row in response.css("li.tea"):
            yield {"tea": row.css_first("b").text(), "grams": int(row.attributes["data-grams"])}
        yield from response.follow_all("a.more")


def test_a_page_gives_its_teas_and_the_way_to_more():
    page = b'<ul><li class=tea data-grams=50><b>Assam</b></ul><a class=more href="/2">More</a>'
    response = Response(HOME, request=Request(HOME), body=page)

    item, request = Teas().parse(response)

    assert item == {"tea": "Assam", "grams": 50}
    assert request.url == "https://tea.example/2"


def test_a_crawl_goes_on_past_a_page_that_is_gone(tmp_path):
    site = ReplayDownloader(
        {
            HOME: '<li class=tea data-grams=50><b>Assam</b><a class=more href="/2">More</a>'
            '<a class=more href="/old">Old</a>',
            HOME + "2": "<li class=tea data-grams=75><b>Sencha</b>",
            HOME + "old": Replay(status=404),
        }
    )

    ledger = f"sqlite:///{tmp_path}/teas.db"
    report = asyncio.run(run_spider(Teas(), ledger=ledger, downloader=site))

    assert report.items == 2
    assert report.failures == {"http-status": 1}


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
