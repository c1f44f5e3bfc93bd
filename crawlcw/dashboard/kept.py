"""Cache of one value, so that many viewers do not load the ledger."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Wait between two reads, in durations of a read.
_COST = 20


class Kept(Generic[T]):
    """The last result of *take*, which is called again after *every* seconds, or later if slow.

    A slow *take* is called at most every *cost* times its duration; *cost* 0 ignores that.
    Concurrent callers share one call.
    """

    def __init__(
        self, take: Callable[[], Awaitable[T]], *, every: float, cost: float = _COST
    ) -> None:
        self._take = take
        self._every = every
        self._cost = cost
        self._lock = asyncio.Lock()
        self._until = float("-inf")
        self._value: T | None = None

    async def get(self) -> T:
        """Return the value; raises the errors of *take*."""
        async with self._lock:
            began = time.monotonic()
            if self._value is None or began >= self._until:
                self._value = await self._take()
                ended = time.monotonic()
                self._until = ended + max(self._every, self._cost * (ended - began))
            return self._value

    def forget(self) -> None:
        """Call *take* again at the next `get`."""
        self._until = float("-inf")
