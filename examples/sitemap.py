"""A crawl from a sitemap, run twice: the second run requests only new and changed pages.

    python examples/sitemap.py

Needs no network: it crawls the bookshop that comes with crawlcw.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from crawlcw import SitemapSpider, run_spider
from crawlcw.demo.bookshop import Bookshop


class Books(SitemapSpider):
    name = "books"
    # Without `sitemap_urls`, the sitemaps in robots.txt of the start URLs are read.
    sitemap_rules = [(r"/book/", "parse_book")]

    def parse(self, response):
        """Ignore the start page: only its sitemap is wanted."""

    def parse_book(self, response):
        yield {"title": response.css_first("h1").text(), "url": response.url}


async def main():
    async with Bookshop() as shop:
        with TemporaryDirectory() as folder:
            for run in ("first", "second"):
                spider = Books(start_urls=[shop.url])
                report = await run_spider(spider, ledger=f"sqlite:///{Path(folder) / 'ledger.db'}")
                print(f"{run} run: {report.items} items on {report.pages} pages")


if __name__ == "__main__":
    asyncio.run(main())
