"""Running callbacks that read a list of URLs: a slice at a time, each written before the next.

So 50,000 links take no more memory than some hundred, nor more of the event loop at
once, and nothing waits for the ledger under `callback_timeout`.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from crawlcw.crawl import callbacks
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed

#: Things that a callback yields between two writes.
SLICE = 500

#: Adds the links of a page whose callback runs: those to follow, and those that lie too deep.
WriteLinks = Callable[[list[Task], list[Task]], Awaitable[None]]
#: Runs something as a callback, of this task and with this scope.
RunSlice = Callable[[Callable[[], Any], Task, Scope], Awaitable[Produced | Failed]]


async def run(
    callback: Callable[..., Any],
    *arguments: object,
    task: Task,
    scope: Scope,
    run_slice: RunSlice,
    write: WriteLinks,
) -> Produced | Failed:
    """Run *callback* to its end; return what it produced but for the links that are written.

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
