"""`crawlcw drop`: delete a spider or a use case from a ledger."""

import json

import click

from crawlcw.cli import confirming, dropping, kept_bodies, ledger_option, loading, loop, options
from crawlcw.cli.terminal import logs
from crawlcw.errors import LedgerFormatError


@click.command("drop")
@click.argument("name")
@ledger_option.ledger_option
@confirming.yes_option
@options.json_option
@logs.log_option
def command(*, name: str, ledger_url: str, yes: bool, as_json: bool) -> None:
    """Delete all data of NAME, a spider or a use case.

    Deletes its tasks, items, hosts and notes. Refused while workers are at work on
    it. An SQLite file keeps its size and reuses the space. Files of `keep_bodies` or
    `save_to` stay.
    """
    name = loading.name_of(name)
    count = loop.run(_drop(name, ledger_url, yes=yes))
    if as_json:
        click.echo(json.dumps({"name": name, "tasks": count}))
    else:
        tasks = "" if count is None else f", with {count:,} tasks"
        click.echo(f"{name} was deleted from the ledger{tasks}")
    if (left := kept_bodies.left(name, ledger_option.own_settings())) is not None:
        click.echo(left, err=True)


async def _drop(name: str, ledger_url: str, *, yes: bool) -> int | None:
    """Return how many tasks it had; None: they cannot be counted."""
    try:
        async with ledger_option.opened(ledger_url, name) as ledger:
            return await dropping.drop(ledger, name, yes=yes)
    except LedgerFormatError:
        settings = ledger_option.own_settings()
        await dropping.drop_unread(name, ledger_url, settings=settings, yes=yes)
        return None
