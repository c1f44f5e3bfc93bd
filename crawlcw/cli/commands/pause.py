"""`crawlcw pause`: let the crawls of a spider begin with nothing more."""

import click

from crawlcw.cli import ledger_option, loading, loop, steering
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import Control, written_moment


@click.command("pause")
@click.argument("spider")
@ledger_option.ledger_option
@logs.level_option
def command(*, spider: str, ledger_url: str, log_level: str | None) -> None:
    """Let the crawls of SPIDER begin with nothing more, on all machines, until `crawlcw resume`.

    What is under way is finished, everything else is given back, and the
    processes wait. A crawl that is started meanwhile waits as well.
    """
    logs.set_up(log_level or "warning")
    name = loading.name_of(spider)
    known, workers = loop.run(_pause(name, ledger_url))
    already = " already" if known else ""
    click.echo(f"{name} is paused{already}: {steering.followed_by(workers)}")


async def _pause(name: str, ledger_url: str) -> tuple[bool, int]:
    """Return whether it was paused before, and how many workers follow."""
    instead = "its workers are ended by SIGTERM, and `crawlcw work` goes on"
    async with steering.crawls(ledger_url, name, instead=instead) as ledger:
        if Control.of(await ledger.notes.control()).paused is not None:
            return True, await steering.at_work(ledger)
        return False, await steering.tell(ledger, {"paused": written_moment(ledger.now())})
