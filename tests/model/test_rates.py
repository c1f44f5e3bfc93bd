"""Rates computed from the counters of workers, minute by minute."""

from datetime import UTC, datetime, timedelta

import pytest

from crawlcw.model.rates import Point, Vitals, slots, spans

pytestmark = pytest.mark.quick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def point(minutes: float, finished: int, *, worker: str = "a", started: float = -600) -> Point:
    vitals = Vitals(finished=finished, items=2 * finished, processing=5, memory=100, lag=0.5)
    return Point(worker=worker, started=at(started), time=at(minutes), vitals=vitals)


def test_a_span_is_what_was_counted_from_one_point_to_the_next():
    (span,) = spans([point(1, 30), point(0, 10)], start=at(0), end=at(60))

    assert (span.start, span.end, span.vitals.finished) == (at(0), at(1), 20)
    assert (span.seconds, span.vitals.processing, span.vitals.memory, span.vitals.lag) == (
        60,
        5,
        100,
        0.5,
    )


def test_the_first_span_begins_with_its_worker():
    found = spans([point(1, 30, started=0.5)], start=at(0), end=at(60))

    assert [(span.start, span.vitals.finished) for span in found] == [(at(0.5), 30)]


def test_what_was_counted_before_the_first_point_that_is_known_is_no_part_of_the_time_asked_for():
    found = spans([point(-1, 1000), point(1, 1030)], start=at(0), end=at(60))

    assert [(span.start, span.vitals.finished) for span in found] == [(at(-1), 30)]


def test_a_point_that_is_missing_makes_the_next_span_longer_and_loses_nothing():
    found = spans([point(0, 0), point(1, 10), point(5, 50)], start=at(0), end=at(60))

    assert [(span.seconds, span.vitals.finished) for span in found] == [(60, 10), (240, 40)]


def test_workers_are_told_apart_and_their_spans_are_in_order():
    points = [point(2, 9), point(0, 5), point(1, 7, worker="b"), point(0, 0, worker="b")]

    found = spans(points, start=at(0), end=at(60))

    assert [(span.worker, span.vitals.finished) for span in found] == [("b", 7), ("a", 4)]


def test_a_chart_shares_a_span_among_the_stretches_that_it_touches():
    found = spans([point(0, 0), point(20, 40)], start=at(0), end=at(60))

    chart = slots(found, start=at(0), end=at(35), step=timedelta(minutes=10))

    assert [slot.finished for slot in chart] == [20, 20, 0, 0]
    assert [slot.workers for slot in chart] == [1, 1, 0, 0]
    assert [slot.end for slot in chart] == [at(10), at(20), at(30), at(35)]


def test_a_chart_adds_up_its_workers_and_shows_the_worst_lag():
    both = [point(0, 0), point(10, 5), point(0, 0, worker="b"), point(10, 7, worker="b")]

    (slot,) = slots(
        spans(both, start=at(0), end=at(60)),
        start=at(0),
        end=at(10),
        step=timedelta(minutes=10),
    )

    assert (slot.finished, slot.workers, slot.processing, slot.memory) == (12, 2, 10, 200)
    assert slot.lag == 0.5


def test_of_a_span_that_began_before_the_chart_only_its_part_counts():
    found = spans([point(-10, 0), point(10, 20)], start=at(0), end=at(60))

    chart = slots(found, start=at(0), end=at(20), step=timedelta(minutes=10))

    assert [slot.finished for slot in chart] == [10, 0]


def test_one_point_in_ten_minutes_and_the_last_one_are_kept_for_a_week():
    kept = [point(minute, 0).kept_days for minute in range(-1, 12)]
    last = Point(worker="a", started=NOON, time=at(3), vitals=Vitals(), last=True)

    assert kept == [1, 7, *[1] * 9, 7, 1]
    assert last.kept_days == 7
