"""Run the methods of a spider on its pages, one after the other, in the event loop."""

import asyncio
import heapq
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import count, islice
from typing import Any

from crawlcw.api.response import Response
from crawlcw.api.rules import Rule
from crawlcw.api.spider import Spider, callback_named
from crawlcw.api.url_list import is_url_list
from crawlcw.api.user_code import Called
from crawlcw.crawl import callbacks
from crawlcw.crawl.callbacks import ItemPolicy, Produced, Scope
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed

#: Things that a callback yields between two writes.
SLICE = 500
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
    #: Adds the links of a list of URLs whose callback runs: those to follow, and the too deep.
    write: Callable[[list[Task], list[Task]], Awaitable[None]]
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
        # The base class's `on_error` looks at nothing.
        looks = getattr(method, "__func__", None) is not Spider.on_error
        responses = callbacks.responses_in(arguments, self.scope) if looks else ()
        with self.state.running(task) as running:
            async with self.parsing.ready(*responses):
                if is_url_list(method):
                    produced = await self._run_list(callback, method, *arguments, task=task)
                else:
                    rules = self.spider.rules
                    produced = await self._run(callback, method, *arguments, task=task, rules=rules)
            if isinstance(produced, Produced) and produced.retired is None:
                produced.state = running.keep()
            return produced

    async def _run(
        self,
        name: str,
        method: Callable[..., Any],
        *arguments: object,
        task: Task,
        scope: Scope | None = None,
        rules: Sequence[Rule] = (),
        page: Response | None = None,
    ) -> Produced | Failed:
        await self.turns.take()
        self.watch.begun = Called(name=name, subject=task.url)
        return await callbacks.run(
            method,
            *arguments,
            task=task,
            scope=scope or self.scope,
            now=self.now(),
            seen=self.seen,
            name=name,
            within=self.watch.limit,
            stalled=self.watch.stalled,
            items=self._items,
            rules=rules,
            page=page,
            turn=self.turns.take,
        )

    async def _run_list(
        self, name: str, method: Callable[..., Any], *arguments: object, task: Task
    ) -> Produced | Failed:
        """Run a callback that reads a list of URLs; return its results but for the links written.

        A slice is written before the next one is read: 50,000 links take no more memory than some
        hundred, nor more of the event loop at once, and no write counts for `callback_timeout`.
        The last slice's links are returned: no page of them is taken before it is noted that
        the callback has ended well. A `Failed` where it raises: what it had yielded before is
        written all the same.
        """
        responses = callbacks.responses_in(arguments, self.scope)
        page = responses[0] if responses else None
        # A list is no page: what is in it lies as deep as the list.
        task = replace(task, depth=task.depth - 1)
        scope = replace(self.scope, max_links=SLICE)
        slices = _Slices(method, arguments)
        whole = Produced()
        while not slices.ended:
            produced = await self._run(name, slices.next, task=task, scope=scope, page=page)
            if isinstance(produced, Failed):
                return produced
            whole.items += produced.items
            whole.items_dropped += produced.items_dropped
            whole.dropped.add(produced.dropped)
            if slices.ended or produced.stop is not None:
                whole.tasks, whole.too_deep = produced.tasks, produced.too_deep
                whole.stop = produced.stop
                break
            await self.write(produced.tasks, produced.too_deep)
        for each in responses:
            whole.dropped.add(each.dropped)
        return whole


class _Slices:
    """What a callback yields, cut into slices."""

    def __init__(self, callback: Callable[..., Any], arguments: tuple[object, ...]) -> None:
        self._callback = callback
        self._arguments = arguments
        self._things: Iterator[object] | None = None
        self._source: AsyncIterator[object] | None = None
        self._error: Exception | None = None
        self.ended = False

    def next(self) -> Any:
        """Return the next slice, as a callback would its things."""
        if self._source is not None:
            return self._async_slice(self._source)
        if self._things is None:
            result = self._callback(*self._arguments)
            if inspect.isawaitable(result) or isinstance(result, AsyncIterator):
                return self._awaited(result)
            self._things = iter(callbacks.things(result))
        return self._slice(self._things)

    def _slice(self, things: Iterator[object]) -> Iterator[object]:
        if self._error is not None:
            raise self._error
        number = 0
        try:
            for thing in islice(things, SLICE):
                number += 1
                yield thing
        except Exception as error:
            if not number:
                raise
            # What came before it is written first.
            self._error = error
            return
        self.ended = number < SLICE

    async def _awaited(self, result: Any) -> AsyncIterator[object]:
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, AsyncIterator):
            self._source = result
            async for thing in self._async_slice(result):
                yield thing
        else:
            self._things = iter(callbacks.things(result))
            for thing in self._slice(self._things):
                yield thing

    async def _async_slice(self, source: AsyncIterator[object]) -> AsyncIterator[object]:
        if self._error is not None:
            raise self._error
        number = 0
        try:
            async for thing in source:
                number += 1
                yield thing
                if number == SLICE:
                    return
        except Exception as error:
            if not number:
                raise
            self._error = error
            return
        self.ended = True
