"""Search for tasks, in pages with a keyset cursor."""

from dataclasses import replace
from typing import Any

from crawlcw.api.request import Request
from crawlcw.dashboard.asked import FindTasks, Selection
from crawlcw.dashboard.stories import row
from crawlcw.errors import FetchError, UsageError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.task import Record, Status, key_id
from crawlcw.tracking import keys, views

#: Tasks examined by one search: takes less than 0.5 s on a ledger of any size.
SCAN_LIMIT = 10_000


async def search(ledger: Ledger, asked: FindTasks) -> dict[str, Any]:
    """Return the matching tasks, and the cursor of the rest; null: all were examined.

    A complete URL or key is looked up as well: its task comes first, however old.
    """
    wanted = replace(chosen_by(asked), containing=asked.text)
    after = views.place(asked.after) if asked.after is not None else None
    found = await ledger.queries.page(wanted, limit=asked.limit, scan_limit=SCAN_LIMIT, after=after)
    records = list(found.records)
    if asked.after is None and (exact := await _exact(ledger, asked)) is not None:
        records = [exact, *(each for each in records if each.task.id != exact.task.id)]
    return {
        "tasks": [row(record) for record in records],
        "after": None if found.after is None else views.written(found.after),
        "back_to": None if found.after is None else found.after.update_time,
        "looked_at": SCAN_LIMIT,
    }


def chosen_by(asked: Selection) -> TaskFilter:
    """Return the filter of a selection."""
    statuses = tuple(Status) if asked.status is None else [Status[s.upper()] for s in asked.status]
    return TaskFilter(
        statuses=tuple(dict.fromkeys(statuses)),
        reason=asked.reason,
        host=asked.host or None,
        url_prefix=asked.prefix or None,
        since=asked.since,
        until=asked.until,
    )


async def _exact(ledger: Ledger, asked: FindTasks) -> Record | None:
    """Return the task whose complete URL or key was typed, if it matches the filter."""
    typed = asked.prefix or asked.text
    identity = _identity(typed, tracked=ledger.kind.tracked) if typed else None
    if identity is None or (record := await ledger.tasks.get(identity)) is None:
        return None
    task, chosen = record.task, chosen_by(asked)
    fits = (
        task.status in chosen.statuses
        and chosen.reason in (None, task.reason)
        and chosen.host in (None, task.host)
        and (chosen.since is None or task.update_time >= chosen.since)
        and (chosen.until is None or task.update_time < chosen.until)
    )
    return record if fits else None


def _identity(typed: str, *, tracked: bool) -> bytes | None:
    try:
        return key_id(keys.key(typed)) if tracked else Request(typed).identity()[1]
    except (FetchError, UsageError):
        return None
