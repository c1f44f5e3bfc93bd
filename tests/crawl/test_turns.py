"""Turns of long callbacks: the event loop stays responsive, and callbacks start in order."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from crawlcw.crawl.callbacks import Turns
from tests.blame.virtual import VirtualClock, run, virtual

pytestmark = pytest.mark.quick


def test_callbacks_that_take_longer_than_a_slice_are_a_turn_of_the_loop_apart():
    async def main() -> tuple[list[int], list[int]]:
        turns, order, ticks, passed = Turns(), list[int](), list[int](), 0

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
        turns, passed = Turns(), 0
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(turns.take()) for _ in range(20)]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                passed += 1
        return passed

    assert asyncio.run(main()) <= 2


def test_a_slice_is_filled_and_few_callbacks_are_woken_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    async def main(clock: VirtualClock) -> tuple[int, int]:
        turns, loop, waits, passed = Turns(), asyncio.get_running_loop(), 0, 0
        create_future, begun = loop.create_future, list[int]()

        def counted() -> asyncio.Future[Any]:
            nonlocal waits
            waits += 1
            return create_future()

        async def callback() -> None:
            await turns.take()
            begun.append(passed)
            clock.now += 0.01

        monkeypatch.setattr(loop, "create_future", counted)
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(callback())
            while len(begun) < 100:
                await asyncio.sleep(0)
                passed += 1
        return waits, len(set(begun))

    with virtual(monkeypatch) as clock:
        waits, used = run(clock, main(clock), within=timedelta(seconds=5))

    assert waits < 300
    assert used < 40, "three callbacks fill a slice"


def test_a_slice_that_no_callback_needs_is_the_last_one(monkeypatch: pytest.MonkeyPatch):
    async def main() -> int:
        turns, loop, steps = Turns(), asyncio.get_running_loop(), 0
        call_soon = loop.call_soon

        def counted(*arguments: Any, **options: Any) -> asyncio.Handle:
            nonlocal steps
            steps += 1
            return call_soon(*arguments, **options)

        monkeypatch.setattr(loop, "call_soon", counted)
        await turns.take()
        await asyncio.sleep(0.1)
        return steps

    with virtual(monkeypatch) as clock:
        assert run(clock, main(), within=timedelta(seconds=5)) < 10


def test_a_callback_that_is_cancelled_while_it_waits_leaves_the_others_their_turns(
    monkeypatch: pytest.MonkeyPatch,
):
    async def main(clock: VirtualClock) -> None:
        turns = Turns()
        await turns.take()
        clock.now += 1
        waiting = [asyncio.create_task(turns.take()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait(waiting)

    with virtual(monkeypatch) as clock:
        run(clock, main(clock), within=timedelta(seconds=5))


def test_turns_come_though_all_else_takes_longer_than_a_slice(monkeypatch: pytest.MonkeyPatch):
    async def main(clock: VirtualClock) -> None:
        async def busy() -> None:
            while True:
                clock.now += 0.04
                await asyncio.sleep(0)

        turns = Turns()
        others = [asyncio.create_task(busy()) for _ in range(2)]
        for _ in range(5):
            await turns.take()
            await asyncio.sleep(0)
        for each in others:
            each.cancel()

    with virtual(monkeypatch) as clock:
        run(clock, main(clock), within=timedelta(seconds=5))
