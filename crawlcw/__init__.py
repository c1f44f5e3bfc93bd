"""An asyncio crawler on a durable ledger: no page is lost, each result is recorded once."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crawlcw.api.attempt import Attempt as Attempt
    from crawlcw.api.attempt import Downloader as Downloader
    from crawlcw.api.attempt import Layer as Layer
    from crawlcw.api.attempt import Next as Next
    from crawlcw.api.document import SavedFile as SavedFile
    from crawlcw.api.host_limits import Limit as Limit
    from crawlcw.api.request import Request as Request
    from crawlcw.api.response import Response as Response
    from crawlcw.api.rules import Rule as Rule
    from crawlcw.api.settings import Settings as Settings
    from crawlcw.api.sitemap_spider import SitemapEntry as SitemapEntry
    from crawlcw.api.sitemap_spider import SitemapSpider as SitemapSpider
    from crawlcw.api.spider import Spider as Spider
    from crawlcw.api.spider import url_list as url_list
    from crawlcw.api.syndication import FeedEntry as FeedEntry
    from crawlcw.assembly import add_pages as add_pages
    from crawlcw.assembly import open_crawl as open_crawl
    from crawlcw.assembly import run_spider as run_spider
    from crawlcw.crawl.crawl import Crawl as Crawl
    from crawlcw.crawl.page_adder import AddedPages as AddedPages
    from crawlcw.errors import CrawlcwError as CrawlcwError
    from crawlcw.errors import Defer as Defer
    from crawlcw.errors import DropItem as DropItem
    from crawlcw.errors import FetchError as FetchError
    from crawlcw.errors import LeaseLostError as LeaseLostError
    from crawlcw.errors import LedgerConfigurationError as LedgerConfigurationError
    from crawlcw.errors import LedgerError as LedgerError
    from crawlcw.errors import LedgerGoneError as LedgerGoneError
    from crawlcw.errors import LedgerUnavailableError as LedgerUnavailableError
    from crawlcw.errors import Reason as Reason
    from crawlcw.errors import SettingsError as SettingsError
    from crawlcw.errors import SpiderError as SpiderError
    from crawlcw.errors import StopCrawl as StopCrawl
    from crawlcw.errors import UsageError as UsageError
    from crawlcw.errors import XmlError as XmlError
    from crawlcw.feeds.forms import FeedWriter as FeedWriter
    from crawlcw.fetch.transport import AiohttpDownloader as AiohttpDownloader
    from crawlcw.items.selectors import Css as Css
    from crawlcw.items.selectors import JsonLd as JsonLd
    from crawlcw.items.selectors import Re as Re
    from crawlcw.items.selectors import XPath as XPath
    from crawlcw.items.specification import Extraction as Extraction
    from crawlcw.ledger.kind import LedgerKind as LedgerKind
    from crawlcw.ledger.protocol import Ledger as Ledger
    from crawlcw.ledger_opening import open_ledger as open_ledger
    from crawlcw.model.counters import FinishReason as FinishReason
    from crawlcw.model.counters import Report as Report
    from crawlcw.model.idle_reason import IdleReason as IdleReason
    from crawlcw.model.task import Status as Status

__version__ = "0.1.0"

#: Public names by module. A module is imported at the first access to a name, so that `--help` does
#: not load the whole crawler.
_EXPORTS = {
    "crawlcw.api.attempt": ("Attempt", "Downloader", "Layer", "Next"),
    "crawlcw.api.host_limits": ("Limit",),
    "crawlcw.api.request": ("Request",),
    "crawlcw.api.document": ("SavedFile",),
    "crawlcw.api.response": ("Response",),
    "crawlcw.api.rules": ("Rule",),
    "crawlcw.api.settings": ("Settings",),
    "crawlcw.api.sitemap_spider": ("SitemapEntry", "SitemapSpider"),
    "crawlcw.api.spider": ("Spider", "url_list"),
    "crawlcw.api.syndication": ("FeedEntry",),
    "crawlcw.assembly": ("add_pages", "open_crawl", "run_spider"),
    "crawlcw.crawl.crawl": ("Crawl",),
    "crawlcw.crawl.page_adder": ("AddedPages",),
    "crawlcw.errors": (
        "CrawlcwError",
        "Defer",
        "DropItem",
        "FetchError",
        "LeaseLostError",
        "LedgerConfigurationError",
        "LedgerError",
        "LedgerGoneError",
        "LedgerUnavailableError",
        "Reason",
        "SettingsError",
        "SpiderError",
        "StopCrawl",
        "UsageError",
        "XmlError",
    ),
    "crawlcw.feeds.forms": ("FeedWriter",),
    "crawlcw.fetch.transport": ("AiohttpDownloader",),
    "crawlcw.items.selectors": ("Css", "JsonLd", "Re", "XPath"),
    "crawlcw.items.specification": ("Extraction",),
    "crawlcw.ledger.kind": ("LedgerKind",),
    "crawlcw.ledger.protocol": ("Ledger",),
    "crawlcw.ledger_opening": ("open_ledger",),
    "crawlcw.model.counters": ("FinishReason", "Report"),
    "crawlcw.model.idle_reason": ("IdleReason",),
    "crawlcw.model.task": ("Status",),
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names}
__all__ = [*_HOMES]  # noqa: PLE0604  # only strings


def __getattr__(name: str) -> Any:
    """Return the exported object with this name (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
