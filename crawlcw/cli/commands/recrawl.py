"""`crawlcw recrawl`: set finished pages to todo again."""

from dataclasses import replace

import click

from crawlcw.cli import confirming, ledger_option, loading, loop, selecting
from crawlcw.cli.numbers import counted
from crawlcw.cli.selection import (
    Selection,
    dry_run_option,
    from_now,
    selection_options,
    tell_count,
)
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Count
from crawlcw.model.task import Status
from crawlcw.model.transitions import REVISIT


@click.command("recrawl")
@click.argument("spider")
@click.argument("urls", nargs=-1, metavar="[URL...]")
@ledger_option.ledger_option
@click.option("--older-than", metavar="DURATION", help="Only pages visited longer ago: 12h, 7d ...")
@selection_options(statuses=REVISIT.from_statuses)
@dry_run_option
@confirming.yes_option
@logs.log_option
def command(
    *,
    spider: str,
    urls: tuple[str, ...],
    ledger_url: str,
    older_than: str | None,
    selection: Selection,
    dry_run: bool,
    as_json: bool,
    yes: bool,
) -> None:
    """Let the next run visit the finished pages of SPIDER again, or only the given URLs.

    The requests are conditional: a page that has not changed since its last visit
    keeps its items and is not parsed; otherwise the new items replace the old ones.
    To parse all pages again after a change of the spider, use `crawlcw reset`. With
    --status ignored, or a --reason, it applies to ignored pages instead of finished
    ones.
    """
    age = None if older_than is None else selecting.age(older_than, option="--older-than")
    name = loading.name_of(spider)
    if selection.host is not None:
        selection = replace(selection, host=selecting.host(selection.host))
    # Only ignored pages have a reason.
    usual = Status.FINISHED if selection.reason is None else Status.IGNORED
    statuses = selection.statuses or (usual,)
    when = f" that were visited more than {older_than} ago" if older_than else ""
    finished = " finished" if statuses == (Status.FINISHED,) else ""

    async def recrawl() -> Count:
        async with ledger_option.opened(ledger_url, name) as ledger:
            if ledger.kind.tracked:
                raise UsageError(
                    f"{name} is a use case: its tasks are not pages; `crawlcw reset {name}` "
                    "starts them again"
                )
            if not urls and not dry_run:
                question = f"Visit all{finished} pages of {name}{selection.which}{when} again?"
                confirming.confirm(question, yes=yes)
            now = None if dry_run else from_now(ledger)
            until = now if age is None else ledger.now() - age
            chosen = selection.filter(ledger, until=until).among(statuses)
            # The other options narrow the named URLs.
            chosen = replace(chosen, ids={selecting.task_of(ledger, url) for url in urls} or None)
            if dry_run:
                return await ledger.queries.count(chosen)
            return Count(number=await ledger.admin.revisit(chosen))

    count = loop.run(recrawl())
    how = f" by `crawlcw run {spider}`" if count.number and not dry_run else ""
    said = f"{counted(count, 'page')} {'would' if dry_run else 'will'} be visited again{how}"
    tell_count(count, said, dry_run=dry_run, as_json=as_json)
