"""End of a watchdog, and its measurement of the loop's lag.

Its actions for a blocked loop are tested in tests/blame/test_stalls.py.
"""

import asyncio
import logging
import signal
import threading
import time
from datetime import timedelta

import anyio
import pytest

from crawlcw.api.user_code import Called
from crawlcw.engine import watchdog
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog

pytestmark = pytest.mark.quick

HOUR = timedelta(hours=1)


async def test_leaving_wakes_the_thread_from_between_its_looks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watchdog, "_LOOK_EVERY", HOUR.total_seconds())
    watching: list[threading.Thread] = []
    watches = threading.Event()

    def clock() -> float:
        if threading.current_thread().name == "crawlcw watchdog":
            watching.append(threading.current_thread())
            watches.set()
        return time.monotonic()

    async with Watchdog(Stats(), limit=timedelta(0), clock=clock):
        await asyncio.to_thread(watches.wait)

    assert not watching[0].is_alive()


async def test_the_lag_is_the_longest_since_it_was_asked_for_and_that_of_now():
    now = 0.0
    dog = Watchdog(Stats(), limit=timedelta(0), clock=lambda: now)
    async with dog:
        now = 0.75  # the loop is blocked until the next await
        assert dog.lag() == pytest.approx(0.65)

        while dog.stalls.lag(now):
            await asyncio.sleep(0)
        now = 0.8
        assert dog.lag() == pytest.approx(0.65)
        assert dog.lag() == 0.0


async def test_a_short_lease_is_renewed_as_soon_as_it_would_have_been(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(watchdog, "_LOOK_EVERY", 0.001)
    now = 0.0
    stands = False
    renewed: list[float] = []
    is_renewed = threading.Event()

    async def renew() -> None:
        renewed.append(now)
        if len(renewed) == 2:
            is_renewed.set()

    def clock() -> float:
        nonlocal now
        if stands and threading.current_thread().name == "crawlcw watchdog":
            now += 0.01
        return now

    every = timedelta(seconds=0.6)
    dog = Watchdog(Stats(), limit=timedelta(0), renew_every=every, renew=renew, clock=clock)
    async with dog:
        now = 0.5  # 0.5 s of the 0.6 s between two renewals
        while dog.stalls.lag(now):
            await asyncio.sleep(0)
        stands = True
        assert is_renewed.wait(30)  # blocks the event loop
        stands = False

    assert 0.9 <= renewed[0] < 1.1
    assert renewed[1] - renewed[0] == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_renewal_that_fails_or_hangs_is_not_the_last(
    fails: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watchdog, "_LOOK_EVERY", 0.001)
    monkeypatch.setattr(watchdog, "_TO_RENEW", 0.001)
    calls: list[None] = []
    again = threading.Event()

    async def renew() -> None:
        calls.append(None)
        if len(calls) > 1:
            again.set()
        elif fails:
            raise ValueError("no such host")
        await asyncio.Event().wait()

    every = timedelta(seconds=0.001)
    async with Watchdog(Stats(), limit=timedelta(0), renew_every=every, renew=renew):
        assert again.wait(30)  # blocks the event loop


async def test_a_standstill_of_less_than_a_second_is_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(watchdog, "_LOOK_EVERY", 0.001)
    now = 0.0
    looks = threading.Semaphore(0)

    def clock() -> float:
        if threading.current_thread().name == "crawlcw watchdog":
            looks.release()
        return now

    every = timedelta(seconds=0.1)
    async with Watchdog(Stats(), limit=timedelta(0), renew_every=every, clock=clock):
        now = 1.0  # the next tick was due at 0.1
        while looks.acquire(blocking=False):
            pass
        for _ in range(3):
            assert looks.acquire(timeout=30)  # blocks the event loop

    assert "stood still" not in caplog.text


async def test_a_standstill_is_told_where_the_thread_did_not_see_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """C code may hold the interpreter's lock all the time."""
    monkeypatch.setattr(watchdog, "_LOOK_EVERY", HOUR.total_seconds())
    now = 0.0
    dog = Watchdog(Stats(), limit=timedelta(0), clock=lambda: now)
    async with dog:
        for called in (Called(name="parse", subject="a page"), None):
            dog.begun = called
            now += 10
            while dog.stalls.lag(now):
                await asyncio.sleep(0)

    (told,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "in parse of a page" in told.getMessage()


async def test_one_that_is_left_at_a_cancellation_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(watchdog, "TICK", 0)
    stats = Stats()
    with anyio.CancelScope() as scope:
        async with Watchdog(stats, limit=HOUR):
            scope.cancel()
    ticks = list(stats.loop_lag.counts)

    for _ in range(9):
        await asyncio.sleep(0)
    assert stats.loop_lag.counts == ticks
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
