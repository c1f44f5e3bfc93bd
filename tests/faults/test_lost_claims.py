"""Claims whose reply was lost: the ledger finds out what became of them, and forgets none."""

import asyncio
from datetime import timedelta

import pytest

from crawlcw.ledger.protocol import Claimed
from crawlcw.task import Lease
from tests.faults.proxy import At, End, Fault, Loss
from tests.faults.world import World
from tests.ledgers import LEASE

REPLY_LOST = Fault(loss=Loss.REPLY, end=End.RESET)


async def claim(world: World, *, limit: int = 50) -> Claimed:
    page = await world.far.page(limit=limit)
    return await world.send(lambda: world.near.claim(page, worker="w", lease=LEASE, max_lost=3))


async def known_again(world: World) -> list[Lease]:
    """Claim nothing, until the ledger has answered, and return what it gives."""
    claimed = await world.send(lambda: world.near.claim([], worker="w", lease=LEASE, max_lost=3))
    return list(claimed.leases)


@pytest.mark.parametrize("claims", ["each", "batch"])
def test_a_claim_whose_reply_is_lost_for_longer_than_its_lease_costs_nothing(
    one_world: World, claims: str
):
    world = one_world
    world.begin(claims=claims)
    name = "findAndModify" if claims == "each" else "update"
    (todo,) = world.setting.todo
    world.proxy.plan(At(REPLY_LOST, name=name, target="books"))
    claimed = world.run(world.near.claim([todo], worker="w", lease=LEASE, max_lost=3))
    assert (claimed.leases, claimed.missed) == ((), 1)
    world.clock.advance(seconds=3 * LEASE.total_seconds())

    # It is due by now, as is everything; a coordinator claims what it is shown.
    claimed = world.run(claim(world))

    ours = [lease for lease in claimed.leases if lease.task.id == todo.id]
    assert [lease.fence for lease in ours] == [todo.fence + 1]
    found = world.documents()["books"][todo.id]
    assert (found["lost"], found["lock"], found["fence"]) == (0, ours[0].token, todo.fence + 1)
    # Nor may anybody else take it over before it is renewed.
    assert found["due"] == world.clock.time + LEASE
    assert world.run(world.far.renew(ours, lease=LEASE)) == set()


def test_two_who_claim_at_once_after_an_outage_get_each_lease_once(one_world: World):
    world = one_world
    world.begin()
    world.proxy.plan(At(REPLY_LOST, name="findAndModify", target="books"))
    (todo,) = world.setting.todo
    assert not world.run(world.near.claim([todo], worker="w", lease=LEASE, max_lost=3)).leases

    async def both() -> list[list[Lease]]:
        return await asyncio.gather(known_again(world), known_again(world))

    shares = world.run(both())

    assert [lease.task.id for share in shares for lease in share] == [todo.id]


def test_a_reply_that_is_lost_while_another_is_looked_for_is_not_forgotten(one_world: World):
    world = one_world
    world.begin()
    (todo,) = world.setting.todo
    other = next(task for task in world.run(world.far.page(limit=50)) if task.id != todo.id)
    world.proxy.plan(At(REPLY_LOST, name="findAndModify", target="books"))
    assert not world.run(world.near.claim([todo], worker="w", lease=LEASE, max_lost=3)).leases

    async def meanwhile() -> list[Lease]:
        # The look for the first one takes longer than it takes to lose the second.
        slow = At(Fault(delay=timedelta(seconds=0.05)), name="find", target="books")
        lost = At(REPLY_LOST, name="findAndModify", target="books")
        world.proxy.plan(lambda command: slow(command) or lost(command))
        looked = asyncio.create_task(known_again(world))
        while not slow.struck.is_set():
            await asyncio.sleep(0)
        claimed = await world.near.claim([other], worker="w", lease=LEASE, max_lost=3)
        assert lost.struck.is_set()
        return [*claimed.leases, *await looked, *await known_again(world)]

    leases = world.run(meanwhile())

    assert {lease.task.id for lease in leases} == {todo.id, other.id}
