"""Batched writes of a source's values: soon, in large lots if there are many, and complete."""

from collections.abc import AsyncIterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.engine import batching
from crawlcw.engine.batching import GroupWriter


class Slow:
    """A ledger whose writes wait for the test."""

    def __init__(self) -> None:
        self.lots: list[list[int]] = []
        self.is_open = anyio.Event()

    async def write(self, lot: list[int]) -> None:
        self.lots.append(lot)
        await self.is_open.wait()


async def numbers(number: int) -> AsyncIterator[int]:
    for n in range(number):
        yield n


async def test_the_first_lot_is_smaller_and_the_next_gathers_while_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(batching, "_MAX_GATHER_S", 1000.0)
    slow = Slow()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(GroupWriter(slow.write, first_size=2, max_size=5).run, numbers(11))
            await anyio.wait_all_tasks_blocked()
            assert slow.lots == [[0, 1]]
            slow.is_open.set()

    assert slow.lots == [[0, 1], [2, 3, 4, 5, 6], [7, 8, 9, 10]], "nor is the last one waited for"


async def test_what_is_there_does_not_wait_for_more():
    written = anyio.Event()
    lots: list[list[int]] = []

    async def write(lot: list[int]) -> None:
        lots.append(lot)
        written.set()

    async def source() -> AsyncIterator[int]:
        yield 1
        await anyio.lowlevel.checkpoint()  # the next one, soon after, is of its group
        yield 2
        await written.wait()
        yield 3

    with anyio.fail_after(30):
        await GroupWriter(write, first_size=500, max_size=5000).run(source())

    assert lots == [[1, 2], [3]]


@given(number=st.integers(0, 40), first=st.integers(1, 9), more=st.integers(0, 9))
async def test_everything_is_written_once_and_in_order(number: int, first: int, more: int):
    lots: list[list[int]] = []

    async def write(lot: list[int]) -> None:
        await anyio.lowlevel.checkpoint()
        lots.append(lot)

    gathered = GroupWriter(write, first_size=first, max_size=first + more)
    await gathered.run(numbers(number))
    await gathered.finish()

    assert [n for lot in lots for n in lot] == list(range(number))
    assert all(len(lot) <= (first + more if at else first) for at, lot in enumerate(lots))


async def test_what_was_read_before_the_end_is_left_to_be_written():
    slow = Slow()
    gathered = GroupWriter(slow.write, first_size=2, max_size=5)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gathered.run, numbers(100))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    slow.is_open.set()
    await gathered.finish()
    await gathered.finish()

    assert slow.lots == [[0, 1], [0, 1, 2, 3, 4, 5, 6]], "the first may not have been written"


async def test_a_source_that_is_read_no_further_closes_what_it_has_open():
    closed: list[str] = []
    slow = Slow()

    async def waiting() -> AsyncIterator[int]:
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            closed.append("waiting")

    async def fast() -> AsyncIterator[int]:
        try:
            async for n in numbers(100):
                yield n
        finally:
            await anyio.lowlevel.checkpoint()
            closed.append("fast")

    for source in (waiting(), fast()):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(GroupWriter(slow.write, first_size=2, max_size=5).run, source)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

    assert closed == ["waiting", "fast"]


async def test_a_source_that_does_not_end_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(batching, "_CLOSE_TIMEOUT_S", 0.05)
    is_over = anyio.Event()

    async def stubborn() -> AsyncIterator[int]:
        yield 1
        try:
            await anyio.sleep_forever()
        finally:
            await is_over.wait()

    async def failing() -> AsyncIterator[int]:
        yield 1
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("no \x1b")

    for source in (stubborn(), failing()):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(GroupWriter(Slow().write, first_size=1, max_size=1).run, source)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    is_over.set()
    await anyio.wait_all_tasks_blocked()

    assert "did not end within 0.05 s" in caplog.text
    assert (
        "raised ValueError: no \\x1b" in caplog.text
        or "raised ValueError: no \\u001b" in caplog.text
    )


async def test_errors_come_by_themselves_and_what_was_read_is_left(
    caplog: pytest.LogCaptureFixture,
):
    lots: list[list[int]] = []

    async def write(lot: list[int]) -> None:
        if not lots:
            lots.append(lot)
            raise ValueError("full")
        lots.append(lot)

    gathered = GroupWriter(write, first_size=2, max_size=5)
    with pytest.raises(ValueError, match="full"):
        await gathered.run(numbers(7))
    await gathered.finish()

    assert lots[0] == [0, 1]
    assert lots[1][:2] == [0, 1]

    async def broken() -> AsyncIterator[int]:
        yield 1
        raise KeyError("gone")

    gathered = GroupWriter(write, first_size=2, max_size=5)
    with pytest.raises(KeyError, match="gone"):
        await gathered.run(broken())
    await gathered.finish()

    assert lots[-1] == [1]
    assert caplog.records == [], "what is raised is not logged as well"
