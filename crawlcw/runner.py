"""Where a spider's methods run: in this process, or wherever another runner has them run."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from crawlcw import callbacks
from crawlcw.callbacks import Produced, Scope
from crawlcw.spider import Spider, callback_named
from crawlcw.task import Task
from crawlcw.transitions import Failed


class Runner(Protocol):
    """Runs the methods of one spider."""

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """Return what the spider's method named *callback* makes of *arguments*.

        *task* is the one whose page or failure it is about. A `Failed` where the
        method raises. Raises `SpiderError` where the spider has no such method.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Runs them in the event loop."""

    spider: Spider
    scope: Scope
    known: Container[bytes]
    now: Callable[[], datetime]

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """See `Runner.run`."""
        return await callbacks.run(
            callback_named(self.spider, callback),
            *arguments,
            task=task,
            scope=self.scope,
            now=self.now(),
            known=self.known,
            name=callback,
        )
