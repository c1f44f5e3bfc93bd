"""Event loop of the commands: uvloop if it is installed."""

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* on a new loop and return its result."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def load() -> None:
    """Load the loop's modules; not at import, which would slow `--help` by 20 ms."""
    _factory()
    # Else anyio loads it at its first use, in each worker process.
    importlib.import_module("anyio._backends._asyncio")


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None  # not available on Windows
    return uvloop.new_event_loop
