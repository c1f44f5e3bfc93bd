"""Track tasks in a ledger, so that each task is done once and keeps its state and history."""

import functools
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

import anyio
from anyio.from_thread import start_blocking_portal

from crawlcw.engine.batching import GroupWriter
from crawlcw.errors import (
    LeaseLostError,
    TaskFinishedError,
    TaskIgnoredError,
    TaskLockedError,
    TaskNotDueError,
    UsageError,
)
from crawlcw.ledger.choosing import batches
from crawlcw.ledger.protocol import Added, TaskFilter
from crawlcw.ledger.shielding import run_shielded
from crawlcw.ledger_opening import open_tracked
from crawlcw.model.task import Lease, Payload, Record, Status, Task
from crawlcw.model.transitions import ended_since, is_quarantined
from crawlcw.tracking import adding, keys, views
from crawlcw.tracking.adding import NewTask, check_many
from crawlcw.tracking.execution import Execution
from crawlcw.tracking.handling import run_handler
from crawlcw.tracking.sync_calls import SyncCalls
from crawlcw.tracking.tasks import MILLISECOND, Statuses, Tasks, parse_statuses
from crawlcw.tracking.use_case import Policy, UseCase, stored_settings

T = TypeVar("T")
TrackerT = TypeVar("TrackerT", bound="Tracker")

_LEDGER_GIVE_UP = timedelta(minutes=5)
#: The number of new tasks in one write.
CHUNK_SIZE = 500


class TrackerOpening(Generic[TrackerT]):
    """Opens a tracker by `await`, or by `async with`; the `async with` also closes the tracker."""

    def __init__(self, coroutine: Coroutine[Any, Any, TrackerT]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, TrackerT]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> TrackerT:
        self._tracker = await self._coroutine
        return self._tracker

    async def __aexit__(self, *_: object) -> None:
        await self._tracker.__aexit__()


