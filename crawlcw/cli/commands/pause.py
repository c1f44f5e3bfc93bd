"""`crawlcw pause`: pause the running crawls of a spider."""

import json

import click

from crawlcw.cli import ledger_option, loading, loop, options, steering
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import Control
from crawlcw.model.durations import iso_time


@click.command("pause")
@click.argument("spider")
@ledger_option.ledger_option
@options.json_option
@logs.log_option
def command(*, spider: str, ledger_url: str, as_json: bool) -> None:
    """Pause the crawls of SPIDER, on all machines, until `crawlcw resume`.

    Requests under way finish, all other tasks are released, and the processes wait.
    A crawl that starts during the pause waits as well.
    """
    name = loading.name_of(spider)
    paused, known, workers = loop.run(_pause(name, ledger_url))
    if as_json:
        click.echo(json.dumps({"spider": name, "paused": paused, "workers": workers}))
        return
    already = " already" if known else ""
    click.echo(f"{name} is paused{already}: {steering.followed_by(workers)}")


async def _pause(name: str, ledger_url: str) -> tuple[str, bool, int]:
    """Return the start of the pause, whether it was paused before, and the number of workers."""
    instead = "SIGTERM ends its workers, and `crawlcw work` resumes"
    async with steering.crawls(ledger_url, name, instead=instead) as ledger:
        before = Control.of(await ledger.notes.control()).paused
        if before is not None:
            return iso_time(before), True, await steering.at_work(ledger)
        paused = iso_time(ledger.now())
        return paused, False, await steering.tell(ledger, {"paused": paused})
