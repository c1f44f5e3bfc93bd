"""Claims whose reply is lost, or whose caller is: the repeated claim returns their leases."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from crawlcw.errors import LedgerUnavailableError
from crawlcw.model.hosts import HostLease
from crawlcw.model.task import Lease, Task
from tests.faults.proxy import At, End, Fault, Loss
from tests.faults.wires import Command
from tests.faults.world import World
from tests.support.ledgers import LEASE

pytestmark = pytest.mark.thorough

REPLY_LOST = Fault(loss=Loss.REPLY, end=End.RESET)
#: The command that claims, and the one that looks for a claim whose reply was lost.
COMMANDS = {
    "each": ("findAndModify", "find"),
    "batch": ("update", "find"),
    "postgres": ("COMMIT", "UPDATE"),
}


@pytest.fixture(params=COMMANDS)
def world(request: pytest.FixtureRequest) -> World:
    """A process that claims one task at a time, or batches, or on PostgreSQL."""
    of_postgres = request.param == "postgres"
    world: World = request.getfixturevalue("postgres_world" if of_postgres else "one_world")
    world.begin(claims=request.param)
    return world


def lost(world: World, fault: Fault = REPLY_LOST, *, looking: bool = False) -> At:
    """Return the fault of a claim, or of the look for one."""
    name = COMMANDS[world.claims][looking]
    return At(fault, name=name, target="" if world.driver == "postgres" else "books")


async def claim(world: World, tasks: Sequence[Task]) -> list[Lease]:
    claimed = await world.send(
        lambda: world.near.leases.claim(tasks, worker="w", lease=LEASE, max_lost=3)
    )
    return list(claimed.leases)


async def cancelled(world: World, operation: Coroutine[Any, Any, Any], *, table: str) -> None:
    """Cancel the caller of an operation after the server has applied it, and before its reply."""
    before = world.documents()[table]
    asking = asyncio.create_task(operation)
    while world.documents()[table] == before:
        await asyncio.sleep(0.01)
    asking.cancel()
    # On a busy machine, it may have been given up before.
    with pytest.raises((asyncio.CancelledError, LedgerUnavailableError)):
        await asking


async def claim_in_vain(world: World, tasks: Sequence[Task]) -> None:
    """Claim once; the server applies the claim, and its reply is lost."""
    plan = lost(world)
    world.proxy.plan(plan)
    # On a busy machine, a claim may exceed its timeout before it is sent.
    while not plan.struck.is_set():
        with pytest.raises(LedgerUnavailableError):
            await world.near.leases.claim(tasks, worker="w", lease=LEASE, max_lost=3)


@pytest.mark.representative
def test_the_same_claim_sent_again_has_every_lease_of_the_first(world: World):
    page = [task for task in world.run(world.far.tasks.page(limit=50)) if task.lock is None]
    assert len(page) == 2
    world.run(claim_in_vain(world, page))

    leases = world.run(claim(world, page))

    assert {(lease.task.id, lease.fence) for lease in leases} == {
        (task.id, task.fence + 1) for task in page
    }
    assert world.run(world.far.leases.renew(leases, lease=LEASE)) == set()


def test_two_who_claim_the_same_and_both_are_not_answered_get_it_once(world: World):
    """For example, a coordinator and a fetcher at a redirect to a page that is also linked."""
    (todo,) = world.setting.todo
    # Both claims are under way before the first one fails.
    both_sent = asyncio.Event()
    # PostgreSQL gets one transaction of a process at a time.
    until = None if world.driver == "postgres" else both_sent
    first, second = (lost(world, fault) for fault in (replace(REPLY_LOST, until=until), REPLY_LOST))

    def plan(command: Command) -> Fault | None:
        fault = first(command) or second(command)
        if second.struck.is_set():
            both_sent.set()
        return fault

    world.proxy.plan(plan)

    async def both() -> list[list[Lease]]:
        return await asyncio.gather(claim(world, [todo]), claim(world, [todo]))

    shares = world.run(both())

    assert second.struck.is_set()
    assert [lease.task.id for share in shares for lease in share] == [todo.id]
    assert world.documents()["books"][todo.id]["lost"] == 0


def test_a_claim_whose_caller_is_cancelled_is_returned_to_the_next(world: World):
    (todo,) = world.setting.todo
    world.proxy.plan(lost(world, Fault(loss=Loss.REPLY)))
    claiming = world.near.leases.claim([todo], worker="w", lease=LEASE, max_lost=3)
    world.run(cancelled(world, claiming, table="books"))

    leases = world.run(claim(world, [todo]))

    assert [(lease.task.id, lease.fence) for lease in leases] == [(todo.id, todo.fence + 1)]


def test_hosts_leased_by_a_caller_that_is_cancelled_are_returned_to_the_next(world: World):
    name, target = ("COMMIT", "") if world.driver == "postgres" else ("update", "books.hosts")
    world.proxy.plan(At(Fault(loss=Loss.REPLY), name=name, target=target))

    def leasing() -> Coroutine[Any, Any, list[HostLease]]:
        return world.near.host_leases.lease(worker="w", limit=1, lease=LEASE)

    world.run(cancelled(world, leasing(), table="books.hosts"))

    (lease,) = world.run(world.send(leasing))

    owners = {name: each["owner"] for name, each in world.documents()["books.hosts"].items()}
    assert owners[lease.host.name] == lease.token
    assert [owner for owner in owners.values() if owner and owner.startswith("w:")] == [lease.token]
