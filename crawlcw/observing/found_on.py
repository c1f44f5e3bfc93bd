"""A page's neighbours: those that its link was found on, and those that its redirect leads to."""

from collections.abc import AsyncIterator

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Record, Task

#: So many pages of the chain of links that led to a task are named.
_MOST_PARENTS = 50


async def pages_above(ledger: Ledger, task: Task) -> AsyncIterator[Task]:
    """Yield the page that the link was found on, the page of that, up to the start."""
    for _ in range(_MOST_PARENTS):
        if task.parent is None or (record := await ledger.tasks.get(task.parent)) is None:
            return
        task = record.task
        yield task


async def pages_ahead(ledger: Ledger, record: Record) -> AsyncIterator[Record]:
    """Yield the task that a redirect leads to, the one that this one leads to, up to a page.

    A task that comes again is yielded once more, and is the last.
    """
    seen = {record.task.id}
    while (target := record.leads_to) is not None and (found := await ledger.tasks.get(target)):
        yield found
        if target in seen or len(seen) >= _MOST_PARENTS:
            return
        seen.add(target)
        record = found
