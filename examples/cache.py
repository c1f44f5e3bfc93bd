"""A spider in development, run twice: the second run takes all pages from a cache.

    python examples/cache.py

Needs no network: it crawls the bookshop that comes with crawlcw. On the command
line, use `crawlcw run SPIDER --fresh -s cache=dev`.
"""

import asyncio
from contextlib import chdir
from tempfile import TemporaryDirectory

from crawlcw import Settings, Spider, run_spider
from crawlcw.demo.bookshop import Bookshop


class Titles(Spider):
    """One item for each page."""

    name = "titles"
    settings = Settings(cache="dev", max_depth=1)

    def parse(self, response):
        yield {"title": response.css_first("title").text()}
        yield from response.follow_all("a")


async def main():
    async with Bookshop() as shop:
        for _ in range(2):
            before = shop.hits.total()
            report = await run_spider(Titles(start_urls=[shop.url]), ledger="sqlite:///:memory:")
            print(f"{report.items} items, {shop.hits.total() - before} requests")


if __name__ == "__main__":
    # The cache is in `.crawlcw` in the working directory.
    with TemporaryDirectory() as folder, chdir(folder):
        asyncio.run(main())
