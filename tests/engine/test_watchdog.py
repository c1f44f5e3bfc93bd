"""Watchdog of an event loop: lag, renewals, log lines, timers, and the end of the process.

Whole crawls with a blocked loop are in tests/blame/test_stalls.py.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from crawlcw.api.user_code import Called, calls_user_code
from crawlcw.engine import watchdog
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, Reason
from crawlcw.model.clock import TICK, StallLog

pytestmark = pytest.mark.quick

HOUR = timedelta(hours=1)
PARSE, DETAIL = (Called(name=name, subject="a page") for name in ("parse", "detail"))


@calls_user_code
def call(called: Called | None, function: Callable[[], object]) -> None:
    function()


class Thread:
    """The clock of a watchdog: its looks pass 2 ms each, and its process does not end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.looks = 0
        self.exits: list[tuple[str, int]] = []  #: by thread, with the exit code
        self.ended = threading.Event()
        self._looked = threading.Semaphore(0)
        monkeypatch.setattr(watchdog, "_POLL_INTERVAL_S", 0.001)
        monkeypatch.setattr(watchdog, "_LOG_TIMEOUT_S", 0.01)
        monkeypatch.setattr("os._exit", self.exit)

    def clock(self) -> float:
        if threading.current_thread().name == "crawlcw watchdog":
            self.now += 0.002
            self.looks += 1
            self._looked.release()
        return self.now

    def wait(self, looks: int) -> None:
        """Block the caller's event loop until the watchdog has looked as often."""
        while self._looked.acquire(blocking=False):
            pass
        for _ in range(looks):
            assert self._looked.acquire(timeout=30)

    def exit(self, code: int) -> None:
        name = threading.current_thread().name
        self.exits.append((name, code))
        # Not at the exit of the timer: the watchdog may still be writing down who keeps the loop.
        if name == "crawlcw watchdog":
            self.ended.set()
            raise RuntimeError("the process has ended")

    @staticmethod
    def join() -> None:
        for each in threading.enumerate():
            if each.name == "crawlcw watchdog" or isinstance(each, threading.Timer):
                each.join()


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    thread = Thread(monkeypatch)
    yield thread
    thread.join()


@pytest.fixture
def own_timer() -> Iterator[None]:
    """A timer of CPU time that the program around the crawl uses itself."""
    before = signal.signal(signal.SIGVTALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_VIRTUAL, 10_000)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def cpu_left() -> float:
    return signal.getitimer(signal.ITIMER_VIRTUAL)[0]


