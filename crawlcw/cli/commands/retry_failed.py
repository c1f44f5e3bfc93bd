"""`crawlcw retry-failed`: give tasks that failed another chance."""

import difflib
from datetime import timedelta

import click

from crawlcw.cli import ledger_option, loading, loop, selecting
from crawlcw.cli.terminal import logs
from crawlcw.errors import (
    FAILURE_REASONS,
    POLICY_REASONS,
    FetchError,
    Reason,
    UsageError,
)
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model import urls


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
        host = chosen.host
        selection = TaskFilter(
            reason=chosen.reason,
            # A stage is what it was called.
            host=host if host is None or ledger.kind.tracked else _host(host),
            since=None if age is None else ledger.now() - age,
        )
        return await ledger.admin.retry_failed(selection, dry_run=dry_run), ledger.kind.tracked


def _reason(text: str) -> Reason:
    if text in POLICY_REASONS:
        raise UsageError(
            f"{text} is no failure: such tasks were unwanted, and another attempt would end the "
            "same; change the spider or its settings"
        )
    if text not in FAILURE_REASONS:
        near = difflib.get_close_matches(text, FAILURE_REASONS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(sorted(FAILURE_REASONS))
        raise UsageError(f"there is no reason {text!r}: {hint}there are {known}")
    return Reason(text)


def _host(text: str) -> str:
    """Return the host as tasks have it; a whole URL does as well."""
    try:
        return urls.locate(text if "://" in text else f"http://{text}/").host
    except FetchError:
        raise UsageError(f"{text!r} is no host: write host or host:port") from None
