from datetime import timedelta

import pytest

from crawlcw.cli.exit_codes import worst
from crawlcw.cli.processes.supervisor import Restarts


def crashes(*progressed: bool) -> list[float | None]:
    """Return the wait after each of some crashes, of workers that had come further or not."""
    restarts = Restarts()
    waits = [restarts.crashed(progressed=each) for each in progressed]
    return [None if wait is None else wait / timedelta(seconds=1) for wait in waits]


def test_the_wait_doubles_and_the_fifth_crash_without_progress_is_the_last():
    assert crashes(False, False, False, False, False) == [1, 2, 4, 8, None]


def test_progress_makes_the_crashes_before_it_forgotten():
    assert crashes(False, False, True, False, False, False, False) == [1, 2, 1, 2, 4, 8, None]


def test_who_crashes_after_progress_only_is_always_started_again():
    assert crashes(*[True] * 40) == [1] * 40


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
