"""What the commands share that steer the crawls of a spider by its ledger."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from crawlcw.cli import ledger_option
from crawlcw.crawl.control import FOLLOWED_WITHIN
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


async def at_work(ledger: Ledger) -> int:
    """Return how many workers are at work on a ledger."""
    now = ledger.now()
    return sum(
        not is_dead(worker) and now - (worker.heartbeat or worker.started) < _SILENT
        for worker in await ledger.workers.all()
    )


def followed_by(workers: int) -> str:
    """Return who follows, and how soon."""
    if not workers:
        return "no worker is at work just now"
    who = "1 worker follows" if workers == 1 else f"{workers:,} workers follow"
    return f"{who} within {FOLLOWED_WITHIN:g} s"
