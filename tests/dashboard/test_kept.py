"""Cached values: computed seldom, and never twice at once."""

import asyncio

import pytest

from crawlcw.dashboard import kept
from crawlcw.dashboard.kept import Kept


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list with the time in seconds, which the test changes."""
    time = [100.0]
    monkeypatch.setattr(kept.time, "monotonic", lambda: time[0])
    return time


async def test_however_many_ask_it_is_taken_once(clock: list[float]):
    taken = []

    async def take() -> int:
        taken.append(1)
        await asyncio.sleep(0)
        return len(taken)

    value = Kept(take, every=1)

    assert await asyncio.gather(*(value.get() for _ in range(5))) == [1] * 5
    clock[0] += 0.9
    assert await value.get() == 1
    clock[0] += 0.2
    assert await value.get() == 2


async def test_what_takes_long_is_taken_seldom(clock: list[float]):
    taken = []

    async def take() -> int:
        taken.append(1)
        clock[0] += 2
        return len(taken)

    value, eager = Kept(take, every=1), Kept(take, every=1, cost=0)

    assert (await value.get(), await eager.get()) == (1, 2)
    clock[0] += 30
    assert (await value.get(), await eager.get()) == (1, 3)
    clock[0] += 10
    assert await value.get() == 4
    value.forget()
    assert await value.get() == 5


async def test_what_was_not_taken_is_taken_the_next_time(clock: list[float]):
    answers = [OSError("away"), 7]

    async def take() -> int:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    value = Kept(take, every=1)

    with pytest.raises(OSError, match="away"):
        await value.get()
    assert await value.get() == 7
