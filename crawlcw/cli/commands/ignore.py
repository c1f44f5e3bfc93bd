"""`crawlcw ignore`: let nobody work on certain tasks any more."""

import click

from crawlcw.cli import ledger_option, loading, loop, selecting
from crawlcw.cli.terminal import logs
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import TaskFilter


@click.command("ignore")
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@ledger_option.ledger_option
@logs.level_option
def command(*, name: str, keys: tuple[str, ...], ledger_url: str, log_level: str | None) -> None:
    """Withdraw tasks of NAME, a use case or a spider, that wait to be done.

    KEY is a task's key, or its URL in a crawl. Tasks that are done, or that a
    worker holds just now, are left alone. `crawlcw reset` brings the others back.
    """
    logs.set_up(log_level or "warning")
    count = loop.run(_ignore(loading.name_of(name), ledger_url, keys))
    click.echo(f"{count:,} of {len(set(keys)):,} withdrawn")


async def _ignore(name: str, ledger_url: str, keys: tuple[str, ...]) -> int:
    async with ledger_option.opened(ledger_url, name) as ledger:
        chosen = TaskFilter(ids={selecting.task_of(ledger, key) for key in keys})
        return await ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
