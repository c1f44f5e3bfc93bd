from datetime import timedelta

import pytest

from crawlcw.cli.exit_codes import worst
from crawlcw.cli.restarts import Restarts


def crashes(*runs: float) -> list[float | None]:
    """Return the wait after each of some runs, which last so many seconds, one after the other."""
    restarts, now, waits = Restarts(), 1000.0, []
    for run in runs:
        restarts.started(now=now)
        now += run
        wait = restarts.crashed(now=now)
        waits.append(None if wait is None else wait / timedelta(seconds=1))
        now += waits[-1] or 0
    return waits


def test_the_wait_doubles_and_the_fifth_crash_in_a_row_is_the_last():
    assert crashes(0.1, 0.1, 59, 0.1, 0.1) == [1, 2, 4, 8, None]


def test_a_run_of_a_minute_makes_the_crashes_before_it_forgotten():
    assert crashes(1, 1, 60, 1, 1, 1, 1) == [1, 2, 1, 2, 4, 8, None]


def test_who_crashes_after_long_runs_only_is_always_started_again():
    assert crashes(*[3600] * 20) == [1] * 20


def test_the_time_between_two_runs_is_no_run():
    restarts = Restarts()
    restarts.started(now=0)
    restarts.crashed(now=1)
    restarts.started(now=500)

    assert restarts.crashed(now=501) == timedelta(seconds=2)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 130, 0], 130),
        ([130, 2], 2),
        ([2, 69], 69),
        ([78, 69, 130], 78),
        ([0, 70, 78, 130, 2, 69], 70),
    ],
)
def test_the_worst_exit_code_is_that_of_all(codes, code):
    assert worst(codes) == code
