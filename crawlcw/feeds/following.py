"""Export items while a crawl records them: the existing ones, then each new one."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import BinaryIO

from crawlcw.feeds.export import Wanted, fields_of
from crawlcw.feeds.forms import JsonLines
from crawlcw.ledger.protocol import ItemRow, Ledger, TaskFilter
from crawlcw.model.task import Record, Status

#: Seconds between two polls of the ledger.
_EVERY = 1.0
#: How far back each poll looks: an outcome may be written later than its time.
_LATE = timedelta(minutes=1)


async def follow(ledger: Ledger, wanted: Wanted, *, stdout: BinaryIO, every: float = _EVERY) -> int:
    """Write all items to *stdout* as JSON Lines, until the ledger is drained; return their number.

    Items of a page that is fetched again are written again. An outcome that is written
    more than a minute after its time may be missed.
    """
    lines = JsonLines(stdout)
    count = 0
    async with aclosing(_rows(ledger, wanted, stdout.flush, every)) as rows:
        async for row in rows:
            lines.write(fields_of(row, wanted))
            count += 1
    return count


async def _rows(
    ledger: Ledger, wanted: Wanted, shown: Callable[[], None], every: float
) -> AsyncGenerator[ItemRow, None]:
    """Yield items; *shown* is called after each poll."""
    finished = TaskFilter(statuses=(Status.FINISHED,), since=wanted.since)
    start = ledger.now() - _LATE
    async for row in ledger.queries.items(replace(finished, until=start)):
        yield row
    known: dict[tuple[bytes, int], datetime] = {}  #: visits of the last minute
    drained = False
    while True:
        now = ledger.now()
        since = max(start, now - _LATE, wanted.since or start)
        chosen = replace(finished, since=since)
        # The oldest first.
        for found in [record async for record in ledger.queries.walk(chosen)][::-1]:
            visit = (found.task.id, found.task.settled)
            if visit in known:
                continue
            known[visit] = found.task.update_time
            for row in await _items(ledger, found):
                yield row
        known = {visit: at for visit, at in known.items() if at >= since}
        shown()
        if drained:
            return
        # Checked before the last poll, which then finds all items recorded by now.
        drained = await ledger.queries.horizon() is None
        if not drained:
            await asyncio.sleep(every)


async def _items(ledger: Ledger, found: Record) -> list[ItemRow]:
    whole = await ledger.tasks.get(found.task.id)
    if whole is None:
        return []
    url = whole.response.final_url if whole.response else whole.task.url
    return [
        ItemRow(item=dict(item), url=url, fetched_at=whole.task.update_time) for item in whole.items
    ]
