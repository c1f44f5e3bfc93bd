"""Reads of the server's clock, which come with a renewal, over a network with faults."""

from datetime import UTC, datetime, timedelta

import pytest

from crawlcw.ledger.mongo import MongoLedger, leases
from crawlcw.ledger.mongo.store import MongoStore
from tests.faults.proxy import Command, End, Fault, Loss
from tests.faults.world import World
from tests.support.ledgers import LEASE

FAULTS = {
    "request lost": Fault(loss=Loss.REQUEST),
    "reply lost": Fault(loss=Loss.REPLY),
    "reset": Fault(loss=Loss.REQUEST, end=End.RESET),
    "torn": Fault(loss=Loss.HALF_THE_REPLY, end=End.CLOSE),
}


class FirstLook:
    """Plan that fails the first read of the clock; the driver's own use another database."""

    def __init__(self, database: str, fault: Fault) -> None:
        self._database = database
        self._fault = fault
        self.looks = 0

    def __call__(self, command: Command) -> Fault | None:
        if (command.name, command.body["$db"]) != ("hello", self._database):
            return None
        self.looks += 1
        return self._fault if self.looks == 1 else None


@pytest.mark.thorough
@pytest.mark.representative("pymongo")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_look_that_fails_is_repeated_with_its_renewal(
    world: World, fault: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leases, "_CLOCK_CHECK", 0.0)
    world.begin()
    plan = FirstLook(world.near.store.database.name, FAULTS[fault])
    world.proxy.plan(plan)
    ledger = MongoLedger(MongoStore(world.near.store.database, "books"))
    # Before the first read, the server's time is unknown.
    ledger.store.clock.set(datetime(2000, 1, 1, tzinfo=UTC), asked=0.0, answered=0.0)

    lost = world.run(world.send(lambda: ledger.leases.renew(world.setting.leases, lease=LEASE)))

    assert plan.looks == 2
    assert lost == set()
    assert abs(ledger.now() - datetime.now(UTC)) < timedelta(seconds=1)
    found = world.documents()["books"]
    assert all(found[lease.task.id]["due"] >= lease.expires for lease in world.setting.leases)
