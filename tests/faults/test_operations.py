"""Every operation of the ledger with every fault of the network, on the real server.

With a fault at any of its commands, an operation must leave the same documents and
return the same answer as without one.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from crawlcw.model.task import Lease, Status
from tests.faults.invariants import Documents, assert_known, assert_later, assert_sound
from tests.faults.operations import OPERATIONS, Operation, stale_hosts
from tests.faults.proxy import At, End, Fault, Loss
from tests.faults.wires import Command
from tests.faults.world import COUNTERS, LARGE, World
from tests.support.ledgers import LEASE, success

pytestmark = pytest.mark.thorough

FAULTS = {
    "request-lost": Fault(loss=Loss.REQUEST),
    "reset-before": Fault(loss=Loss.REQUEST, end=End.RESET),
    "reply-lost": Fault(loss=Loss.REPLY),
    "closed-after": Fault(loss=Loss.REPLY, end=End.CLOSE),
    "reset-after": Fault(loss=Loss.REPLY, end=End.RESET),
    "reply-torn": Fault(loss=Loss.HALF_THE_REPLY, end=End.CLOSE),
    "slow": Fault(delay=timedelta(seconds=0.02)),
}
#: Operations that only the holder of a lease may do.
GUARDED = [
    operation
    for operation in OPERATIONS
    if operation.name
    in ("commit", "renew", "release", "save", "renew_hosts", "save_hosts", "release_hosts")
]
#: Messages that are delivered later, instead of at once or once more.
LATE = {
    "late": Fault(loss=Loss.REQUEST, end=End.RESET, keeps=True),
    "twice": Fault(keeps=True),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """The result of an operation without a fault."""

    answer: Any
    documents: Documents
    commands: list[Command]


_expected: dict[tuple[str, str], Expected] = {}


def expected(world: World, operation: Operation) -> Expected:
    key = world.driver, operation.name
    while key not in _expected:
        world.begin(claims=operation.claims)
        answer = world.run(operation.act(world))
        # On a very busy machine, the operation may time out and be sent again.
        if world.sendings <= 1:
            _expected[key] = Expected(answer, world.documents(), world.proxy.commands())
    return _expected[key]


def anonymous(found: Documents) -> Documents:
    """Remove the number of the claim from all tokens: a repeated claim has another one."""

    def shown(document: dict[str, Any]) -> dict[str, Any]:
        tokens = {
            name: document[name].partition(":")[0]
            for name in ("lock", "owner")
            if document.get(name)
        }
        return document | tokens

    return {
        collection: {key: shown(document) for key, document in documents.items()}
        for collection, documents in found.items()
    }


@contextmanager
def striking(world: World, operation: Operation, position: int, fault: Fault) -> Iterator[None]:
    """Restore the setting, with a fault at one of the operation's commands."""
    world.begin(claims=operation.claims)
    plan = At(fault, skip=position)
    world.proxy.plan(plan)
    try:
        yield
        assert plan.struck.is_set()
    except Exception as error:
        error.add_note(f"the fault was at command {position} of {world.proxy.commands()}")
        raise


def positions(world: World, commands: list[Command]) -> list[int]:
    """Return the positions for a fault: on PostgreSQL, of statements alike the first and last."""
    names = [command.name for command in commands]
    return [
        n
        for n, name in enumerate(names)
        if world.driver != "postgres" or names[max(n - 1, 0) : n + 2] != [name] * 3
    ]


def leases_of(world: World, operation: Operation, answer: Any) -> tuple[list[Any], list[Any]]:
    """Return every known lease after the operation."""
    setting = world.setting
    tasks = [*setting.leases, *setting.others]
    hosts = [*setting.hosts, *setting.other_hosts]
    if operation.name.startswith("claim"):
        tasks += answer
    elif operation.name == "lease_hosts":
        hosts += answer
    return tasks, hosts


