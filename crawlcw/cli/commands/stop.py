"""`crawlcw stop`: end the crawls of a spider that run, on all machines."""

import json
from datetime import datetime, timedelta

import anyio
import click

from crawlcw.cli import ledger_option, loading, loop, steering
from crawlcw.cli.exit_codes import OK, STILL_AT_WORK
from crawlcw.cli.numbers import counted
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import FOLLOWED_WITHIN, written_moment
from crawlcw.errors import SettingsError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.durations import duration, format_duration

_LOOK_EVERY = 0.25


@click.command("stop")
@click.argument("spider")
@ledger_option.ledger_option
@click.option("--wait", is_flag=True, help="Return when they have ended.")
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="With --wait, how long at most; exit code 75 where one is still at work then.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@logs.level_option
def command(
    *,
    spider: str,
    ledger_url: str,
    wait: bool,
    timeout: str,
    as_json: bool,
    log_level: str | None,
) -> int:
    """End the crawls of SPIDER that run now, on all machines, as by one SIGTERM.

    What is under way is finished within the crawl's `grace`, everything else is
    given back. A crawl that is started later is not ended. Told by the ledger.
    A worker that was killed on another machine counts for 30 s as one at work.
    """
    logs.set_up(log_level or "warning")
    name = loading.name_of(spider)
    limit = _duration(timeout) if wait else None
    stopped, workers, left = loop.run(_stop(name, ledger_url, limit))
    if as_json:
        told = {"spider": name, "stopped": written_moment(stopped), "workers": workers}
        click.echo(json.dumps(told if limit is None else {**told, "left": left}))
    elif not workers:
        click.echo(f"no worker of {name} is at work")
    elif limit is None:
        takes = f"{FOLLOWED_WITHIN:g} s and what their pages take"
        click.echo(f"{name} is stopped: {counted(workers, 'worker')} will end, {takes}")
    elif left:
        late = f"{counted(left, 'worker')} still at work after {format_duration(limit)}"
        click.echo(f"{name} is told to stop, and has {late}: `crawlcw stats {name}` shows which")
    else:
        click.echo(f"{name} is stopped: {counted(workers, 'worker')} ended")
    return STILL_AT_WORK if left and limit is not None else OK


def _duration(text: str) -> timedelta:
    try:
        return duration(text)
    except SettingsError as error:
        raise click.BadParameter(str(error), param_hint="--timeout") from None


async def _stop(name: str, ledger_url: str, limit: timedelta | None) -> tuple[datetime, int, int]:
    """Return since when, how many workers were at work, and after *limit*, if any, still are."""
    instead = "its workers are ended by SIGTERM"
    async with steering.crawls(ledger_url, name, instead=instead) as ledger:
        stopped = ledger.now()
        workers = await steering.tell(ledger, {"stopped": written_moment(stopped)})
        left = workers if limit is None else await _left(ledger, stopped, limit)
        return stopped, workers, left


async def _left(ledger: Ledger, stopped: datetime, limit: timedelta) -> int:
    """Wait until none that began by then is at work, or for *limit*; return how many are."""
    with anyio.move_on_after(limit.total_seconds()):
        while await steering.at_work(ledger, began_by=stopped):  # noqa: ASYNC110  # others end
            await anyio.sleep(_LOOK_EVERY)
    return await steering.at_work(ledger, began_by=stopped)
