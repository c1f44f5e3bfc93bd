"""Run the methods of a spider on its pages, one after the other, in the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crawlcw.api.response import Response
from crawlcw.api.rules import Rule
from crawlcw.api.spider import Spider, callback_named
from crawlcw.api.url_list import is_url_list
from crawlcw.api.user_code import Called
from crawlcw.crawl import callbacks, url_lists
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.item_sink import ItemPolicy
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.url_lists import WriteLinks
from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed


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

            return await url_lists.run(
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
