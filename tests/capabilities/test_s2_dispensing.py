"""S2: workers that are known by name only get their share."""

import asyncio
from datetime import timedelta

import pytest

from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Status, key_id
from crawlcw.tracking import Dispenser, NewTask, Tracker
from tests.capabilities.use_cases import UseCases, task_of
from tests.support.ledgers import START, FakeClock


@pytest.fixture
def dispenser(tracker: Tracker) -> Dispenser:
    return Dispenser(tracker)


@pytest.fixture
def second(other: Tracker) -> Dispenser:
    """Another dispenser of the same tasks, in another process."""
    return Dispenser(other)


@pytest.fixture
async def pool(tracker: Tracker) -> list[str]:
    """Keys in the order of their assignment."""
    keys = [f"order-{n}" for n in range(10)]
    await tracker.add_many([NewTask(key, priority=-n) for n, key in enumerate(keys)])
    return keys


async def given(dispenser: Dispenser, worker: str, limit: int) -> list[str]:
    return [task.key for task in await dispenser.assign(worker, limit)]


@pytest.mark.seed("2.1")
async def test_nothing_is_assigned_to_two(
    tracker: Tracker, dispenser: Dispenser, second: Dispenser
):
    keys = [f"order-{n}" for n in range(100)]
    await tracker.add_many(keys)
    shares = await asyncio.gather(
        *(given((dispenser, second)[n % 2], f"w{n}", 13) for n in range(8))
    )

    assert sorted(key for share in shares for key in share) == sorted(keys)


