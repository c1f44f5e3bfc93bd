"""A repeated crawl that reads only changed pages.

    python examples/revisits.py

Needs no network: it crawls the bookshop that comes with crawlcw.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from crawlcw import Settings, Spider, open_crawl
from crawlcw.demo.bookshop import Bookshop


class Shelves(Spider):
    """One item for each book on the shelves, without opening the books."""

    name = "shelves"
    # Due again at the next run. Use "7d" for a week, or "adaptive" to follow each page's changes.
    settings = Settings(revisit="0s")

    def parse(self, response):
        yield from response.follow_all("nav.shelves a", self.parse_shelf)

    def parse_shelf(self, response):
        for book in response.css("article.book h2 a"):
            yield {"title": book.text()}
        yield from response.follow_all("a[rel=next]", self.parse_shelf)


async def main():
    async with Bookshop() as shop:
        with TemporaryDirectory() as folder:
            ledger = f"sqlite:///{Path(folder) / 'ledger.db'}"
            for run in ("first", "second"):
                async with open_crawl(Shelves(start_urls=[shop.url]), ledger=ledger) as crawl:
                    report = await crawl.run()
                    kept = await crawl.ledger.queries.item_count()
                print(
                    f"{run} run: {report.pages} pages, {report.unchanged} of them unchanged, "
                    f"{report.items} new items, {kept} in all"
                )


if __name__ == "__main__":
    asyncio.run(main())
