"""Slow start: requests at once to a new host, by its answers."""

from datetime import UTC, datetime, timedelta

import pytest

from crawlcw.model.hosts import SlowStart

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def windows(latency_at: dict[int, float], *, rounds: int) -> list[int]:
    """Return the window of each round; *latency_at* gives the latency by the window."""
    start, finished, seen = SlowStart(), 0, []
    for _ in range(rounds):
        window = start.window(finished=finished)
        seen.append(window)
        latency = next(seconds for most, seconds in latency_at.items() if window <= most)
        for _ in range(window):
            start.answered(latency=latency, sent=NOW)
        finished += window
    return seen


#: Windows of a fast host: few requests at once until 24 pages are finished.
CAREFUL = [1, 2, *[3] * 7]


@pytest.mark.parametrize("latency", [0.005, 0.1, 0.3, 1.0])
def test_a_host_that_answers_as_fast_as_before_is_asked_for_one_more_after_each(latency: float):
    assert windows({1000: latency}, rounds=11) == [*CAREFUL, 1 + 24 + 2, 1 + 51 + 5]


def test_an_answer_whose_time_is_not_known_lets_no_other_look_slow():
    start = SlowStart()
    for latency in (0.0, 0.3, 0.3):
        start.answered(latency=latency, sent=NOW)

    assert start.window(finished=30) == 1 + 3 + 3


def test_a_slow_host_is_asked_for_one_more_after_ten_pages():
    assert windows({1000: 1.5}, rounds=18) == [1] * 10 + [2] * 5 + [3] * 3


def test_a_host_that_becomes_slower_for_it_is_asked_for_more_after_ten_pages_only():
    assert windows({4: 0.2, 1000: 0.5}, rounds=11) == [*CAREFUL, 1 + 24 + 2, 1 + 24 + 5]


def test_a_fast_answer_is_fast_however_fast_another_was():
    assert windows({1: 0.001, 1000: 0.09}, rounds=10) == [*CAREFUL, 1 + 24 + 2]


def test_after_a_failure_only_the_pages_that_are_finished_count():
    start = SlowStart()
    for _ in range(5):
        start.answered(latency=0.1, sent=NOW)

    assert start.window(finished=30) == 9
    start.steps = 0
    assert start.window(finished=30) == 4


def test_an_earlier_answer_in_good_time_takes_nothing_back():
    start, seconds = SlowStart(), timedelta(seconds=1)
    for sent in (10, 5):
        start.answered(latency=0.1, sent=NOW + sent * seconds)

    assert start.answered(latency=30, sent=NOW + 7 * seconds) == 0.0
    assert start.answered(latency=30, sent=NOW + 12 * seconds) == 30
