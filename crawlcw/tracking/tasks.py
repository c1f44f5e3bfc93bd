"""Read, find and count the tasks of a use case, and change tasks that no worker leases."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from crawlcw.errors import Reason, TaskNotFoundError, UsageError
from crawlcw.ledger.protocol import Counts, Ledger, TaskFilter
from crawlcw.model.task import Record, Status, key_id
from crawlcw.tracking import keys, views
from crawlcw.tracking.coalescer import Coalescer
from crawlcw.tracking.session import Session
from crawlcw.tracking.sync_calls import LoopPortal
from crawlcw.tracking.use_case import Policy, UseCase
from crawlcw.tracking.views import Page, TrackedTask

#: The resolution of times in a ledger.
MILLISECOND = timedelta(milliseconds=1)
#: One status or several statuses, such as `Status.FAILED` or `"failed"`.
Statuses = Status | str | Collection[Status | str]
#: The maximum number of tasks that `find` returns; `walk` yields any number of tasks.
MAX_PAGE_SIZE = 1_000_000


class Tasks:
    """Reads, counts and changes the tasks of a use case.

    `retry`, `ignore`, `reset`, `reopen` and `purge` change tasks and return the number of changed
    tasks. The caller chooses the tasks by keys, by filters, or by `all=True` for every task. Each
    method raises `UsageError` if the caller passes none of the three.
    """

    def __init__(
        self, ledger: Ledger, use_case: UseCase, policy: Policy, *, give_up: timedelta
    ) -> None:
        """Calls fail after the ledger has been unavailable for the time *give_up*."""
        self.use_case = use_case
        self.session = Session(ledger, policy, give_up=give_up)
        self.ledger = self.session.ledger
        #: This event is set when this process has made tasks due, for example by adding tasks.
        self.tasks_due = asyncio.Event()
        self.portal = LoopPortal()
        #: Reads tasks by id, with one query for concurrent reads.
        self.records: Coalescer[bytes, Record | None] = Coalescer(self._read)

    async def get(self, key: str) -> TrackedTask:
        """Return a task with all its data; raises `TaskNotFoundError`."""
        record = await self._record(keys.key(key))
        return await self._with_blobs(self._view(record))

    async def _record(self, key: str) -> Record:
        record = await self.records(key_id(key))
        if record is None:
            raise TaskNotFoundError(key)
        return record

    async def _read(self, ids: Sequence[bytes]) -> list[Record | None]:
        if len(ids) == 1:
            return [await self.ledger.tasks.get(ids[0])]
        task_filter = TaskFilter(ids=set(ids))
        records = await self.ledger.queries.find(task_filter, limit=len(ids))
        record_by_id = {record.task.id: record for record in records}
        return [record_by_id.get(task_id) for task_id in ids]

    def _view(self, record: Record) -> TrackedTask:
        return TrackedTask.of(record, stage=self.use_case.resolve_stage(record.task.callback))

    async def _with_blobs(self, task: TrackedTask) -> TrackedTask:
        return replace(
            task,
            data=await self.session.load_value(task.data),
            context=await self.session.load_value(task.context),
            results={
                stage: await self.session.load_value(result)
                for stage, result in task.results.items()
            },
        )

    async def find(
        self,
        *,
        status: Statuses | None = None,
        reason: Reason | str | None = None,
        stage: str | None = None,
        changed_since: datetime | None = None,
        changed_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return tasks that match the filters, sorted by their last change, newest first.

        *cursor* is the `next_cursor` of an earlier page; the result begins after that page.
        *changed_since* and *changed_before* are aware datetimes that limit the time of the last
        change of status. Large values are `BlobRef`s; `get` returns their values. Raises
        `UsageError`.
        """
        task_filter = _task_filter(
            status=status,
            reason=reason,
            changed_since=changed_since,
            changed_before=changed_before,
        )
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE_SIZE:
            raise UsageError(
                f"limit must be from 1 to {MAX_PAGE_SIZE:,}, not {limit!r}: `walk` yields any "
                "number of tasks"
            )
        position = views.parse_cursor(cursor) if cursor is not None else None
        record_by_id: dict[bytes, Record] = {}
        for host in self._stored_stages(stage):
            stage_filter = replace(task_filter, host=host)
            # If a task changes its stage between two queries, use the later query's record.
            record_by_id |= {
                row.task.id: row
                for row in await self.ledger.queries.find(
                    stage_filter, limit=limit + 1, cursor=position
                )
            }
        newest = heapq.nlargest(limit + 1, record_by_id.values(), key=_cursor_key)
        return Page(
            tasks=tuple(self._view(record) for record in newest[:limit]),
            next_cursor=views.cursor_text(newest[limit - 1].task) if len(newest) > limit else None,
        )

    async def walk(self, **filters: Any) -> AsyncGenerator[TrackedTask, None]:
        """Yield every task that matches the filters of `find`, with constant use of memory.

        A walk goes from the newest change to the oldest. The walk may miss a task that changes
        during the walk, because the task moves to the part that was already yielded.
        """
        cursor = None
        while True:
            page = await self.find(**filters, cursor=cursor)
            for task in page.tasks:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

    async def counts(self) -> Counts:
        """Return the number of tasks with each status."""
        return await self.ledger.queries.counts()

    async def reasons(self) -> dict[str, int]:
        """Return the number of failed and ignored tasks by reason."""
        return await self.ledger.queries.reasons()

    async def retry(
        self,
        *chosen_keys: str,
        reason: Reason | str | None = None,
        stage: str | None = None,
        changed_since: datetime | None = None,
        all: bool = False,  # noqa: A002  # `all` is the clearest name
    ) -> int:
        """Try failed tasks again. `reset` reopens withdrawn tasks, which have not failed."""
        filters = {"reason": reason, "stage": stage, "changed_since": changed_since}
        count = 0
        for task_filter in self._filters(chosen_keys, all, **filters):
            count += await self.ledger.admin.retry_failed(task_filter)
        self.tasks_due.set()
        return count

    async def ignore(
        self,
        *chosen_keys: str,
        reason: Reason | str | None = None,
        stage: str | None = None,
        changed_since: datetime | None = None,
        changed_before: datetime | None = None,
        all: bool = False,  # noqa: A002  # `all` is the clearest name
    ) -> int:
        """Withdraw tasks that no worker leases. `reset` queues withdrawn tasks again."""
        filters = {
            "reason": reason,
            "stage": stage,
            "changed_since": changed_since,
            "changed_before": changed_before,
        }
        count = 0
        for task_filter in self._filters(chosen_keys, all, **filters):
            count += await self.ledger.admin.withdraw(task_filter, reason=Reason.WITHDRAWN)
        return count

    async def reset(
        self,
        *chosen_keys: str,
        stage: str | None = None,
        all: bool = False,  # noqa: A002  # `all` is the clearest name
    ) -> int:
        """Start tasks again at *stage*, whatever their status; leased tasks do not change.

        The default *stage* is the use case's first stage. The tasks' results are deleted, and their
        data and context stay.
        """
        (task_filter,) = self._filters(chosen_keys, all)
        first_stage = keys.stage(self.use_case.first_stage if stage is None else stage)
        return await self._reopen(task_filter, stage=first_stage, anew=True)

    async def reopen(
        self,
        stage: str,
        *chosen_keys: str,
        from_status: Statuses | None = None,
        changed_since: datetime | None = None,
        changed_before: datetime | None = None,
        all: bool = False,  # noqa: A002  # `all` is the clearest name
    ) -> int:
        """Queue each task for *stage* if the task's status is *from_status*.

        The default *from_status* is `Status.FINISHED`, for a second pass over finished tasks.
        """
        filters = {
            "from_status": from_status,
            "changed_since": changed_since,
            "changed_before": changed_before,
        }
        (task_filter,) = self._filters(chosen_keys, all, **filters)
        if from_status is None:
            task_filter = task_filter.with_statuses((Status.FINISHED,))
        return await self._reopen(task_filter, stage=keys.stage(stage))

    async def purge(
        self,
        *chosen_keys: str,
        status: Statuses | None = None,
        changed_since: datetime | None = None,
        changed_before: datetime | None = None,
        force: bool = False,
        all: bool = False,  # noqa: A002  # `all` is the clearest name
    ) -> int:
        """Delete tasks, and with *force* also leased tasks."""
        filters = {
            "status": status,
            "changed_since": changed_since,
            "changed_before": changed_before,
        }
        (task_filter,) = self._filters(chosen_keys, all, **filters)
        if not force:
            if status is not None and Status.PROCESSING in task_filter.statuses:
                raise UsageError("only force=True deletes tasks that are processing")
            task_filter = task_filter.with_statuses(
                [choice for choice in Status if choice is not Status.PROCESSING]
            )
        return await self.ledger.admin.purge(task_filter)

    def _filters(
        self, chosen_keys: Collection[str], all_tasks: bool, **filters: Any
    ) -> list[TaskFilter]:
        """Return a filter for each name in `UseCase.stored_stages`; raises `UsageError`."""
        if chosen_keys and all_tasks:
            raise UsageError("pass either keys or all=True, not both")
        # Refuse an empty list of keys, because the caller may not have meant all tasks.
        if not (chosen_keys or all_tasks) and all(value is None for value in filters.values()):
            filter_names = "".join(f"{name}=, " for name in filters)
            raise UsageError(f"choose tasks: pass keys, {filter_names}or all=True for every task")
        ids = tuple(key_id(keys.key(value)) for value in chosen_keys) or None
        stage = filters.pop("stage", None)
        filters["status"] = filters.pop("from_status", filters.get("status"))
        task_filter = replace(_task_filter(**filters), ids=ids)
        return [replace(task_filter, host=host) for host in self._stored_stages(stage)]

    def _stored_stages(self, stage: str | None) -> Sequence[str | None]:
        """Return the ledger's names for *stage*, or `(None,)` if *stage* is None."""
        return (None,) if stage is None else self.use_case.stored_stages([keys.stage(stage)])

    async def _reopen(self, task_filter: TaskFilter, *, stage: str, anew: bool = False) -> int:
        # Reopen only tasks that changed before now, so that a repeated write reopens no task twice.
        changed_before = task_filter.changed_before or self.ledger.now() + MILLISECOND
        count = await self.ledger.admin.reopen(
            replace(task_filter, changed_before=changed_before), stage=stage, deletes_results=anew
        )
        self.tasks_due.set()
        return count


