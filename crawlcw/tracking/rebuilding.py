"""Saying anew which keys wait, while workers are at it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from crawlcw.errors import Reason
from crawlcw.ledger.choosing import batches
from crawlcw.ledger.protocol import Cursor, Ledger, TaskFilter
from crawlcw.model.task import WAITING, Status, key_id
from crawlcw.tracking import keys as names
from crawlcw.tracking.adding import NewTask
from crawlcw.tracking.changes import A_MILLISECOND
from crawlcw.tracking.tracker import Tracker

#: So many tasks are looked at, or changed, at once.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What `rebuild` has changed."""

    added: int = 0
    reopened: int = 0
    prioritised: int = 0  #: have another priority now
    withdrawn: int = 0


async def rebuild(tracker: Tracker, mapping: Mapping[str, int]) -> Rebuilt:
    """See `Dispenser.rebuild`."""
    ledger = tracker.ledger
    began = ledger.now() + A_MILLISECOND
    priorities = {names.key(key): names.priority(each) for key, each in mapping.items()}
    added = reopened = prioritised = 0
    for keys in batches(priorities, _AT_ONCE):
        new = [NewTask(key, priority=priorities[key]) for key in keys]
        added += (await tracker.add_many(new)).new
        by_id = {key_id(key): priorities[key] for key in keys}
        withdrawn = TaskFilter(
            statuses=(Status.IGNORED,), reason=Reason.WITHDRAWN, until=began, ids=list(by_id)
        )
        reopened += await ledger.admin.reopen(withdrawn)
        prioritised += await ledger.admin.prioritise(by_id)
    wanted = {key_id(key) for key in priorities}
    gone = await _withdraw_others(ledger, wanted, began)
    tracker.added.set()
    return Rebuilt(added=added, reopened=reopened, prioritised=prioritised, withdrawn=gone)


async def _withdraw_others(ledger: Ledger, wanted: set[bytes], began: datetime) -> int:
    waiting = TaskFilter(statuses=WAITING, until=began)
    after: Cursor | None = None
    count = 0
    while True:
        found = await ledger.queries.find(waiting, limit=_AT_ONCE, after=after)
        others = [record.task.id for record in found if record.task.id not in wanted]
        if others:
            chosen = TaskFilter(statuses=WAITING, until=began, ids=others)
            count += await ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
        if len(found) < _AT_ONCE:
            return count
        last = found[-1].task
        after = Cursor(update_time=last.update_time, id=last.id)
