"""`crawlcw run`: crawl a spider's site into its ledger."""

import gc
import os
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.cli import exporting, exposing, ledger_option, loading, loop, options
from crawlcw.cli.deadline import deadline
from crawlcw.cli.main import exit_code
from crawlcw.cli.starting import Process
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import secure_descriptors
from crawlcw.feeds.target import Target
from crawlcw.ledger.protocol import Ledger


@click.command("run")
@click.argument("spider")
@ledger_option.ledger_option
@options.number_option(
    "--processes",
    minimum=0,
    default=1,
    about="Number of worker processes; with 0 this process crawls (for a debugger or stdin).",
)
@options.number_option("--concurrency", minimum=1, about="Fetchers in each process.")
@options.settings_option
@options.arguments_option
@options.number_option(
    "--max-pages",
    minimum=1,
    about="Stop after N pages, counted over all processes.",
)
@options.number_option(
    "--max-items",
    minimum=1,
    about="Stop after N items, counted over all processes, and finish current pages.",
)
@exporting.outputs_option(required=False, about="Write all recorded items to FILE after the crawl:")
@click.option(
    "--claim",
    type=click.Choice(("each", "batch")),
    help="Claim tasks one by one, or many tasks in one round trip to the ledger.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Wait for pages of `crawlcw add` instead of ending, until a signal or `crawlcw stop`.",
)
@click.option("--fresh", is_flag=True, help="Delete the data of SPIDER, and start again.")
@options.yes_option
@exposing.options
@logs.level_option
@logs.format_option
@logs.file_option
@logs.quiet_option
@click.option("--worker-channel", "channel", type=int, hidden=True)
@click.option("--share", multiple=True, hidden=True)
@click.option("--started-at", type=datetime.fromisoformat, hidden=True)
@click.pass_obj
def command(
    first: Process | None,
    *,
    spider: str,
    ledger_url: str,
    processes: int,
    concurrency: int | None,
    assignments: tuple[str, ...],
    arguments: tuple[str, ...],
    max_pages: int | None,
    max_items: int | None,
    outputs: list[Target],
    claim: str | None,
    keep: bool,
    fresh: bool,
    yes: bool,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str | None,
    log_format: str,
    log_file: Path | None,
    quiet: bool,
    channel: int | None,
    share: tuple[str, ...],
    started_at: datetime,
) -> int:
    """Crawl SPIDER, or resume an earlier crawl.

    SPIDER is the name of a spider in ./spiders/*.py, a path (file.py, or
    file.py:Class), or package.module:Class. A spider of a Scrapy project is FOLDER:SPIDER or,
    inside the project, SPIDER; -s NAME=VALUE with a name in capitals is a setting of Scrapy.

    Settings come from the spider's class, [tool.crawlcw] in pyproject.toml, CRAWLCW_* variables and
    -s. If several places set a setting, the last place wins.

    SIGINT or SIGTERM stops the crawl gracefully: current requests finish, and all other tasks are
    released. A second signal stops the crawl at once. The same command resumes the crawl later.

    The crawl runs in a worker process. The command restarts a crashed worker, and ignores a page
    that crashes workers repeatedly. It waits 1 s before the first restart, and doubles the wait
    before each next restart. After five crashes in a row, the command does not restart the worker.
    If a worker finishes a page or runs a quarantined page, the command counts crashes from 0 again,
    and the wait begins at 1 s again. With --processes 0 no process restarts the crawl after a
    crash. With several workers the exit code is the worst code of a worker, in this order from good
    to bad: 0, 130, 3, 2, 69, 78, 70.

    The exit code is 3 if the crawl has ended with a fault. These are faults: no finished page, a
    given-up host, more given-up pages than max_failures allows, a broken callback, no successful
    login, no working proxy. The last line of the output names the fault.
    """

    def make() -> tuple[Spider, Settings]:
        logs.set_up(
            log_level or ("warning" if quiet else "info"),
            log_format=log_format,
            file=log_file,
            # Only the supervisor warns of unknown CRAWLCW_ variables.
            environment=os.environ if channel is None else {},
        )
        option_assignments = _assigned(
            concurrency=concurrency,
            max_pages=max_pages,
            max_items=max_items,
            claim=claim,
            keep_running=keep or None,
        )
        # Exclude the loaded modules from garbage collection, because they stay until the end. The
        # exclusion saves a tenth of a second at exit. Load the spider after `gc.freeze`, so that
        # the spider's garbage, such as an open file, is collected.
        gc.freeze()
        gc.enable()
        loaded_spider, remaining = loading.load(spider, arguments, assignments)
        deadline.add_user_package(type(loaded_spider))
        settings = options.settings_of(loaded_spider, [*remaining, *option_assignments, *share])
        secure_descriptors(settings.concurrency)
        return loaded_spider, settings

    # Disable the garbage collector while modules load, because loading creates no garbage.
    gc.disable()
    if channel is not None:
        has_metrics = metrics_port is not None
        return _in_worker(make, ledger_url, channel, started_at=started_at, measured=has_metrics)

    metrics = exposing.address_of(host=metrics_host, port=metrics_port)
    from crawlcw.cli import showing  # imported late, because workers do not need it

    crawl = _crawl_by(processes, first)
    loaded_spider, settings = make()
    if fresh:
        from crawlcw.cli import dropping

        loop.run(dropping.clear(loaded_spider.name, ledger_url, settings=settings, yes=yes))
    to_stdout = any(target.is_stdout for target in outputs)
    output = showing.Output(format=log_format, quiet=quiet, stdout=not to_stdout, metrics=metrics)
    afterwards = partial(_write_items, outputs)
    return loop.run(
        crawl(loaded_spider, ledger_url, settings=settings, output=output, afterwards=afterwards)
    )


async def _write_items(outputs: list[Target], ledger: Ledger) -> None:
    if outputs:
        from crawlcw.feeds.export import ItemSelection, export

        await export(ledger, outputs, ItemSelection(), stdout=exporting.stdout())


def _crawl_by(
    processes: int, first_process: Process | None
) -> Callable[..., Coroutine[Any, Any, int]]:
    """Return the function that crawls, either in worker processes or in this process."""
    # Import only `supervisor` or `crawling`, because a supervisor must not load the crawler.
    if processes:
        from crawlcw.cli.processes import supervisor

        return partial(supervisor.crawl, processes=processes, first=first_process)
    from crawlcw.cli import crawling

    return crawling.crawl


def _in_worker(
    make: Callable[[], tuple[Spider, Settings]],
    ledger_url: str,
    channel: int,
    *,
    started_at: datetime,
    measured: bool,
) -> int:
    """Crawl as a worker process, and report progress and result to the supervisor on *channel*."""
    from crawlcw.cli.processes import worker

    worker.prepare()
    supervision = worker.Supervision(channel)
    deadline.report = lambda outcome: supervision.send_exit_code(lambda: exit_code(outcome))

    def work() -> int:
        loaded_spider, settings = make()
        return loop.run(
            worker.crawl(
                loaded_spider,
                ledger_url,
                settings=settings,
                supervision=supervision,
                started_at=started_at,
                measured=measured,
            )
        )

    return deadline.report(work)


def _assigned(**options: object) -> Iterator[str]:
    """Yield each option that is not None as `NAME=VALUE`, the form of the option `-s`."""
    for name, value in options.items():
        if value is not None:
            yield f"{name}={value}"
