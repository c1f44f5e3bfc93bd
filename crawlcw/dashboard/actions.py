"""Actions of the dashboard: change tasks, pause and resume crawls."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, assert_never

from crawlcw.dashboard.asked import Act, Steer
from crawlcw.dashboard.searches import chosen_by
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model.durations import iso_time
from crawlcw.model.transitions import REOPEN, WITHDRAW
from crawlcw.server.refused import RefusedError


async def act(ledger: Ledger, asked: Act) -> dict[str, Any]:
    """Change tasks; return their number, or with `dry_run` the number that would change.

    Tasks held by a worker stay, and so do tasks that change during the action. `at_least` means
    that there may be more.
    """
    chosen = _chosen(asked)
    if not asked.dry_run and chosen.until is None:
        # Makes the request idempotent: changed tasks have a later time than this.
        chosen = replace(chosen, until=ledger.now() + timedelta(milliseconds=1))
    if asked.dry_run:
        count = await _count(ledger, asked, chosen)
        return {"changed": count.number, **({} if count.whole else {"at_least": True})}
    return {"changed": await _changed(ledger, asked, chosen)}


async def steer(ledger: Ledger, asked: Steer) -> dict[str, Any]:
    """Pause or resume the crawls of a ledger; raises `RefusedError`."""
    if ledger.kind.tracked:
        raise RefusedError(422, "a use case has no crawl to pause")
    paused = iso_time(ledger.now()) if asked.order == "pause" else None
    await ledger.notes.set_control({"paused": paused})
    return {"paused": paused}


async def _changed(ledger: Ledger, asked: Act, chosen: TaskFilter) -> int:
    match asked.action:
        case "retry":
            return await ledger.admin.retry_failed(chosen)
        case "ignore":
            return await ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
        case "reset":
            return await ledger.admin.reopen(chosen, anew=True)
        case _:
            assert_never(asked.action)


async def _count(ledger: Ledger, asked: Act, chosen: TaskFilter) -> Count:
    """Return the number of tasks that a change would affect."""
    if asked.action == "retry":
        return await ledger.admin.count_failed(chosen)
    change = WITHDRAW if asked.action == "ignore" else REOPEN
    parts = [chosen.freed(part, now=ledger.now()) for part in change.parts]
    return sum([await ledger.queries.count(part) for part in parts], Count(number=0))


def _chosen(asked: Act) -> TaskFilter:
    match asked:
        case Act(tasks=list() as names, selection=None):
            return TaskFilter(ids={bytes.fromhex(name) for name in names})
        case Act(tasks=None, selection=selection) if selection is not None:
            return chosen_by(selection)
        case _:
            raise RefusedError(422, "body: give either `tasks` or `selection`")