@pytest.fixture(autouse=True)
def same_order_of_each_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each purge leave the same text for the crawls that run: two ledgers are compared."""
    secrets = SimpleNamespace(token_hex=lambda _: "purged")
    monkeypatch.setattr("crawlcw.ledger.admin.secrets", secrets)


@pytest.mark.representative("[pymongo-c", "reply-lost")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_comes_to_the_same_with_a_fault(
    world: World, operation: Operation, fault: str
):
    struck = positions(world, expected(world, operation).commands)
    assert struck
    for position in struck:
        with striking(world, operation, position, FAULTS[fault]):
            before = world.documents()
            answer = world.run(operation.act(world))

            assert_same(world, operation, answer, before)


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.writes],
    ids=lambda operation: operation.name,
)
def test_an_operation_comes_to_the_same_while_its_commit_is_late(
    postgres_world: World, operation: Operation
):
    """The commit of a transaction arrives while its repetition waits for the locks."""
    world = postgres_world
    commands = expected(world, operation).commands
    commits = [position for position, command in enumerate(commands) if command.name == "COMMIT"]
    assert commits
    for position in commits:
        with striking(world, operation, position, Fault(delay=world.late)):
            before = world.documents()
            assert_same(world, operation, world.run(operation.act(world)), before)


def assert_same(world: World, operation: Operation, answer: Any, before: Documents) -> None:
    """Assert that an operation has had the effects and the answer that it has without a fault."""
    right, found = expected(world, operation), world.documents()
    assert anonymous(found) == anonymous(right.documents)
    assert operation.answers(answer, right.answer)
    assert_sound(found)
    if not operation.deletes:
        assert_later(before, found)
    assert_known(found, *leases_of(world, operation, answer))


# --- late messages


async def _nothing(world: World) -> None:
    """Do nothing before the late message."""


async def _renewed(world: World) -> None:
    """Renew the leases of the live workers, and send their heartbeats."""
    world.clock.advance(seconds=20)
    tasks, hosts = world.held()
    await world.far.leases.renew([e for e in tasks if not e.token.startswith("dead:")], lease=LEASE)
    await world.far.host_leases.renew(
        [e for e in hosts if not e.token.startswith("dead:")], lease=LEASE
    )
    for name in ("a", "w"):
        await world.far.workers.beat(name, replace(COUNTERS, pages=99))


async def _given_back(world: World) -> None:
    """Release the leases of all workers, and let them leave."""
    world.clock.advance(seconds=1)
    tasks, hosts = world.held()
    await world.far.outcomes.release([_as_claimed(world, lease) for lease in tasks])
    await world.far.host_leases.release(
        [(lease, replace(lease.host, ready_at=world.clock.time)) for lease in hosts]
    )
    for name in ("a", "w"):
        await world.far.workers.leave(name)


def _as_claimed(world: World, lease: Lease) -> Lease:
    """Return the lease with the task before the claim, which `release` restores."""
    task = lease.task
    status = Status.FAILED if task.retry else Status.TODO
    due = world.before["books"][task.id].get("due")
    return replace(lease, task=replace(task, status=status, due=min(due, world.clock.time)))


async def _taken_over(world: World) -> None:
    """Let every lease run out, and another worker take over all tasks."""
    world.clock.advance(seconds=61)
    page = await world.far.tasks.page(limit=50)
    await world.far.leases.claim(page, worker="b", lease=LEASE, max_lost=3)
    await world.far.host_leases.lease(worker="b", limit=50, lease=LEASE)


async def _finished(world: World) -> None:
    """Let another worker take over all tasks and finish them."""
    await _taken_over(world)
    tasks, hosts = world.held()
    await world.far.outcomes.commit([success(world.far, lease, {"n": "b"}) for lease in tasks])
    await world.far.host_leases.release([(lease, lease.host) for lease in hosts])


MEANWHILE = {
    "nothing": _nothing,
    "renewed": _renewed,
    "given-back": _given_back,
    "taken-over": _taken_over,
    "finished": _finished,
}
_WRITES = ("update", "findAndModify", "insert", "delete")


def asleep(found: Documents) -> Documents:
    """Remove the `ready_at` of hosts without a lease."""
    hosts = {
        name: host if host["owner"] else host | {"ready_at": None}
        for name, host in found["books.hosts"].items()
    }
    return {**found, "books.hosts": hosts}


@pytest.mark.representative("[c", "twice-finished")
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("fault", LATE)
@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.writes],
    ids=lambda operation: operation.name,
)
def test_what_arrives_after_the_operation_was_repeated_changes_nothing(
    one_world: World, operation: Operation, fault: str, meanwhile: str
):
    world = one_world
    goes_on: Callable[[World], Awaitable[None]] = MEANWHILE[meanwhile]
    commands = expected(world, operation).commands
    writes = [position for position, command in enumerate(commands) if command.name in _WRITES]
    assert writes
    for position in writes:
        with striking(world, operation, position, LATE[fault]):
            world.run(operation.act(world))
            world.run(goes_on(world))
            before = world.documents()

            (reply,) = world.proxy.deliver()

            assert reply["ok"] == 1
            found = world.documents()
            assert_sound(found)
            if operation.wakes:
                before, found = asleep(before), asleep(found)
            assert found == before


# --- operations repeated too late


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
def test_an_operation_that_is_sent_again_too_late_changes_nothing(
    either_world: World, operation: Operation
):
    world = either_world
    world.begin()
    world.run(_taken_over(world))
    before = world.documents()

    answer = world.run(operation.act(world))

    found = world.documents()
    # Offloaded items of a stale commit do not matter: no task refers to them.
    assert {**found, "books.items": {}} == {**before, "books.items": {}}
    tasks = {lease.task.id for lease in (*world.setting.leases, world.setting.stale)}
    hosts = {lease.host.name for lease in (*world.setting.hosts, *stale_hosts(world))}
    match operation.name:
        case "commit":
            assert {lease.task.id for lease in answer.lost} == tasks
        case "renew":
            assert answer == tasks
        case "release":
            assert answer == 0
        case "save":
            assert answer is False
        case _:
            assert answer == hosts


def test_a_large_item_that_comes_too_late_is_not_seen(either_world: World):
    world = either_world
    world.begin()
    lease = world.setting.leases[0]
    world.run(_taken_over(world))
    (newer,) = [each for each in world.held()[0] if each.task.id == lease.task.id]
    right, wrong = ({"from": name, "large": LARGE} for name in "ba")
    world.run(world.far.outcomes.commit([success(world.far, newer, right)]))

    answer = world.run(world.near.outcomes.commit([success(world.near, lease, wrong)]))

    assert answer.lost == (lease,)
    record = world.run(world.far.tasks.get(lease.task.id))
    assert record is not None
    assert record.items == (right,)
