"""Crawl in this process for `run` and `demo`: handle signals, show the progress and a report."""

import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl
from crawlcw.cli import exposing, signals
from crawlcw.cli.deadline import deadline
from crawlcw.cli.exit_codes import INTERRUPTED
from crawlcw.cli.first_run import warn_of
from crawlcw.cli.notifying import notifying
from crawlcw.cli.showing import Output, report_fields, show_progress, show_report
from crawlcw.crawl.crawl import Crawl
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.counters import FinishReason, Report
from crawlcw.telemetry.meter import Meter


async def crawl(
    spider: Spider,
    ledger_url: str,
    *,
    settings: Settings,
    output: Output,
    afterwards: Callable[[Ledger], Awaitable[None]] | None = None,
) -> int:
    """Crawl *spider* to its end and return the exit code.

    Calls the function *afterwards* with the open ledger, unless a second signal stopped the crawl.
    """
    meter = Meter() if output.metrics is not None else None
    working_folder = Path.cwd()

    async def end(report: Report, ledger: Ledger, notice: dict[str, object]) -> int:
        at_once = report.finish_reason == FinishReason.STOPPED_AT_ONCE
        if afterwards is not None and not at_once:
            os.chdir(working_folder)  # the spider may have changed it
            await afterwards(ledger)
        code = show_report(report, output, settings=settings)
        code = INTERRUPTED if at_once else code
        notice |= {**report_fields(report, settings), "exit_code": code}
        return code

    async def abandon() -> int:
        ledger = await current_crawl.ledger.reconnected()
        try:
            async with notifying(spider.name, settings) as notice:
                report = await current_crawl.abandon(ledger, at_once=deadline.is_at_once)
                return await end(report, ledger, notice)
        finally:
            await ledger.close()

    async with (
        notifying(spider.name, settings) as notice,
        open_crawl(spider, ledger=ledger_url, settings=settings, meter=meter) as current_crawl,
    ):
        deadline.finish = partial(anyio.run, abandon)
        current_crawl.on_end(deadline.allow)
        await warn_of(spider, current_crawl.ledger)
        with signals.stopping(current_crawl, grace=settings.grace, blockable=current_crawl):
            take_measures = partial(_measured, current_crawl)
            async with (
                exposing.exposed(spider.name, current_crawl.ledger, take_measures, output.metrics),
                show_progress(current_crawl, output),
            ):
                report = await current_crawl.run()
        deadline.lift()
        try:
            code = await end(report, current_crawl.ledger, notice)
        finally:
            deadline.allow(settings.grace)
        deadline.end_command(lambda: code)
    return code


def _measured(crawl: Crawl) -> exposing.Workers:
    """Return the measured values of a crawl whose only worker is this process."""
    measures = crawl.measures()
    assert measures is not None, "it was opened without a meter"
    is_idle = crawl.idle_reason is not None
    return exposing.Workers(all=[measures], running={"1": measures}, crashes=0, is_idle=is_idle)
