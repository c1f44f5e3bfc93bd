"""A value that is asked for by many and seldom taken anew: the ledger notices no dashboard."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: What takes long is taken seldom: not before this many times what it took.
_COST = 20


class Kept(Generic[T]):
    """What *take* has returned last, taken anew after *every* seconds, or later where it is slow.

    With *cost* 0 it is taken as often however slow it is. However many ask, it is taken once
    at a time.
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
        """Return the value; raises what *take* raises."""
        async with self._lock:
            began = time.monotonic()
            if self._value is None or began >= self._until:
                self._value = await self._take()
                ended = time.monotonic()
                self._until = ended + max(self._every, self._cost * (ended - began))
            return self._value

    def forget(self) -> None:
        """Take it anew when it is asked for next."""
        self._until = float("-inf")
