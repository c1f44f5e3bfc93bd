"""From a page back to the start: the pages that its link, and their own, were found on."""

from collections.abc import AsyncIterator

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Task

#: So many pages of the chain of links that led to a task are named.
_MOST_PARENTS = 50


async def pages_above(ledger: Ledger, task: Task) -> AsyncIterator[Task]:
    """Yield the page that the link was found on, the page of that, up to the start."""
    for _ in range(_MOST_PARENTS):
        if task.parent is None or (record := await ledger.tasks.get(task.parent)) is None:
            return
        task = record.task
        yield task