class Tracker(Tasks):
    """Adds tasks of one use case to a ledger, reads and changes tasks, and starts work on tasks."""

    @classmethod
    def open(
        cls,
        url: str,
        use_case: str | UseCase,
        *,
        driver: str = "pymongo",
        ledger_give_up: timedelta = _LEDGER_GIVE_UP,
        **policy: Any,
    ) -> TrackerOpening[Self]:
        """Open the ledger of *use_case* at *url*; the ledger is created if it does not exist.

        Await the result, or use it by `async with`, which closes the tracker. *url* has the form
        that `open_ledger` takes. *driver* is `pymongo` or `motor`. *policy* has the settings of
        `Policy` to record; other settings do not change. Raises `UsageError` and
        `LedgerUnavailableError`. Raises `LedgerConfigurationError` if a spider is named *use_case*.
        """
        declaration = use_case if isinstance(use_case, UseCase) else UseCase(use_case)
        return TrackerOpening(cls._open(url, declaration, driver, ledger_give_up, policy))

    @classmethod
    async def _open(
        cls,
        url: str,
        use_case: UseCase,
        driver: str,
        give_up: timedelta,
        policy: Mapping[str, Any],
    ) -> Self:
        settings = stored_settings({**use_case.policy, **policy})
        ledger = await open_tracked(url, use_case.name, driver=driver)
        try:
            if settings:
                await ledger.notes.set_policy(settings)
            return cls(ledger, use_case, Policy.of(await ledger.notes.policy()), give_up=give_up)
        except BaseException:
            await ledger.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_shielded(self.close())

    async def close(self) -> None:
        """Release the leases, and close the ledger.

        Tasks in running `start` blocks are released too, even in other threads.
        """
        await self.portal.close()
        await self.session.close()
        await self.ledger.close()

    @property
    def sync(self) -> SyncCalls:
        """The tracker for use in other threads, as in `with tracker.sync.start(key)`."""
        return SyncCalls(self, self.portal)

    @property
    def name(self) -> str:
        """The use case's name."""
        return self.use_case.name

    @property
    def policy(self) -> Policy:
        """The use case's current settings."""
        return self.session.policy

    async def configure(self, **policy: Any) -> Policy:
        """Record settings of the use case, and return all its current settings.

        This process follows new settings immediately. Other processes follow within half a minute.
        Raises `SettingsError`.
        """
        settings = stored_settings(policy)
        await self.ledger.notes.set_policy(settings)
        await self.session.refresh()
        return self.policy

    async def add(
        self,
        key: str,
        data: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        stage: str | None = None,
        context: Mapping[str, Any] | None = None,
        delay: timedelta = timedelta(0),
    ) -> bool:
        """Add a task; return whether the task was new. An existing task does not change.

        The default *stage* is the use case's first stage. The task is due after *delay*. Raises
        `UsageError` for an invalid argument, or if the store cannot hold the task.
        """
        new_task = NewTask(
            key, data or {}, priority=priority, stage=stage, context=context, delay=delay
        )
        added = await self.add_many([new_task])
        for _, problem in added.rejected:
            raise UsageError(f"task {key!r} cannot be stored: {problem}")
        return bool(added.new)

    async def add_many(
        self, tasks: Iterable[NewTask | str] | AsyncIterable[NewTask | str]
    ) -> Added:
        """Add the tasks that the ledger does not have, in writes of 500 tasks.

        Tasks of an asynchronous source are added soon after the source yields them. If the source
        raises an error, the tasks that the source yielded before the error are added. Raises
        `UsageError` if an object is not a task; tasks of earlier writes are added nevertheless.
        """
        check_many(tasks)
        added = Added()

        async def add(chunk: Sequence[NewTask | str]) -> None:
            nonlocal added
            added += await adding.add(self.session, self.use_case, chunk)
            self.tasks_due.set()

        if isinstance(tasks, AsyncIterable):
            gathering = GroupWriter(add, first_size=CHUNK_SIZE, max_size=CHUNK_SIZE)
            try:
                await gathering.run(tasks)
            finally:
                await gathering.finish()
        else:
            for chunk in batches(tasks, CHUNK_SIZE):
                await add(chunk)
        return added

    @asynccontextmanager
    async def start(
        self,
        key: str,
        *,
        from_status: Statuses = (),
        stage: str | None = None,
    ) -> AsyncIterator[Execution]:
        """Claim a task, and renew its lease until the end of the `with` block.

        - The normal end of the block finishes the task.
        - An exception in the block costs an attempt and propagates.
        - Cancellation and KeyboardInterrupt release the task.

        A task whose status is in *from_status*, such as `Status.FINISHED`, is first reopened in
        *stage*. Raises a subclass of `TaskMissedError` if the task cannot be claimed at the block's
        start. Raises `LeaseLostError` if another worker claims the task during the block.
        """
        reopened_statuses = parse_statuses(from_status)
        lease = await self._claim(keys.key(key), reopened_statuses, stage)
        async with self.start_leased(lease) as execution:
            yield execution

    @asynccontextmanager
    async def start_leased(self, lease: Lease) -> AsyncIterator[Execution]:
        """Work on a task as `start` does, under a *lease* that the caller has claimed already."""
        held_leases = self.session.leases
        execution: Execution | None = None
        try:
            with anyio.CancelScope() as scope:
                held_leases.cancel_scopes[lease.task.id] = scope
                execution = await self._execution(lease)
                yield execution
                if not execution.has_ended:
                    await execution.finish()
        except Exception as error:
            if execution is None:
                await self.session.release([lease])
            elif not execution.has_ended:
                await execution.fail(error)
            raise
        except BaseException:
            if execution is None or not execution.has_ended:
                await self.session.release_in_time([lease])
            raise
        finally:
            held_leases.cancel_scopes.pop(lease.task.id, None)
        if scope.cancelled_caught:
            raise LeaseLostError(f"another worker now has the lease of task {lease.task.url!r}")

    async def _execution(self, lease: Lease) -> Execution:
        payload = lease.task.carried or Payload()
        load = self.session.load_value
        context = await load(lease.task.context)
        return Execution(
            lease,
            data=await load(payload.data),
            results={stage: await load(result) for stage, result in payload.results.items()},
            context=context or {},
            session=self.session,
            use_case=self.use_case,
        )

    async def _claim(self, key: str, from_status: Collection[Status], stage: str | None) -> Lease:
        while True:
            record = await self._record(key)
            if record.task.status in from_status:
                await self._reopen_task(record, stage)
                record = await self._record(key)
            task = record.task
            self._check_due(task)
            lease = await self.session.claim_one(task)
            if lease is not None:
                try:
                    if is_quarantined(task):
                        await self.ledger.leases.begin(lease)
                except BaseException:
                    await self.session.release_in_time([lease])
                    raise
                return lease
            # Another worker was faster, or the ledger gave up the task. Read the task again.

    def _check_due(self, task: Task) -> None:
        """Raise a subclass of `TaskMissedError` if a task cannot be claimed now."""
        now = self.ledger.now()
        key, due_at = task.url, task.due
        if task.status is Status.IGNORED:
            raise TaskIgnoredError(key, reason=task.reason)
        if due_at is None:
            raise TaskFinishedError(key)
        grace_start = self.session.retry.grace_start(now)
        processing = task.status is Status.PROCESSING
        if processing and (due_at > now or ended_since(task, grace_start)):
            raise TaskLockedError(key, holder=views.holder_of(task) or "", expires=due_at)
        if due_at > now:
            raise TaskNotDueError(key, due=due_at)

    async def _reopen_task(self, record: Record, stage: str | None) -> None:
        task_filter = TaskFilter(
            statuses=(record.task.status,),
            ids=(record.task.id,),
            changed_before=record.task.update_time + MILLISECOND,
        )
        new_stage = keys.stage(stage) if stage else None
        await self.ledger.admin.reopen(task_filter, stage=new_stage)

    def task(self, function: Callable[[Execution], Awaitable[T]]) -> Callable[[str], Awaitable[T]]:
        """Return a coroutine function that takes a key and runs *function* on the key's task.

        *function* also becomes the handler of the stage that has the name of *function*.
        """
        self.use_case.add_handler(function.__name__, function)
        handler = self.use_case.handlers[function.__name__]

        @functools.wraps(function)
        async def tracked(key: str) -> T:
            async with self.start(key) as execution:
                await run_handler(handler, execution)
            result: T = execution.result
            return result

        return tracked


class SyncTracker(SyncCalls):
    """A `Tracker` for synchronous code, with the same attributes and methods."""

    @classmethod
    @contextmanager
    def open(cls, url: str, use_case: str | UseCase, **options: Any) -> Iterator[Self]:
        """Open the tasks of a use case for a `with` block, see `Tracker.open`.

        The tracker's event loop runs in a separate thread.
        """

        async def opening() -> Any:
            return Tracker.open(url, use_case, **options)

        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(portal.call(opening)) as tracker,
        ):
            yield cls(tracker, tracker.portal)
