"""Output of the commands that crawl: progress, and a report at the end.

Not in `crawling`: the supervisor shows a crawl too, and does not load the crawler.
"""

import logging
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import click

from crawlcw.api.settings import Settings
from crawlcw.cli import exposing
from crawlcw.cli.exit_codes import INTERNAL, NOT_WELL, OK
from crawlcw.cli.faults import faults_of, last_word
from crawlcw.cli.terminal import progress, tables
from crawlcw.model.counters import Report

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Verbosity and format of a crawl's output."""

    style: str = "text"  #: or `json`: progress and report are log records
    quiet: bool = False
    stdout: bool = True  #: whether the report goes to stdout, not to stderr
    metrics: exposing.Address | None = None  #: address of the metrics server

    @property
    def level(self) -> str:
        """The default log level."""
        return "warning" if self.quiet else "info"


def watched(crawl: progress.Watched, output: Output) -> AbstractAsyncContextManager[None]:
    """Show the progress of *crawl* within the block, in the form of *output*."""
    if output.quiet or output.style != "text" or not sys.stderr.isatty():
        return progress.logged(crawl)
    from crawlcw.cli.terminal import live  # rich, which takes 20 ms to load

    return live.drawn(crawl)


def report_fields(report: Report, settings: Settings) -> dict[str, object]:
    """Return the report and the faults of an ended crawl, for programs."""
    faults = faults_of(report, max_failures=settings.max_failures)
    return progress.summary_fields(report) | {"faults": "; ".join(faults)}


def sum_up(report: Report, output: Output, *, settings: Settings) -> int:
    """Show the report of an ended crawl, in the form of *output*; return the exit code."""
    faults = faults_of(report, max_failures=settings.max_failures)
    code = INTERNAL if report.internal_errors else NOT_WELL if faults else OK
    if output.style == "json":
        fields = report_fields(report, settings) | {"exit_code": code}
        logger.info("%s", report.finish_reason, extra=fields)
    elif not output.quiet:
        tables.show(progress.summary(report), err=not output.stdout)
        click.echo(last_word(report, faults), err=not output.stdout)
    if output.quiet and (faults or not report.drained):
        # With --quiet this line is the only sign that the crawl is incomplete.
        logger.warning("%s", last_word(report, faults), extra={"event": "stopped"})
    return code
