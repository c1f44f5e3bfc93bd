"""TimeSlices of long callbacks: the event loop stays responsive, and callbacks start in order."""

import asyncio
import time
from datetime import timedelta

import pytest

from crawlcw.crawl.callbacks import TimeSlices
from tests.blame.virtual import VirtualClock, run, virtual

pytestmark = pytest.mark.quick


def test_callbacks_that_take_longer_than_a_slice_are_a_turn_of_the_loop_apart():
    async def main() -> tuple[list[int], list[int]]:
        turns, order, ticks, passed = TimeSlices(), list[int](), list[int](), 0

        async def callback(number: int) -> None:
            await turns.take()
            order.append(number)
            ticks.append(passed)
            time.sleep(0.04)  # blocks the loop

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(callback(number))
            while len(order) < 4:
                await asyncio.sleep(0)
                passed += 1
        return order, ticks

    order, ticks = asyncio.run(main())

    assert order == [0, 1, 2, 3]
    assert len(set(ticks)) == 4, ticks


def test_quick_callbacks_begin_in_one_turn_of_the_loop():
    async def main() -> int:
        turns, passed = TimeSlices(), 0
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(turns.take()) for _ in range(20)]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                passed += 1
        return passed

    assert asyncio.run(main()) <= 2


def test_turns_come_though_all_else_takes_longer_than_a_slice(monkeypatch: pytest.MonkeyPatch):
    async def main(clock: VirtualClock) -> None:
        async def busy() -> None:
            while True:
                clock.now += 0.04
                await asyncio.sleep(0)

        turns = TimeSlices()
        others = [asyncio.create_task(busy()) for _ in range(2)]
        for _ in range(5):
            await turns.take()
            await asyncio.sleep(0)
        for each in others:
            each.cancel()

    with virtual(monkeypatch) as clock:
        run(clock, main(clock), within=timedelta(seconds=5))
