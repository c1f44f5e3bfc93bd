"""Let threads use a `Tracker` and an `Execution` that belong to an event loop."""

import asyncio
import concurrent.futures
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal

from crawlcw.errors import LeaseLostError, LedgerError, UsageError


class ThreadProxy:
    """A proxy for an object of the event loop, whose coroutine methods become blocking methods."""

    def __init__(self, subject: Any, call: Callable[..., Any]) -> None:
        """*call* runs a coroutine function in the event loop and returns the function's result."""
        vars(self).update(_subject=subject, _call=call)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._subject, name)
        return functools.partial(self._call, value) if inspect.iscoroutinefunction(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._subject, name, value)


class SyncExecution(ThreadProxy):
    """An `Execution` for a thread; it has the attributes and the methods of `Execution`."""


class SyncCalls(ThreadProxy):
    """A `Tracker` for use in other threads, with the same attributes and methods."""

    def __init__(self, tracker: Any, portal: "LoopPortal") -> None:
        """*portal* runs functions in the event loop of *tracker*."""
        super().__init__(tracker, portal.call)
        vars(self)["_portal"] = portal

    @contextmanager
    def start(self, key: str, **options: Any) -> Iterator[SyncExecution]:
        """See `Tracker.start`.

        If the tracker is closed before the `with` block has ended, the tracker releases the task.
        The block then raises `LedgerError` at its end.
        """
        portal: LoopPortal = self._portal
        # The thread completes the future when it leaves the `with` block. The future's result is
        # the exception that ended the block, or None.
        thread_end: concurrent.futures.Future[BaseException | None] = concurrent.futures.Future()
        thread_end.set_running_or_notify_cancel()  # `wrap_future` must not cancel it

        async def run_block(*, task_status: TaskStatus[Any]) -> None:
            tracked_block = self._subject.start(key, **options)
            task_status.started(await tracked_block.__aenter__())
            try:
                error = await asyncio.wrap_future(thread_end)
            except BaseException as cause:
                # The tracker was closed or the lease was lost, so the block of `Tracker.start` ends
                # with an error.
                await tracked_block.__aexit__(type(cause), cause, cause.__traceback__)
                raise
            await tracked_block.__aexit__(
                error and type(error), error, error and error.__traceback__
            )

        with portal.closed_as_ledger_error(f", and the work on task {key!r} with it"):
            block_end, execution = portal.open().start_task(run_block)
            try:
                yield SyncExecution(execution, portal.call)
            except BaseException as error:
                thread_end.set_result(error)
                block_end.result()
                raise
            thread_end.set_result(None)
            block_end.result()


class LoopPortal:
    """Lets threads call coroutine functions in the running event loop, by an anyio portal."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._open_lock = threading.Lock()
        self._host_task: asyncio.Task[None] | None = None
        self._portal: BlockingPortal | None = None
        self._closed = False

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run *function* in the event loop; raises `LedgerError` if the portal is closed."""
        with self.closed_as_ledger_error():
            return self.open().call(functools.partial(function, *args, **kwargs))

    def open(self) -> BlockingPortal:
        """Return the anyio portal; raises `UsageError` in the thread of the event loop."""
        if threading.get_ident() == self._thread:
            raise UsageError(
                "`tracker.sync` works in other threads only: in a coroutine, use the tracker itself"
            )
        with self._open_lock:
            if self._portal is None:
                return asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
            return self._portal

    async def _open(self) -> BlockingPortal:
        if self._closed:
            raise RuntimeError("closed")
        portal_future: asyncio.Future[BlockingPortal] = self._loop.create_future()
        self._host_task = asyncio.create_task(_host(portal_future), name="crawlcw portal")
        self._portal = await portal_future
        return self._portal

    async def close(self) -> None:
        """Close the portal, and cancel all calls that are still running."""
        self._closed = True
        if self._portal is not None and self._host_task is not None:
            await self._portal.stop(cancel_remaining=True)
            await self._host_task

    @contextmanager
    def closed_as_ledger_error(self, detail: str = "") -> Iterator[None]:
        """If the portal is closed, turn an error into a `LedgerError` that ends with *detail*."""
        try:
            yield
        except (
            RuntimeError,
            LeaseLostError,
            asyncio.CancelledError,
            concurrent.futures.CancelledError,
        ) as error:
            if not self._closed:
                raise
            raise LedgerError(f"the tracker was closed{detail}") from error


async def _host(portal_future: "asyncio.Future[BlockingPortal]") -> None:
    async with BlockingPortal() as portal:
        portal_future.set_result(portal)
        await portal.sleep_until_stopped()