@pytest.mark.seed("2.2")
async def test_workers_come_and_go_and_everything_is_done_once(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await tracker.add_many([f"order-{n}" for n in range(40)])
    done: list[str] = []
    turn = 0
    while (await tracker.counts())[Status.FINISHED] < 40:
        turn += 1
        # A worker joins at every turn, and every fourth one disappears.
        share = await given(dispenser, f"w{turn}", 5)
        if turn % 4:
            done += (await dispenser.finish(f"w{turn}", share)).accepted
        clock.advance(seconds=20)
        assert turn < 50

    assert sorted(done) == sorted(f"order-{n}" for n in range(40))


@pytest.mark.seed("2.3", "2.18")
async def test_a_bucket_that_is_not_touched_goes_back_to_the_pool_without_anybodys_help(
    dispenser: Dispenser, second: Dispenser, pool: list[str], clock: FakeClock
):
    share = await given(dispenser, "gone", 4)
    before = await given(second, "w2", 10)
    clock.advance(seconds=60)
    await second.touch("w2")
    after = await given(second, "w3", 10)

    assert (share, before) == (pool[:4], pool[4:])
    # `w2` touched its tasks in time, before another worker could take them over.
    assert after == pool[:4]
    assert await dispenser.check("gone", share) == frozenset()


@pytest.mark.seed("2.4")
async def test_the_pool_is_handed_out_by_priority(dispenser: Dispenser, tracker: Tracker):
    await tracker.add("least", priority=-5)
    await tracker.add("most", priority=5)
    await tracker.add("middle")

    assert await given(dispenser, "w1", 2) == ["most", "middle"]
    assert await given(dispenser, "w2", 2) == ["least"]


@pytest.mark.seed("2.5")
async def test_a_stream_is_added_chunk_by_chunk_and_never_held_as_a_whole(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    made = 0
    ahead = []
    add = tracker.ledger.tasks.add

    async def noted(tasks):
        ahead.append((len(tasks), made))
        return await add(tasks)

    def links():
        nonlocal made
        for n in range(1300):
            made += 1
            yield f"link-{n % 1000}"

    monkeypatch.setattr(tracker.ledger.tasks, "add", noted)
    added = await tracker.add_many(links())

    assert ahead == [(500, 500), (500, 1000), (300, 1300)]
    assert (added.new, added.existing) == (1000, 300)


@pytest.mark.seed("2.6")
async def test_the_pool_is_cleared_but_for_what_somebody_holds(
    tracker: Tracker, dispenser: Dispenser, pool: list[str]
):
    held = await given(dispenser, "w1", 2)
    cleared = await tracker.purge(all=True)
    with pytest.raises(UsageError):
        await tracker.purge(status=Status.PROCESSING)
    left = [task.key async for task in tracker.walk()]
    forced = await tracker.purge(all=True, force=True)

    assert (cleared, sorted(left), forced) == (8, held, 2)
    assert (await dispenser.finish("w1", held)).accepted == frozenset()


@pytest.mark.seed("2.7")
async def test_many_are_assigned_at_once_each_with_all_that_its_worker_needs(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await tracker.add_many([NewTask(f"order-{n}", {"amount": n}) for n in range(25)])
    share = await dispenser.assign("w1", 20)

    assert len({task.key for task in share}) == 20
    assert all(task.data == {"amount": int(task.key[6:])} for task in share)
    assert {(task.stage, task.attempt, task.fence, task.expires_at) for task in share} == {
        ("todo", 1, 1, clock.time + timedelta(seconds=60))
    }


@pytest.mark.seed("2.8")
async def test_a_bucket_lives_as_long_as_it_is_touched(
    dispenser: Dispenser, second: Dispenser, pool: list[str], clock: FakeClock
):
    share = await given(dispenser, "w1", 3)
    for _ in range(5):
        clock.advance(seconds=50)
        assert await dispenser.touch("w1") == 3
    # Another request for tasks is a touch as well.
    clock.advance(seconds=50)
    await dispenser.assign("w1", 3)
    clock.advance(seconds=50)

    assert await second.check("w1", pool) == set(share) == set(pool[:3])


@pytest.mark.seed("2.9")
async def test_the_first_is_begun_with_first_and_the_last_is_given_back_first(
    dispenser: Dispenser, pool: list[str], clock: FakeClock
):
    share = await given(dispenser, "w1", 4)
    clock.advance(seconds=1)
    kept = await given(dispenser, "w1", 2)

    assert share == pool[:4]
    assert kept == pool[:2]
    assert await given(dispenser, "w2", 1) == [pool[2]]


@pytest.mark.seed("2.10", "2.11")
async def test_a_worker_sees_what_it_holds_and_everybody_sees_who_holds_what(
    tracker: Tracker, dispenser: Dispenser, second: Dispenser, pool: list[str]
):
    first, last = await given(dispenser, "w1", 3), await given(second, "w2", 2)
    held = {task.key: task.holder async for task in tracker.walk(status=Status.PROCESSING)}

    assert await dispenser.check("w1", pool) == set(first)
    assert await dispenser.check("w2", pool) == set(last)
    assert held == dict.fromkeys(first, "@w1") | dict.fromkeys(last, "@w2")


@pytest.mark.seed("2.12")
async def test_a_pool_made_anew_again_and_again_while_workers_run_loses_and_doubles_nothing(
    tracker: Tracker, dispenser: Dispenser, second: Dispenser
):
    mapping = {f"order-{n}": n for n in range(40)}
    await second.rebuild(mapping)
    done: list[str] = []

    async def work(name: str) -> None:
        while share := await given(dispenser, name, 4):
            done.extend((await dispenser.finish(name, share)).accepted)

    async def rebuild() -> None:
        for _ in range(5):
            await second.rebuild(mapping)

    await asyncio.gather(work("w1"), work("w2"), rebuild())
    assert sorted(done) == sorted(mapping)


@pytest.mark.seed("2.13")
async def test_who_did_not_get_the_answer_asks_again_and_gets_the_same(
    dispenser: Dispenser, second: Dispenser, pool: list[str]
):
    lost = await given(dispenser, "w1", 3)
    again = await given(second, "w1", 3)

    assert again == lost == pool[:3]
    assert await given(dispenser, "w2", 10) == pool[3:]


@pytest.mark.seed("2.14")
async def test_a_share_is_topped_up_to_the_limit_and_never_beyond_it(
    dispenser: Dispenser, pool: list[str]
):
    shares = [await given(dispenser, "w1", 3)]
    for _ in range(3):
        await dispenser.finish("w1", shares[-1][:1])
        shares.append(await given(dispenser, "w1", 3))
        assert len(await dispenser.check("w1", pool)) == 3

    assert shares == [pool[n : n + 3] for n in range(4)]


@pytest.mark.seed("2.15")
async def test_a_surplus_is_anybodys_at_once_and_in_its_old_place(
    tracker: Tracker, dispenser: Dispenser, second: Dispenser, pool: list[str]
):
    await given(dispenser, "w1", 5)
    kept = await given(dispenser, "w1", 2)
    task = await task_of(tracker, pool[2])

    assert kept == pool[:2]
    assert (task.status, task.due, task.retry) == (Status.TODO, START, 0)
    assert await given(second, "w2", 10) == pool[2:]


@pytest.mark.seed("2.16")
async def test_a_worker_is_told_exactly_which_of_its_tasks_it_has_lost(
    tracker: Tracker, dispenser: Dispenser, second: Dispenser, pool: list[str], clock: FakeClock
):
    share = await given(dispenser, "w1", 4)
    clock.advance(seconds=59)
    await dispenser.touch("w1", [share[0], share[1], share[3]])
    clock.advance(seconds=1)
    stolen = await given(second, "w2", 7)

    assert stolen == [pool[2], *pool[4:]]
    assert await dispenser.check("w1", share) == {share[0], share[1], share[3]}
    assert await dispenser.renew("w1") == {share[0], share[1], share[3]}


@pytest.mark.seed("2.17")
async def test_done_is_said_of_each_task_and_refused_for_what_is_not_held(
    tracker: Tracker, dispenser: Dispenser, pool: list[str]
):
    share = await given(dispenser, "w1", 3)
    ended = await dispenser.finish("w1", [share[0], pool[7], "unknown"], {share[0]: "paid"})
    again = await dispenser.finish("w1", [share[0]], {share[0]: "paid twice"})

    assert ended.accepted == again.accepted == {share[0]}
    assert {key: str(why) for key, why in ended.refused.items()} == {
        pool[7]: "not-leased",
        "unknown": "not-found",
    }
    assert await dispenser.check("w1", pool) == set(share[1:])
    assert (await tracker.get(share[0])).results == {"todo": "paid"}


@pytest.mark.seed("2.19")
async def test_whoever_asks_at_the_same_time_loses_nothing_and_holds_nothing_twice(
    use_cases: UseCases, tracker: Tracker, dispenser: Dispenser, second: Dispenser
):
    keys = [f"order-{n}" for n in range(60)]
    await tracker.add_many(keys)
    accepted: list[str] = []

    async def work(dispenser: Dispenser, name: str, limits: list[int]) -> None:
        turn = 0
        while (await tracker.counts())[Status.FINISHED] < len(keys):
            share = await given(dispenser, name, limits[turn % len(limits)])
            accepted.extend((await dispenser.finish(name, share[:2])).accepted)
            turn += 1
            if not share:
                await asyncio.sleep(0.005)

    async with asyncio.timeout(30):
        await asyncio.gather(
            work(dispenser, "w1", [5, 2]), work(second, "w2", [3]), work(second, "w3", [7, 1, 4])
        )

    assert sorted(accepted) == sorted(keys)
    found = await tracker.ledger.queries.find(
        TaskFilter(ids=[key_id(key) for key in keys]), limit=100
    )
    assert {len(record.trace) for record in found} == {1}
