"""What the commands share that steer the crawls of a spider by its ledger."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from crawlcw.cli import ledger_option
from crawlcw.cli.numbers import counted
from crawlcw.crawl.control import FOLLOWED_WITHIN, Control
from crawlcw.engine.workers import is_dead
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger

#: A worker that was silent for so long is not counted on; it beats every 5 s.
_SILENT = timedelta(seconds=30)


@asynccontextmanager
async def crawls(url: str, name: str, *, instead: str) -> AsyncIterator[Ledger]:
    """Open the ledger of a spider that has tasks in it, and close it afterwards.

    Raises `UsageError` for a use case; *instead* says what there is for one.
    """
    async with ledger_option.opened(url, name) as ledger:
        if ledger.kind.tracked:
            raise UsageError(f"{name} is a use case, and no crawl: {instead}")
        yield ledger


async def tell(ledger: Ledger, control: Mapping[str, Any]) -> int:
    """Write down what the crawls of a ledger are to follow; return how many workers do."""
    await ledger.notes.set_control(control)
    return await at_work(ledger)


async def at_work(ledger: Ledger, *, began_by: datetime | None = None) -> int:
    """Return how many workers are at work on a ledger, or how many of those that began by then."""
    now = ledger.now()
    return sum(
        not is_dead(worker)
        and now - (worker.heartbeat or worker.started) < _SILENT
        and (began_by is None or worker.started <= began_by)
        for worker in await ledger.workers.all()
    )


async def is_paused(ledger: Ledger) -> bool:
    """Return whether the crawls of a ledger are to begin with nothing; a use case has none."""
    if ledger.kind.tracked:
        return False
    return Control.of(await ledger.notes.control()).paused is not None


def followed_by(workers: int) -> str:
    """Return who follows, and how soon."""
    if not workers:
        return "no worker is at work just now"
    follow = "follows" if workers == 1 else "follow"
    return f"{counted(workers, 'worker')} {follow} within {FOLLOWED_WITHIN:g} s"
