"""Memory budget of the pages under way.

A budget counts bytes. Shares of it are given in the order in which they were asked for, so small
ones do not keep a large one waiting. A holder of a share never waits for another share of the
same budget: two holders could wait for each other.
"""

import asyncio
from collections import deque
from typing import Self

from crawlcw.api.attempt import Attempt


class Share:
    """A part of a budget; as a context manager it is given back at the end of the block."""

    def __init__(self, budget: "MemoryBudget", size: int) -> None:
        self._budget = budget
        self.size = size

    def shrink(self, size: int) -> None:
        """Keep *size* bytes at most, and give the rest back."""
        if size < self.size:
            self._budget.give_back(self.size - size)
            self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(0)


class MemoryBudget:
    """So many bytes, for the one event loop that it is used in."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> Share:
        """Wait for *size* bytes, or for all there are, where that is more."""
        size = min(size, self.limit)
        if not self._waiting and self.used + size <= self.limit:
            self.used += size
            return Share(self, size)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back(size)  # it came at the same moment
            else:
                self._waiting.remove((size, turn))
                self.give_back(0)
            raise
        return Share(self, size)

    def give_back(self, size: int) -> None:
        """Take back *size* bytes, and let those go on that waited for them."""
        self.used -= size
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


class BodyRoom:
    """The memory of one body while it is read; to be closed.

    A body of up to *free* bytes takes no share. A larger one takes at once what it
    may become at *most*, since it must not wait for more of it later.
    """

    def __init__(self, budget: MemoryBudget, attempt: Attempt, *, free: int, most: int) -> None:
        self._budget = budget
        self._attempt = attempt
        self._most = most
        self._share: Share | None = None
        self.size = free  #: what the body may grow to before it has to `make` room
        self.waited = 0.0  #: seconds

    async def make(self, size: int) -> None:
        """Wait until there is room for a body of *size* bytes, and for what becomes of it.

        The attempt's deadline does not run meanwhile.
        """
        if size <= self.size:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        with self._attempt.deadline:
            self._share = await self._budget.take(self._most)
        self.size = self._most
        self.waited = loop.time() - began

    def close(self, size: int = 0) -> None:
        """Keep what a body of *size* bytes takes until the end of its attempt."""
        if self._share is not None:
            self._share.shrink(size)
            self._attempt.keep(self._share)
