"""A crawl as `run` and `demo` do it: watched, stopped by signals, summed up at its end."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from rich.console import Console

from crawlcw.assembly import open_crawl
from crawlcw.cli import progress, signals
from crawlcw.cli.exit_codes import INTERRUPTED, OK
from crawlcw.ledger.protocol import Ledger
from crawlcw.settings import Settings
from crawlcw.spider import Spider
from crawlcw.stats import Report

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How much a crawl says, and how."""

    style: str = "text"  #: or `json`: progress and report are log records
    quiet: bool = False

    @property
    def level(self) -> str:
        """The least level to log where nobody asked for one."""
        return "warning" if self.quiet else "info"


async def crawl(
    spider: Spider,
    ledger_url: str,
    *,
    settings: Settings,
    output: Output,
    afterwards: Callable[[Ledger], Awaitable[None]] | None = None,
) -> int:
    """Crawl *spider* to its end and return the exit code.

    *afterwards* is called with the ledger, still open, unless the crawl was
    stopped at once.
    """
    async with open_crawl(spider, ledger=ledger_url, settings=settings) as running:
        with signals.stopping(running, grace=settings.grace):
            async with watched(running, output):
                report = await running.run()
        at_once = report.finish_reason == "stopped-at-once"
        if afterwards is not None and not at_once:
            await afterwards(running.ledger)
    sum_up(report, output)
    return INTERRUPTED if at_once else OK


def watched(crawl: progress.Watched, output: Output) -> AbstractAsyncContextManager[None]:
    """Show how *crawl* is doing within the block, as *output* says."""
    console = Console(stderr=True, markup=False, highlight=False)
    live = console.is_terminal and output.style == "text" and not output.quiet
    return progress.shown(crawl, console, live=live)


def sum_up(report: Report, output: Output) -> None:
    """Say how a crawl ended, as *output* says."""
    if output.style == "json":
        logger.info("%s", report.finish_reason, extra=progress.summary_fields(report))
    elif not output.quiet:
        console = Console(markup=False, highlight=False)
        console.print(progress.summary(report))
        console.print(_last_word(report), soft_wrap=True)
    if output.quiet and not report.drained:
        # Somebody who reads only this must not take it for complete.
        logger.warning("%s", _last_word(report), extra={"event": "stopped"})


def _last_word(report: Report) -> str:
    if report.drained:
        return "Drained: nothing is left to do."
    why = {"max-pages": "Stopped at max_pages", "stopped": "Stopped", "failed": "Failed"}
    released = f"{report.released:,} tasks were released"
    return (
        f"{why.get(report.finish_reason, 'Stopped at once')}: {released}. "
        "The same command goes on from here."
    )
