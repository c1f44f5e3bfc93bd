"""Crawl for `run` and `crawl`: the options of both commands, in the supervisor and in a worker."""

import gc
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial, reduce, wraps
from pathlib import Path
from typing import Any

import click

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.cli import exporting, exposing, ledger_option, loop, options
from crawlcw.cli.deadline import deadline
from crawlcw.cli.main import exit_code
from crawlcw.cli.starting import Process
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import secure_descriptors
from crawlcw.feeds.target import Target
from crawlcw.ledger.protocol import Ledger

#: A function that takes the texts of `-s`, and returns a spider and the settings of crawlcw.
Load = Callable[[Sequence[str]], tuple[Spider, Sequence[str]]]

_OPTIONS: tuple[Callable[[Callable[..., int]], Callable[..., int]], ...] = (
    ledger_option.ledger_option,
    options.number_option(
        "--processes",
        minimum=0,
        default=1,
        about="Number of worker processes; with 0 this process crawls (for a debugger or stdin).",
    ),
    options.number_option("--concurrency", minimum=1, about="Fetchers in each process."),
    options.settings_option,
    options.number_option(
        "--max-pages",
        minimum=1,
        about="Stop after N pages, counted over all processes.",
    ),
    options.number_option(
        "--max-items",
        minimum=1,
        about="Stop after N items, counted over all processes, and finish current pages.",
    ),
    exporting.outputs_option(
        required=False, about="Write all recorded items to FILE after the crawl:"
    ),
    click.option(
        "--claim",
        type=click.Choice(("each", "batch")),
        help="Claim tasks one by one, or many tasks in one round trip to the ledger.",
    ),
    click.option(
        "--keep",
        "keep_running",
        is_flag=True,
        help="Wait for pages of `crawlcw add` instead of ending, until a signal or `crawlcw stop`.",
    ),
    click.option("--fresh", is_flag=True, help="Delete the data of the crawl, and start again."),
    options.yes_option,
    exposing.options,
    logs.level_option,
    logs.format_option,
    logs.file_option,
    logs.quiet_option,
    click.option("--worker-channel", "channel", type=int, hidden=True),
    click.option("--share", multiple=True, hidden=True),
    click.option("--started-at", type=datetime.fromisoformat, hidden=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The values of the options that `run` and `crawl` share."""

    first: Process | None  #: a worker that already waits for its arguments
    ledger_url: str
    processes: int
    concurrency: int | None
    assignments: tuple[str, ...]
    max_pages: int | None
    max_items: int | None
    outputs: list[Target]
    claim: str | None
    keep_running: bool
    fresh: bool
    yes: bool
    metrics_port: int | None
    metrics_host: str
    log_level: str | None
    log_format: str
    log_file: Path | None
    quiet: bool
    channel: int | None  #: a worker's channel to its supervisor; None in the supervisor
    share: tuple[str, ...]
    started_at: datetime


def run_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the shared options to a command, whose function gets them as a `RunOptions`."""

    @wraps(function)
    def wrapper(first: Process | None, /, **values: Any) -> int:
        names = [field.name for field in fields(RunOptions) if field.name != "first"]
        run = RunOptions(first=first, **{name: values.pop(name) for name in names})
        return function(run, **values)

    return reduce(
        lambda command, option: option(command), reversed(_OPTIONS), click.pass_obj(wrapper)
    )


def crawl(load: Load, run: RunOptions) -> int:
    """Crawl the spider that *load* returns, as supervisor or as worker; return the exit code."""
    # Disable the garbage collector while modules load, because loading creates no garbage.
    gc.disable()
    if run.channel is not None:
        return _in_worker(load, run, run.channel)

    metrics = exposing.address_of(host=run.metrics_host, port=run.metrics_port)
    from crawlcw.cli import showing  # imported late, because workers do not need it

    crawl_spider = _crawl_by(run)
    spider, settings = _spider_and_settings(load, run)
    if run.fresh:
        from crawlcw.cli import dropping

        loop.run(dropping.clear(spider.name, run.ledger_url, settings=settings, yes=run.yes))
    output = showing.Output(
        format=run.log_format,
        quiet=run.quiet,
        stdout=not any(target.is_stdout for target in run.outputs),
        metrics=metrics,
    )

    async def write_items(ledger: Ledger) -> None:
        if run.outputs:
            from crawlcw.feeds.export import ItemSelection, export

            await export(ledger, run.outputs, ItemSelection(), stdout=exporting.stdout())

    return loop.run(
        crawl_spider(
            spider, run.ledger_url, settings=settings, output=output, afterwards=write_items
        )
    )


def _spider_and_settings(load: Load, run: RunOptions) -> tuple[Spider, Settings]:
    """Set up the log, and load the spider with its settings."""
    logs.set_up(
        run.log_level or ("warning" if run.quiet else "info"),
        log_format=run.log_format,
        file=run.log_file,
        # Only the supervisor warns of unknown CRAWLCW_ variables.
        environment=os.environ if run.channel is None else {},
    )
    option_assignments = _assigned(
        concurrency=run.concurrency,
        max_pages=run.max_pages,
        max_items=run.max_items,
        claim=run.claim,
        keep_running=run.keep_running or None,
    )
    # Exclude the loaded modules from garbage collection, because they stay until the end. The
    # exclusion saves a tenth of a second at exit. Load the spider after `gc.freeze`, so that
    # the spider's garbage, such as an open file, is collected.
    gc.freeze()
    gc.enable()
    spider, assignments = load(run.assignments)
    settings = options.settings_of(spider, [*assignments, *option_assignments, *run.share])
    secure_descriptors(settings.concurrency)
    return spider, settings


def _crawl_by(run: RunOptions) -> Callable[..., Coroutine[Any, Any, int]]:
    """Return the function that crawls, either in worker processes or in this process."""
    # Import only `supervisor` or `crawling`, because a supervisor must not load the crawler.
    if run.processes:
        from crawlcw.cli.processes import supervisor

        return partial(supervisor.crawl, processes=run.processes, first=run.first)
    from crawlcw.cli import crawling

    return crawling.crawl


def _in_worker(load: Load, run: RunOptions, channel: int) -> int:
    """Crawl as a worker process, and report progress and result to the supervisor on *channel*."""
    from crawlcw.cli.processes import worker

    worker.prepare()
    supervision = worker.Supervision(channel)
    deadline.report = lambda outcome: supervision.send_exit_code(lambda: exit_code(outcome))

    def work() -> int:
        spider, settings = _spider_and_settings(load, run)
        return loop.run(
            worker.crawl(
                spider,
                run.ledger_url,
                settings=settings,
                supervision=supervision,
                started_at=run.started_at,
                measured=run.metrics_port is not None,
            )
        )

    return deadline.report(work)


def _assigned(**options: object) -> Iterator[str]:
    """Yield each option that is not None as `NAME=VALUE`, the form of the option `-s`."""
    for name, value in options.items():
        if value is not None:
            yield f"{name}={value}"
