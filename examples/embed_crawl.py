"""A crawl inside an asyncio program of your own, and its items read back afterwards.

    python examples/embed_crawl.py

Needs no network: it crawls the bookshop that comes with crawlcw.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from crawlcw import Spider, open_crawl, open_ledger
from crawlcw.demo.bookshop import Bookshop


class Shelves(Spider):
    """One item for each book on the shelves, without opening the books."""

    name = "shelves"

    def parse(self, response):
        yield from response.follow_all("nav.shelves a", self.parse_shelf)

    def parse_shelf(self, response):
        shelf = response.css_first("h1").text()
        for book in response.css("article.book h2 a"):
            yield {"title": book.text(), "shelf": shelf}
        yield from response.follow_all("a[rel=next]", self.parse_shelf)


async def main():
    async with Bookshop() as shop:
        with TemporaryDirectory() as folder:
            ledger_url = f"sqlite:///{Path(folder) / 'ledger.db'}"
            async with open_crawl(Shelves(start_urls=[shop.url]), ledger=ledger_url) as crawl:
                report = await crawl.run()
            print(f"{report.finish_reason}: {report.items} items on {report.pages} pages")
            for reason, times in report.failures.items():
                print(f"{times} x {reason}")

            # The ledger outlives the crawl, and any program can open it.
            ledger = await open_ledger(ledger_url, Shelves.name)
            try:
                async for row in ledger.queries.items():
                    if row.item["shelf"] == "Paper and Ink":
                        print(f"{row.fetched_at:%H:%M:%S}  {row.item['title']}  <{row.url}>")
            finally:
                await ledger.close()


if __name__ == "__main__":
    asyncio.run(main())
