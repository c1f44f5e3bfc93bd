"""Install Twisted's asyncio reactor on the event loop of a crawl.

A project imports `twisted.internet.reactor` while it is loaded, before the crawl has an event loop.
The reactor therefore gets a stand-in for the loop, which remembers calls until the loop runs. The
event loop runs the reactor's callbacks, so `reactor.run` is never called.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from twisted.internet import asyncioreactor
from twisted.internet.main import installReactor


class LateLoop:
    """Stands for the event loop, which starts after the reactor was installed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: list[tuple[str, tuple[Any, ...]]] = []  #: calls before the loop ran

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use *loop* from now on, and repeat the earlier calls on it."""
        self._loop = loop
        for method, arguments in self._calls:
            getattr(loop, method)(*arguments)
        self._calls.clear()

    def time(self) -> float:
        """Return the clock of the loop in seconds."""
        return time.monotonic() if self._loop is None else self._loop.time()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if self._loop is not None:
            attribute: Callable[..., Any] = getattr(self._loop, method)
            return attribute
        return lambda *arguments: self._calls.append((method, arguments))


def install() -> None:
    """Install the reactor, unless a reactor of this module is installed.

    The class of the reactor is Twisted's own, because plugins compare it. `stop` does nothing,
    because only crawlcw ends the event loop.
    """
    if "twisted.internet.reactor" in sys.modules:
        return
    reactor = asyncioreactor.AsyncioSelectorReactor(LateLoop())  # type: ignore[arg-type]
    reactor.crash = reactor.stop = lambda: None  # type: ignore[method-assign]
    installReactor(reactor)


def start() -> None:
    """Start the reactor in the running event loop."""
    from twisted.internet import reactor  # installed by `install`

    loop = reactor._asyncioEventloop  # type: ignore[attr-defined]  # noqa: SLF001
    if isinstance(loop, LateLoop):
        loop.bind(asyncio.get_running_loop())
    reactor.startRunning(installSignalHandlers=False)  # type: ignore[attr-defined]


def end() -> None:
    """End the threads of the reactor."""
    from twisted.internet import reactor  # installed by `install`

    if (threads := reactor.threadpool) is not None:  # type: ignore[attr-defined]
        threads.stop()
