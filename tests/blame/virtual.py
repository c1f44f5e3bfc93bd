"""Virtual time for a whole crawl: an event loop whose clock jumps to the next timer.

Nothing waits for anything outside of the loop: SQLite is called in the loop, and
the web is made of timers. So an hour takes milliseconds, and the same seed makes
the same crawl.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.stalls import Stalls

T = TypeVar("T")
_BEGINNING = 1_000.0
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: What a call of the ledger takes.
_LEDGER_LATENCY = 0.002
#: What a turn of the loop takes.
_TURN = 0.00002


class TooLongError(Exception):
    """A crawl that should have ended by this time has not."""


class VirtualClock:
    """Seconds that pass only where nothing else is to be done."""

    def __init__(self) -> None:
        self.now = _BEGINNING
        self.until = float("inf")

    def monotonic(self) -> float:
        return self.now

    def ledger_now(self) -> datetime:
        moment = _EPOCH + timedelta(seconds=self.now - _BEGINNING)
        return moment.replace(microsecond=moment.microsecond // 1000 * 1000)

    @property
    def elapsed(self) -> float:
        return self.now - _BEGINNING


class _Selector(selectors.SelectSelector):
    """Waits by letting time pass."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("the crawl waits for something that never comes")
        # A turn of the loop takes its time as well: a scope that is cancelled keeps
        # the loop busy until its tasks have ended, and they may wait for a timer.
        self._clock.now += max(timeout, _TURN)
        if self._clock.now > self._clock.until:
            raise TooLongError
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_Selector(clock))
        self._virtual = clock
        # A timer must have come where the selector has waited for it.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual.now


class _InTheLoop:
    """Stands for `anyio.to_thread`: what is called blocks the loop for no virtual time."""

    @staticmethod
    async def run_sync(work: Callable[[], T], **_given: object) -> T:
        await asyncio.sleep(_LEDGER_LATENCY)
        return work()


async def _unwatched(watchdog: Watchdog, *_: object) -> Watchdog:
    # It was made by the machine's clock, which may have just begun. Nothing is ever late.
    watchdog.stalls = Stalls(now=float("inf"))
    return watchdog


async def _left(*_: object) -> None:
    pass


@contextmanager
def virtual(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Let everything within the block that asks for the time be told the virtual one."""
    clock = VirtualClock()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", clock.monotonic)
        patch.setattr("crawlcw.ledger.sqlite.connection.to_thread", _InTheLoop)
        patch.setattr("crawlcw.ledger.sqlite.connection._sync_file", lambda _: None)
        # Its thread has real time, in which a virtual loop never stands still.
        patch.setattr(Watchdog, "__aenter__", _unwatched)
        patch.setattr(Watchdog, "__aexit__", _left)
        patch.setattr("crawlcw.ledger.sqlite.connection._sync_folder", lambda _: None)
        yield clock


def run(clock: VirtualClock, main: Coroutine[Any, Any, T], *, within: timedelta) -> T:
    """Return what *main* returns; raises `TooLongError` where it takes longer than that."""
    clock.until = clock.now + within.total_seconds()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        try:
            return runner.run(main)
        finally:
            clock.until = float("inf")
