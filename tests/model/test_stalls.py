"""Stalls of an event loop, and the late events that they explain, with simple times."""

import pytest

from crawlcw.errors import Reason
from crawlcw.model.clock import TICK, Silence, StallLog

pytestmark = pytest.mark.quick

LIMITS = {Reason.TIMEOUT_CONNECT: 10.0, Reason.TIMEOUT_TOTAL: 30.0}


def with_stalls(*stalls: tuple[float, float]) -> StallLog:
    """Return a loop that ran from time 0 on, except in these intervals."""
    found, now = StallLog(now=0.0), 0.0
    for start, end in stalls:
        while now < start - 1.5 * TICK:
            now += TICK
            found.ticked(now)
        found.ticked(start - TICK)
        found.ticked(now := end)
    return found


def explained(stalls: StallLog, reason: Reason, began: float, now: float) -> bool:
    return stalls.explains(reason, began, now=now, limits=LIMITS)


def test_a_loop_that_ticks_does_not_lag():
    stalls = StallLog(now=0.0)

    assert [round(stalls.ticked(0.1 * n), 3) for n in (1, 2, 3)] == [0, 0, 0]
    assert stalls.seconds_since(0.0, now=0.3) == 0


def test_a_stall_is_counted_as_far_as_it_lies_behind_the_beginning():
    stalls = with_stalls((10, 13))

    assert stalls.seconds_since(0, now=13) == pytest.approx(3)
    assert stalls.seconds_since(12, now=13) == pytest.approx(1)
    assert stalls.seconds_since(13, now=13) == 0


def test_a_stall_that_lasts_is_counted_as_well():
    stalls = StallLog(now=0.0)

    assert stalls.lag(5 + TICK) == pytest.approx(5)
    assert stalls.seconds_since(0, now=5 + TICK) == pytest.approx(5)


def test_a_timeout_that_would_not_have_come_without_the_stall_is_explained():
    assert explained(with_stalls((7, 10)), Reason.TIMEOUT_CONNECT, 0, 10.1)


def test_a_timeout_that_would_have_come_all_the_same_is_not():
    assert not explained(with_stalls((11, 14)), Reason.TIMEOUT_CONNECT, 0, 14)
    assert not explained(with_stalls((5, 8), (19.1, 19.15)), Reason.TIMEOUT_CONNECT, 9, 19.15)


def test_many_small_lags_explain_a_timeout_only_where_they_are_a_part_of_it():
    busy = with_stalls(*((n, n + 0.3) for n in range(1, 11)))
    a_little = with_stalls((3, 3.3), (10, 10.3))

    assert explained(busy, Reason.TIMEOUT_CONNECT, 0, 10.3)
    assert not explained(a_little, Reason.TIMEOUT_CONNECT, 0, 10.3)


def test_a_server_that_hung_up_is_explained_by_a_stall_of_a_second():
    assert explained(with_stalls((5, 6.1)), Reason.DISCONNECTED, 0, 6.1)
    assert not explained(with_stalls((5, 5.8)), Reason.DISCONNECTED, 0, 5.8)


@pytest.mark.parametrize("reason", [Reason.TLS, Reason.CONNECT, Reason.HTTP_STATUS])
def test_other_failures_are_not_the_loops(reason: Reason):
    assert not explained(with_stalls((5, 9)), reason, 0, 9)


def test_silence_grows_until_something_is_heard():
    silence = Silence(now=0, interval=0.5)

    assert silence.record(0.5, has_sign=False) == 0.5
    assert silence.record(1.0, has_sign=False) == 1.0
    assert silence.record(1.5, has_sign=True) == 0


def test_who_slept_has_heard_nobody_and_takes_that_for_no_silence():
    silence = Silence(now=0, interval=0.5)

    assert silence.record(3600, has_sign=False) == 1.0
