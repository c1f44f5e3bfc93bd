"""Run the methods of a spider on its pages, one after the other, in the event loop."""

import asyncio
import heapq
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import count

from crawlcw.api.spider import Spider, callback_named
from crawlcw.api.url_list import is_url_list
from crawlcw.api.user_code import Called
from crawlcw.crawl import callbacks
from crawlcw.crawl.callbacks import ItemPolicy, Produced, Scope, WriteLinks
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed

#: Seconds of callbacks in one turn of the loop: each turn costs about as much as a small page's
#: bookkeeping, and lets the thread of a ledger take the interpreter's lock.
_SLICE_SECONDS = 0.03
#: So many callbacks are woken for one slice.
_MOST_WOKEN = 64


class Turns:
    """Bounds the time that callbacks take in one turn of the loop, so that all else has its turns.

    A slice of that time begins with a callback; its timer fires in the next turn after its end.
    """

    def __init__(self) -> None:
        self._until = float("-inf")  #: the end of the slice
        self._is_begun = False
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []  #: a heap, the first come first
        self._order = count()

    async def take(self) -> None:
        """Wait for a slice with time left, behind those that came before."""
        now = time.monotonic()
        if now < self._until and not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if not self._is_begun:
            self._is_begun, self._until = True, now + _SLICE_SECONDS
            loop.call_later(_SLICE_SECONDS, self._next)
            return
        number, is_first = next(self._order), False
        while not (is_first or time.monotonic() < self._until):
            turn = loop.create_future()
            heapq.heappush(self._waiting, (number, turn))
            is_first = await turn

    def _next(self) -> None:
        """Begin a slice with those that wait; end the last one where none does."""
        self._until, woken = time.monotonic() + _SLICE_SECONDS, 0
        while self._waiting and woken < _MOST_WOKEN:
            turn = heapq.heappop(self._waiting)[1]
            if not turn.done():
                # The first goes on in any case, however long all else has taken.
                turn.set_result(woken == 0)
                woken += 1
        self._is_begun = woken > 0
        if woken:
            asyncio.get_running_loop().call_soon(self._next)  # behind them
        else:
            self._until = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the methods of one spider."""

    spider: Spider
    scope: Scope
    seen: Container[bytes]
    now: Callable[[], datetime]
    watch: Watchdog
    parsing: Parsing
    state: KeptState
    write: WriteLinks  #: of callbacks that read a list of URLs
    turns: Turns = field(default_factory=Turns)

    @cached_property
    def _items(self) -> ItemPolicy:
        return ItemPolicy.of(self.spider)

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """Return what the spider's method named *callback* makes of *arguments*.

        *task* is the one whose page or failure it is about. A `Failed` where the
        method raises. Raises `SpiderError` where the spider has no such method.
        """
        method = callback_named(self.spider, callback)
        called = Called(name=callback, subject=task.url)
        # The base class's `on_error` looks at nothing.
        looks = getattr(method, "__func__", None) is not Spider.on_error
        responses = callbacks.responses_in(arguments, self.scope) if looks else ()
        is_list = is_url_list(method)

        async def write(tasks: list[Task], too_deep: list[Task]) -> None:
            await self.write(tasks, too_deep)
            await self.turns.take()
            self.watch.begun = called

        with self.state.running(task) as running:
            async with self.parsing.ready(*responses):
                await self.turns.take()
                self.watch.begun = called
                produced = await callbacks.run(
                    method,
                    *arguments,
                    # A list is no page: what is in it lies as deep as the list.
                    task=replace(task, depth=task.depth - 1) if is_list else task,
                    scope=self.scope,
                    now=self.now(),
                    seen=self.seen,
                    name=callback,
                    within=self.watch.limit,
                    stalled=self.watch.stalled,
                    items=self._items,
                    rules=() if is_list else self.spider.rules,
                    turn=self.turns.take,
                    write=write if is_list else None,
                )
            if isinstance(produced, Produced) and produced.retired is None:
                produced.state = running.keep()
            return produced
