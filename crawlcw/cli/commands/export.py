"""`crawlcw export`: write the recorded items to files or stdout."""

from collections.abc import Sequence
from datetime import timedelta

import click

from crawlcw.cli import exporting, options
from crawlcw.cli.ledger_option import Subject, ledger_command
from crawlcw.cli.options import command_line
from crawlcw.errors import UsageError
from crawlcw.feeds.export import ItemSelection, export
from crawlcw.feeds.export import follow as follow_items
from crawlcw.feeds.target import Target


@ledger_command("export")
@exporting.outputs_option(required=True, about="Write to FILE, which appears when it is complete:")
@click.option("--fields", metavar="A,B,...", help="Only these fields of each item, in this order.")
@options.duration_option(
    "--since", "fetched_within", about="Only items of pages fetched in the last 30m, 12h, 7d ..."
)
@click.option("--callback", metavar="NAME", help="Only items of pages for this callback.")
@click.option(
    "--with-meta", is_flag=True, help="Add _url and _fetched_at of the item's page to each item."
)
@click.option(
    "--versions",
    is_flag=True,
    help="Write the items of all visits that `keep_versions` keeps, not only of the last visit.",
)
@click.option(
    "--formulas",
    is_flag=True,
    help="Do not escape CSV texts that a spreadsheet would execute as formulas.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Write new items too, until the crawl is drained. This option needs -o -.",
)
async def command(
    subject: Subject,
    *,
    outputs: list[Target],
    fields: str | None,
    fetched_within: timedelta | None,
    callback: str | None,
    with_meta: bool,
    versions: bool,
    formulas: bool,
    follow: bool,
) -> None:
    """Write the items of SPIDER, with the fields that the spider yielded.

    The extension selects the format: .jsonl (one item for each line), .json (an array), .csv or
    .parquet (`pip install 'crawlcw[parquet]'`). A second extension .gz or .zst compresses the file.
    s3://, gs:// and other remote stores need `pip install 'crawlcw[remote]'`.

    FILE:CLASS writes only the items of one class: `-o books.csv:Book -o images.parquet:Image`. The
    items that a spider yields as mappings have the class `dict`.

    SPIDER names a spider as in `crawlcw run`. The tasks of a use case have results instead of
    items; `crawlcw tasks NAME --json` shows the results.
    """
    names = None if fields is None else _names(fields)
    item_selection = ItemSelection(
        fields=names,
        callback=callback,
        with_meta=with_meta,
        versions=versions,
        defuse=not formulas,
    )
    if follow and (len(outputs) > 1 or not outputs[0].is_stdout or outputs[0].format != "jsonl"):
        raise UsageError("--follow writes JSON Lines to stdout: -o - --follow")
    if follow and versions:
        raise UsageError("--follow writes new items only: leave out --versions")
    if callback is not None and versions:
        raise UsageError("--callback selects the items of last visits: leave out --versions")
    advice = f"{command_line('tasks', subject.name, '--json', '--limit', '0')} prints them"
    message = f": its tasks have results, not items: {advice}"
    async with subject.opened(crawls_only=message) as ledger:
        if fetched_within is not None:
            item_selection = item_selection.newer_than(ledger.now() - fetched_within)
        if follow:
            await follow_items(ledger, outputs[0], item_selection, stdout=exporting.stdout())
            return
        count = await export(ledger, outputs, item_selection, stdout=exporting.stdout())
    if files := [target.location for target in outputs if not target.is_stdout]:
        click.echo(f"{count:,} items in {', '.join(files)}", err=True)


def _names(fields: str) -> Sequence[str]:
    names = [name.strip() for name in fields.split(",")]
    if not all(names):
        raise UsageError(f"--fields takes names with commas between them, not {fields!r}")
    return list(dict.fromkeys(names))
