"""Adding tasks: they are checked, their large values become blobs, and they are written."""

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Added, Ledger, TaskFilter
from crawlcw.model.task import BlobRef, Payload, Task, key_id
from crawlcw.tracking import keys
from crawlcw.tracking.blobs import Blobs
from crawlcw.tracking.use_case import UseCase


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be added, see `Tracker.add`."""

    key: str
    data: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0  #: higher first
    stage: str | None = None  #: None: the use case's first
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)


def check_many(tasks: object) -> None:
    """Raise `UsageError` unless these are tasks, one by one."""
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable | AsyncIterable):
        raise UsageError(
            f"add_many takes a list, or another iterable, of keys and NewTasks, not "
            f"{type(tasks).__name__}: `add` takes one key"
        )


class Adder:
    """Adds tasks of a use case to its ledger."""

    def __init__(self, ledger: Ledger, use_case: UseCase) -> None:
        self._ledger = ledger
        self._blobs = Blobs(ledger)
        self._use_case = use_case

    async def add(self, tasks: Sequence[NewTask | str], *, inline_limit: int) -> Added:
        """Add those that are not known by one write.

        Values of more than *inline_limit* bytes become blobs. Raises `UsageError`
        for what can be no task; then none is added.
        """
        made = [self._task(each) for each in tasks]
        offloaded = [await self._offloaded(task, limit=inline_limit) for task in made]
        added = await self._ledger.tasks.add(offloaded)
        await self._drop_unused([task for task in offloaded if _blobs(task)], added)
        return added

    def _task(self, given: NewTask | str) -> Task:
        if not isinstance(given, NewTask | str):
            raise UsageError(
                f"a task to be added is its key or a NewTask, not {type(given).__name__}: "
                "write NewTask(key, data)"
            )
        new = NewTask(given) if isinstance(given, str) else given
        now = self._ledger.now()
        stage = keys.stage(new.stage or self._use_case.first)
        return Task(
            id=key_id(keys.key(new.key)),
            url=new.key,
            host=stage,
            callback=stage,
            context=keys.data(new.context) if new.context else None,
            priority=keys.priority(new.priority),
            due=now + keys.delay(new.delay),
            update_time=now,
            create_time=now,
            carried=Payload(data=keys.data(new.data)),
        )

    async def _offloaded(self, task: Task, *, limit: int) -> Task:
        data = task.carried.data if task.carried else None
        return replace(
            task,
            carried=Payload(data=await self._blobs.offload(task.id, data, limit=limit)),
            context=await self._blobs.offload(task.id, task.context, limit=limit),
        )

    async def _drop_unused(self, offloaded: Sequence[Task], added: Added) -> None:
        """Delete the blobs for tasks that turned out to be known, or were rejected."""
        if not offloaded:
            return
        chosen = TaskFilter(ids={task.id for task in offloaded})
        found = await self._ledger.queries.find(chosen, limit=len(offloaded))
        # Every blob has an id of its own: if several callers add one key at once,
        # each finds here whether the task refers to its own. The values of a task that is not found
        # are left.
        referred = {record.task.id: _blobs(record.task) for record in found}
        referred |= {task.id: () for task, _ in added.rejected if task.id not in referred}
        await self._blobs.drop(
            *(
                blob
                for task in offloaded
                if task.id in referred
                for blob in _blobs(task)
                if blob not in referred[task.id]
            )
        )


def _blobs(task: Task) -> tuple[BlobRef, ...]:
    """Return the blobs of a task."""
    values = (task.context, task.carried.data if task.carried else None)
    return tuple(each for each in values if isinstance(each, BlobRef))
