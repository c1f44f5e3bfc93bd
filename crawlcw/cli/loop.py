"""Run a command's event loop with background tasks, and end the loop on signals."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

from crawlcw.cli.deadline import deadline
from crawlcw.cli.exit_codes import INTERRUPTED

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* on a new loop and return its result.

    After *main* the loop waits for the user's tasks and threads, until the deadline.
    """
    try:
        import uvloop
    except ImportError:
        factory = None  # not available on Windows
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        # Reset the deadline, because the command may have run an event loop before.
        deadline.loop, deadline.is_finished = runner.get_loop(), False
        try:
            result = runner.run(main)
        except BaseException as error:
            deadline.end_command(partial(_raise, error))
            raise
        deadline.end_command(lambda: result)
        return result


def _raise(error: BaseException) -> NoReturn:
    raise error


@asynccontextmanager
async def background_tasks(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the coroutines *loops* during the block; an error of one does not end the others."""
    # Use no task group: it would cancel the crawl if a coroutine fails at a closed terminal.
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def stopped_by_signals() -> asyncio.Event:
    """Return an event that the first SIGINT or SIGTERM sets; a second signal exits the process."""
    stop_event = asyncio.Event()

    def stop() -> None:
        if stop_event.is_set():
            # Exit without releasing the tasks of the server's clients. The leases will expire.
            os._exit(INTERRUPTED)
        stop_event.set()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop)
    return stop_event


async def until_stopped(work: Coroutine[None, None, None]) -> None:
    """Run *work* until *work* ends or the first signal cancels it; raises the errors of *work*.

    This function handles SIGINT also in a background job of a shell, although Python installs no
    handler for it there.
    """
    stop_waiter = asyncio.ensure_future(stopped_by_signals().wait())
    work_task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({work_task, stop_waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop_waiter.cancel()
        if not work_task.done():
            work_task.cancel()
            await asyncio.wait({work_task})
    if not work_task.cancelled():
        work_task.result()
