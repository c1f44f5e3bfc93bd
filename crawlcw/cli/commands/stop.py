"""`crawlcw stop`: end the crawls of a spider that run, on all machines."""

import click

from crawlcw.cli import ledger_option, loading, loop, steering
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import FOLLOWED_WITHIN, written_moment


@click.command("stop")
@click.argument("spider")
@ledger_option.ledger_option
@logs.level_option
def command(*, spider: str, ledger_url: str, log_level: str | None) -> None:
    """End the crawls of SPIDER that run now, on all machines, as by one SIGTERM.

    What is under way is finished within the crawl's `grace`, everything else is
    given back. A crawl that is started later is not ended. Told by the ledger.
    """
    logs.set_up(log_level or "warning")
    name = loading.name_of(spider)
    workers = loop.run(_stop(name, ledger_url))
    if workers:
        who = "1 worker" if workers == 1 else f"{workers:,} workers"
        click.echo(
            f"{name} is stopped: {who} will end, {FOLLOWED_WITHIN:g} s and what their pages take"
        )
    else:
        click.echo(f"no worker of {name} is at work")


async def _stop(name: str, ledger_url: str) -> int:
    instead = "its workers are ended by SIGTERM"
    async with steering.crawls(ledger_url, name, instead=instead) as ledger:
        return await steering.tell(ledger, {"stopped": written_moment(ledger.now())})
