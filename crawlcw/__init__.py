"""An asyncio crawler on a durable ledger: no page is lost, each result is recorded once."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crawlcw.api.attempt import Attempt, Downloader, Layer, Next
    from crawlcw.api.host_limits import Limit
    from crawlcw.api.request import Request
    from crawlcw.api.response import Response, SavedFile
    from crawlcw.api.rules import Rule
    from crawlcw.api.settings import Settings
    from crawlcw.api.sitemap_spider import SitemapSpider
    from crawlcw.api.sitemaps import SitemapEntry
    from crawlcw.api.spider import Spider, url_list
    from crawlcw.api.syndication import FeedEntry
    from crawlcw.assembly import open_crawl, run_spider
    from crawlcw.crawl.crawl import Crawl
    from crawlcw.errors import (
        CrawlcwError,
        Defer,
        DropItem,
        FetchError,
        LeaseLostError,
        LedgerConfigurationError,
        LedgerError,
        LedgerGoneError,
        LedgerUnavailableError,
        Reason,
        SettingsError,
        SpiderError,
        StopCrawl,
        UsageError,
        XmlError,
    )
    from crawlcw.fetch.transport import AiohttpDownloader
    from crawlcw.ledger.kind import LedgerKind
    from crawlcw.ledger.protocol import Ledger
    from crawlcw.ledger_opening import open_ledger
    from crawlcw.model.counters import FinishReason, Report
    from crawlcw.model.standstill import Standstill
    from crawlcw.model.task import Status

__version__ = "0.1.0"

__all__ = [
    "AiohttpDownloader",
    "Attempt",
    "Crawl",
    "CrawlcwError",
    "Defer",
    "Downloader",
    "DropItem",
    "FeedEntry",
    "FetchError",
    "FinishReason",
    "Layer",
    "LeaseLostError",
    "Ledger",
    "LedgerConfigurationError",
    "LedgerError",
    "LedgerGoneError",
    "LedgerKind",
    "LedgerUnavailableError",
    "Limit",
    "Next",
    "Reason",
    "Report",
    "Request",
    "Response",
    "Rule",
    "SavedFile",
    "Settings",
    "SettingsError",
    "SitemapEntry",
    "SitemapSpider",
    "Spider",
    "SpiderError",
    "Standstill",
    "Status",
    "StopCrawl",
    "UsageError",
    "XmlError",
    "open_crawl",
    "open_ledger",
    "run_spider",
    "url_list",
]

#: Module of each name, imported at the first access: otherwise every command, even `--help`,
#: would load the whole crawler.
_HOMES = {
    "AiohttpDownloader": "crawlcw.fetch.transport",
    "Attempt": "crawlcw.api.attempt",
    "Crawl": "crawlcw.crawl.crawl",
    "CrawlcwError": "crawlcw.errors",
    "Defer": "crawlcw.errors",
    "Downloader": "crawlcw.api.attempt",
    "DropItem": "crawlcw.errors",
    "FeedEntry": "crawlcw.api.syndication",
    "FetchError": "crawlcw.errors",
    "FinishReason": "crawlcw.model.counters",
    "Layer": "crawlcw.api.attempt",
    "LeaseLostError": "crawlcw.errors",
    "Ledger": "crawlcw.ledger.protocol",
    "LedgerConfigurationError": "crawlcw.errors",
    "LedgerError": "crawlcw.errors",
    "LedgerGoneError": "crawlcw.errors",
    "LedgerKind": "crawlcw.ledger.kind",
    "LedgerUnavailableError": "crawlcw.errors",
    "Limit": "crawlcw.api.host_limits",
    "Next": "crawlcw.api.attempt",
    "Reason": "crawlcw.errors",
    "Report": "crawlcw.model.counters",
    "Request": "crawlcw.api.request",
    "Response": "crawlcw.api.response",
    "Rule": "crawlcw.api.rules",
    "SavedFile": "crawlcw.api.response",
    "Settings": "crawlcw.api.settings",
    "SettingsError": "crawlcw.errors",
    "SitemapEntry": "crawlcw.api.sitemaps",
    "SitemapSpider": "crawlcw.api.sitemap_spider",
    "Spider": "crawlcw.api.spider",
    "SpiderError": "crawlcw.errors",
    "Standstill": "crawlcw.model.standstill",
    "Status": "crawlcw.model.task",
    "StopCrawl": "crawlcw.errors",
    "UsageError": "crawlcw.errors",
    "XmlError": "crawlcw.errors",
    "open_crawl": "crawlcw.assembly",
    "open_ledger": "crawlcw.ledger_opening",
    "run_spider": "crawlcw.assembly",
    "url_list": "crawlcw.api.spider",
}


def __getattr__(name: str) -> Any:
    """Return the exported object with this name (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
