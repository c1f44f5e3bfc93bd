"""Cost of claiming and finishing a tracked task whose handler does nothing.

    python -m tests.benchmarks.tracking [--mongodb URI] [--tasks 20000] [--rounds 3]

One process on SQLite, or on MongoDB with each of its drivers. Prints medians of tasks
per second, and their ratios to the ledger alone, for:

- `add_many`;
- the ledger alone: page, claim and commit, 200 at a time;
- a `Worker` with an empty coroutine;
- 50 coroutines, and one, that start one task after the other by key;
- 50 workers that hold and set tasks over HTTP, at `crawlcw serve` in a
  process of its own with the default driver.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pymongo

from crawlcw.cli.loop import run
from crawlcw.model import transitions
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Status
from crawlcw.model.transitions import Progress, Succeeded
from crawlcw.tracking import Tracker, UseCase, Worker
from tests.benchmarks import tracking_http
from tests.support.mongod import with_database

#: The most tasks that a worker may hold at once.
BATCH = 200
SIDE_BY_SIDE = 50
#: Long enough that it does not matter.
LEASE = timedelta(minutes=5)


async def nothing(execution):
    """Handle a stage without any work."""


def use_case() -> UseCase:
    declared = UseCase("orders", lease=LEASE)
    declared.add_handler("charge", nothing)
    return declared


async def by_the_ledger(tracker: Tracker, keys: list[str]) -> None:
    ledger, done = tracker.ledger, 0
    while done < len(keys):
        page = await ledger.tasks.page(limit=BATCH)
        claimed = await ledger.leases.claim(page, worker="bench", lease=LEASE, max_lost=3)
        now = ledger.now()
        progress = Progress(worker="bench", started_at=now, data={})
        outcome = Succeeded(progress=progress)
        settled = [
            transitions.settle(lease, outcome, now=now, policy=RetryPolicy(), chance=0.5)
            for lease in claimed.leases
        ]
        await ledger.outcomes.commit(settled)
        done += len(settled)


async def by_a_worker(tracker: Tracker, keys: list[str]) -> None:
    report = await Worker(tracker, concurrency=BATCH // 2, drain=True).run()
    assert report.succeeded == len(keys), report


async def side_by_side(tracker: Tracker, keys: list[str]) -> None:
    left = iter(keys)
    async with asyncio.TaskGroup() as running:
        for _ in range(SIDE_BY_SIDE):
            running.create_task(one_by_one(tracker, left))


async def one_by_one(tracker: Tracker, keys: Iterator[str] | list[str]) -> None:
    for key in keys:
        async with tracker.start(key):
            pass


Way = Callable[[Tracker, list[str]], Awaitable[None]]
#: The ways to do the tasks, and the divisor of the number of tasks for each.
WAYS: dict[str, tuple[Way, int]] = {
    "ledger alone": (by_the_ledger, 1),
    "worker": (by_a_worker, 1),
    f"start, {SIDE_BY_SIDE} side by side": (side_by_side, 4),
    "start, one after the other": (one_by_one, 20),
}


async def measured(url: str, driver: str, way: Way, tasks: int) -> tuple[float, float]:
    """Return the tasks added and the tasks done, each per second."""
    keys = [f"order-{n}" for n in range(tasks)]
    async with Tracker.open(url, use_case(), driver=driver) as tracker:
        began = time.monotonic()
        await tracker.add_many(keys)
        added = time.monotonic()
        await way(tracker, keys)
        ended = time.monotonic()
        counts = await tracker.counts()
    assert counts[Status.FINISHED] == tasks, counts
    return tasks / (added - began), tasks / (ended - added)


def compared(name: str, fresh: Callable[[], str], driver: str, *, tasks: int, rounds: int) -> None:
    """Measure each way on ledgers of its own, in turns, and print the medians."""
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for way, (work, share) in WAYS.items():
            added, done = run(measured(fresh(), driver, work, tasks // share))
            rates["add_many"].append(added)
            rates[way].append(done)
        over_http = tracking_http.measured(fresh(), tasks // 4, workers=SIDE_BY_SIDE)
        rates[f"HTTP, {SIDE_BY_SIDE} side by side"].append(run(over_http)[1])
    medians = {way: statistics.median(found) for way, found in rates.items()}
    print(f"{name}, {tasks:,} tasks, median of {rounds}:")
    for way, rate in medians.items():
        ratio = rate / medians["ledger alone"]
        print(f"    {way:28} {rate:7,.0f} tasks/s  {ratio:5.2f}")


@contextmanager
def databases(mongodb: str) -> Iterator[Callable[[], str]]:
    """Yield a source of URLs of fresh databases, which are dropped at the end."""
    names: list[str] = []

    def fresh() -> str:
        names.append(f"bench_{os.getpid()}_{len(names)}")
        return with_database(mongodb, names[-1])

    try:
        yield fresh
    finally:
        with pymongo.MongoClient(mongodb) as client:
            for name in names:
                client.drop_database(name)


@contextmanager
def files() -> Iterator[Callable[[], str]]:
    """Yield a source of URLs of fresh files."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))
        yield lambda: f"sqlite:///{Path(folder) / str(next(numbers))}.db"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mongodb", metavar="URI")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        amount = {"tasks": arguments.tasks, "rounds": arguments.rounds}
        if arguments.mongodb is None:
            compared("SQLite", stack.enter_context(files()), "", **amount)
        else:
            fresh = stack.enter_context(databases(arguments.mongodb))
            compared("MongoDB by Motor", fresh, "motor", **amount)
            compared("MongoDB by PyMongo", fresh, "pymongo", **amount)


if __name__ == "__main__":
    main()
