"""S1: a worker pulls tasks by itself, neither too many nor too often."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from crawlcw.model.task import Status
from crawlcw.tracking import Execution, Tracker, Worker
from tests.capabilities.use_cases import UseCases
from tests.faults.proxy import proxied

NEVER = 3600.0


class Door:
    """A handler whose tasks with `waits` wait until `open` is set."""

    def __init__(self, tracker: Tracker) -> None:
        self.open = asyncio.Event()
        self.begun: list[str] = []
        tracker.use_case.add_handler("todo", self._handler())

    def _handler(self) -> Callable[..., Any]:
        async def todo(execution: Execution) -> None:
            self.begun.append(execution.key)
            if execution.data.get("waits"):
                await self.open.wait()

        return todo


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


class Running:
    """A worker that runs for the length of a block."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def __aenter__(self) -> None:
        self._running = asyncio.create_task(self._worker.run())

    async def __aexit__(self, *_: object) -> None:
        self._worker.stop_now()
        await self._running


def counted(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Log the ledger's calls by which a worker looks for tasks."""
    asked: list[str] = []

    def noted(facet: Any, name: str) -> Callable[..., Any]:
        operation = getattr(facet, name)

        async def note(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            return await operation(*arguments, **options)

        return note

    ledger = tracker.ledger
    for facet, name in (
        (ledger.tasks, "page"),
        (ledger.leases, "claim"),
        (ledger.queries, "next_due"),
    ):
        monkeypatch.setattr(facet, name, noted(facet, name))
    return asked


async def waiting_tasks(tracker: Tracker, number: int) -> None:
    for n in range(number):
        await tracker.add(f"order-{n}", {"waits": True})


@pytest.mark.seed("1.7")
async def test_a_worker_finds_by_itself_what_another_process_has_added(
    tracker: Tracker, other: Tracker, monkeypatch: pytest.MonkeyPatch
):
    async def silent() -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(tracker.ledger.changes, "watch", silent)
    door = Door(tracker)
    async with Running(Worker(tracker, concurrency=2)):
        for n in range(3):
            await other.add(f"order-{n}")
            await until(lambda n=n: f"order-{n}" in door.begun)

    assert door.begun == ["order-0", "order-1", "order-2"]


@pytest.mark.seed("1.8", "1.9")
async def test_a_worker_holds_no_more_than_it_may_and_asks_for_nothing_while_it_has_enough(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    door = Door(tracker)
    await waiting_tasks(tracker, 30)
    asked = counted(tracker, monkeypatch)
    most = 0

    async def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal most
        claimed = await claim(*arguments, **options)
        most = max(most, len(tracker.session.leases))
        return claimed

    claim = tracker.session.claim
    monkeypatch.setattr(tracker.session, "claim", watched)
    worker = Worker(tracker, concurrency=4, prefetch=3, drain=True)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(tracker.session.leases) == 7)
    questions = len(asked)
    # Other processes add and change many tasks; a full worker does not look.
    await tracker.add_many([f"more-{n}" for n in range(50)])
    await asyncio.sleep(0.2)
    since = asked[questions:]
    begun = len(door.begun)
    in_ledger = (await tracker.counts())[Status.PROCESSING]
    door.open.set()
    report = await running

    assert (in_ledger, begun, since) == (7, 4, [])
    assert most <= 7
    assert report.succeeded == 80


@pytest.mark.seed("1.16")
async def test_a_long_task_keeps_no_other_from_being_pulled_and_done(tracker: Tracker):
    door = Door(tracker)
    await tracker.add("long", {"waits": True}, priority=9)
    await tracker.add_many([f"short-{n}" for n in range(30)])
    async with Running(Worker(tracker, concurrency=2, prefetch=2)):
        await until(lambda: len(door.begun) == 31)
        async with asyncio.timeout(10):
            while (await tracker.counts())[Status.FINISHED] < 30:
                await asyncio.sleep(0.005)
        long = (await tracker.get("long")).status
        door.open.set()

    assert door.begun[0] == "long"
    assert long is Status.PROCESSING


@pytest.mark.seed("1.17")
async def test_an_idle_worker_hardly_asks_and_begins_at_once_with_what_is_added_here(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.tracking.worker._MIN_PAUSE_S", 0.01)
    asked = counted(tracker, monkeypatch)
    door = Door(tracker)
    async with Running(Worker(tracker, concurrency=2)):
        await until(lambda: len(asked) >= 2)
        # 100 times the shortest pause: pauses double, so there are about 7 looks.
        await asyncio.sleep(1)
        idle = len(asked)
        await tracker.add("order-1")
        async with asyncio.timeout(1):
            await until(lambda: door.begun == ["order-1"])

    # A look is two calls; a store with notices of changes adds one look.
    assert idle <= 2 * 10


@pytest.mark.seed("1.18")
async def test_nothing_is_lost_where_the_notices_break_off(
    on_mongodb: UseCases, monkeypatch: pytest.MonkeyPatch
):
    # The stream stays closed, so the worker depends on its pauses.
    monkeypatch.setattr("crawlcw.tracking.worker._MIN_RECONNECT_PAUSE_S", NEVER)
    other = await on_mongodb.open()
    with proxied(on_mongodb.url) as (network, url):
        tracker = await on_mongodb.open(url=f"{url}&timeoutMS=1000")
        asked = counted(tracker, monkeypatch)
        door = Door(tracker)
        async with Running(Worker(tracker, concurrency=2)):
            await until(lambda: asked.count("next_due") >= 2)
            network.cut()
            await other.add("order-1")
            network.mend()
            await until(lambda: door.begun == ["order-1"])
            await other.add("order-2")
            await until(lambda: door.begun == ["order-1", "order-2"])
        await tracker.close()
