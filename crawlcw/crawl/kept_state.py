"""The state of a spider in one process: whose change each is, and when it is written.

A change is the page's whose callback makes it: callbacks run in one event loop, and a
context variable says which one is running. What all pages have changed is written with
the next group of outcomes, before these and before any link; a spider that changes nothing
costs nothing. A change outside of a callback (`start`, `opened`, a hook) is no page's,
and stays.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType
from typing import Any

from crawlcw.api.spider import Spider
from crawlcw.api.state import State
from crawlcw.errors import SpiderError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.model.spider_state import NO_PAGE, History, Page
from crawlcw.model.task import DONE, Lease, Status, Task
from crawlcw.model.transitions import Settlement

logger = logging.getLogger(__name__)


class KeptState:
    """Keeps the state of one spider in its ledger; without one it ends with this process."""

    def __init__(self, spider: Spider, ledger: Ledger | None) -> None:
        self._ledger = ledger
        self._history = History(
            clock=lambda: 0 if ledger is None else int(ledger.now().timestamp() * 1_000_000)
        )
        self._writing = asyncio.Lock()
        #: Whether it is read before each batch of pages.
        self._is_used = False
        state = spider.state
        # A spider may have an attribute of its own of that name.
        if isinstance(state, State):
            state.keep_in(self._history, page=self._page)
            self._is_used = _names_state(type(spider))

    def _page(self) -> Page | None:
        """Return the page whose callback uses the state; None: no callback does."""
        self._is_used = True
        running = _RUNNING.get()
        if running is None:
            return None
        if running.page is None:
            task = running.task
            # As it was when it was claimed.
            running.page = self._history.begin((task.id, task.fence + 1), settled=task.settled)
        elif running.page.has_ended:
            url = printable(running.task.url)
            raise SpiderError(f"self.state was used when the callback of {url} had ended")
        return running.page

    @contextmanager
    def running(self, task: Task) -> Iterator["Running"]:
        """Return a block in which a callback runs for the page of a task."""
        running = Running(self._history, task)
        token = _RUNNING.set(running)
        try:
            yield running
        finally:
            _RUNNING.reset(token)
            if running.page is not None:
                (self._history.end if running.is_kept else self._history.undo)(running.page)

    def undo(self, lease: Lease) -> None:
        """Take back the changes by callbacks of a page that is put back."""
        page = self._history.page_of((lease.task.id, lease.fence))
        if page is not None:
            self._history.undo(page)

    # When it is written, and read.

    async def open(self) -> None:
        """Read it, and settle what crashed processes have left."""
        await self._read()
        if self._history.stored.revision:
            self._is_used = True
            await self._settle_others()

    async def refresh(self) -> None:
        """Read what other processes have changed; where the spider has a state."""
        if self._is_used:
            async with self._writing:
                await self._read()

    async def keep(self) -> None:
        """Write what pages have changed so far, durably."""
        if not self._history.is_dirty:
            return
        async with self._writing:
            # The write that this has waited for may have been of all that.
            while self._history.is_dirty:
                await self._write()

    async def close(self) -> None:
        """Write the rest, with the settled changes among the values."""
        if not self._is_used:
            return
        await self._settle_others()
        async with self._writing:
            after = self._history.next()
            if self._history.is_dirty or after.pending != self._history.stored.pending:
                await self._write()

    async def _write(self) -> None:
        assert self._ledger is not None
        before, after = self._history.stored, self._history.next()
        if await self._ledger.spider_state.change(before, after):
            self._history.wrote(after)
        else:
            await self._read()

    async def _read(self) -> None:
        assert self._ledger is not None
        known = self._history.stored.revision
        if (found := await self._ledger.spider_state.read(known=known)) is not None:
            self._history.load(found)

    async def _settle_others(self) -> None:
        """Find out how the pages ended whose changes other processes have left pending."""
        runs = self._history.unknown
        for run in runs:
            if run[0] == NO_PAGE:
                self._history.settle(run)
        ids = {task_id for task_id, _ in runs if task_id != NO_PAGE}
        if not ids:
            return
        assert self._ledger is not None
        found = await self._ledger.queries.find(TaskFilter(ids=ids), limit=len(ids))
        tasks = {record.task.id: record.task for record in found}
        for task_id, fence in runs:
            task = tasks.get(task_id)
            if task is not None and task.settled == fence and task.status is not Status.FAILED:
                self._history.settle((task_id, fence))
            elif task_id in ids and (task is None or task.status in DONE):
                self._history.drop((task_id, fence))

    # How pages end.

    def settling(self, settlements: Sequence[Settlement]) -> None:
        """Note the outcomes about to be recorded, before `keep`."""
        if not self._is_used:
            return
        for settlement in settlements:
            lease = settlement.lease
            run = (lease.task.id, lease.fence)
            if settlement.change.status in DONE:
                self._history.over(run, settled=lease.task.settled)

    def settled(self, settlements: Sequence[Settlement], *, lost: Collection[bytes]) -> None:
        """Note the recorded outcomes, but for those of tasks that are *lost*."""
        if not self._is_used:
            return
        for settlement in settlements:
            lease = settlement.lease
            run = (lease.task.id, lease.fence)
            if lease.task.id in lost:
                self.undo(lease)
            elif (page := self._history.page_of(run)) is not None and not page.is_void:
                self._history.settle(run)


@dataclass(slots=True)
class Running:
    """A callback that runs for the page of a task; its changes count once it is kept."""

    history: History
    task: Task
    page: Page | None = None  #: None: it has not used the state yet
    is_kept: bool = False

    def keep(self) -> dict[str, Any]:
        """Note that it has ended well; return its changes by name, None where a name is gone."""
        self.is_kept = True
        changed: dict[str, Any] = {}
        if self.page is not None:
            for name in sorted(self.page.names):
                found = self.history.get(self.page, name)
                changed[name] = None if found is None else found.value
        return changed


_RUNNING: ContextVar[Running | None] = ContextVar("running", default=None)


def _names_state(kind: type[Spider]) -> bool:
    """Return whether the code of a spider has the word `state`.

    Another process may have changed the state before this one has used it for the first time.
    """
    own = kind.__mro__[: kind.__mro__.index(Spider)]
    functions = [each for base in own for each in vars(base).values()]
    codes = [getattr(each, "__code__", None) for each in functions]
    return any("state" in _names_in(code) for code in codes if code is not None)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)
