"""Virtual time for a whole crawl: an event loop whose clock jumps to the next timer.

The crawl waits for timers only: SQLite is called in the loop, and the web consists of
timers. So an hour takes milliseconds, and the same seed gives the same crawl.
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
from crawlcw.model.clock import StallLog

T = TypeVar("T")
_BEGINNING = 1_000.0
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: Virtual seconds of a call of the ledger.
_LEDGER_LATENCY = 0.002
#: Virtual seconds of a turn of the event loop.
_TURN = 0.00002
#: Of one loop. The longest test, an outage of an hour, makes 125,000.
_MOST_TURNS = 300_000


class TooLongError(Exception):
    """The crawl has not ended in time."""


class VirtualClock:
    """Clock that advances only while the event loop is idle."""

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


class BoundedSelector(selectors.DefaultSelector):
    """Selector that fails a test whose loop never ends."""

    turns = 0

    def count_turn(self) -> None:
        self.turns += 1
        if self.turns > _MOST_TURNS:
            self.turns = 0  # the runner still has to cancel the tasks
            raise AssertionError(f"endless loop: no end after {_MOST_TURNS:,} turns of the loop")


class _Selector(BoundedSelector):
    """Selector that advances the clock instead of waiting."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("the crawl waits for something that never comes")
        self.count_turn()
        # A turn of the loop takes time as well: a cancelled scope keeps the loop busy
        # until its tasks have ended, and they may wait for a timer.
        self._clock.now += max(timeout, _TURN)
        if self._clock.now > self._clock.until:
            raise TooLongError
        return []


class _ReadingSelector(_Selector):
    """Selector for sockets whose other ends are in this process: it advances the clock last."""

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = selectors.DefaultSelector.select(self, 0)
        return ready or super().select(timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self, clock: VirtualClock, *, has_sockets: bool = False) -> None:
        super().__init__(_ReadingSelector(clock) if has_sockets else _Selector(clock))
        self._virtual = clock
        # A timer must be due after the selector has waited for it.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual.now


class _InTheLoop:
    """Stands for `anyio.to_thread`: calls functions in the loop, in no virtual time."""

    @staticmethod
    async def run_sync(work: Callable[[], T], **_given: object) -> T:
        await asyncio.sleep(_LEDGER_LATENCY)
        return work()


async def _unwatched(watchdog: Watchdog, *_: object) -> Watchdog:
    # It uses the machine's clock, which may have just started. Nothing is ever late.
    watchdog.stalls = StallLog(now=float("inf"))
    return watchdog


async def _left(*_: object) -> None:
    pass


@contextmanager
def virtual(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Replace the clocks of the block by the virtual one."""
    clock = VirtualClock()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", clock.monotonic)
        patch.setattr("crawlcw.ledger.sqlite.connection.to_thread", _InTheLoop)
        patch.setattr("crawlcw.ledger.sql.database.to_thread", _InTheLoop)
        patch.setattr("crawlcw.ledger.sqlite.connection._sync_file", lambda _: None)
        # The watchdog's thread runs in real time, in which a virtual loop never stalls.
        patch.setattr(Watchdog, "__aenter__", _unwatched)
        patch.setattr(Watchdog, "__aexit__", _left)
        patch.setattr("crawlcw.ledger.sqlite.connection._sync_folder", lambda _: None)
        yield clock


def run(
    clock: VirtualClock,
    main: Coroutine[Any, Any, T],
    *,
    within: timedelta,
    has_sockets: bool = False,
) -> T:
    """Run *main* and return its result; raise `TooLongError` if it takes longer than *within*."""
    clock.until = clock.now + within.total_seconds()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, has_sockets=has_sockets)) as runner:
        try:
            return runner.run(main)
        finally:
            clock.until = float("inf")
