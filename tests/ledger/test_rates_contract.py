"""Contract of `Ledger.rates`, run on every store: the points that workers record."""

from datetime import datetime, timedelta

import pytest

from crawlcw.ledger import workers
from crawlcw.ledger.protocol import Counters, Ledger, Worker
from crawlcw.model.rates import Point, Vitals
from tests.support.ledgers import START, LedgerFactory

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
VITALS = Vitals(
    finished=9,
    failed=2,
    ignored=1,
    items=18,
    bytes=1 << 40,
    rate=1.25,
    processing=7,
    memory=1 << 33,
    lag=0.125,
)


def point(time: datetime, finished: int, *, worker: str = "a", last: bool = False) -> Point:
    vitals = Vitals(finished=finished)
    return Point(worker=worker, started=START, time=time, vitals=vitals, last=last)


async def minutes_kept(ledger: Ledger, *, until: datetime) -> list[float]:
    """Return the ends of all recorded spans, in minutes since the start."""
    found = await ledger.rates.between(START, until)
    return [(span.end - START) / MINUTE for span in found]


async def test_points_are_read_back_as_what_was_done_between_them(store: LedgerFactory):
    one, two = await store.open(), await store.open()
    await one.rates.record(
        Point(worker="a", started=START, time=START + MINUTE, vitals=VITALS, last=False)
    )
    await one.rates.record(point(START + 2 * MINUTE, 30))

    first, second = await two.rates.between(START, START + DAY)

    assert (first.start, first.end, first.vitals.finished) == (START, START + MINUTE, 9)
    assert (first.vitals.failed, first.vitals.ignored) == (2, 1)
    assert (first.vitals.processing, first.vitals.memory, first.vitals.lag) == (7, 1 << 33, 0.125)
    assert (second.start, second.vitals.finished) == (START + MINUTE, 21)


async def test_many_points_are_read_some_at_a_time(
    store: LedgerFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers, "_POINT_BATCH_SIZE", 3)
    ledger = await store.open()
    for minute in range(1, 5):
        for worker in ("a", "a b"):
            await ledger.rates.record(point(START + minute * MINUTE, minute, worker=worker))

    assert await minutes_kept(ledger, until=START + DAY) == [1, 1, 2, 2, 3, 3, 4, 4]


async def test_a_worker_has_one_point_a_minute_the_latest(store: LedgerFactory):
    ledger = await store.open()
    late = START + MINUTE + timedelta(seconds=59)
    await ledger.rates.record(point(late, 8))
    await ledger.rates.record(point(late, 8))  # sent again
    await ledger.rates.record(point(START + MINUTE, 3))  # arrives late
    await ledger.rates.record(point(START + MINUTE, 5, worker="b"))

    found = await ledger.rates.between(START, START + DAY)

    assert [(span.worker, span.end, span.vitals.finished) for span in found] == [
        ("b", START + MINUTE, 5),
        ("a", late, 8),
    ]


async def test_points_of_the_last_day_are_kept_then_one_in_ten_minutes_and_none_after_a_week(
    store: LedgerFactory,
):
    ledger = await store.open()
    for minute in range(1, 31):
        await ledger.rates.record(point(START + minute * MINUTE, minute))
    await ledger.rates.record(point(START + 25 * MINUTE, 25, worker="left", last=True))

    await ledger.rates.record(point(START + DAY, 100, worker="b"))
    assert await minutes_kept(ledger, until=START + 60 * MINUTE) == [
        *(float(minute) for minute in range(1, 26)),
        *(float(minute) for minute in range(25, 31)),
    ]

    await ledger.rates.record(point(START + DAY + 60 * MINUTE, 100, worker="b"))
    assert await minutes_kept(ledger, until=START + 60 * MINUTE) == [10, 20, 25, 30]

    await ledger.rates.record(point(START + 7 * DAY + 21 * MINUTE, 100, worker="b"))
    found = await ledger.rates.between(START + 11 * MINUTE, START + 60 * MINUTE)
    assert {span.worker for span in found} == {"a", "left"}
    assert START + 20 * MINUTE not in {span.end for span in found}


async def test_a_coarse_chart_reads_one_point_in_ten_minutes_and_loses_no_count(
    store: LedgerFactory,
):
    ledger = await store.open()
    for minute in range(1, 31):
        await ledger.rates.record(point(START + minute * MINUTE, minute))

    found = await ledger.rates.between(START, START + DAY, step=10 * MINUTE)

    assert [(span.seconds, span.vitals.finished) for span in found] == [(600, 10)] * 3


async def test_a_worker_shows_its_vitals_with_its_heartbeat_until_it_leaves(store: LedgerFactory):
    one, two = await store.open(), await store.open()
    worker = Worker(name="a", machine="m1", pid=42, birth="12345", started=START, heartbeat=START)
    await one.workers.join(worker)
    assert [each.vitals for each in await two.workers.all()] == [None]

    await one.workers.beat("a", Counters(), vitals=VITALS)
    await one.workers.beat("nobody", Counters(), vitals=VITALS)
    assert [each.vitals for each in await two.workers.all()] == [VITALS]

    # A heartbeat without vitals keeps them.
    await one.workers.beat("a", Counters(pages=3))
    assert [(each.vitals, each.counters.pages) for each in await two.workers.all()] == [(VITALS, 3)]

    await one.workers.leave("a")
    await one.workers.join(worker)
    assert [(each.name, each.vitals) for each in await two.workers.all()] == [("a", None)]
    assert await one.rates.between(START, START + DAY) == []
