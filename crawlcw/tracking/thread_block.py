"""A block of `with` in a thread, whose asynchronous side runs in the event loop.

It ends well only where its thread has come to its end. What waits for that in the
loop may be cancelled before, for the tracker is closed or the lease was lost.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadBlock(AbstractAsyncContextManager[T], Generic[T]):
    """An asynchronous block that a thread goes through by way of a portal."""

    def __init__(self, block: AbstractAsyncContextManager[T]) -> None:
        self._block = block
        self._left = False
        self._error: BaseException | None = None  #: the exception that the thread has left it with

    @contextmanager
    def left_by_its_thread(self) -> Iterator[None]:
        """Note how the thread leaves it, which the thread's part of the block runs in."""
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._left = True

    async def __aenter__(self) -> T:
        return await self._block.__aenter__()

    async def __aexit__(self, *_: object) -> bool | None:
        error = self._error
        if not self._left:
            # The portal passes no error then: it says only how the thread has left.
            error = sys.exc_info()[1] or asyncio.CancelledError()
        if error is None:
            return await self._block.__aexit__(None, None, None)
        return await self._block.__aexit__(type(error), error, error.__traceback__)
