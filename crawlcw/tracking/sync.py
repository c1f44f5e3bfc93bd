"""Tracking for scripts: the same without `await`, on an event loop in a thread of its own."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from anyio.from_thread import start_blocking_portal

from crawlcw.tracking.sync_calls import SyncCalls
from crawlcw.tracking.tracker import Tracker
from crawlcw.tracking.use_case import UseCase


class SyncTracker(SyncCalls):
    """What `Tracker` is, for code that is not asynchronous."""

    @classmethod
    @contextmanager
    def open(cls, url: str, use_case: str | UseCase, **options: Any) -> Iterator[Self]:
        """Open a use case for the length of a `with` block, see `Tracker.open`."""
        with start_blocking_portal() as portal:
            opening = portal.call(
                _called, functools.partial(Tracker.open, url, use_case, **options)
            )
            with portal.wrap_async_context_manager(opening) as tracker:
                yield cls(tracker, lambda: portal)


async def _called(function: Any) -> Any:
    return function()
