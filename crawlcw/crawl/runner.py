"""Where a spider's methods run: in this process, or wherever another runner has them run."""

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from crawlcw.api.spider import Spider, callback_named
from crawlcw.api.user_code import Called
from crawlcw.crawl import callbacks
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed


class Runner(Protocol):
    """Runs the methods of one spider."""

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """Return what the spider's method named *callback* makes of *arguments*.

        *task* is the one whose page or failure it is about. A `Failed` where the
        method raises. Raises `SpiderError` where the spider has no such method.
        """


class Turns:
    """Lets one callback begin in each tick of the loop, so that all else gets its turns as well."""

    def __init__(self) -> None:
        self._waiting = asyncio.Lock()
        self._taken = False

    async def take(self) -> None:
        """Wait for a tick in which no other has begun, those that came first before."""
        if self._taken or self._waiting.locked():
            async with self._waiting:
                while self._taken:  # noqa: ASYNC110  # a tick is what this waits for
                    await asyncio.sleep(0)
        self._taken = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._taken = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Runs them in the event loop."""

    spider: Spider
    scope: Scope
    seen: Container[bytes]
    now: Callable[[], datetime]
    watch: Watchdog
    turns: Turns = field(default_factory=Turns)

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """See `Runner.run`."""
        method = callback_named(self.spider, callback)
        await self.turns.take()
        self.watch.begin(Called(name=callback, subject=task.url))
        try:
            return await callbacks.run(
                method,
                *arguments,
                task=task,
                scope=self.scope,
                now=self.now(),
                seen=self.seen,
                name=callback,
                within=self.watch.limit,
                stalled=self.watch.stalled,
            )
        finally:
            self.watch.end()
