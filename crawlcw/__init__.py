"""An asyncio crawler on a durable ledger: no page is lost, each result is recorded once."""

from crawlcw.api.host_limits import Limit
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl, open_ledger, run_spider
from crawlcw.crawl.crawl import Crawl
from crawlcw.engine.stats import FinishReason, Report
from crawlcw.errors import (
    CrawlcwError,
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
)
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Status

__version__ = "0.1.0"

__all__ = [
    "Crawl",
    "CrawlcwError",
    "FetchError",
    "FinishReason",
    "LeaseLostError",
    "Ledger",
    "LedgerConfigurationError",
    "LedgerError",
    "LedgerGoneError",
    "LedgerKind",
    "LedgerUnavailableError",
    "Limit",
    "Reason",
    "Report",
    "Request",
    "Response",
    "Settings",
    "SettingsError",
    "Spider",
    "SpiderError",
    "Status",
    "StopCrawl",
    "UsageError",
    "open_crawl",
    "open_ledger",
    "run_spider",
]
