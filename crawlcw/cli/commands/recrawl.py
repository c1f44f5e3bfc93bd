"""`crawlcw recrawl`: let finished pages be visited again."""

from collections.abc import Sequence
from datetime import timedelta

import click

from crawlcw.cli import confirming, ledger_option, loading, loop, selecting
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.task import Status


@click.command("recrawl")
@click.argument("spider")
@click.argument("urls", nargs=-1, metavar="[URL...]")
@ledger_option.ledger_option
@click.option(
    "--older-than", metavar="DURATION", help="Only what was visited longer ago: 12h, 7d ..."
)
@click.option("--host", metavar="H", help="Only pages of this host (`host`, or `host:port`).")
@confirming.yes_option
@logs.level_option
def command(
    *,
    spider: str,
    urls: tuple[str, ...],
    ledger_url: str,
    older_than: str | None,
    host: str | None,
    yes: bool,
    log_level: str | None,
) -> None:
    """Let the next run visit the finished pages of SPIDER again, or only those of the URLs.

    Servers are asked whether a page has changed since its last visit. Where it
    has not, it keeps its items and is not parsed; else the new items take the
    place of the old ones. Where the spider has changed and all pages are to be
    parsed anew, use `crawlcw reset`.
    """
    logs.set_up(log_level or "warning")
    age = None if older_than is None else selecting.age(older_than, option="--older-than")
    name = loading.name_of(spider)
    if host is not None:
        host = selecting.host(host)
    if not urls:
        confirming.confirm(_question(name, older_than, host), yes=yes)
    count = loop.run(_recrawl(name, ledger_url, urls, host, age))
    pages = "1 page" if count == 1 else f"{count:,} pages"
    how = f" by `crawlcw run {spider}`" if count else ""
    click.echo(f"{pages} will be visited again{how}")


def _question(name: str, older_than: str | None, host: str | None) -> str:
    where = f" of {host}" if host else ""
    when = f" that were visited more than {older_than} ago" if older_than else ""
    return f"Visit all finished pages{where} of {name}{when} again?"


async def _recrawl(
    name: str, ledger_url: str, urls: Sequence[str], host: str | None, age: timedelta | None
) -> int:
    async with ledger_option.opened(ledger_url, name) as ledger:
        if ledger.kind.tracked:
            raise UsageError(
                f"{name} is a use case, whose tasks are no pages: "
                f"`crawlcw reset {name}` lets them begin anew"
            )
        return await ledger.admin.revisit(_chosen(ledger, urls, host, age))


def _chosen(
    ledger: Ledger, urls: Sequence[str], host: str | None, age: timedelta | None
) -> TaskFilter:
    now = ledger.now()
    return TaskFilter(
        ids={selecting.task_of(ledger, url) for url in urls} if urls else None,
        statuses=(Status.FINISHED,),
        host=host,
        until=now + timedelta(milliseconds=1) if age is None else now - age,
    )
