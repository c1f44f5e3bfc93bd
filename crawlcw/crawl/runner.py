"""Run the methods of a spider on its pages, one after the other, in the event loop."""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

from crawlcw.api.response import Response
from crawlcw.api.rules import Rule
from crawlcw.api.spider import Spider, callback_named
from crawlcw.api.url_list import is_url_list
from crawlcw.api.user_code import Called
from crawlcw.crawl import callbacks
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.item_sink import ItemPolicy
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed

#: Things that a callback yields between two writes.
SLICE = 500

#: Adds the links of a page whose callback runs: those to follow, and those that lie too deep.
WriteLinks = Callable[[list[Task], list[Task]], Awaitable[None]]
#: Runs something as a callback, of this task and with this scope.
RunSlice = Callable[[Callable[[], Any], Task, Scope], Awaitable[Produced | Failed]]


class Turns:
    """Lets one callback begin or go on in each tick of the loop, so that all else has its turns."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def take(self) -> None:
        """Wait for a tick that no other has taken, those that came first before."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()  # it had the turn already
                raise
        self._taken = True
        loop.call_soon(self._next)

    def _next(self) -> None:
        """Give the turn to the first that waits; it stays taken until that has had it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


@dataclass(frozen=True, slots=True, kw_only=True)
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

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """Return what the spider's method named *callback* makes of *arguments*.

        *task* is the one whose page or failure it is about. A `Failed` where the
        method raises. Raises `SpiderError` where the spider has no such method.
        """
        method = callback_named(self.spider, callback)
        with self.state.running(task) as running:
            produced = await self._run_method(method, callback, *arguments, task=task)
            if isinstance(produced, Produced) and produced.retired is None:
                running.keep()
                produced.state = running.changed
            return produced

    async def _run_method(
        self, method: Callable[..., Any], callback: str, *arguments: object, task: Task
    ) -> Produced | Failed:
        # The base class's `on_error` looks at nothing.
        looks = getattr(method, "__func__", None) is not Spider.on_error
        async with self.parsing.ready(*(callbacks.responses_in(arguments) if looks else ())):
            if not is_url_list(method):
                return await self._run(
                    method,
                    *arguments,
                    name=callback,
                    task=task,
                    scope=self.scope,
                    rules=self.spider.rules,
                )
            page = next((each for each in arguments if isinstance(each, Response)), None)

            async def run_slice(
                part: Callable[[], Any], task: Task, scope: Scope
            ) -> Produced | Failed:
                return await self._run(part, name=callback, task=task, scope=scope, page=page)

            return await _run_list(
                method,
                *arguments,
                task=task,
                scope=self.scope,
                run_slice=run_slice,
                write=self.write,
            )

    async def _run(
        self,
        method: Callable[..., Any],
        *arguments: object,
        task: Task,
        scope: Scope,
        name: str,
        rules: Sequence[Rule] = (),
        page: Response | None = None,
    ) -> Produced | Failed:
        await self.turns.take()
        self.watch.begin(Called(name=name, subject=task.url))
        try:
            return await callbacks.run(
                method,
                *arguments,
                task=task,
                scope=scope,
                now=self.now(),
                seen=self.seen,
                name=name,
                within=self.watch.limit,
                stalled=self.watch.stalled,
                items=ItemPolicy.of(self.spider),
                rules=rules,
                page=page,
                turn=self.turns.take,
            )
        finally:
            self.watch.end()


async def _run_list(
    callback: Callable[..., Any],
    *arguments: object,
    task: Task,
    scope: Scope,
    run_slice: RunSlice,
    write: WriteLinks,
) -> Produced | Failed:
    """Run a callback that reads a list of URLs; return its results but for the links written.

    A slice is written before the next one is read: 50,000 links take no more memory than some
    hundred, nor more of the event loop at once, and no write counts for `callback_timeout`.
    The last slice's links are returned: no page of them is taken before it is noted that
    the callback has ended well. A `Failed` where it raises: what it had yielded before is
    written all the same.
    """
    responses = [*callbacks.responses_in(arguments)]
    for each in responses:
        each.robot, each.obey_robots = scope.robot, scope.obey_robots
    # A list is no page: what is in it lies as deep as the list.
    task = replace(task, depth=task.depth - 1)
    scope = replace(scope, max_links=SLICE)
    slices = _Slices(callback, arguments)
    whole = Produced()
    while not slices.ended:
        produced = await run_slice(slices.next, task, scope)
        if isinstance(produced, Failed):
            return produced
        if slices.ended or produced.stop is not None:
            whole.tasks, whole.too_deep = produced.tasks, produced.too_deep
        else:
            await write(produced.tasks, produced.too_deep)
        whole.items += produced.items
        whole.items_dropped += produced.items_dropped
        whole.dropped.add(produced.dropped)
        if produced.stop is not None:
            whole.stop = produced.stop
            break
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
