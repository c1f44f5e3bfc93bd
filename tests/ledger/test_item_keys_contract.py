"""Contract of `Ledger.item_keys`, run on every store."""

import asyncio

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Lease
from tests.support.ledgers import (
    LEASE,
    FakeClock,
    LedgerFactory,
    claimed,
    claimed_one,
    failure,
    make_tasks,
    success,
)


async def leases(ledger: Ledger, number: int) -> list[Lease]:
    await ledger.tasks.add(make_tasks(number))
    return sorted(await claimed(ledger), key=lambda lease: lease.task.url)


async def refused(ledger: Ledger, lease: Lease, *keys: str, replace: bool = False) -> set[str]:
    reserved = await ledger.item_keys.reserve(dict.fromkeys(keys, lease), replace=replace)
    assert not reserved.replaced
    return reserved.refused


async def test_the_first_task_of_a_key_has_it(ledger: Ledger):
    first, second = await leases(ledger, 2)

    assert await refused(ledger, first, "a", "b") == set()
    assert await refused(ledger, first, "a", "b") == set(), "a repeated call succeeds"
    assert await refused(ledger, second, "b", "c") == {"b"}
    await ledger.outcomes.commit([success(ledger, first, {"n": 1})])
    assert await refused(ledger, second, "b", "c") == {"b"}
    assert await refused(ledger, second) == set()


async def test_the_key_of_a_crashed_worker_is_free(ledger: Ledger, clock: FakeClock):
    first, second = await leases(ledger, 2)
    assert await refused(ledger, first, "a") == set()
    assert await refused(ledger, second, "a") == {"a"}, "the first task may commit at any moment"

    await ledger.leases.renew([second], lease=10 * LEASE)
    clock.advance(seconds=60)
    again = await claimed_one(ledger, worker="b")

    assert again.task.id == first.task.id
    assert await refused(ledger, second, "a") == set()
    assert await refused(ledger, again, "a") == {"a"}


async def test_the_key_of_a_failed_attempt_is_free_until_the_task_has_it_again(
    ledger: Ledger, clock: FakeClock
):
    first, second = await leases(ledger, 2)
    await ledger.leases.renew([second], lease=100 * LEASE)
    await ledger.outcomes.release([first])
    again = await claimed_one(ledger)

    assert await refused(ledger, again, "a") == set()
    await ledger.outcomes.commit([success(ledger, again, {"n": 1})])
    assert await refused(ledger, second, "a") == {"a"}


async def test_a_later_task_may_take_a_recorded_key(ledger: Ledger):
    first, second, third = await leases(ledger, 3)
    assert await refused(ledger, first, "a", "b") == set()
    assert await refused(ledger, second, "a", replace=True) == {"a"}, "not while it may commit"
    await ledger.outcomes.commit([success(ledger, first, {"n": 1})])

    reserved = await ledger.item_keys.reserve({"a": second, "c": second}, replace=True)

    assert reserved.refused == set()
    assert reserved.replaced == {first.task.id: {"a"}}
    assert await refused(ledger, third, "a", "b", "c") == {"a", "b", "c"}


async def test_a_task_whose_worker_crashed_learns_again_whose_key_it_took(
    ledger: Ledger, clock: FakeClock
):
    first, second, third = await leases(ledger, 3)
    await refused(ledger, first, "a")
    await ledger.outcomes.commit([success(ledger, first, {"n": 1})])
    await ledger.item_keys.reserve({"a": second}, replace=True)
    await ledger.leases.renew([third], lease=100 * LEASE)
    clock.advance(seconds=60)
    again = await claimed_one(ledger, worker="b")
    expected = {first.task.id: {"a"}}

    assert (await ledger.item_keys.reserve({"a": again}, replace=True)).replaced == expected
    await ledger.outcomes.release([again])
    assert (await ledger.item_keys.reserve({"a": third}, replace=True)).replaced == expected


async def test_a_task_releases_the_keys_of_its_earlier_leases(ledger: Ledger, clock: FakeClock):
    first, second = await leases(ledger, 2)
    await ledger.leases.renew([second], lease=100 * LEASE)
    assert await refused(ledger, first, "a", "b") == set()
    await ledger.outcomes.commit([failure(ledger, first)])
    clock.advance(seconds=1000)
    again = await claimed_one(ledger)
    assert await refused(ledger, again, "a") == set()

    assert await ledger.item_keys.release(again) == 1

    assert await refused(ledger, second, "a", "b") == {"a"}


async def test_tasks_that_want_a_key_at_the_same_time_share_it_out(store: LedgerFactory):
    clients = [await store.open() for _ in range(4)]
    all_leases = await leases(clients[0], 16)
    keys = [f"k{n}" for n in range(20)]

    answers = await asyncio.gather(
        *(refused(clients[n % 4], lease, *keys[n % 5 :]) for n, lease in enumerate(all_leases))
    )

    taken = [key for n, no in enumerate(answers) for key in keys[n % 5 :] if key not in no]
    assert sorted(taken) == sorted(keys)
