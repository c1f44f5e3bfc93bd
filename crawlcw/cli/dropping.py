"""Taking a spider or a use case out of a ledger, for `drop` and `run --fresh`."""

from datetime import timedelta

import click

from crawlcw.api.settings import Settings
from crawlcw.assembly import open_ledger
from crawlcw.cli import confirming, kept_bodies
from crawlcw.engine.workers import is_dead
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status

#: A worker on another machine that was silent for so long is taken for dead: its leases have ended.
_SILENT = timedelta(minutes=10)
_MOST_NAMED = 5


async def drop(ledger: Ledger, name: str, *, yes: bool) -> int:
    """Take everything of *name* away, unless the user says no; return how many tasks it had.

    Raises `UsageError` where workers are at work on it.
    """
    await check_idle(ledger, name)
    total = (await ledger.queries.counts()).total
    items = await ledger.queries.item_count()
    confirming.confirm(f"Drop {total:,} tasks and {items:,} items of {name}, for good?", yes=yes)
    await ledger.admin.drop()
    return total


async def begin_anew(name: str, ledger_url: str, *, settings: Settings, yes: bool) -> None:
    """Take away what is recorded of a spider, if anything is."""
    ledger = await open_ledger(ledger_url, name, settings=settings)
    try:
        if await ledger.queries.has(tuple(Status)):
            await drop(ledger, name, yes=yes)
            if (left := kept_bodies.left(name, settings)) is not None:
                click.echo(left, err=True)
    finally:
        await ledger.close()


async def check_idle(ledger: Ledger, name: str) -> None:
    """Raise `UsageError` where workers are at work on a ledger."""
    now = ledger.now()
    alive = [
        worker
        for worker in await ledger.workers.all()
        if not is_dead(worker) and now - (worker.heartbeat or worker.started) < _SILENT
    ]
    if alive:
        named = ", ".join(
            printable(f"process {each.pid} on {each.host}") for each in alive[:_MOST_NAMED]
        )
        raise UsageError(
            f"{len(alive)} worker{'s' if len(alive) > 1 else ''} of {name} "
            f"{'are' if len(alive) > 1 else 'is'} at work ({named}): stop them first"
        )
