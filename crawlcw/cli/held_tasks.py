"""Held tasks, when a command changes tasks: those of live workers, and orphaned ones."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from crawlcw.engine.workers import dead_workers
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model.task import Status

_HELD = (Status.PROCESSING,)


async def to_be_changed(
    ledger: Ledger, chosen: TaskFilter, statuses: Collection[Status]
) -> tuple[Count, int]:
    """Return the numbers of tasks that a change would affect, and would leave alone; write nothing.

    It affects tasks with these *statuses* and orphaned leases, and leaves alone those
    that live workers hold.
    """
    count = await ledger.queries.count(chosen.among(statuses))
    free = await _free_number(ledger, chosen)
    return count + Count(number=free), await held_number(ledger, chosen) - free


async def held_number(ledger: Ledger, chosen: TaskFilter, *, until: datetime | None = None) -> int:
    """Return the number of chosen tasks that are held; with *until*, of those claimed before."""
    held = chosen.among(_HELD)
    if not held.statuses:
        return 0
    return (await ledger.queries.count(replace(held, until=until or held.until))).number


def said_at_work(count: int) -> str:
    """Return the text about held tasks that follows the number of changed ones."""
    if not count:
        return ""
    return f"; {count:,} left alone: workers are at work on {'it' if count == 1 else 'them'}"


async def _free_number(ledger: Ledger, chosen: TaskFilter) -> int:
    """Return the number of orphaned tasks: their leases ran out, or their workers are dead."""
    held = chosen.among(_HELD)
    if not held.statuses:
        return 0
    now = ledger.now()
    expired = await ledger.queries.count(replace(held, due_by=now))
    ids = {
        lease.task.id
        for worker in await dead_workers(ledger)
        for lease in await ledger.leases.held(worker.name)
        if lease.expires > now and (chosen.ids is None or lease.task.id in chosen.ids)
    }
    dead = await ledger.queries.count(replace(held, ids=ids)) if ids else Count(number=0)
    return (expired + dead).number
