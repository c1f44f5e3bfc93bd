"""`crawlcw run`: crawl a spider's site into its ledger."""

from collections.abc import Sequence

import click

from crawlcw.api.spider import Spider
from crawlcw.cli import loading, options
from crawlcw.cli.deadline import deadline
from crawlcw.cli.running import RunOptions, crawl, run_options


@click.command("run")
@click.argument("spider")
@options.arguments_option
@run_options
def command(run: RunOptions, *, spider: str, arguments: tuple[str, ...]) -> int:
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

    def load(assignments: Sequence[str]) -> tuple[Spider, Sequence[str]]:
        loaded_spider, remaining = loading.load(spider, arguments, assignments)
        deadline.add_user_package(type(loaded_spider))
        return loaded_spider, remaining

    return crawl(load, run)
