"""Tracking for scripts: the same without `await`, on an event loop in a thread of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from anyio.from_thread import start_blocking_portal

from crawlcw.tracking.sync_calls import SyncCalls
from crawlcw.tracking.tracker import Tracker
from crawlcw.tracking.use_case import UseCase


class SyncTracker(SyncCalls):
    """The attributes and methods of `Tracker`, for code that is not asynchronous."""

    @classmethod
    @contextmanager
    def open(cls, url: str, use_case: str | UseCase, **options: Any) -> Iterator[Self]:
        """Open a use case for the length of a `with` block, see `Tracker.open`."""

        async def opening() -> Any:
            return Tracker.open(url, use_case, **options)

        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(portal.call(opening)) as tracker,
        ):
            yield cls(tracker, tracker.portal)
