"""When somebody is told that a crawl does badly."""

import pytest

from crawlcw.crawl.alarms import FailureAlarm, StallAlarm

pytestmark = pytest.mark.quick


def test_a_crawl_that_stands_still_is_told_of_once_until_it_moves():
    alarm = StallAlarm(after=10)
    looks = [(True, 0), (True, 9), (True, 12), (True, 50), (False, 60), (True, 61), (True, 71)]

    told = [alarm.look(stands=stands, now=now) for stands, now in looks]

    assert told == [None, None, 12, None, None, None, 10]


def test_without_a_time_nobody_is_told():
    alarm = StallAlarm(after=0)

    assert [alarm.look(stands=True, now=now) for now in (0, 1_000_000)] == [None, None]


def rates(share: float | None, *looks: tuple[int, int]) -> list[float | None]:
    alarm = FailureAlarm(share)
    return [alarm.look(attempts=attempts, failed=failed) for attempts, failed in looks]


def test_a_rate_is_that_of_the_last_hundred_attempts_at_least():
    assert rates(0.5, (60, 60), (99, 99), (100, 99)) == [None, None, 0.99]
    # A thousand good ones lie too far back to be counted.
    assert rates(0.5, (1_000, 0), (1_050, 50), (1_101, 100)) == [None, None, 100 / 101]


def test_it_is_told_once_and_again_after_it_was_half_of_that():
    told = rates(0.5, (100, 60), (200, 160), (300, 200), (400, 220), (500, 290))

    assert told == [0.6, None, None, None, 0.7]


def test_without_attempts_or_a_share_nothing_is_told():
    assert rates(None, (100, 100)) == [None]
    assert rates(0.5, (100, 100), (100, 100)) == [1.0, None]
    # Exactly what is allowed is allowed.
    assert rates(0.5, (100, 50)) == [None]
