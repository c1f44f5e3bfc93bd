"""A crawl as `run` and `demo` do it: watched, stopped by signals, summed up at its end."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl
from crawlcw.cli import exposing, signals
from crawlcw.cli.exit_codes import INTERRUPTED, NOT_WELL, OK
from crawlcw.cli.faults import faults_of, last_word
from crawlcw.cli.notifying import notifying
from crawlcw.cli.terminal import progress
from crawlcw.cli.terminal.console import PlainConsole
from crawlcw.crawl.crawl import Crawl
from crawlcw.engine.stats import FinishReason, Report
from crawlcw.ledger.protocol import Ledger
from crawlcw.telemetry.meter import Meter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How much a crawl says, and how."""

    style: str = "text"  #: or `json`: progress and report are log records
    quiet: bool = False
    stdout: bool = True  #: whether the report is printed there, and not on stderr
    metrics: exposing.Address | None = None  #: where Prometheus finds the metrics

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
    meter = Meter() if output.metrics is not None else None
    async with notifying(spider.name, settings) as notice:
        async with open_crawl(spider, ledger=ledger_url, settings=settings, meter=meter) as running:
            with signals.stopping(running, grace=settings.grace, stuck=running):
                scraped = exposing.exposed(_Here(running), output.metrics)
                async with scraped, watched(running, output):
                    report = await running.run()
            at_once = report.finish_reason == FinishReason.STOPPED_AT_ONCE
            if afterwards is not None and not at_once:
                await afterwards(running.ledger)
        code = sum_up(report, output, settings=settings)
        code = INTERRUPTED if at_once else code
        notice.ended(code, report_fields(report, settings))
    return code


class _Here:
    """A crawl in this process, as it is measured: its only worker."""

    def __init__(self, crawl: Crawl) -> None:
        self.name = crawl.spider.name
        self.ledger = crawl.ledger
        self._crawl = crawl

    def measured(self) -> exposing.Workers:
        measures = self._crawl.measures()
        assert measures is not None, "it was opened without a meter"
        return exposing.Workers(
            all=[measures],
            running={"1": measures},
            crashes=0,
            standstill=self._crawl.standstill is not None,
        )


def watched(crawl: progress.Watched, output: Output) -> AbstractAsyncContextManager[None]:
    """Show how *crawl* is doing within the block, as *output* says."""
    console = PlainConsole(stderr=True)
    live = console.is_terminal and output.style == "text" and not output.quiet
    return progress.shown(crawl, console, live=live)


def report_fields(report: Report, settings: Settings) -> dict[str, object]:
    """Return how a crawl ended, for programs, and what is wrong with that."""
    faults = faults_of(report, max_failures=settings.max_failures)
    return progress.summary_fields(report) | {"faults": "; ".join(faults)}


def sum_up(report: Report, output: Output, *, settings: Settings) -> int:
    """Show how a crawl ended, as *output* says, and return the exit code for it."""
    faults = faults_of(report, max_failures=settings.max_failures)
    code = NOT_WELL if faults else OK
    if output.style == "json":
        fields = report_fields(report, settings) | {"exit_code": code}
        logger.info("%s", report.finish_reason, extra=fields)
    elif not output.quiet:
        console = PlainConsole(stderr=not output.stdout)
        console.print(progress.summary(report))
        console.print(last_word(report, faults), soft_wrap=True)
    if output.quiet and (faults or not report.drained):
        # Somebody who reads only this must not take it for complete.
        logger.warning("%s", last_word(report, faults), extra={"event": "stopped"})
    return code
