"""The pool of a dispenser, created anew while workers are at it."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.model.task import WAITING, Status, key_id
from crawlcw.tracking import keys as names
from crawlcw.tracking.changes import A_MILLISECOND
from crawlcw.tracking.dispensing import Dispensing
from crawlcw.tracking.new_task import NewTask

#: So many tasks are looked at, or changed, at once.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What `rebuild` has changed."""

    added: int = 0
    reopened: int = 0
    prioritised: int = 0  #: have another priority now
    withdrawn: int = 0


class Pool(Dispensing):
    """Makes the pool anew."""

    async def rebuild(self, mapping: Mapping[str, int]) -> Rebuilt:
        """Let exactly these keys wait, with these priorities, but for what is not waiting.

        Unknown keys are added; tasks that wait get their priority; those that wait
        and are not in the mapping are withdrawn (ignored, nothing is deleted), and
        those withdrawn that are in it are reopened. What is assigned, finished or
        failed for good is as it was. May run beside anything, and may be sent
        again: each task follows the last call that changed it, and what two calls
        at once agree on holds. What others make wait after it began is left alone.
        """
        began = self._ledger.now() + A_MILLISECOND
        priorities = {names.key(key): names.priority(each) for key, each in mapping.items()}
        added = reopened = prioritised = 0
        for some in _batches(priorities):
            new = [NewTask(key, priority=priority) for key, priority in some.items()]
            added += (await self._tracker.add_many(new)).new
            by_id = {key_id(key): priority for key, priority in some.items()}
            withdrawn = TaskFilter(
                statuses=(Status.IGNORED,), reason=Reason.WITHDRAWN, until=began, ids=list(by_id)
            )
            reopened += await self._ledger.admin.reopen(withdrawn)
            prioritised += await self._ledger.admin.prioritise(by_id)
        wanted = {key_id(key) for key in priorities}
        gone = await self._withdraw_others(wanted, began)
        self._tracker.added.set()
        return Rebuilt(added=added, reopened=reopened, prioritised=prioritised, withdrawn=gone)

    async def _withdraw_others(self, wanted: set[bytes], began: datetime) -> int:
        waiting = TaskFilter(statuses=WAITING, until=began)
        after: Cursor | None = None
        count = 0
        while True:
            found = await self._ledger.queries.find(waiting, limit=_AT_ONCE, after=after)
            others = [record.task.id for record in found if record.task.id not in wanted]
            if others:
                chosen = TaskFilter(statuses=WAITING, until=began, ids=others)
                count += await self._ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
            if len(found) < _AT_ONCE:
                return count
            last = found[-1].task
            after = Cursor(update_time=last.update_time, id=last.id)


def _batches(priorities: Mapping[str, int]) -> Iterator[dict[str, int]]:
    items = iter(priorities.items())
    while some := dict(itertools.islice(items, _AT_ONCE)):
        yield some
