"""`crawlcw state`: show a spider's `self.state`."""

import click

from crawlcw.cli.ledger_option import Subject, ledger_command
from crawlcw.feeds import escaping
from crawlcw.model import spider_state, values
from crawlcw.model.sanitize import printable
from crawlcw.model.task import PRIVATE_KEY


@ledger_command("state")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
async def command(subject: Subject, *, names: tuple[str, ...], as_json: bool) -> None:
    """Show the values in `self.state` of SPIDER as JSON: the values of each NAME, or all values.

    If a crash interrupted a page, the values may already include changes by the page's callback,
    although the page will be tried again. `crawlcw reset SPIDER --state` deletes the state.
    """
    async with subject.opened() as ledger:
        state_values = spider_state.visible_values(await ledger.spider_state.read())
    selected_values = {
        name: state_values[name]
        for name in sorted(state_values)
        if (not names or name in names) and not name.startswith(PRIVATE_KEY)
    }
    if as_json:
        click.echo(escaping.visible(values.to_json(selected_values)))
        return
    for name, value in selected_values.items():
        click.echo(f"{printable(name)} = {escaping.visible(values.to_json(value))}")
