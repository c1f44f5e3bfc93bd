"""Delete a spider's or a use case's data from a ledger, for `drop` and `run --fresh`."""

from datetime import timedelta
from pathlib import Path

import click

from crawlcw.api.settings import Settings
from crawlcw.archive.bodies import folder_of
from crawlcw.cli.ledger_option import closing
from crawlcw.cli.numbers import counted
from crawlcw.cli.options import confirm
from crawlcw.engine.workers import is_dead
from crawlcw.errors import LedgerFormatError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import discard, open_ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status

#: A worker on another machine counts as dead if its last heartbeat is older than this.
_MAX_SILENCE = timedelta(minutes=10)
_MAX_NAMED = 5
#: Maximum number of tasks whose items are counted; a million tasks would take seconds.
_SCAN_LIMIT = 10_000


async def drop(ledger: Ledger, name: str, *, yes: bool) -> int:
    """Delete all data of *name* if the user confirms; return the number of deleted tasks.

    Raises `UsageError` if workers are at work on *name*.
    """
    await check_idle(ledger, name)
    total = (await ledger.queries.counts()).total
    items = await ledger.queries.item_count_within(scan_limit=_SCAN_LIMIT)
    confirm(f"Drop {total:,} tasks and {items} items of {name}, for good?", yes=yes)
    await ledger.admin.drop()
    return total


async def drop_unreadable(name: str, ledger_url: str, *, settings: Settings, yes: bool) -> None:
    """If the user confirms, delete all data of *name* that another version of crawlcw wrote.

    Ignores running workers, because only the other version can read the records of workers.
    """
    confirm(
        f"Drop everything of {name}, which another version of crawlcw wrote, for good?", yes=yes
    )
    await discard(ledger_url, name, settings=settings)


async def clear(name: str, ledger_url: str, *, settings: Settings, yes: bool) -> None:
    """Delete the recorded data of a spider, if there is any."""
    try:
        async with closing(open_ledger(ledger_url, name, settings=settings)) as ledger:
            if await ledger.queries.has(tuple(Status)):
                await drop(ledger, name, yes=yes)
                if (files_note := files_left(name, settings)) is not None:
                    click.echo(files_note, err=True)
    except LedgerFormatError:
        await drop_unreadable(name, ledger_url, settings=settings, yes=yes)


async def check_idle(ledger: Ledger, name: str) -> None:
    """Raise `UsageError` if workers are at work on a ledger."""
    now = ledger.now()
    workers = [
        worker
        for worker in await ledger.workers.all()
        if not is_dead(worker) and now - worker.heartbeat < _MAX_SILENCE
    ]
    if workers:
        names = ", ".join(
            printable(f"process {process.pid} on {process.host}")
            for process in workers[:_MAX_NAMED]
        )
        verb = "is" if len(workers) == 1 else "are"
        raise UsageError(
            f"{counted(len(workers), 'worker')} of {name} {verb} at work ({names}): stop them first"
        )


def files_left(name: str, settings: Settings) -> str | None:
    """Return a sentence about the WARC files of a spider, or None if there are no files."""
    folder = folder_of(name, settings)
    sizes = _sizes(folder)
    if not sizes:
        return None
    summary = f"{counted(len(sizes), 'file')}, {counted(sum(sizes), 'byte')}"
    return printable(f"the pages that it kept stay in {folder}: {summary}", limit=400)


def _sizes(folder: Path) -> list[int]:
    try:
        return [path.stat().st_size for path in folder.glob("*.warc.gz*")]
    except OSError:
        return []
