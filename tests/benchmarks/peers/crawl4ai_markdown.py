"""Crawl4AI's deep crawl to Markdown files: python crawl4ai_markdown.py URL CONCURRENCY FOLDER.

It needs no browser: `AsyncHTTPCrawlerStrategy` fetches the pages.
"""

import asyncio
import socket
import sys
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from crawl4ai import AsyncWebCrawler, CacheMode, CrawlerRunConfig
from crawl4ai.async_crawler_strategy import AsyncHTTPCrawlerStrategy
from crawl4ai.deep_crawling import BFSDeepCrawlStrategy


async def crawl(start: str, concurrency: int, folder: Path) -> None:
    """Crawl the host of *start* breadth first, and write a file for each page."""
    config = CrawlerRunConfig(
        deep_crawl_strategy=BFSDeepCrawlStrategy(max_depth=100),
        cache_mode=CacheMode.BYPASS,
        semaphore_count=concurrency,
        stream=True,
        verbose=False,
        # Its pauses are for browsers.
        mean_delay=0,
        max_range=0,
    )
    strategy = AsyncHTTPCrawlerStrategy(max_connections=concurrency)
    async with AsyncWebCrawler(crawler_strategy=strategy, verbose=False) as crawler:
        async for result in await crawler.arun(start, config=config):
            if result.success:
                name = sha256(result.url.encode()).hexdigest()
                (folder / f"{name}.md").write_text(result.markdown.raw_markdown)


def resolve_to_loopback(start: str) -> None:
    """Give the site's host the address of this machine."""
    resolve, name = socket.getaddrinfo, urlsplit(start).hostname

    def resolved(host, *arguments, **options):
        return resolve("127.0.0.1" if host == name else host, *arguments, **options)

    socket.getaddrinfo = resolved


if __name__ == "__main__":
    resolve_to_loopback(sys.argv[1])
    asyncio.run(crawl(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
