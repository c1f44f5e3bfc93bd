"""A budget of bytes: first come, first served, and nobody waits for ever."""

import asyncio

import pytest

from crawlcw.api.attempt import Attempt
from crawlcw.api.request import Request
from crawlcw.fetch.body import BodyRoom, MemoryBudget

pytestmark = pytest.mark.quick


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_shares_add_up_to_the_limit_and_no_further():
    budget = MemoryBudget(10)
    first, second = await budget.take(6), await budget.take(4)
    third = asyncio.create_task(budget.take(1))
    await turns()
    assert (budget.used, third.done()) == (10, False)

    second.shrink(3)

    assert (await third).size == 1
    for share in (first, second, third.result()):
        share.shrink(0)
    assert budget.used == 0


async def test_a_large_share_is_not_kept_waiting_by_small_ones_that_came_later():
    budget = MemoryBudget(10)
    held = await budget.take(5)
    large = asyncio.create_task(budget.take(8))
    await turns()
    small = asyncio.create_task(budget.take(1))
    await turns()
    assert not small.done()

    held.shrink(0)

    await turns()
    assert (large.done(), small.done(), budget.used) == (True, True, 9)


async def test_more_than_there_is_is_all_there_is():
    budget = MemoryBudget(10)

    share = await budget.take(1000)

    assert (share.size, budget.used) == (10, 10)


async def test_who_is_cancelled_while_it_waits_has_nothing_and_lets_the_next_go_on():
    budget = MemoryBudget(10)
    held = await budget.take(5)
    large, small = asyncio.create_task(budget.take(8)), asyncio.create_task(budget.take(5))
    await turns()

    large.cancel()
    await turns()

    assert (large.cancelled(), small.done(), budget.used) == (True, True, 10)
    held.shrink(0)
    small.result().shrink(0)
    assert budget.used == 0


async def test_a_share_that_comes_at_the_moment_of_a_cancellation_is_given_back():
    budget = MemoryBudget(10)
    held = await budget.take(10)
    waiting = asyncio.create_task(budget.take(10))
    await turns()

    held.shrink(0)
    waiting.cancel()
    await turns()

    assert (waiting.cancelled(), budget.used) == (True, 0)


def attempt() -> Attempt:
    return Attempt(request=Request("http://a.example/"))


async def test_a_body_counts_until_the_end_of_its_page():
    budget = MemoryBudget(100)
    async with attempt() as page:
        room = BodyRoom(budget, page, free=5, most=40)
        await room.make(5)
        assert budget.used == 0, "small ones are free"
        await room.make(6)
        await room.make(30)
        assert budget.used == 40, "all that it may become"
        room.close(30)
        assert budget.used == 30
    assert budget.used == 0


async def test_a_body_that_is_read_outside_of_a_page_counts_while_it_is_read():
    budget = MemoryBudget(100)
    room = BodyRoom(budget, attempt(), free=5, most=40)
    await room.make(30)
    room.close(30)

    assert budget.used == 0


async def test_a_task_that_outlives_its_page_keeps_nothing():
    budget = MemoryBudget(100)

    async def later() -> None:
        room = BodyRoom(budget, page, free=5, most=40)
        await room.make(30)
        await ended.wait()
        room.close(30)

    ended = asyncio.Event()
    page = attempt()
    async with page:
        task = asyncio.create_task(later())
        await turns()
    ended.set()
    await task

    assert budget.used == 0


async def test_the_deadline_of_an_attempt_does_not_run_while_it_waits_for_memory():
    budget = MemoryBudget(10)
    held = await budget.take(10)
    asyncio.get_running_loop().call_later(0.2, held.shrink, 0)

    async with asyncio.timeout(0.1) as deadline:
        page = attempt()
        page.deadline.timeout = deadline
        end = deadline.when()
        room = BodyRoom(budget, page, free=0, most=10)
        await room.make(10)

        assert room.waited >= 0.19
        assert end is not None
        assert deadline.when() == pytest.approx(end + room.waited)
    room.close()
