"""`crawlcw retry-failed`: give tasks that failed another chance."""

from dataclasses import replace
from datetime import timedelta

import click

from crawlcw.cli import ledger_option, loading, loop, selecting
from crawlcw.cli.terminal import logs
from crawlcw.errors import (
    FAILURE_REASONS,
    POLICY_REASONS,
    Reason,
    UsageError,
)
from crawlcw.ledger.protocol import TaskFilter


@click.command("retry-failed")
@click.argument("spider")
@ledger_option.ledger_option
@click.option("--reason", metavar="R", help="Only what failed for this reason.")
@click.option(
    "--host",
    metavar="H",
    help="Only tasks of this host (`host`, or `host:port`); of a use case, of this stage.",
)
@click.option("--since", metavar="DURATION", help="Only what failed in the last 30m, 12h, 30d ...")
@click.option("--dry-run", is_flag=True, help="Only say how many.")
@logs.level_option
def command(
    *,
    spider: str,
    ledger_url: str,
    reason: str | None,
    host: str | None,
    since: str | None,
    dry_run: bool,
    log_level: str | None,
) -> None:
    """Make failed tasks of SPIDER todo again, as if never tried.

    SPIDER is a spider's name, anything that `crawlcw run` takes, or the name of
    a use case. Failed are tasks that wait for another attempt, and those given
    up; not those that were unwanted (robots.txt, out of scope ...).
    """
    logs.set_up(log_level or "warning")
    chosen = TaskFilter(reason=None if reason is None else _reason(reason), host=host)
    age = None if since is None else selecting.age(since)
    name = loading.name_of(spider)
    count, tracked = loop.run(_retry(name, ledger_url, chosen, age=age, dry_run=dry_run))
    tasks = "1 task" if count == 1 else f"{count:,} tasks"
    if dry_run:
        click.echo(f"{tasks} would be tried again")
    else:
        # Who works on a use case is not ours to say.
        how = f" by `crawlcw run {spider}`" if count and not tracked else ""
        click.echo(f"{tasks} will be tried again{how}")


async def _retry(
    name: str, ledger_url: str, chosen: TaskFilter, *, age: timedelta | None, dry_run: bool
) -> tuple[int, bool]:
    """Return how many tasks there were, and whether they are a use case's."""
    async with ledger_option.opened(ledger_url, name) as ledger:
        tracked = ledger.kind.tracked
        if chosen.host is not None and not tracked:  # a stage is what it was called
            chosen = replace(chosen, host=selecting.host(chosen.host))
        if age is not None:
            chosen = replace(chosen, since=ledger.now() - age)
        return await ledger.admin.retry_failed(chosen, dry_run=dry_run), tracked


def _reason(text: str) -> Reason:
    if text in POLICY_REASONS:
        raise UsageError(
            f"{text} is no failure: such tasks were unwanted, and another attempt would end the "
            "same; change the spider or its settings"
        )
    return selecting.any_reason(text, FAILURE_REASONS)
