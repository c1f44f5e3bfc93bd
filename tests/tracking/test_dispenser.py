"""Dispenser: shares of workers by name, accepted and refused endings, and the rebuilt pool."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw.errors import Reason, UsageError
from crawlcw.model.task import Status
from crawlcw.tracking import (
    Advance,
    Assignment,
    Dispenser,
    Finish,
    Ignore,
    NewTask,
    RebuildReport,
    Refusal,
    Release,
    Tracker,
)
from tests.support.dispensers import TTL, dispenser_on, tracker_on
from tests.support.ledgers import FakeClock, LedgerFactory, on_backend

BIG = "x" * 5_000


@pytest.fixture(params=["sqlite", "pymongo-batch"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerFactory]:
    opened = on_backend(request, tmp_path, tracked=True)
    yield opened
    await opened.close()


@pytest.fixture
async def tracker(store: LedgerFactory) -> Tracker:
    return await tracker_on(store, inline_limit=1_000)


@pytest.fixture
def dispenser(tracker: Tracker) -> Dispenser:
    return Dispenser(tracker)


def keys(assigned: list[Assignment]) -> list[str]:
    return [each.key for each in assigned]


async def add(tracker: Tracker, *names: str) -> None:
    """Add tasks, each with a lower priority than the previous one."""
    new = [NewTask(name, {"n": n}, priority=-n) for n, name in enumerate(names)]
    await tracker.add_many(new)


async def status(tracker: Tracker, key: str) -> Status:
    return (await tracker.get(key)).status


# --- shares


async def test_a_share_is_handed_out_by_priority_with_all_that_is_known_of_each(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await tracker.add("late", priority=1)
    await tracker.add("first", {"n": 1}, priority=5, context={"c": 2})
    await tracker.add("second", priority=4)

    assigned = await dispenser.assign("ann", 2)

    assert keys(assigned) == ["first", "second"]
    assert assigned[0] == Assignment(
        key="first",
        stage="todo",
        data={"n": 1},
        context={"c": 2},
        fence=1,
        attempt=1,
        expires_at=clock.time + TTL,
    )
    assert (await tracker.get("first")).holder == "@ann"


async def test_a_worker_gets_its_own_unfinished_ones_first_and_is_topped_up_to_the_limit(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await add(tracker, "a", "b", "c", "d", "e")
    await dispenser.assign("ann", 3)
    await dispenser.finish("ann", ["b"])
    await tracker.add("urgent", priority=9)
    clock.advance(seconds=40)

    again = await dispenser.assign("ann", 4)

    assert keys(again)[:2] == ["a", "c"]
    assert set(keys(again)[2:]) == {"urgent", "d"}
    assert {each.expires_at for each in again} == {clock.time + TTL}


async def test_asking_for_less_gives_the_surplus_to_others_at_once(
    store: LedgerFactory, tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    other = await dispenser_on(store)
    await add(tracker, "a", "b", "c", "d")
    await dispenser.assign("ann", 1)
    clock.advance(seconds=1)
    await dispenser.assign("ann", 4)

    assert keys(await dispenser.assign("ann", 2)) == [
        "a",
        "b",
    ]  # the longest held first, then by priority

    taken = await other.assign("bob", 9)
    assert keys(taken) == ["c", "d"]
    assert {each.attempt for each in taken} == {1}
    assert await dispenser.assign("ann", 0) == []
    assert await dispenser.check("ann", "abcd") == frozenset()


async def test_only_tasks_of_the_stages_that_were_asked_for_are_added(
    tracker: Tracker, dispenser: Dispenser
):
    await tracker.add("a", stage="scan")
    await tracker.add("b", stage="print")

    assert keys(await dispenser.assign("ann", 5, stages=["print"])) == ["b"]
    assert set(keys(await dispenser.assign("ann", 5))) == {"a", "b"}


async def test_a_request_sent_again_returns_its_own_share_beside_the_others(
    store: LedgerFactory, tracker: Tracker, dispenser: Dispenser
):
    other_server = await dispenser_on(store)
    await add(tracker, "a", "b", "c", "d", "e")

    first = await dispenser.assign("ann", 2, request="r1")
    second = await other_server.assign("ann", 2, request="r2")
    again = await other_server.assign("ann", 2, request="r1")

    assert (keys(first), keys(second)) == (["a", "b"], ["c", "d"])
    assert again == first
    assert set(keys(await dispenser.assign("ann", 5))) == {"a", "b", "c", "d", "e"}


async def test_what_is_not_touched_for_its_time_goes_back_to_the_pool(
    store: LedgerFactory, tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    other = await dispenser_on(store)
    await add(tracker, "a", "b")
    await dispenser.assign("ann", 2)
    clock.advance(seconds=40)
    assert await dispenser.touch("ann", ["a"]) == 1
    clock.advance(seconds=40)

    assert keys(await other.assign("bob", 2)) == ["b"]
    # A task with a lapsed lease still belongs to its worker until it is taken over.
    clock.advance(seconds=40)
    assert await dispenser.check("ann", ["a", "b"]) == {"a"}
    assert await dispenser.touch("ann") == 1
    assert await other.assign("eve", 2) == []


async def test_a_task_that_loses_its_workers_is_given_up(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await tracker.add("poison")
    # The second loss quarantines the task, and every later one counts.
    for worker in ("pat", "ann", "bob", "eve", "joe", "kim"):
        assert keys(await dispenser.assign(worker, 1)) == ["poison"]
        clock.advance(seconds=61)
        if worker not in ("pat", "ann"):
            assert await dispenser.assign("max", 1) == []
            clock.advance(seconds=61)
    assert keys(await dispenser.assign("lea", 1)) == ["poison"]
    clock.advance(seconds=61)

    assert await dispenser.assign("ann", 1) == []
    assert (await tracker.get("poison")).reason is Reason.CRASHED_WORKER


async def test_nobody_gets_what_another_one_has_when_all_ask_at_once(
    store: LedgerFactory, tracker: Tracker
):
    desks = [await dispenser_on(store) for _ in range(3)]
    await tracker.add_many(str(n) for n in range(30))

    shares = await asyncio.gather(*(desks[n % 3].assign(f"w{n}", 4) for n in range(9)))

    handed = [key for share in shares for key in keys(share)]
    assert len(handed) == len(set(handed)) == 30
    assert max(len(share) for share in shares) == 4


async def test_workers_known_by_name_are_not_on_the_list_of_workers(
    tracker: Tracker, dispenser: Dispenser
):
    await tracker.add("a")
    await dispenser.assign("ann", 1)
    await dispenser.finish("ann", ["a"])

    assert await tracker.ledger.workers.all() == []


@pytest.mark.parametrize("name", ["", "a:b", "a b", "ä", "a\n", "x" * 101, None, "@a"])
async def test_a_name_is_letters_digits_and_little_else(dispenser: Dispenser, name: Any):
    with pytest.raises(UsageError, match="is not a valid worker name"):
        await dispenser.assign(name, 1)
    with pytest.raises(UsageError, match="is no"):
        await dispenser.assign("ann", 1, request=name or "")


# --- endings


async def test_done_finishes_with_a_result_and_says_what_was_not_accepted(
    tracker: Tracker, dispenser: Dispenser
):
    await add(tracker, "a", "b", "c")
    await dispenser.assign("ann", 2)

    ended = await dispenser.finish("ann", ["a", "b", "c", "nothing"], {"a": {"sum": 3}})

    assert ended.accepted == {"a", "b"}
    assert ended.refused == {"c": Refusal.NOT_LEASED, "nothing": Refusal.NOT_FOUND}
    task = await tracker.get("a")
    assert (task.status, task.results) == (Status.FINISHED, {"todo": {"sum": 3}})
    assert [(each.worker, each.event) for each in task.trace] == [("@ann", "finish")]


async def test_done_sent_again_is_accepted_and_recorded_once(
    store: LedgerFactory, tracker: Tracker, dispenser: Dispenser
):
    other_server = await dispenser_on(store)
    await tracker.add("a")
    await dispenser.assign("ann", 1)

    both = await asyncio.gather(*(d.finish("ann", ["a"]) for d in (dispenser, other_server)))
    later = await other_server.finish("ann", ["a"], fences={"a": 1})

    assert [each.accepted for each in (*both, later)] == [{"a"}] * 3
    assert len((await tracker.get("a")).trace) == 1
    assert (await dispenser.finish("bob", ["a"])).refused == {"a": Refusal.NOT_LEASED}
    assert (await dispenser.fail("ann", ["a"], "no")).refused == {"a": Refusal.NOT_LEASED}


async def test_a_late_done_is_refused_once_somebody_else_holds_the_task(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await tracker.add("a", {"text": BIG})
    await dispenser.assign("ann", 1)
    clock.advance(seconds=60)
    await dispenser.assign("bob", 1)

    late = await dispenser.end("ann", {"a": Finish(result="late", data={"text": "gone"})})

    assert late.refused == {"a": Refusal.NOT_LEASED}
    assert await status(tracker, "a") is Status.PROCESSING
    assert (await dispenser.finish("bob", ["a"], {"a": "good"})).accepted == {"a"}
    assert (await dispenser.finish("ann", ["a"])).refused == {"a": Refusal.NOT_LEASED}
    task = await tracker.get("a")
    assert (task.data, task.results) == ({"text": BIG}, {"todo": "good"})


async def test_endings_that_come_at_once_are_recorded_together_and_one_refused_alone(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    names = [str(n) for n in range(20)]
    await add(tracker, *names)
    shares = await asyncio.gather(*(dispenser.assign(f"w{n}", 1) for n in range(20)))
    holders = {share[0].key: f"w{n}" for n, share in enumerate(shares)}
    commit = tracker.ledger.outcomes.commit
    groups: list[int] = []

    async def overtaken(settlements):
        if not groups:
            clock.advance(seconds=60)
            assert keys(await dispenser.assign("bob", 1)) == ["0"]
        groups.append(len(settlements))
        return await commit(settlements)

    monkeypatch.setattr(tracker.ledger.outcomes, "commit", overtaken)
    ended = await asyncio.gather(*(dispenser.finish(holders[name], [name]) for name in names))

    assert ended[0].refused == {"0": Refusal.NOT_LEASED}
    assert [each.accepted for each in ended[1:]] == [{name} for name in names[1:]]
    # The first one alone, and the others together.
    assert sum(groups) == 20
    assert len(groups) <= 3


async def test_with_a_fence_an_ending_is_of_that_claim_and_of_no_later_one(
    tracker: Tracker, dispenser: Dispenser
):
    await tracker.add("a", stage="scan")
    await dispenser.assign("ann", 1)
    scanned = Advance(stage="print")
    await dispenser.end("ann", {"a": scanned}, fences={"a": 1})
    (second,) = await dispenser.assign("ann", 1)

    again = await dispenser.end("ann", {"a": scanned}, fences={"a": 1})
    other = await dispenser.end("ann", {"a": Finish()}, fences={"a": 7})

    assert (second.stage, second.fence, again.accepted) == ("print", 2, {"a"})
    assert other.refused == {"a": Refusal.NOT_LEASED}
    assert await dispenser.check("ann", ["a"]) == {"a"}


async def test_a_stage_is_ended_and_the_next_one_queued_in_one_write(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await tracker.add("a", {"text": BIG}, stage="scan", context={"old": BIG})
    await dispenser.assign("ann", 1)
    step = Advance(
        stage="print",
        result=BIG,
        data={"text": BIG + "!"},
        context={"pages": BIG},
        delay=timedelta(seconds=5),
    )

    assert (await dispenser.end("ann", {"a": step})).accepted == {"a"}

    assert await dispenser.assign("bob", 1) == []
    clock.advance(seconds=5)
    (assigned,) = await dispenser.assign("bob", 1)
    assert (assigned.stage, assigned.data) == ("print", {"text": BIG + "!"})
    assert assigned.context == {"pages": BIG}
    assert (await tracker.get("a")).results == {"scan": BIG}


async def test_done_goes_on_to_the_next_stage_of_a_chain(store: LedgerFactory):
    tracker = await tracker_on(store, chain=("scan", "print"), inline_limit=1_000)
    dispenser = Dispenser(tracker)
    await tracker.add("a", context={"c": BIG})
    await dispenser.assign("ann", 1)

    assert (await dispenser.finish("ann", ["a"])).accepted == {"a"}
    assert (await dispenser.finish("ann", ["a"])).accepted == {"a"}  # sent again

    (assigned,) = await dispenser.assign("ann", 1)
    assert (assigned.stage, assigned.context) == ("print", {"c": BIG})
    await dispenser.finish("ann", ["a"])
    assert await status(tracker, "a") is Status.FINISHED


async def test_a_failure_spends_an_attempt_and_the_last_one_gives_the_task_up(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await add(tracker, "a", "b")
    await dispenser.assign("ann", 2)

    failed = await dispenser.fail("ann", ["a"], "broken \x1b[2J")
    again = await dispenser.fail("ann", ["a"], "broken")
    await dispenser.fail("ann", ["b"], "never", may_retry=False)

    assert failed.accepted == again.accepted == {"a"}
    task = await tracker.get("a")
    assert (task.status, task.retry, len(task.errors)) == (Status.FAILED, 1, 1)
    assert task.errors[0].message == r"broken \x1b[2J"
    assert await status(tracker, "b") is Status.IGNORED
    clock.advance(seconds=4)
    (assigned,) = await dispenser.assign("bob", 2)
    assert (assigned.key, assigned.attempt) == ("a", 2)


async def test_an_unwanted_task_is_ignored_and_a_released_one_is_as_it_was(
    tracker: Tracker, dispenser: Dispenser
):
    await add(tracker, "a", "b")
    await dispenser.assign("ann", 2)

    ended = await dispenser.end(
        "ann", {"a": Ignore(message="spam"), "b": Release(), "c": Release()}
    )
    again = await dispenser.end("ann", {"b": Release()}, fences={"b": 1})
    not_so = await dispenser.end("ann", {"a": Release()}, fences={"a": 1})

    assert ended.accepted == {"a", "b"}
    assert ended.refused == {"c": Refusal.NOT_FOUND}
    assert again.accepted == {"b"}
    assert not_so.refused == {"a": Refusal.NOT_LEASED}
    assert (await tracker.get("a")).reason is Reason.UNWANTED
    task = await tracker.get("b")
    assert (task.status, task.retry, task.trace) == (Status.TODO, 0, ())


# --- the pool


async def test_a_rebuild_makes_exactly_the_mapping_wait(
    tracker: Tracker, dispenser: Dispenser, clock: FakeClock
):
    await add(tracker, "done", "assigned", "given-up", "failed", "stays", "goes")
    await dispenser.assign("ann", 4)
    await dispenser.finish("ann", ["done"])
    await dispenser.fail("ann", ["given-up"], "no", may_retry=False)
    await dispenser.fail("ann", ["failed"], "no")
    mapping = {"done": 9, "given-up": 9, "assigned": 9, "failed": 2, "stays": 7, "new": 8}

    assert await dispenser.rebuild(mapping) == RebuildReport(added=1, prioritised=2, withdrawn=1)

    found = {
        key: ((await tracker.get(key)).status, (await tracker.get(key)).priority)
        for key in (*mapping, "goes")
    }
    assert found == {
        "done": (Status.FINISHED, 0),
        "assigned": (Status.PROCESSING, -1),
        "given-up": (Status.IGNORED, -2),
        "failed": (Status.FAILED, 2),
        "stays": (Status.TODO, 7),
        "new": (Status.TODO, 8),
        "goes": (Status.IGNORED, -5),
    }
    assert (await tracker.get("goes")).reason is Reason.WITHDRAWN
    assert (await tracker.get("given-up")).reason is Reason.TASK_ERROR
    assert keys(await dispenser.assign("bob", 9)) == ["new", "stays"]
    assert await dispenser.check("ann", ["assigned"]) == {"assigned"}


async def test_a_rebuild_goes_on_from_batch_to_batch(
    tracker: Tracker, dispenser: Dispenser, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.tracking.dispenser._BATCH_SIZE", 3)
    await tracker.add_many(str(n) for n in range(10))

    rebuilt = await dispenser.rebuild({str(n): 1 for n in range(5, 17)})

    assert rebuilt == RebuildReport(added=7, prioritised=5, withdrawn=5)
    assert set(keys(await dispenser.assign("ann", 99))) == {str(n) for n in range(5, 17)}


async def test_two_rebuilds_at_once_beside_workers_keep_what_both_have_and_lose_nothing(
    store: LedgerFactory, tracker: Tracker
):
    desks = [await dispenser_on(store) for _ in range(3)]
    await tracker.add_many(str(n) for n in range(30))
    done: list[str] = []

    async def work(desk: Dispenser) -> None:
        for _ in range(3):
            share = keys(await desk.assign("ann", 3))
            done.extend((await desk.finish("ann", share)).accepted)

    await asyncio.gather(
        desks[0].rebuild({str(n): n for n in range(10, 40)}),
        desks[1].rebuild({str(n): n for n in range(20, 50)}),
        work(desks[2]),
    )

    found = {key: await status(tracker, key) for key in map(str, range(50))}
    assert len(done) == len(set(done)) == 9
    assert {key for key in found if found[key] is Status.FINISHED} == set(done)
    waiting = {key for key in found if found[key] is Status.TODO}
    assert waiting >= {str(n) for n in range(20, 40)} - set(done)
    assert waiting.isdisjoint({str(n) for n in range(10)})
