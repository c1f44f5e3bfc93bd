"""How much memory the pages that are under way may take, and waiting for one's share of it.

A budget counts bytes. Who needs some takes a share and gives it back; those
that have to wait get theirs in the order in which they came, so that a large one
is not kept waiting by small ones. Nobody may wait for a share of a budget while
it holds another of the same: two that did could wait for each other.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Self

#: The deadline of the attempt, which does not run while it waits for what is no server.
attempt_deadline: ContextVar[asyncio.Timeout] = ContextVar("attempt_deadline")


@contextmanager
def deadline_paused() -> Iterator[None]:
    """Let the attempt's deadline stand still in the block: what is waited for is no server."""
    deadline = attempt_deadline.get(None)
    end = None if deadline is None else deadline.when()
    if deadline is None or end is None:
        yield
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(end + loop.time() - began)


class Share:
    """A part of a budget; as a context manager it is given back at the end of the block."""

    def __init__(self, budget: "MemoryBudget", size: int) -> None:
        self._budget = budget
        self.size = size

    def shrink(self, size: int) -> None:
        """Keep *size* bytes at most, and give the rest back."""
        surplus = self.size - size
        if surplus > 0:
            self.size = size
            self._budget.give_back(surplus)

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
                self._serve()
            raise
        return Share(self, size)

    def give_back(self, size: int) -> None:
        """Take back *size* bytes, and let those go on that waited for them."""
        self.used -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


class _Page:
    """What one page that is worked on holds of budgets."""

    # No generator, nor anything made beforehand: every page is one of these.
    __slots__ = ("_ended", "_shares", "_token")

    def __init__(self) -> None:
        self._shares: list[Share] | None = None
        self._ended = False

    def keep(self, share: Share) -> None:
        # A task that was begun within the page may outlive it.
        if self._ended:
            share.shrink(0)
        elif self._shares is None:
            self._shares = [share]
        else:
            self._shares.append(share)

    def __enter__(self) -> None:
        self._token = _page.set(self)

    def __exit__(self, *_: object) -> None:
        _page.reset(self._token)
        self._ended = True
        for share in self._shares or ():
            share.shrink(0)


_page: ContextVar[_Page] = ContextVar("page")


def page() -> AbstractContextManager[None]:
    """Work on one page: what is downloaded in the block counts until its end."""
    return _Page()


class BodyRoom:
    """The memory of one body while it is read; to be closed.

    A body of up to *free* bytes takes no share. A larger one takes at once what it
    may become at *most*, since it must not wait for more of it later.
    """

    def __init__(self, budget: MemoryBudget, *, free: int, most: int) -> None:
        self._budget = budget
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
        with deadline_paused():
            self._share = await self._budget.take(self._most)
        self.size = self._most
        self.waited = loop.time() - began

    def close(self, size: int = 0) -> None:
        """Keep what a body of *size* bytes takes until the end of its page."""
        if self._share is not None:
            holder = _page.get(None)
            self._share.shrink(0 if holder is None else size)
            if holder is not None:
                holder.keep(self._share)
