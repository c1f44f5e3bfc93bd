"""Servers in a thread of the tests' own process, which other processes can reach too."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def in_thread(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run *server* in an event loop of its own until the end of the block."""
    loop = asyncio.new_event_loop()
    # Interrupted handshakes are not errors here.
    loop.set_exception_handler(lambda *_: None)
    entered: Future[T] = Future()
    end = asyncio.Event()

    async def run() -> None:
        try:
            async with server as running:
                entered.set_result(running)
                await end.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)
        await _end_all()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        yield entered.result()
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


async def _end_all() -> None:
    """End all other tasks of the loop, handshakes of new connections included."""
    for _ in range(5):  # cancelled tasks close their connections, which end in the loop
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)
