"""What a tracker is asked for, from another thread than that of its event loop."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anyio.from_thread import BlockingPortal

from crawlcw.ledger.protocol import Added, Counts
from crawlcw.model.task import Status
from crawlcw.tracking.new_task import NewTask
from crawlcw.tracking.sync_execution import SyncExecution
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
        enter_from: Status | Collection[Status] = (),
        stage: str | None = None,
    ) -> Iterator[SyncExecution]:
        """See `Tracker.start`."""
        started = self.tracker.start(key, enter_from=enter_from, stage=stage)
        with self._portal().wrap_async_context_manager(started) as execution:
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

    def reset(self, *chosen_keys: str, stage: str | None = None) -> int:
        """See `Tracker.reset`."""
        return self._call(self.tracker.reset, *chosen_keys, stage=stage)  # type: ignore[no-any-return]

    def _call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._portal().call(functools.partial(function, *args, **kwargs))
