"""Calls of a tracker from another thread than that of its event loop."""

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anyio.from_thread import BlockingPortal

from crawlcw.errors import LeaseLostError, LedgerError
from crawlcw.ledger.protocol import Added, Counts
from crawlcw.tracking.choices import Statuses
from crawlcw.tracking.new_task import NewTask
from crawlcw.tracking.sync_execution import SyncExecution
from crawlcw.tracking.thread_block import ThreadBlock
from crawlcw.tracking.views import Page, TrackedTask

if TYPE_CHECKING:
    from crawlcw.tracking.tracker import Tracker


class SyncCalls:
    """What `Tracker` is, for code that is not asynchronous."""

    def __init__(self, tracker: "Tracker", portal: Callable[[], BlockingPortal]) -> None:
        """*portal* returns the way into the event loop that the tracker lives in."""
        self.tracker = tracker
        self._portal = portal

    def add(self, key: str, data: Mapping[str, Any] | None = None, **options: Any) -> bool:
        """See `Tracker.add`."""
        return self._call(self.tracker.add, key, data, **options)  # type: ignore[no-any-return]

    def add_many(self, tasks: Collection[NewTask | str]) -> Added:
        """See `Tracker.add_many`."""
        return self._call(self.tracker.add_many, tasks)  # type: ignore[no-any-return]

    @contextmanager
    def start(
        self,
        key: str,
        *,
        enter_from: Statuses = (),
        stage: str | None = None,
    ) -> Iterator[SyncExecution]:
        """See `Tracker.start`.

        Where the tracker is closed before the block has ended, the task goes back, and
        the end of the block raises `LedgerError`.
        """
        block = ThreadBlock(self.tracker.start(key, enter_from=enter_from, stage=stage))
        with (
            self._unless_closed(f", and the work on task {key!r} with it"),
            self._portal().wrap_async_context_manager(block) as execution,
            block.left_by_its_thread(),
        ):
            yield SyncExecution(execution, call=self._call)

    def get(self, key: str) -> TrackedTask:
        """See `Tracker.get`."""
        return self._call(self.tracker.get, key)  # type: ignore[no-any-return]

    def find(self, **asked: Any) -> Page:
        """See `Tracker.find`."""
        return self._call(self.tracker.find, **asked)  # type: ignore[no-any-return]

    def counts(self) -> Counts:
        """See `Tracker.counts`."""
        return self._call(self.tracker.counts)  # type: ignore[no-any-return]

    def retry(self, *chosen_keys: str, **asked: Any) -> int:
        """See `Tracker.retry`."""
        return self._call(self.tracker.retry, *chosen_keys, **asked)  # type: ignore[no-any-return]

    def ignore(self, *chosen_keys: str, **asked: Any) -> int:
        """See `Tracker.ignore`."""
        return self._call(self.tracker.ignore, *chosen_keys, **asked)  # type: ignore[no-any-return]

    def reset(self, *chosen_keys: str, **asked: Any) -> int:
        """See `Tracker.reset`."""
        return self._call(self.tracker.reset, *chosen_keys, **asked)  # type: ignore[no-any-return]

    def _call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self._unless_closed():
            return self._portal().call(functools.partial(function, *args, **kwargs))

    @contextmanager
    def _unless_closed(self, what: str = "") -> Iterator[None]:
        """Say of a portal that has ended why it has; *what* says what ended with it."""
        try:
            yield
        except (
            RuntimeError,
            LeaseLostError,
            asyncio.CancelledError,
            concurrent.futures.CancelledError,
        ) as error:
            if not self.tracker.closed:
                raise
            raise LedgerError(f"the tracker was closed{what}") from error
