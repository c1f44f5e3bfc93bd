"""Simultaneous calls: one group operation, with an answer for each call."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from crawlcw.errors import TaskLockedError
from crawlcw.model.task import Lease, Status, Task
from crawlcw.tracking import Tracker
from crawlcw.tracking.coalescer import Coalescer


class Asked:
    """Answers n with 10 n when `may_answer` is set, and logs the groups."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.groups.append(list(numbers))
        await self.may_answer.wait()
        if 0 in numbers:
            raise ValueError("not 0")
        return [10 * number for number in numbers]


@pytest.fixture
async def asked() -> Asked:
    return Asked()


async def test_who_asks_meanwhile_is_answered_together_with_others(asked: Asked):
    together: Coalescer[int, int] = Coalescer(asked)
    first = together(1)
    await asyncio.sleep(0)
    others = [together(number) for number in (2, 3, 2)]
    await asyncio.sleep(0)
    asked.may_answer.set()

    assert await asyncio.gather(first, *others) == [10, 20, 30, 20]
    assert asked.groups == [[1], [2, 3, 2]]


async def test_an_error_is_told_to_all_of_a_group_and_to_no_other(asked: Asked):
    together: Coalescer[int, int] = Coalescer(asked)
    asked.may_answer.set()
    group = [together(0), together(1)]
    told = await asyncio.gather(*group, return_exceptions=True)

    assert [repr(error) for error in told] == ["ValueError('not 0')"] * 2
    assert await together(2) == 20


async def test_who_does_not_wait_any_more_disturbs_nobody(asked: Asked):
    together: Coalescer[int, int] = Coalescer(asked)
    gone, waiting = together(1), together(2)
    await asyncio.sleep(0)
    gone.cancel()
    asked.may_answer.set()

    assert await waiting == 20


@pytest.fixture
async def tracker(ledger_url: str) -> AsyncIterator[Tracker]:
    async with Tracker.open(ledger_url, "orders") as tracker:
        yield tracker


async def charge(tracker: Tracker, key: str) -> None:
    async with tracker.start(key):
        pass


async def test_tasks_that_are_started_side_by_side_are_claimed_together(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    keys = [f"order-{n}" for n in range(50)]
    await tracker.add_many(keys)
    # Make the first claim now, whose set-up would mix with the tasks' operations.
    await tracker.session.claim([])
    claims: list[int] = []
    wanted: list[Task] = []
    all_wanted = asyncio.Event()
    claim, claim_one = tracker.ledger.leases.claim, tracker.session.claim_one

    async def wanting(task: Task) -> Lease | None:
        wanted.append(task)
        if len(wanted) == len(keys):
            all_wanted.set()
        return await claim_one(task)

    async def counted(tasks, **options):
        claims.append(len(tasks))
        # Answer only after all calls have been made, however slow the machine is.
        await all_wanted.wait()
        return await claim(tasks, **options)

    monkeypatch.setattr(tracker.session, "claim_one", wanting)
    monkeypatch.setattr(tracker.ledger.leases, "claim", counted)
    await asyncio.gather(*(charge(tracker, key) for key in keys))

    assert (await tracker.counts()).by_status == {Status.FINISHED: 50}
    assert sum(claims) == 50
    assert len(claims) <= 2, "one for the first call, and one for all later ones"


async def test_of_two_who_start_one_task_at_once_the_second_is_told_who_has_it(tracker: Tracker):
    await tracker.add_many(["order-1", "order-2"])
    begun = asyncio.Event()

    async def hold(key: str) -> str:
        async with tracker.start(key):
            await begun.wait()
        return key

    async with asyncio.timeout(20):
        holding = [asyncio.create_task(hold(key)) for key in ("order-1", "order-1", "order-2")]
        (ended,), _ = await asyncio.wait(holding, return_when=asyncio.FIRST_COMPLETED)
        begun.set()
        told = await asyncio.gather(*holding, return_exceptions=True)

    assert isinstance(ended.exception(), TaskLockedError)
    assert ended.exception().holder == tracker.session.worker
    assert [each for each in told if isinstance(each, str)] == ["order-1", "order-2"]


async def test_who_is_cancelled_while_a_group_is_claimed_leaves_no_lock(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    keys = ["order-1", "order-2", "order-3"]
    await tracker.add_many(keys)
    await charge(tracker, "order-3")  # the tracker has joined
    claiming, go_on = asyncio.Event(), asyncio.Event()
    claim = tracker.ledger.leases.claim

    async def slow(tasks, **options):
        claiming.set()
        await go_on.wait()
        return await claim(tasks, **options)

    monkeypatch.setattr(tracker.ledger.leases, "claim", slow)
    first, second = (asyncio.create_task(charge(tracker, key)) for key in keys[:2])
    await claiming.wait()
    first.cancel()
    go_on.set()
    told = await asyncio.gather(first, second, return_exceptions=True)

    assert isinstance(told[0], asyncio.CancelledError)
    assert told[1] is None
    tasks = {key: await tracker.get(key) for key in keys}
    assert {task.holder for task in tasks.values()} == {None}
    assert (tasks["order-1"].status, tasks["order-1"].retry) == (Status.TODO, 0)
    assert tasks["order-2"].status is Status.FINISHED
    assert len(tracker.session.held) == 0
