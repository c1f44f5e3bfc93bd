"""The threads of clients that are closed: a process ends without waiting for them.

PyMongo's client, on which Motor's stands, looks after each server by threads that sleep for
half a second at a time. One that is told to stop hears of it when it wakes, and until then
PyMongo holds up the end of the process.
"""

from typing import Any

from pymongo import periodic_executor


def let_go_of_stopped() -> None:
    """Let the process end while threads sleep that are told to stop: they are daemons.

    Those of clients that are still open, the spider's own for one, are stopped and waited for
    when the process ends, as ever.
    """
    # There is no public way. Where a later PyMongo has other names, processes end later again.
    for reference in list(getattr(periodic_executor, "_EXECUTORS", ())):
        executor: Any = reference()
        if getattr(executor, "_stopped", False):
            executor.join = _at_once


def _at_once(timeout: float | None = None) -> None:  # as `join`
    """Wait for nothing."""
