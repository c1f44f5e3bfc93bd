"""`crawlcw export`: the items that are recorded in a ledger."""

from pathlib import Path

import click

from crawlcw.cli import exporting, ledger_option, loading, loop
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError


@click.command("export")
@click.argument("spider")
@ledger_option.ledger_option
@click.option(
    "-o",
    "output",
    metavar="FILE",
    required=True,
    help="Where to; - is stdout. The file appears when it is whole.",
)
@click.option(
    "--with-meta", is_flag=True, help="Add _url and _fetched_at of the item's page to each item."
)
@logs.level_option
def command(
    *, spider: str, ledger_url: str, output: str, with_meta: bool, log_level: str | None
) -> None:
    """Write the items of SPIDER as JSON Lines.

    One item a line, as the spider yielded it. SPIDER is a spider's name, or
    anything that `crawlcw run` takes. The tasks of a use case have results
    instead of items: `crawlcw tasks` shows them.
    """
    logs.set_up(log_level or "warning")
    loop.run(_export(loading.name_of(spider), ledger_url, output, with_meta=with_meta))


async def _export(name: str, ledger_url: str, output: str, *, with_meta: bool) -> None:
    if output != "-":
        exporting.check_writable(Path(output))
    async with ledger_option.opened(ledger_url, name) as ledger:
        if ledger.kind.tracked:
            raise UsageError(
                f"{name} is a use case, whose tasks have results and no items: "
                f"`crawlcw tasks {name} --json --limit 0` prints them"
            )
        if output == "-":
            await exporting.to_stdout(ledger, with_meta=with_meta)
        else:
            count = await exporting.to_file(ledger, Path(output), with_meta=with_meta)
            click.echo(f"{count:,} items in {output}", err=True)
