"""`crawlcw stop`: end the running crawls of a spider, on all machines."""

import json
from datetime import datetime, timedelta

import anyio
import click

from crawlcw.cli import ledger_option, loading, loop, options, steering
from crawlcw.cli.exit_codes import OK, STILL_AT_WORK
from crawlcw.cli.numbers import counted
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import FOLLOWED_WITHIN
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.durations import format_duration, iso_time

_LOOK_EVERY = 0.25


@click.command("stop")
@click.argument("spider")
@ledger_option.ledger_option
@click.option("--wait", is_flag=True, help="Return after they have ended.")
@options.duration_option(
    "--timeout",
    default="60s",
    about="Limit of --wait; exit code 75 if a worker is still at work then.",
)
@options.json_option
@logs.log_option
def command(*, spider: str, ledger_url: str, wait: bool, timeout: timedelta, as_json: bool) -> int:
    """End the running crawls of SPIDER, on all machines, as by one SIGTERM.

    The workers read the request in the ledger. Requests under way finish within the
    crawl's `grace`, all other tasks are released. Crawls that start later are not
    affected. A killed worker on another machine counts as at work for 30 s.
    """
    name = loading.name_of(spider)
    limit = timeout if wait else None
    stopped, workers, left = loop.run(_stop(name, ledger_url, limit))
    if as_json:
        told = {"spider": name, "stopped": iso_time(stopped), "workers": workers}
        click.echo(json.dumps(told if limit is None else {**told, "left": left}))
    elif not workers:
        click.echo(f"no worker of {name} is at work")
    elif limit is None:
        takes = f"{FOLLOWED_WITHIN:g} s and what their pages take"
        click.echo(f"{name} is stopped: {counted(workers, 'worker')} will end, {takes}")
    elif left:
        late = f"{counted(left, 'worker')} still at work after {format_duration(limit)}"
        click.echo(f"{name} was asked to stop, and has {late}: `crawlcw stats {name}` lists them")
    else:
        click.echo(f"{name} is stopped: {counted(workers, 'worker')} ended")
    return STILL_AT_WORK if left and limit is not None else OK


async def _stop(name: str, ledger_url: str, limit: timedelta | None) -> tuple[datetime, int, int]:
    """Return the time, the number of workers then, and the number left after *limit*, if any."""
    instead = "SIGTERM ends its workers"
    async with steering.crawls(ledger_url, name, instead=instead) as ledger:
        stopped = ledger.now()
        workers = await steering.tell(ledger, {"stopped": iso_time(stopped)})
        left = workers if limit is None else await _left(ledger, stopped, limit)
        return stopped, workers, left


async def _left(ledger: Ledger, stopped: datetime, limit: timedelta) -> int:
    """Wait for the end of the workers started by then, at most *limit*; return the rest."""
    with anyio.move_on_after(limit.total_seconds()):
        while await steering.at_work(ledger, began_by=stopped):  # noqa: ASYNC110  # others end
            await anyio.sleep(_LOOK_EVERY)
    return await steering.at_work(ledger, began_by=stopped)
