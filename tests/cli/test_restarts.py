from datetime import timedelta

import pytest

from crawlcw.cli.exit_codes import worst
from crawlcw.cli.processes.supervisor import wait_after


def test_the_wait_doubles_and_the_fifth_crash_without_progress_is_the_last():
    waits = [wait_after(crashes) for crashes in range(1, 6)]

    assert waits == [*(timedelta(seconds=n) for n in (1, 2, 4, 8)), None]


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
