"""Workers: number of held tasks, order of work, times of looks, and kinds of handlers."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from crawlcw.errors import Reason, UnwantedError
from crawlcw.model.task import Status
from crawlcw.tracking import NewTask, Tracker, UseCase, Worker

ENOUGH = 20.0


@pytest.fixture
async def tracker(ledger_url: str) -> AsyncIterator[Tracker]:
    async with Tracker.open(ledger_url, "orders", lease=30, backoff_base=0, max_retry=2) as tracker:
        yield tracker


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """Run a worker within the block, and stop it softly at the end."""
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(working, ENOUGH)


def draining(tracker: Tracker, function: Callable[..., Any], **options: Any) -> Worker:
    return Worker(tracker, {"todo": function}, drain=True, **options)


async def test_it_never_holds_more_than_it_has_under_way_and_prefetches(tracker: Tracker):
    await tracker.add_many([f"order-{n}" for n in range(60)])
    held, under_way = [], [0]

    async def charge(execution):
        under_way[0] += 1
        await asyncio.sleep(0)
        held.append((len(tracker.session.leases), under_way[0]))
        under_way[0] -= 1

    report = await draining(tracker, charge, concurrency=4, prefetch=3).run()

    assert (report.finish_reason, report.succeeded, report.failed) == ("drained", 60, 0)
    # Held tasks include finished ones that are not yet written.
    assert max(number for number, _ in held) <= 4 + 3
    assert max(number for _, number in held) == 4


async def test_the_last_attempt_makes_it_dead_and_it_is_never_run_again(tracker: Tracker):
    await tracker.add("order-1")
    attempts = []

    async def charge(execution):
        attempts.append(execution.attempt)
        raise ValueError("never")

    first = await draining(tracker, charge).run()
    again = await Worker(tracker, drain=True).run()

    assert attempts == [1, 2]
    assert (first.failed, again.failed, again.succeeded) == (2, 0, 0)
    task = await tracker.get("order-1")
    assert (task.status, task.reason, task.retry) == (Status.IGNORED, Reason.TASK_ERROR, 2)


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Event that is set when a worker without due tasks rests; only a wake-up ends the rest."""
    event = asyncio.Event()
    # A patch, because a worker does not announce that it is about to rest.
    rest = Worker._wait_for_due

    async def rest_long(worker: Worker, horizon: datetime | None) -> None:
        worker._pause_s = 3600.0
        event.set()
        await rest(worker, horizon)

    monkeypatch.setattr(Worker, "_wait_for_due", rest_long)
    return event


async def test_what_others_add_wakes_it(tracker: Tracker, ledger_url: str, resting: asyncio.Event):
    begun = asyncio.Event()

    async def charge(execution):
        begun.set()

    async with (
        Tracker.open(ledger_url, "orders") as other,
        at_work(Worker(tracker, {"todo": charge})),
    ):
        await resting.wait()
        await other.add("order-1")
        await asyncio.wait_for(begun.wait(), ENOUGH)


async def test_it_rests_until_the_next_task_is_due(tracker: Tracker, resting: asyncio.Event):
    begun = asyncio.Event()

    async def charge(execution):
        begun.set()

    await tracker.add("order-1", delay=timedelta(seconds=0.2))
    async with at_work(Worker(tracker, {"todo": charge})):
        await resting.wait()
        await asyncio.wait_for(begun.wait(), ENOUGH)


async def test_a_function_is_a_handler_in_a_thread(tracker: Tracker):
    await tracker.add("order-1", {"amount": 3})
    here = threading.get_ident()

    def charge(execution):
        execution.data["paid"] = execution.data["amount"]
        execution.checkpoint()
        return threading.get_ident() != here

    await draining(tracker, charge).run()

    task = await tracker.get("order-1")
    assert task.results == {"todo": True}
    assert task.data == {"amount": 3, "paid": 3}


def measured(key: str, data: dict[str, Any], context: dict[str, Any]) -> Any:
    """Handle a task in a process, in the way that its data names."""
    match data.get("what"):
        case "dies":
            os._exit(9)
        case "fails":
            raise ValueError("what a process says")
        case "is unwanted":
            raise UnwantedError("it is corrupt")
    return {"pid": os.getpid(), "key": key}


async def test_a_handler_may_run_in_a_process_and_its_death_costs_an_attempt_alone(ledger_url: str):
    orders = UseCase("orders", max_retry=2, backoff_base=0)
    orders.add_handler("measure", measured, process=True)
    async with Tracker.open(ledger_url, orders) as tracker:
        whats = ("is well", "dies", "fails", "is unwanted")
        await tracker.add_many(NewTask(what, {"what": what}) for what in whats)
        report = await Worker(tracker, concurrency=2, drain=True).run()
        tasks = {what: await tracker.get(what) for what in whats}

    assert report.finish_reason == "drained"
    well = tasks["is well"]
    assert well.results["measure"]["key"] == "is well"
    assert well.results["measure"]["pid"] != os.getpid()
    ends = {what: (task.status, task.reason, task.retry, task.lost) for what, task in tasks.items()}
    assert ends == {
        "is well": (Status.FINISHED, None, 0, 0),
        "dies": (Status.IGNORED, Reason.TASK_ERROR, 2, 0),
        "fails": (Status.IGNORED, Reason.TASK_ERROR, 2, 0),
        "is unwanted": (Status.IGNORED, Reason.UNWANTED, 0, 0),
    }
    assert [error.message for error in tasks["is unwanted"].errors] == ["it is corrupt"]
    assert "what a process says" in tasks["fails"].errors[0].message
    assert "BrokenWorkerProcess" in tasks["dies"].errors[0].message


async def test_however_often_workers_are_restarted_a_task_has_its_attempts_and_no_more(
    ledger_url: str,
):
    attempts: Counter[str] = Counter()
    worker: Worker | None = None

    async def charge(execution):
        attempts[execution.key] += 1
        if attempts.total() % 7 == 0:
            worker.stop()
        raise ValueError("never")

    orders = UseCase("orders", max_retry=4, backoff_base=0)
    orders.add_handler("charge", charge)
    keys = [f"order-{n}" for n in range(15)]
    reasons = []
    while "drained" not in reasons:
        async with Tracker.open(ledger_url, orders) as tracker:
            await tracker.add_many(keys)
            worker = Worker(tracker, concurrency=3, drain=True)
            reasons.append((await worker.run()).finish_reason)
            retries = [task.retry async for task in tracker.walk()]

    assert len(reasons) > 5
    assert attempts == dict.fromkeys(keys, 4)
    assert retries == [4] * len(keys)
