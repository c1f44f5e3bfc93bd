"""How a watchdog ends; what it does while a loop stands still: tests/blame/test_stalls.py."""

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


class Upkeep:
    """Notes the end of its watchdog's thread, which closes it last."""

    closed = False

    async def renew(self) -> None: ...

    async def close(self) -> None:
        self.closed = True


async def test_leaving_wakes_the_thread_from_between_its_looks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watchdog, "_LOOK_EVERY", HOUR.total_seconds())
    upkeep = Upkeep()
    watches = threading.Event()

    def clock() -> float:
        if threading.current_thread().name == "crawlcw watchdog":
            watches.set()
        return time.monotonic()

    async with Watchdog(Stats(), limit=timedelta(0), renew_every=HOUR, upkeep=upkeep, clock=clock):
        await asyncio.to_thread(watches.wait)

    assert upkeep.closed
