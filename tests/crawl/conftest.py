"""Crawls of an exit site through three proxies; each test file serves its own site."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crawlcw import Report, Settings, Spider
from crawlcw.assembly import run_spider
from tests.support.exit_site import QUICK, ExitSite, ExitSpider
from tests.support.proxy_servers import ProxyServer, proxies


@pytest.fixture
def three() -> Iterator[list[ProxyServer]]:
    servers = [ProxyServer("http", f"127.0.0.{n}") for n in (2, 3, 4)]
    with proxies(*servers):
        yield servers


@pytest.fixture
def crawl(site: ExitSite, ledger_url: str) -> Callable[..., Any]:
    async def crawl(
        servers: list[ProxyServer], spider: Spider | None = None, **more: Any
    ) -> Report:
        spider = spider or ExitSpider()
        spider.start_urls = [f"{site.url}/p/0"]
        urls = [each.url for each in servers]
        settings = Settings(**{**QUICK, "proxies": urls, **more})
        return await run_spider(spider, ledger=ledger_url, settings=settings)

    return crawl
