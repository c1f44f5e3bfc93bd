"""Show the progress of a crawl, and a report at its end.

This module does not import the crawler, because the supervisor does not need the crawler.
"""

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import islice

import click

from crawlcw.api.settings import Settings
from crawlcw.api.settings_fields import tolerance
from crawlcw.cli import exposing
from crawlcw.cli.exit_codes import INTERNAL, NOT_WELL, OK
from crawlcw.cli.numbers import counted
from crawlcw.cli.options import command_line, is_durable
from crawlcw.cli.terminal import progress, tables
from crawlcw.model.counters import FINISH_RULES, Report
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The options that decide how much a crawl prints, and in which format."""

    format: str = "text"  #: `text`, or `json` for progress and report as log records
    quiet: bool = False
    stdout: bool = True  #: whether the report goes to stdout instead of stderr
    metrics: exposing.Address | None = None  #: address of the metrics server

    @property
    def level(self) -> str:
        """The default log level."""
        return "warning" if self.quiet else "info"


def show_progress(
    crawl: progress.RunningCrawl, output: Output
) -> AbstractAsyncContextManager[None]:
    """Show the progress of *crawl* within the block, in the format of *output*."""
    if output.quiet or output.format != "text" or not sys.stderr.isatty():
        return progress.log_progress(crawl)
    from crawlcw.cli.terminal import live  # imported late: rich takes 20 ms to load

    return live.draw_progress(crawl)


def report_fields(report: Report, settings: Settings) -> dict[str, object]:
    """Return the report and the faults of an ended crawl as fields of a JSON object."""
    faults = faults_of(report, max_failures=settings.max_failures)
    return progress.summary_fields(report) | {"faults": "; ".join(faults)}


def show_report(report: Report, output: Output, *, settings: Settings) -> int:
    """Show the report of an ended crawl in the format of *output*; return the exit code."""
    faults = faults_of(report, max_failures=settings.max_failures)
    code = INTERNAL if report.internal_errors else NOT_WELL if faults else OK
    if output.format == "json":
        fields = report_fields(report, settings) | {"exit_code": code}
        logger.info("%s", report.finish_reason, extra=fields)
    elif not output.quiet:
        tables.show(progress.summary(report), err=not output.stdout)
        click.echo(last_line(report, faults), err=not output.stdout)
    if output.quiet and (faults or not report.drained):
        # With --quiet only this log line shows that the crawl is incomplete.
        logger.warning("%s", last_line(report, faults), extra={"event": "stopped"})
    return code


def faults_of(report: Report, *, max_failures: int | float | None) -> tuple[str, ...]:
    """Return a crawl's faults as parts of a sentence. The exit code is 3 if there is any fault.

    *max_failures* is the number of pages that may fail; a float is a fraction of all pages.
    """
    rule = FINISH_RULES[report.finish_reason]
    if rule.fault:
        return (printable(report.detail) or rule.fault,)
    faults = []
    if report.internal_errors:
        errors = "1 error" if report.internal_errors == 1 else f"{report.internal_errors:,} errors"
        faults.append(f"crawlcw itself has raised {errors} (the log names the place)")
    if not rule.is_complete:
        return tuple(faults)
    if report.any_finished is False:
        faults.append("nothing was finished")
    if hosts := len(report.hosts_given_up) + report.more_hosts_given_up:
        subject = "1 host was" if hosts == 1 else f"{hosts:,} hosts were"
        faults.append(f"{subject} given up ({_hosts_text(report)})")
    if max_failures is not None and _has_too_many_failures(report, max_failures):
        faults.append(
            f"{report.given_up:,} of {report.pages + report.given_up:,} pages were given up, "
            f"more than max_failures={tolerance(max_failures)}"
        )
    return tuple(faults)


def _hosts_text(report: Report) -> str:
    hosts = [
        f"{printable(origin)}: {printable(reason)}"
        for origin, reason in islice(report.hosts_given_up.items(), _MAX_NAMED)
    ]
    further_count = len(report.hosts_given_up) - len(hosts) + report.more_hosts_given_up
    return "; ".join([*hosts, f"{further_count:,} more"] if further_count else hosts)


def _has_too_many_failures(report: Report, limit: int | float) -> bool:
    if isinstance(limit, float):
        return report.given_up > limit * (report.pages + report.given_up)
    return report.given_up > limit


def last_line(report: Report, faults: Sequence[str]) -> str:
    """Return the last line of a crawl's output: the reason why it ended, and its faults."""
    fault_text = " and ".join([", ".join(faults[:-1]), faults[-1]] if faults[1:] else faults)
    if report.drained and report.counts is not None and report.counts.total == 0:
        add_command = command_line("add", report.spider, "URL")
        hint = f"; {add_command} gives it some" if is_durable() else ""
        return f"Drained: the ledger has no page of {report.spider} yet{hint}."
    if report.drained and faults:
        return f"Drained, but {fault_text}{_commands(report)}."
    if report.drained:
        return f"Drained: nothing is left to do.{_failed_before(report)}"
    rule = FINISH_RULES[report.finish_reason]
    opening = rule.opening
    if report.detail and not faults:
        opening = f"{opening} ({printable(report.detail)})"
    released = f"{counted(report.released, 'task')} {'was' if report.released == 1 else 'were'}"
    fault_clause = f", and {fault_text}" if faults else ""
    durable_note = "The same command resumes the crawl."
    continuation = durable_note if is_durable() else "The ledger is not kept."
    if rule.fault:
        continuation += _failed_before(report)
    return f"{opening}: {released} released{fault_clause}. {continuation}"


def _failed_before(report: Report) -> str:
    """Return a sentence about all runs' given-up pages, with the command to try them again."""
    if not report.failed_before:
        return ""
    number = report.failed_before
    subject = "1 page was" if number == 1 else f"{number:,} pages were"
    return f" {subject} given up in this run or before{_commands(report)}."


def _commands(report: Report) -> str:
    """Return a text with the commands that list the given-up pages and try them again."""
    if not is_durable():
        return ""
    list_command = command_line("tasks", report.spider, "--given-up")
    retry_command = command_line("retry-failed", report.spider)
    return f": {list_command} lists them, {retry_command} brings them back"
