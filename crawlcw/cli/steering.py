"""Control of a spider's crawls through its ledger, for `pause`, `resume`, `set` and `stop`."""

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

#: A worker counts as dead after this silence; its heartbeat is every 5 s.
_SILENT = timedelta(seconds=30)


@asynccontextmanager
async def crawls(url: str, name: str, *, instead: str) -> AsyncIterator[Ledger]:
    """Open the ledger of a spider that has tasks, and close it afterwards.

    Raises `UsageError` for a use case; *instead* is the advice in it.
    """
    async with ledger_option.opened(url, name) as ledger:
        if ledger.kind.tracked:
            raise UsageError(f"{name} is a use case, not a crawl: {instead}")
        yield ledger


async def tell(ledger: Ledger, control: Mapping[str, Any]) -> int:
    """Record *control* for the crawls of a ledger; return the number of live workers."""
    await ledger.notes.set_control(control)
    return await at_work(ledger)


async def at_work(ledger: Ledger, *, began_by: datetime | None = None) -> int:
    """Return the number of live workers on a ledger; with *began_by*, of those started by then."""
    now = ledger.now()
    return sum(
        not is_dead(worker)
        and now - worker.heartbeat < _SILENT
        and (began_by is None or worker.started <= began_by)
        for worker in await ledger.workers.all()
    )


async def is_paused(ledger: Ledger) -> bool:
    """Return whether the crawls of a ledger are paused; False for a use case."""
    if ledger.kind.tracked:
        return False
    return Control.of(await ledger.notes.control()).paused is not None


def followed_by(workers: int) -> str:
    """Return the text that says how many workers follow a change, and how soon."""
    if not workers:
        return "no worker is at work"
    follow = "follows" if workers == 1 else "follow"
    return f"{counted(workers, 'worker')} {follow} within {FOLLOWED_WITHIN:g} s"
