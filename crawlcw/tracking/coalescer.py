"""Combine the calls of concurrent callers into one call, for example into one database query.

A single caller's argument is processed immediately. The arguments that arrive while a call is
running are passed together to the next call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

#: The maximum number of arguments in one call.
_MAX_BATCH = 200


class Coalescer(Generic[A, R]):
    """Calls a function with the arguments of many callers, one call at a time."""

    def __init__(self, call: Callable[[Sequence[A]], Awaitable[Sequence[R]]]) -> None:
        """*call* takes a list of arguments, and returns a list with the result of each argument."""
        self._call = call
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._runner: asyncio.Task[None] | None = None

    def __call__(self, argument: A) -> asyncio.Future[R]:
        """Return a future for the result of *argument*, or for the error that *call* raises."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return future

    async def finish(self) -> None:
        """Wait until all arguments that callers have passed have results."""
        if self._runner is not None:
            await asyncio.wait([self._runner])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
                await self._run_batch(batch)
        finally:
            self._runner = None

    async def _run_batch(self, batch: Sequence[tuple[A, "asyncio.Future[R]"]]) -> None:
        try:
            results = await self._call([argument for argument, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
                    # Read the error, because asyncio logs an error that no caller reads.
                    future.exception()
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            # Cancel futures without a result. There are such futures only if `_run` was cancelled.
            for _, future in batch:
                future.cancel()
