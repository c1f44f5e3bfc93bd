"""Groups of writes: large ones in turn, and a few at once on a slow ledger."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from crawlcw.engine import batching
from crawlcw.engine.batching import MAX_GROUP_SIZE, write_in_groups


class Slow:
    """A ledger whose writes wait for the test."""

    def __init__(self, *, room: int) -> None:
        self.queue: asyncio.Queue[int] = asyncio.Queue(room)
        self.groups: list[list[int]] = []
        self.most = 0
        self._under_way: list[anyio.Event] = []

    async def write(self, group: list[int]) -> None:
        self.groups.append(group)
        ended = anyio.Event()
        self._under_way.append(ended)
        self.most = max(self.most, len(self._under_way))
        await ended.wait()
        self._under_way.remove(ended)

    async def put(self, *things: int) -> None:
        for thing in things:
            self.queue.put_nowait(thing)
            await anyio.wait_all_tasks_blocked()

    async def let_go(self) -> None:
        for ended in self._under_way:
            ended.set()
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def written(
    workers_wait: Callable[[], bool] = lambda: True, *, room: int = 0
) -> AsyncIterator[Slow]:
    slow = Slow(room=room)
    writing = partial(write_in_groups, slow.queue, slow.write, workers_wait=workers_wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writing)
        yield slow
        tasks.cancel_scope.cancel()


async def test_what_comes_while_a_group_is_written_is_the_next_group(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(batching, "_GROUP_INTERVAL_S", 1000.0)
    async with written() as slow:
        await slow.put(1, 2, 3, 4)
        await slow.let_go()
        await slow.let_go()
        await slow.put(5)

    assert slow.groups == [[1], [2, 3, 4], [5]]
    assert slow.most == 1


async def test_groups_are_apart_until_a_worker_waits_for_what_is_written(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(batching, "_GROUP_INTERVAL_S", 1000.0)
    wait = False
    async with written(workers_wait=lambda: wait) as slow:
        await slow.put(1, 2)
        await slow.let_go()
        await slow.put(3)
        alone = list(slow.groups)
        wait = True
        with anyio.fail_after(20):
            while slow.groups == alone:
                await anyio.sleep(0.001)

    assert alone == [[1]]
    assert slow.groups == [[1], [2, 3]]


@pytest.mark.parametrize(("room", "put"), [(2, 3), (0, MAX_GROUP_SIZE + 1)])
async def test_a_full_queue_and_a_whole_group_are_written_at_once(
    room: int, put: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batching, "_GROUP_INTERVAL_S", 1000.0)
    async with written(workers_wait=lambda: False, room=room) as slow:
        await slow.put(0)
        await slow.let_go()
        await slow.put(*range(put))
        with anyio.fail_after(20):
            while len(slow.groups) < 2:
                await anyio.sleep(0.001)

    assert [len(group) for group in slow.groups] == [1, min(put, MAX_GROUP_SIZE)]


async def test_of_a_slow_ledger_three_groups_are_waited_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(batching, "_GROUP_INTERVAL_S", 0.0)
    async with written() as slow:
        await slow.put(*range(6))
        await slow.let_go()

    assert slow.groups == [[0], [1], [2], [3, 4, 5]]
    assert slow.most == 3
