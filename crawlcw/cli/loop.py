"""Event loop of the commands: uvloop if it is installed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* on a new loop and return its result."""
    try:
        import uvloop
    except ImportError:
        factory = None  # not available on Windows
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
