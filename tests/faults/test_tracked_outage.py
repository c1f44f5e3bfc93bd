"""Outages of the database under tracked tasks: a temporary one fails no task."""

import asyncio
import time
from collections import Counter
from datetime import timedelta

import pytest

from crawlcw.errors import LeaseLostError, LedgerUnavailableError
from crawlcw.model.task import Status
from crawlcw.tracking import Tracker, UseCase, Worker
from tests.support.mongod_server import Server

pytestmark = pytest.mark.thorough

LEASE = timedelta(seconds=1)
TASKS = 400
CONCURRENCY = 10


async def test_an_outage_longer_than_the_leases_costs_no_task_anything(server: Server):
    began: Counter[str] = Counter()
    many = asyncio.Event()
    orders = UseCase("orders", lease=LEASE)

    @orders.stage
    async def charge(execution):
        began[execution.key] += 1
        if len(began) > 100:
            many.set()
        await asyncio.sleep(0.01)
        return execution.attempt

    async with Tracker.open(server.uri, orders) as tracker:
        await tracker.add_many(f"order-{n}" for n in range(TASKS))
        worker = Worker(tracker, concurrency=CONCURRENCY, drain=True)
        work = asyncio.create_task(worker.run())
        await many.wait()
        server.kill()
        # The length is part of the test: every lease runs out.
        await asyncio.sleep(2.5 * LEASE.total_seconds())
        server.start()
        report = await work

        assert report.finish_reason == "drained"
        tasks = [task async for task in tracker.walk(limit=200)]
    assert len(tasks) == TASKS
    assert {task.status for task in tasks} == {Status.FINISHED}
    assert {(task.retry, task.lost) for task in tasks} == {(0, 0)}
    # Only tasks under way or not yet written may be repeated.
    assert sum(began.values()) <= TASKS + 2 * CONCURRENCY


async def test_where_the_ledger_stays_away_the_work_ends_and_can_be_taken_up(server: Server):
    orders = UseCase("orders", lease=LEASE)
    first, second = asyncio.Event(), Counter[str]()

    @orders.stage
    async def charge(execution):
        first.set()
        await asyncio.Event().wait()

    async with Tracker.open(server.uri, orders, ledger_give_up=timedelta(seconds=1)) as tracker:
        await tracker.add_many(f"order-{n}" for n in range(20))
        work = asyncio.create_task(Worker(tracker, concurrency=5).run())
        await first.wait()
        server.kill()
        began = time.monotonic()
        with pytest.raises(LedgerUnavailableError):
            await work
        assert time.monotonic() - began < 30
        with pytest.raises(LedgerUnavailableError):
            async with tracker.start("order-1"):
                pytest.fail("it was started")

    again = UseCase("orders")

    @again.stage(name="charge")
    async def charge_again(execution):
        second[execution.key] += 1

    server.start()
    async with Tracker.open(server.uri, again) as tracker:
        await Worker(tracker, drain=True).run()
        assert (await tracker.counts())[Status.FINISHED] == 20
    assert set(second.values()) == {1}


async def test_a_block_is_stopped_where_nothing_of_it_could_be_recorded(server: Server):
    async with Tracker.open(
        server.uri, "orders", lease=LEASE, ledger_give_up=timedelta(seconds=1)
    ) as tracker:
        await tracker.add("order-1")
        with pytest.raises(LeaseLostError):
            async with tracker.start("order-1"):
                server.kill()
                await asyncio.Event().wait()
