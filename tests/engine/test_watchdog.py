"""End of a watchdog, and its measurement of the loop's lag.

Its actions for a blocked loop are tested in tests/blame/test_stalls.py.
"""

import asyncio
import threading
import time
from datetime import timedelta

import pytest

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
