"""`crawlcw drop`: delete a spider or a use case from a ledger."""

import json

import click

from crawlcw.cli import dropping, options
from crawlcw.cli.ledger_option import Subject, ledger_command
from crawlcw.errors import LedgerFormatError


@ledger_command("drop", argument="name")
@options.yes_option
@options.json_option
async def command(subject: Subject, *, yes: bool, as_json: bool) -> None:
    """Delete all data of NAME, a spider or a use case.

    The command deletes the tasks, items, hosts and notes of NAME. The command deletes nothing if
    workers are at work on NAME; `crawlcw stop NAME --wait` ends them. An SQLite file keeps its
    size; later data uses the free space. The command does not delete files of `keep_bodies` and
    `save_to`.
    """
    name, settings = subject.name, options.settings_of()
    try:
        async with subject.opened() as ledger:
            count: int | None = await dropping.drop(ledger, name, yes=yes)
    except LedgerFormatError:
        await dropping.drop_unreadable(name, subject.ledger_url, settings=settings, yes=yes)
        count = None
    if as_json:
        click.echo(json.dumps({"name": name, "tasks": count}))
    else:
        tasks = "" if count is None else f", with {count:,} tasks"
        click.echo(f"{name} was deleted from the ledger{tasks}")
    if (files_note := dropping.files_left(name, settings)) is not None:
        click.echo(files_note, err=True)
