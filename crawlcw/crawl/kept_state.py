"""The state of a spider in one process: which page made a change, and when to write the change.

A context variable shows which page's callback makes a change. Before the committer writes a group
of links and outcomes, it writes the changes of all pages. A change outside a callback (in `start`,
in `opened` or in a hook) belongs to no page, and is never undone.
"""

import asyncio
import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import Any

from crawlcw.api.spider import Spider
from crawlcw.errors import SpiderError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.model.spider_state import History, Page, State
from crawlcw.model.task import DONE, Lease, Task
from crawlcw.model.transitions import Settlement

logger = logging.getLogger(__name__)


class KeptState:
    """Keeps a spider's state in its ledger; without a ledger the state ends with this process."""

    def __init__(self, spider: Spider, ledger: Ledger | None) -> None:
        self._ledger = ledger
        self._history = History()
        self._writing = asyncio.Lock()
        self._thread = threading.get_ident()
        self._is_refused = False
        #: Whether the spider uses its state. If so, the state is read after each claim of tasks.
        self._is_used = False
        state = spider.state
        # Do nothing if the spider has replaced its attribute `state` by another object.
        if isinstance(state, State):
            state.keep_in(self._history, page=self._page)
            self._is_used = _names_state(type(spider))

    def _page(self) -> Page | None:
        """Return the page whose callback uses the state; None if no callback does."""
        self._is_used = True
        page = _RUNNING.get()
        if threading.get_ident() != self._thread:
            raise self._refusal(
                "in a thread: return the values from it, and change self.state in the callback"
            )
        if page is not None:
            if page.has_ended:
                raise self._refusal(f"after the end of the callback of {printable(page.url)}")
            self._history.begin(page)
        return page

    def _refusal(self, where: str) -> SpiderError:
        """Return the error of an invalid use of the state; log the first such error.

        The log is needed because an error that ends a thread or an asyncio task may stay unseen.
        """
        error = SpiderError(f"self.state was used {where}")
        if not self._is_refused:
            self._is_refused = True
            logger.warning("%s; this change is lost", error, extra={"event": "state_lost"})
        return error

    @contextmanager
    def running(self, task: Task) -> Iterator[Page]:
        """Record that the callback for the page of a task runs in the `with` block."""
        # The claim has raised the task's fence by one since *task* was read.
        page = Page((task.id, task.fence + 1), task.settled, task.url)
        token = _RUNNING.set(page)
        try:
            yield page
        finally:
            _RUNNING.reset(token)
            self._history.end(page)

    def changes(self, page: Page) -> dict[str, Any]:
        """Return the values that a page has changed, by name; a deleted name has the value None."""
        return {name: self._history.view.get(name) for name in sorted(page.names)}

    def undo(self, lease: Lease) -> None:
        """Undo the state changes that the callbacks of a requeued page have made."""
        self._history.undo((lease.task.id, lease.fence))

    # Writes and reads.

    async def open(self) -> None:
        """Read the spider's state, and settle the pending changes of dead processes."""
        await self._read()
        if self._history.stored.revision:
            self._is_used = True
            await self._settle_others()

    async def refresh(self) -> None:
        """Read the changes of other processes, if the spider has a state."""
        if self._is_used:
            async with self._writing:
                await self._read()

    async def keep(self) -> None:
        """Write the changes of ended callbacks, and the changes so far of the running callback."""
        if self._history.unwritten(_RUNNING.get()):
            await self._write()

    async def close(self) -> None:
        """Write the remaining changes, and merge settled pages' changes into the state's values."""
        if self._is_used:
            await self._settle_others()
            await self._write(is_last=True)

    async def _write(self, *, is_last: bool = False) -> None:
        """Write the unwritten changes; if *is_last*, also merge settled changes into the values."""
        assert self._ledger is not None
        page, history = _RUNNING.get(), self._history
        async with self._writing:
            # While this call waited for the lock, another write may have written all changes.
            while (pages := history.unwritten(page)) or is_last:
                new_state = history.next(pages)
                if not pages and new_state.pending == history.stored.pending:
                    return
                if await self._ledger.spider_state.change(history.stored, new_state):
                    history.wrote(new_state)
                    return
                # Read again, because another process has changed the state since the last read.
                await self._read()

    async def _read(self) -> None:
        assert self._ledger is not None
        revision = self._history.stored.revision
        if (
            stored_state := await self._ledger.spider_state.read(known_revision=revision)
        ) is not None:
            self._history.load(stored_state)

    async def _settle_others(self) -> None:
        """Settle or undo other processes' pending changes, by the outcomes of the pages."""
        unknown_runs = dict(self._history.unknown())
        if not unknown_runs:
            return
        assert self._ledger is not None
        records = await self._ledger.queries.find(
            TaskFilter(ids=unknown_runs.keys()), limit=len(unknown_runs)
        )
        tasks = {record.task.id: record.task for record in records}
        for run in unknown_runs.items():
            task = tasks.get(run[0])
            if task is None or (task.status in DONE and task.settled != run[1]):
                self._history.undo(run)
            elif task.settled == run[1]:
                self._history.settle(run, recorded=run[1])

    # Ends of pages.

    def settled(self, settlements: Sequence[Settlement], *, lost: Collection[bytes]) -> None:
        """Settle the changes of pages whose outcomes are recorded; undo those of *lost* tasks."""
        if not self._is_used:
            return
        for settlement in settlements:
            lease = settlement.lease
            if lease.task.id in lost:
                self.undo(lease)
            else:
                run = (lease.task.id, lease.fence)
                self._history.settle(run, recorded=lease.task.settled)


_RUNNING: ContextVar[Page | None] = ContextVar("running", default=None)


def _names_state(kind: type[Spider]) -> bool:
    """Return whether the code of a spider uses the name `state`.

    The state of such a spider is read early, because another process may change the state before
    the spider uses the state in this process.
    """
    classes = kind.__mro__[: kind.__mro__.index(Spider)]
    code_objects = [
        getattr(member, "__code__", None) for base in classes for member in vars(base).values()
    ]
    for code in code_objects:
        if isinstance(code, CodeType):
            if "state" in code.co_names:
                return True
            code_objects += code.co_consts
    return False
