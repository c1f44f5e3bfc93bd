"""The event loop a command runs on: uvloop's where it is installed."""

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* to its end on a loop of its own, and return what it returns."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def load() -> None:
    """Load the modules of the loop, which `--help` need not spend 20 ms on."""
    _factory()
    # anyio loads it at its first use, in each process anew.
    importlib.import_module("anyio._backends._asyncio")


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None  # Windows has none
    return uvloop.new_event_loop
