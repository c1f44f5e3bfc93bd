"""Crawlee's crawl: python crawlee_docs.py URL CONCURRENCY file|sql FOLDER."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.http_clients import HttpxHttpClient
from crawlee.storage_clients import FileSystemStorageClient, SqlStorageClient


async def crawl(start: str, concurrency: int, kind: str, folder: Path) -> None:
    """Crawl the host of *start*; the queue and the items are kept in *folder*."""
    database = f"sqlite+aiosqlite:///{folder}/crawlee.db"
    client = SqlStorageClient(connection_string=database) if kind == "sql" else None
    crawler = ParselCrawler(
        configuration=Configuration(storage_dir=str(folder), purge_on_start=False),
        storage_client=client or FileSystemStorageClient(),
        http_client=HttpxHttpClient(verify=False),
        concurrency_settings=ConcurrencySettings(
            min_concurrency=concurrency,
            desired_concurrency=concurrency,
            max_concurrency=concurrency,
        ),
        request_handler_timeout=timedelta(minutes=5),
    )

    @crawler.router.default_handler
    async def page(context: ParselCrawlingContext) -> None:
        title = context.selector.css("title::text").get("")
        await context.push_data({"url": context.request.url, "title": title})
        await context.enqueue_links(strategy="same-hostname")

    await crawler.run([start])


if __name__ == "__main__":
    asyncio.run(crawl(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])))