def _cursor_key(record: Record) -> tuple[datetime, bytes]:
    return record.task.update_time, record.task.id


def _task_filter(
    *,
    status: Statuses | None = None,
    reason: Reason | str | None = None,
    changed_since: datetime | None = None,
    changed_before: datetime | None = None,
) -> TaskFilter:
    """Return the arguments as a `TaskFilter`; raises `UsageError`."""
    return TaskFilter(
        statuses=parse_statuses(status),
        reason=None if reason is None else _parse_reason(reason),
        changed_since=None if changed_since is None else _to_utc("changed_since", changed_since),
        changed_before=None
        if changed_before is None
        else _to_utc("changed_before", changed_before),
    )


def parse_statuses(value: Statuses | None) -> tuple[Status, ...]:
    """Return the statuses in *value*, or all statuses for None; raises `UsageError`."""
    if value is None:
        return tuple(Status)
    if isinstance(value, Status | str):
        return (_parse_status(value),)
    if not isinstance(value, Collection):
        raise _status_error(value)
    return tuple(_parse_status(status) for status in value)


def _parse_status(value: object) -> Status:
    if isinstance(value, Status):
        return value
    if isinstance(value, str) and value.upper() in Status.__members__:
        return Status[value.upper()]
    raise _status_error(value)


def _status_error(value: object) -> UsageError:
    names = ", ".join(status.name for status in Status)
    return UsageError(f"{value!r} is not a status: write Status. and one of {names}")


def _parse_reason(value: object) -> Reason:
    try:
        return Reason(value)  # type: ignore[arg-type]  # *value* may have any type
    except ValueError:
        raise UsageError(
            f"{value!r} is not a reason: write one of `crawlcw.errors.Reason`"
        ) from None


def _to_utc(name: str, value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise UsageError(
            f"{name} must be a datetime with a time zone, such as datetime.now(UTC), not {value!r}"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{name} is out of range: {value!r}") from None
