"""What a command shows of a crawl: how it is doing, and what it came to in the end.

Not in `crawling`: the supervisor shows a crawl too, and needs nothing that crawls.
"""

import logging
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from crawlcw.api.settings import Settings
from crawlcw.cli import exposing
from crawlcw.cli.exit_codes import INTERNAL, NOT_WELL, OK
from crawlcw.cli.faults import faults_of, last_word
from crawlcw.cli.terminal import progress
from crawlcw.cli.terminal.console import PlainConsole
from crawlcw.model.counters import Report

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
    code = INTERNAL if report.internal_errors else NOT_WELL if faults else OK
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
