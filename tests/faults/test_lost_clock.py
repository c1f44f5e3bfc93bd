"""Reads of the server's clock, which come with a renewal, over a network with faults."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawlcw.ledger.mongo import MongoLedger, leases
from crawlcw.ledger.mongo.store import MongoStore
from tests.faults.proxy import End, Fault, Loss
from tests.faults.wires import Command
from tests.faults.world import World
from tests.support.ledgers import LEASE

FAULTS = {
    "request lost": Fault(loss=Loss.REQUEST),
    "reply lost": Fault(loss=Loss.REPLY),
    "reset": Fault(loss=Loss.REQUEST, end=End.RESET),
    "torn": Fault(loss=Loss.HALF_THE_REPLY, end=End.CLOSE),
}


class FirstLook:
    """Plan that fails the first read of the clock, which the *body* of a command shows.

    On MongoDB the driver's own use another database.
    """

    def __init__(self, body: dict[str, Any], fault: Fault) -> None:
        self._body = body
        self._fault = fault
        self.looks = 0

    def __call__(self, command: Command) -> Fault | None:
        if not self._body.items() <= command.body.items():
            return None
        self.looks += 1
        return self._fault if self.looks == 1 else None


def process(world: World) -> tuple[Any, dict[str, Any]]:
    """Return a ledger behind the proxy with the server's time, and how it reads that."""
    if world.driver == "postgres":
        # Only tests of this store need its driver.
        from crawlcw.ledger.postgres import PostgresLedger
        from crawlcw.ledger.postgres.store import PostgresStore

        ledger = PostgresLedger(PostgresStore(world.near.store.url, "books"))
        return ledger, {"statement": "SELECT clock_timestamp()"}
    database = world.near.store.database
    return MongoLedger(MongoStore(database, "books")), {"hello": 1, "$db": database.name}


@pytest.mark.thorough
@pytest.mark.representative("pymongo")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_look_that_fails_is_repeated_with_its_renewal(
    world: World, fault: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leases, "_CLOCK_CHECK", 0.0)
    world.begin()
    ledger, body = process(world)
    plan = FirstLook(body, FAULTS[fault])
    world.proxy.plan(plan)
    # Before the first read, the server's time is unknown; on PostgreSQL it is 10 s behind.
    moment = ledger.store.clock.monotonic()
    behind = datetime.now(UTC) - timedelta(seconds=10)
    wrong = behind if world.driver == "postgres" else datetime(2000, 1, 1, tzinfo=UTC)
    ledger.store.clock.set(wrong, asked=moment, answered=moment)

    lost = world.run(world.send(lambda: ledger.leases.renew(world.setting.leases, lease=LEASE)))

    assert plan.looks == 2
    assert lost == set()
    assert abs(ledger.now() - datetime.now(UTC)) < timedelta(seconds=1)
    found = world.documents()["books"]
    assert all(found[lease.task.id]["due"] >= lease.expires for lease in world.setting.leases)
    if world.driver == "postgres":
        world.run(ledger.close())