async def test_the_lag_is_the_longest_since_it_was_asked_for_and_that_of_now(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(watchdog, "TICK", 0)
    now = 0.0
    dog = Watchdog(Stats(), limit=timedelta(0), clock=lambda: now)
    async with dog:
        now = 0.75  # the loop is blocked until the next await
        assert dog.lag() == pytest.approx(0.65)

        for now in (0.75, 1.05):
            while dog.stalls.lag(now):
                await asyncio.sleep(0)
        assert dog.lag() == pytest.approx(0.65)
        assert dog.lag() == 0.0


async def test_a_short_lease_is_renewed_as_soon_as_it_would_have_been(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(watchdog, "_POLL_INTERVAL_S", 0.001)
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


async def test_a_standstill_is_told_where_the_thread_did_not_see_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """C code may hold the interpreter's lock all the time."""
    caplog.set_level(logging.DEBUG, logger="crawlcw")
    monkeypatch.setattr(watchdog, "_POLL_INTERVAL_S", HOUR.total_seconds())
    monkeypatch.setattr(watchdog, "TICK", 0)
    now = 0.0
    stats = Stats()
    dog = Watchdog(stats, limit=timedelta(0), clock=lambda: now)
    async with dog:
        for called, seconds in [(PARSE, 9), (None, 7), (PARSE, 5), (DETAIL, 3), (None, 4)]:
            dog.last_user_call = called or dog.last_user_call
            now += 0.1 + seconds
            while dog.stalls.lag(now):
                await asyncio.sleep(0)

    # Each callback once.
    assert [(each.levelname, each.getMessage().partition(":")[0]) for each in caplog.records] == [
        ("WARNING", "the event loop stalled for 9.0 s, in parse of a page"),
        ("DEBUG", "the event loop stalled for 7.0 s"),
        ("WARNING", "the event loop stalled for 3.0 s, in detail of a page"),
    ]
    assert (stats.stalls, stats.longest_stall) == (5, 9.0)
    assert stats.loop_lag.seconds == pytest.approx(28)


@pytest.mark.usefixtures("own_timer")
async def test_a_callback_that_keeps_the_loop_for_too_long_ends_the_process(
    thread: Thread,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    limit = timedelta(seconds=0.01)
    dog = Watchdog(Stats(), limit=limit, renew_every=HOUR, clock=thread.clock)
    where, looks = "", 0

    def keep() -> None:
        nonlocal where, looks
        where, looks = dog.blocking_code(), thread.looks
        thread.now = 1.5
        assert thread.ended.wait(30)
        looks = thread.looks - looks

    async with dog:
        assert dog.blocking_code() == ""
        call(PARSE, keep)

    thread.join()
    assert ("crawlcw watchdog", watchdog.STUCK_EXIT_CODE) in thread.exits
    assert looks >= 5, "each look passes 2 ms of the limit"
    assert where == "parse of a page"
    stalled, stuck, *_ = caplog.records
    assert "the event loop stalled for 1.4 s, in parse of a page" in stalled.getMessage()
    assert stuck.getMessage().startswith("parse has blocked the event loop for more than ")
    assert "in keep" in vars(stuck)["traceback"]
    assert "in keep" in capfd.readouterr().err


@pytest.mark.usefixtures("own_timer")
@pytest.mark.parametrize(
    ("limit", "called"), [(0, PARSE), (0.01, None)], ids=["no limit", "no code of the user's"]
)
async def test_a_process_without_a_limit_or_a_callback_may_stand_still(
    thread: Thread, caplog: pytest.LogCaptureFixture, limit: float, called: Called | None
):
    async with Watchdog(Stats(), limit=timedelta(seconds=limit), clock=thread.clock):
        thread.now = 1.5
        call(called, lambda: thread.wait(20))

    assert thread.exits == []
    assert {vars(each)["event"] for each in caplog.records} <= {"loop_stalled"}


@pytest.mark.parametrize(("limit", "cpu"), [(2, 4), (3600, 3605)])
async def test_a_process_may_use_up_to_5_s_of_cpu_time_more_than_the_limit(
    thread: Thread, limit: float, cpu: float
):
    async with Watchdog(Stats(), limit=timedelta(seconds=limit), clock=thread.clock):
        at_first = cpu_left()
        thread.now = 1.5
        signal.setitimer(signal.ITIMER_VIRTUAL, 10_000)
        thread.wait(3)
        in_python = cpu_left()

    assert at_first == pytest.approx(cpu, abs=1)
    assert in_python == pytest.approx(cpu, abs=1), "while the thread runs no timer is needed"
    assert cpu_left() == 0


@pytest.mark.usefixtures("own_timer")
async def test_the_timer_of_the_program_around_the_crawl_is_left_alone(thread: Thread):
    async with Watchdog(Stats(), limit=HOUR, clock=thread.clock):
        thread.now = 1.5
        thread.wait(3)
        inside = cpu_left()

    assert [inside, cpu_left()] == pytest.approx([10_000, 10_000], abs=1)


@pytest.mark.parametrize(("own", "explained"), [(None, True), (5, False), (20, True)])
def test_the_timeout_of_a_request_itself_counts(own: float | None, explained: bool):
    stats = Stats()
    deadlines = {Reason.TIMEOUT_TOTAL: 10.0}
    dog = Watchdog(stats, limit=timedelta(0), deadlines=deadlines, clock=lambda: 12.0)
    dog.stalls = StallLog(now=9 - TICK)  # 3 of the 12 s
    error = FetchError(Reason.TIMEOUT_TOTAL)
    error.deadline = own

    assert dog.explains(error, 0.0) == explained
    assert stats.forgiven == explained
