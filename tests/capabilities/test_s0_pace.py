"""S0: the number and the times of pulled tasks, and a stop at any time."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from crawlcw.model.task import Status
from crawlcw.tracking import Execution, Tracker, Worker
from tests.capabilities.commands import Commands
from tests.capabilities.use_cases import UseCases
from tests.support.crawl_process import wait_until

TASKS = 200


class Slow:
    """A handler that blocks its tasks, and counts those under way."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.under_way = self.most = 0

    async def __call__(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        self.under_way -= 1


@pytest.mark.seed("0.21")
@pytest.mark.parametrize("concurrency", [4, 8])
async def test_what_is_pulled_and_under_way_at_once_is_set_by_two_numbers(
    tracker: Tracker, concurrency: int
):
    slow = Slow()

    @tracker.use_case.stage
    async def todo(execution: Execution) -> None:
        await slow()

    await tracker.add_many([f"order-{n}" for n in range(30)])
    worker = Worker(tracker, concurrency=concurrency, prefetch=2, drain=True)
    running = asyncio.create_task(worker.run())
    while slow.under_way < concurrency or len(tracker.session.leases) < concurrency + 2:
        await asyncio.sleep(0.001)
        assert not running.done()
    claimed = (await tracker.counts())[Status.PROCESSING]
    slow.go.set()
    report = await running

    assert claimed == concurrency + 2
    assert slow.most == concurrency
    assert report.succeeded == 30


@pytest.mark.seed("0.22")
async def test_while_there_is_work_nobody_waits_for_a_timer(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    # A worker that slept between two pulls would take hours.
    monkeypatch.setattr("crawlcw.tracking.worker._MIN_PAUSE_S", 3600.0)
    done = 0

    async def todo(execution: Execution) -> None:
        nonlocal done
        done += 1

    await tracker.add_many([f"order-{n}" for n in range(TASKS)])
    report = await asyncio.wait_for(
        Worker(tracker, {"todo": todo}, concurrency=5, prefetch=0, drain=True).run(), 60
    )

    assert (report.finish_reason, report.succeeded, done) == ("drained", TASKS, TASKS)


@contextmanager
def at_work_on_two_of_eight(commands: Commands) -> Iterator["subprocess.Popen[str]"]:
    """Enter the block when a worker has begun with two tasks, which wait for the door."""
    commands.add(*(f'{{"key": "order-{n}", "data": {{"waits": true}}}}' for n in range(8)))
    with commands.work("--concurrency", "2") as working:
        wait_until(lambda: len(commands.worked()) == 2)
        yield working


@pytest.mark.seed("0.24")
def test_a_worker_that_is_stopped_finishes_what_is_under_way_and_leaves_no_lock(
    commands: Commands, use_cases: UseCases
):
    with at_work_on_two_of_eight(commands) as working:
        during = use_cases.documents(commands.use_case)
        working.send_signal(signal.SIGTERM)
        commands.door.touch()
        code = working.wait(timeout=60)

    statuses = sorted(document["status"] for document in use_cases.documents(commands.use_case))
    assert 30 in {document["status"] for document in during}
    assert code == 0
    assert statuses == [0] * 6 + [50] * 2
