"""Check new tracked tasks, store their large values as blobs, and write the tasks."""

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Added, TaskFilter
from crawlcw.model.task import BlobRef, Payload, Task, key_id
from crawlcw.tracking import keys
from crawlcw.tracking.session import Session
from crawlcw.tracking.use_case import UseCase


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to add to a use case, see `Tracker.add`."""

    key: str
    data: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0  #: higher first
    stage: str | None = None  #: stage of the task; None: the use case's first stage
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)


def check_many(tasks: object) -> None:
    """Raise `UsageError` if *tasks* is a single task, or not an iterable."""
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable | AsyncIterable):
        raise UsageError(
            f"add_many takes an iterable of keys and NewTasks, not "
            f"{type(tasks).__name__}: `add` takes one key"
        )


async def add(session: Session, use_case: UseCase, tasks: Sequence[NewTask | str]) -> Added:
    """Store large values as blobs, then add the tasks that the ledger lacks by one write.

    If one of *tasks* cannot be a task, this function adds no task and raises `UsageError`.
    """
    stored_tasks = []
    for task in [_task(use_case, declaration, now=session.ledger.now()) for declaration in tasks]:
        data = await session.store_value(task.id, task.carried.data if task.carried else None)
        context = await session.store_value(task.id, task.context)
        stored_tasks.append(replace(task, carried=Payload(data=data), context=context))
    added = await session.ledger.tasks.add(stored_tasks)
    await _drop_unused(session, [task for task in stored_tasks if _blobs(task)], added)
    return added


def _task(use_case: UseCase, declaration: NewTask | str, *, now: datetime) -> Task:
    if not isinstance(declaration, NewTask | str):
        raise UsageError(
            f"a new task must be a key or a NewTask, not {type(declaration).__name__}: "
            "write NewTask(key, data)"
        )
    new_task = NewTask(declaration) if isinstance(declaration, str) else declaration
    stage = keys.stage(new_task.stage or use_case.first_stage)
    return Task(
        id=key_id(keys.key(new_task.key)),
        url=new_task.key,
        host=stage,
        callback=stage,
        context=keys.data(new_task.context) if new_task.context else None,
        priority=keys.priority(new_task.priority),
        due=now + keys.delay(new_task.delay),
        update_time=now,
        create_time=now,
        carried=Payload(data=keys.data(new_task.data)),
    )


async def _drop_unused(session: Session, stored_tasks: Sequence[Task], added: Added) -> None:
    """Delete the new blobs of tasks that the ledger did not add."""
    if not stored_tasks:
        return
    task_filter = TaskFilter(ids={task.id for task in stored_tasks})
    records = await session.ledger.queries.find(task_filter, limit=len(stored_tasks))
    # Read the stored tasks to learn which blobs are in use, because another caller may have added
    # the same tasks with other blobs. If a read does not find a task, keep the task's new blobs.
    blobs_by_id = {record.task.id: _blobs(record.task) for record in records}
    blobs_by_id |= {task.id: () for task, _ in added.rejected if task.id not in blobs_by_id}
    await session.delete_blobs(
        *(
            blob
            for task in stored_tasks
            if task.id in blobs_by_id
            for blob in _blobs(task)
            if blob not in blobs_by_id[task.id]
        )
    )


def _blobs(task: Task) -> tuple[BlobRef, ...]:
    """Return references to the blobs of a task."""
    values = (task.context, task.carried.data if task.carried else None)
    return tuple(value for value in values if isinstance(value, BlobRef))
