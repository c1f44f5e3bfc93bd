"""The ledger's time, as measured in one process."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from crawlcw.model.clock import LedgerClock

pytestmark = pytest.mark.quick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Monotonic:
    """A monotonic clock that the test advances."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def machine() -> Monotonic:
    return Monotonic()


@pytest.fixture
def clock(machine: Monotonic) -> LedgerClock:
    return LedgerClock(monotonic=machine)


def test_before_any_measurement_it_is_the_machines_time():
    assert abs(LedgerClock().now() - datetime.now(UTC)) < timedelta(seconds=1)


def test_it_runs_evenly_from_what_was_measured(clock: LedgerClock, machine: Monotonic):
    clock.set(NOON + timedelta(days=365), asked_at=1000, answered_at=1000)

    assert clock.now() == NOON + timedelta(days=365)
    machine.seconds += 90
    assert clock.now() == NOON + timedelta(days=365, seconds=90)


def test_the_answer_is_taken_to_be_of_the_middle_of_the_question(
    clock: LedgerClock, machine: Monotonic
):
    machine.seconds = 1004
    ahead = NOON + timedelta(days=365)

    clock.set(ahead, asked_at=1000, answered_at=1004)

    assert clock.now() == ahead + timedelta(seconds=2)


def test_it_never_runs_backwards(clock: LedgerClock, machine: Monotonic):
    ahead = NOON + timedelta(days=365)
    clock.set(ahead, asked_at=1000, answered_at=1000)
    assert clock.now() == ahead

    clock.set(ahead - timedelta(seconds=10), asked_at=1000, answered_at=1000)
    assert clock.now() == ahead, "it stands still"
    machine.seconds += 10
    assert clock.now() == ahead
    machine.seconds += 1
    assert clock.now() == ahead + timedelta(seconds=1), "until the ledger's time has caught up"


def test_it_shows_utc_in_whole_milliseconds(clock: LedgerClock, machine: Monotonic):
    clock.set(datetime(2030, 1, 1, tzinfo=UTC), asked_at=1000, answered_at=1000)
    machine.seconds += 0.0015

    assert clock.now() == datetime(2030, 1, 1, microsecond=1000, tzinfo=UTC)
    assert clock.now().tzinfo is UTC


def test_measurements_are_taken_with_the_same_clock(clock: LedgerClock, machine: Monotonic):
    machine.seconds = 7

    assert clock.monotonic() == 7


def test_the_clock_is_set_once_a_minute_and_never_runs_backwards():
    seconds = 0.0
    now = LedgerClock(monotonic=lambda: seconds, time_of_day=partial(datetime.now, UTC)).now
    start = now()

    seconds = 59.0
    assert now() - start == timedelta(seconds=59)
    # An hour on the monotonic clock, and no change of the time of day.
    seconds = 3600.0
    assert timedelta(seconds=59) <= now() - start < timedelta(seconds=60)
    assert start.utcoffset() == timedelta(0)
    assert start.microsecond % 1000 == 0


def test_where_the_time_of_day_is_set_back_the_clock_goes_on():
    seconds, set_back = 0.0, timedelta()

    def time_of_day() -> datetime:
        return start + timedelta(seconds=seconds) - set_back

    now = LedgerClock(monotonic=lambda: seconds, time_of_day=time_of_day).now
    start = now()

    set_back = timedelta(hours=1)
    for seconds in (30.0, 61.0, 130.0):
        assert now() - start == timedelta(seconds=seconds)
    # A jump ahead is followed, as after a sleep of the machine.
    set_back, seconds = timedelta(hours=-1), 200.0
    assert now() - start == timedelta(hours=1, seconds=200)
