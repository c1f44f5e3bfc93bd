"""Workers that are killed or stopped at random moments, dozens of times in one crawl."""

import random
import time
from pathlib import Path
from signal import SIGTERM

import pytest

from crawlcw.model.task import Status
from tests.faults.scenario import Crew, assert_as_without_faults, fetched_again
from tests.support import docs
from tests.support.crawl_process import Store, wait_until

pytestmark = pytest.mark.thorough

SEED = 20_260_411
#: Number of crawled pages, two copies of a manual.
PAGES = 2_339
WORKERS = 3
STOPPED_TOGETHER = 5
CONCURRENCY = 6
#: A task may be under way at several kills by chance. With the default of 3, some
#: innocent pages would be given up.
MOST_LOST = 30


def is_under_way(store: Store) -> bool:
    unfinished = (Status.TODO, Status.FAILED, Status.PROCESSING)
    return any(row.status in unfinished for row in store.rows())


def slow_enough(seconds: float) -> int:
    """Return a latency in milliseconds at which the crawl takes *seconds* or longer."""
    return round(seconds * WORKERS * CONCURRENCY / PAGES * 1000)


@pytest.mark.timeout(1200)
def test_a_crawl_outlives_kills_of_random_workers_at_random_moments(
    store: Store, expected_items_twice: bytes, tmp_path: Path, soaking: bool
):
    kills, shortest, longest = (150, 0.5, 3.0) if soaking else (60, 0.4, 0.8)
    latency = slow_enough(kills * (shortest + longest) / 2)
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    # However quick the crawl is, the site answers its last pages after the last kill only.
    portion = PAGES // (kills + 1)
    with (
        docs.served(docs.folder("postgresql"), copies=2, latency=latency, answered=portion) as site,
        # A long lease: the test must not wait for it, since dead workers are detected.
        Crew(
            store,
            site,
            tmp_path / "crew.log",
            concurrency=CONCURRENCY,
            lease="10m",
            max_lost=MOST_LOST,
        ) as crew,
    ):
        for _ in range(WORKERS):
            crew.start()
        spare = crew.spare()
        wait_until(site.hits)

        held = []
        for kill in range(1, kills + 1):
            site.answer(kill * portion)
            time.sleep(chance.uniform(shortest, longest))
            held.append(crew.kill(chance.choice(crew.workers)))
            crew.join(spare)
            spare = crew.spare()
        under_way = is_under_way(store)
        site.heal()
        reports = crew.drained()

        assert under_way
        assert_as_without_faults(store, expected_items_twice, max_lost=MOST_LOST)
        again = fetched_again(site)
        most = max(row.lost for row in store.rows())
    assert again <= crew.held_at_faults
    assert "Traceback" not in crew.log
    # The test is valid only if kills interrupted tasks.
    assert sum(map(bool, held)) > kills / 3
    assert [report["leases_lost"] for report in reports] == [0] * WORKERS
    print(
        f"{kills} kills, {sum(map(bool, held))} of them at work, {sum(held)} tasks "
        f"were held, {again} were fetched again, one was lost {most} times"
    )


@pytest.mark.timeout(1200)
def test_stops_at_random_moments_cost_no_task_an_attempt(
    store: Store, expected_items_twice: bytes, tmp_path: Path, soaking: bool
):
    rounds, latency = (40, 1500) if soaking else (6, 200)
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    with (
        docs.served(docs.folder("postgresql"), copies=2, latency=latency) as site,
        Crew(store, site, tmp_path / "crew.log", concurrency=2, lease="10m") as crew,
    ):
        # The workers of a round start while those of the previous round are at work.
        ahead = [crew.spare() for _ in range(STOPPED_TOGETHER)]
        for _ in range(rounds):
            stopped, ahead = ahead, [crew.spare() for _ in ahead]
            crew.join(*stopped)
            for worker in stopped:
                wait_until(lambda pid=worker.pid: store.held_by(pid))
            began = time.monotonic()
            moments = sorted(chance.uniform(0, 1) for _ in stopped)
            for moment, worker in zip(moments, stopped, strict=True):
                time.sleep(max(0.0, began + moment - time.monotonic()))
                worker.send(SIGTERM)
            for worker in stopped:
                code, report = crew.ended(worker)
                assert (code, report["finish_reason"]) == (0, "stopped"), crew.log
            assert_nothing_is_held_or_spent(store)
        under_way = is_under_way(store)
        site.heal()
        crew.join(*ahead)
        crew.drained()

        assert under_way
        assert_as_without_faults(store, expected_items_twice)
        # Requests under way at a stop finish: the site is faster than the grace.
        assert fetched_again(site) == crew.held_at_faults == 0
    assert_nothing_is_held_or_spent(store)
    assert "Traceback" not in crew.log
    print(f"{rounds * STOPPED_TOGETHER} stops")


def assert_nothing_is_held_or_spent(store: Store) -> None:
    rows = store.rows()
    assert {row.lock for row in rows} == {None}
    assert Status.PROCESSING not in {row.status for row in rows}
    assert {row.lost for row in rows} == {0}
    # Only missing pages have a failed attempt, one each.
    assert {row.retry for row in rows if row.status != Status.IGNORED} == {0}
