"""Pool of fetchers on a queue of leases: start, order, and end of their work."""

import asyncio
from collections.abc import Callable

import anyio
import pytest

from crawlcw.engine.pool import Pool
from crawlcw.errors import UsageError, single_errors
from crawlcw.model.counters import FinishReason
from crawlcw.model.task import Lease
from tests.support.ledgers import START, make_tasks

pytestmark = pytest.mark.quick


def leases(number: int) -> list[Lease]:
    return [Lease(task=each, token="a:1", fence=1, expires=START) for each in make_tasks(number)]


class Work:
    """A pool whose tasks end when the test ends them."""

    def __init__(self, size: int) -> None:
        self.pool = Pool(size)
        self.go = asyncio.Event()
        self.begun: list[Lease] = []
        self.ended: list[Lease] = []
        self.cancelled: list[Lease] = []
        self.given_back: list[Lease] = []

    async def work(self) -> None:
        while True:
            lease = await self.pool.get()
            self.begun.append(lease)
            try:
                await self.go.wait()
                self.ended.append(lease)
            except asyncio.CancelledError:
                self.cancelled.append(lease)
                raise
            finally:
                self.pool.task_done()

    async def give_back(self) -> None:
        self.given_back += self.pool.take_queued()

    async def run(
        self, given: list[Lease], reason: FinishReason, *, grace: float, then: Callable[[], None]
    ) -> FinishReason:
        """Run the pool on a source that ends for *reason* once all workers have begun."""

        async def source() -> FinishReason:
            for lease in given:
                self.pool.put(lease)
            while len(self.begun) < min(self.pool.size, len(given)):
                await asyncio.sleep(0)
            then()
            return reason

        return await self.pool.run(
            self.work,
            source,
            release_queued=self.give_back,
            grace_scope=lambda: anyio.move_on_after(grace),
        )


async def test_as_many_are_worked_on_at_once_as_there_are_workers():
    work, given = Work(2), leases(3)

    def look() -> None:
        assert (work.pool.dispatched, work.pool.queued_count) == (3, 1)
        work.go.set()

    assert await work.run(given, FinishReason.STOPPED, grace=60, then=look) == "stopped"

    assert work.begun == work.ended == given[:2]
    assert work.given_back == given[2:]
    assert work.pool.dispatched == 0


async def test_more_or_fewer_work_from_when_the_size_changes():
    work, given = Work(1), leases(5)

    async def source() -> FinishReason:
        for lease in given:
            work.pool.put(lease)
        for size in (1, 3, 2):
            work.pool.resize(size)
            while len(work.begun) < (most := max(size, len(work.begun))):
                await asyncio.sleep(0)
            assert (work.begun, work.pool.queued_count) == (given[:most], 5 - most)
        work.go.set()
        return FinishReason.DRAINED

    async with asyncio.timeout(10):
        await work.pool.run(
            work.work,
            source,
            release_queued=work.give_back,
            grace_scope=lambda: anyio.move_on_after(60),
        )

    assert work.begun == given
    assert work.pool.size == 2


async def test_what_is_under_way_when_the_grace_is_over_is_cancelled():
    work, given = Work(2), leases(2)

    await work.run(given, FinishReason.MAX_PAGES, grace=0.01, then=lambda: None)

    assert {lease.task.id for lease in work.cancelled} == {lease.task.id for lease in given}
    assert work.ended == []
    assert work.pool.dispatched == 0


async def test_what_is_not_begun_with_goes_back_before_the_rest_is_waited_for():
    work, given = Work(1), leases(2)
    running = asyncio.create_task(
        work.run(given, FinishReason.STOPPED, grace=60, then=lambda: None)
    )
    async with asyncio.timeout(10):
        while not work.given_back:
            await asyncio.sleep(0)

    assert not running.done()
    work.go.set()
    await running
    assert (work.ended, work.given_back) == (given[:1], given[1:])


async def test_a_worker_that_fails_ends_all_of_it():
    pool = Pool(2)
    ended = asyncio.Event()

    async def fail() -> None:
        await pool.get()
        raise ValueError("broken")

    async def source() -> FinishReason:
        pool.put(*leases(1))
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async def give_back() -> None:
        raise AssertionError("the leases are released by whoever is told")

    with pytest.raises(ExceptionGroup) as raised:
        await pool.run(fail, source, release_queued=give_back, grace_scope=anyio.CancelScope)
    assert [str(each) for each in raised.value.exceptions] == ["broken"]
    assert ended.is_set()


async def test_a_worker_that_somebody_else_cancels_ends_the_pool_with_the_reason():
    pool, workers = Pool(2), list[asyncio.Task[None]]()

    async def work() -> None:
        me = asyncio.current_task()
        assert me is not None
        workers.append(me)
        await pool.get()

    async def source() -> FinishReason:
        while len(workers) < 2:
            await asyncio.sleep(0)
        workers[0].cancel()
        await asyncio.Event().wait()
        return FinishReason.DRAINED

    async def give_back() -> None:
        pytest.fail("it has ended")

    with pytest.raises(UsageError, match="your code cancelled a task of crawlcw"), single_errors():
        await pool.run(
            work, source, release_queued=give_back, grace_scope=lambda: anyio.move_on_after(0)
        )
