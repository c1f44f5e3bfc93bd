"""`crawlcw resume`: resume paused crawls of a spider."""

import json

import click

from crawlcw.cli import ledger_option, loading, loop, options, steering
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import Control


@click.command("resume")
@click.argument("spider")
@ledger_option.ledger_option
@options.json_option
@logs.log_option
def command(*, spider: str, ledger_url: str, as_json: bool) -> None:
    """Resume the crawls of SPIDER after `crawlcw pause`."""
    name = loading.name_of(spider)
    was_paused, workers = loop.run(_resume(name, ledger_url))
    if as_json:
        told = {"spider": name, "paused": None, "was_paused": was_paused, "workers": workers}
        click.echo(json.dumps(told))
    elif not was_paused:
        click.echo(f"{name} is not paused")
    elif workers:
        click.echo(f"{name} is resumed: {steering.followed_by(workers)}")
    else:
        click.echo(f"{name} is no longer paused: `crawlcw run {spider}` continues the crawl")


async def _resume(name: str, ledger_url: str) -> tuple[bool, int]:
    """Return whether it was paused, and the number of live workers."""
    instead = "`crawlcw work` works on its tasks"
    async with steering.crawls(ledger_url, name, instead=instead) as ledger:
        was_paused = Control.of(await ledger.notes.control()).paused is not None
        return was_paused, await steering.tell(ledger, {"paused": None})
