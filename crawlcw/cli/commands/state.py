"""`crawlcw state`: show a spider's `self.state`."""

import click

from crawlcw.cli import ledger_option, loading, loop
from crawlcw.cli.terminal import logs
from crawlcw.feeds import escaping
from crawlcw.model import spider_state, values
from crawlcw.model.sanitize import printable


@click.command("state")
@click.argument("spider")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@ledger_option.ledger_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@logs.log_option
def command(*, spider: str, names: tuple[str, ...], ledger_url: str, as_json: bool) -> None:
    """Show the `self.state` of SPIDER: each NAME, or all, with its value as JSON.

    It includes changes by pages that a crash interrupted, which will run again.
    """
    found = loop.run(_read(loading.name_of(spider), ledger_url))
    shown = {name: found[name] for name in sorted(found) if not names or name in names}
    if as_json:
        click.echo(escaping.visible(values.to_json(shown)))
        return
    for name, value in shown.items():
        click.echo(f"{printable(name)} = {escaping.visible(values.to_json(value))}")


async def _read(name: str, ledger_url: str) -> dict[str, object]:
    async with ledger_option.opened(ledger_url, name) as ledger:
        return spider_state.seen(await ledger.spider_state.read())
