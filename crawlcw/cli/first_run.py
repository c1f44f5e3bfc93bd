"""Warn of Scrapy's names in a spider, and of attributes whose changes a crash would lose."""

import inspect
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

from crawlcw.api.spider import Spider
from crawlcw.cli.options import command_line
from crawlcw.errors import LedgerError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status

logger = logging.getLogger(__name__)


#: Attributes that crawlcw ignores although Scrapy uses them.
_SCRAPY_NAMES = (
    *("allowed_domains", "custom_settings", "download_delay", "from_crawler"),
    *("handle_httpstatus_list", "start_requests"),
)


#: The key in the ledger's state for the options of the last `crawlcw crawl`.
_SITE = "site"


async def warn_of(spider: Spider, ledger: Ledger, *, processes: int = 1) -> None:
    """Warn of Scrapy's names, and at the first run also of attributes that callbacks change.

    For a spider of a Scrapy project, warn at a resume of lost attributes and incomplete files.
    """
    scrapy_spider = sys.modules.get("crawlcw.scrapy.spider")
    if scrapy_spider is not None and isinstance(spider, scrapy_spider.ScrapySpider):
        await _warn_of_project(spider, ledger, processes)
        return
    site_spider = sys.modules.get("crawlcw.site.spider")
    if site_spider is not None and isinstance(spider, site_spider.SiteSpider):
        await _warn_of_options(spider, ledger)
        return
    _warn_of_names(spider)
    try:
        if await ledger.notes.state():
            return
    except LedgerError:
        return  # the crawl itself reports the ledger's error

    # Import `checking` late, because only a first run checks the spider's source.
    from crawlcw.checking import state
    from crawlcw.checking.source import UNREADABLE

    spider_class = type(spider)
    try:
        path = Path(inspect.getsourcefile(spider_class) or "")
        relative_path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        findings = state.check_class(relative_path, spider_class.__name__)
    except (*UNREADABLE, TypeError):
        return  # an interactive session has no source file
    if not findings:
        return
    first, further_count = findings[0], len(findings) - 1
    more_note = f"; {further_count} more by `crawlcw check {first.path}`" if further_count else ""
    logger.warning(
        "%s:%d: %s: keep it in self.state%s",
        printable(first.path),
        first.line,
        first.code,
        printable(more_note),
        extra={"event": "state_in_attributes", "file": first.path, "line": first.line},
    )


async def _warn_of_options(spider: Any, ledger: Ledger) -> None:
    """Warn if `crawlcw crawl` had other options before; note the options in the ledger."""
    options = spider.options()
    try:
        earlier_options = (await ledger.notes.state()).get(_SITE, options)
        await ledger.notes.set_state({_SITE: options})
    except LedgerError:
        return  # the crawl itself reports the ledger's error
    changes = [name for name, value in options.items() if earlier_options.get(name) != value]
    if changes:
        logger.warning(
            "the crawl %s had other options before (%s), and its finished pages stay as they are: "
            "%s fetches them again, or --name begins another crawl",
            spider.name,
            ", ".join(changes),
            command_line("reset", spider.name),
            extra={"event": "options_changed", "options": changes},
        )


async def _warn_of_project(spider: Any, ledger: Ledger, processes: int) -> None:
    from crawlcw.scrapy import refusals

    try:
        is_resumed = await ledger.queries.has(tuple(Status))
    except LedgerError:
        return  # the crawl itself reports the ledger's error
    if is_resumed and (state := refusals.memory_state(spider.crawler, spider.folder)):
        logger.warning(
            "the project keeps values in memory, which this run begins without: %s",
            printable(", ".join(state), limit=1000),
            extra={"event": "memory_lost"},
        )
    if is_resumed or processes > 1:
        for finding in refusals.own_files(spider.crawler, spider.folder):
            logger.warning(
                "%s, line %d: %s: %s",
                printable(finding.path),
                finding.line,
                finding.code,
                finding.replacement,
                extra={"event": "own_file", "file": finding.path, "line": finding.line},
            )


def _warn_of_names(spider: Spider) -> None:
    names = [name for name in _SCRAPY_NAMES if hasattr(type(spider), name)]
    if not names:
        return
    try:
        path = Path(inspect.getsourcefile(type(spider)) or "")
    except TypeError:
        path = Path()
    relative_path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    logger.warning(
        "the spider %s has %s: only Scrapy reads that, and `crawlcw check %s` shows the code "
        "to write instead",
        spider.name,
        ", ".join(names),
        printable(shlex.quote(str(relative_path))),
        extra={"event": "scrapy_names", "names": names},
    )
