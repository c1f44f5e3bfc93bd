"""Origin of a page: the chain of pages that link to it, and the chain of its redirects."""

from collections.abc import AsyncIterator

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Record, Task

#: Limit of the chain of links.
_MOST_PARENTS = 50


async def pages_above(ledger: Ledger, task: Task) -> AsyncIterator[Task]:
    """Yield the page with the link to *task*, the page with the link to that, up to the start."""
    for _ in range(_MOST_PARENTS):
        if task.parent is None or (record := await ledger.tasks.get(task.parent)) is None:
            return
        task = record.task
        yield task


async def pages_ahead(ledger: Ledger, record: Record) -> AsyncIterator[Record]:
    """Yield the target of a redirect, the target of that, up to a page.

    In a loop the first repeated task is yielded again, as the last one.
    """
    seen = {record.task.id}
    while (target := record.leads_to) is not None and (found := await ledger.tasks.get(target)):
        yield found
        if target in seen or len(seen) >= _MOST_PARENTS:
            return
        seen.add(target)
        record = found
