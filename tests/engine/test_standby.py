"""Standby of a watchdog for a blocked event loop, over its own connection to the ledger."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from crawlcw.engine.session import WorkerSession
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.hosts import HostLease
from tests.support.ledgers import PatchedFacet, claimed, make_task

HOUR = timedelta(hours=1)


class Hosts:
    """Hosts that a process holds."""

    def __init__(self, leased: list[HostLease]) -> None:
        self._leased = leased

    def leases(self) -> list[HostLease]:
        return self._leased

    async def renew(self) -> None: ...

    async def leave(self) -> None: ...


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    ledger = await open_ledger(ledger_url, "books")
    yield ledger
    await ledger.close()


async def test_what_the_ledger_has_just_given_away_is_renewed_and_nothing_of_others(
    ledger: Ledger,
):
    session = WorkerSession(ledger, lease_length=lambda: HOUR, give_up=HOUR)
    await session.join()
    mine, others = make_task("http://a.example/"), make_task("http://b.example/")
    await ledger.tasks.add([mine])
    await claimed(ledger, worker=session.worker)
    await ledger.tasks.add([others])
    await claimed(ledger, worker="b")
    await ledger.hosts.wake({"a.example": ledger.now()})
    leased = await ledger.host_leases.lease(worker=session.worker, limit=1, lease=HOUR / 4)
    session.hosts = Hosts(leased)
    session.stats.items = 5

    async def refused(*_: object, **_kwargs: object) -> None:
        raise AssertionError("the connection of the loop that stands still was used")

    ledger.workers = PatchedFacet(ledger.workers, beat=refused)
    # The loop is blocked before it gets the answer.
    await session._renew_during_stall()

    renewed, left = [await ledger.tasks.get(each.id) for each in (mine, others)]
    assert renewed is not None
    assert left is not None
    assert renewed.task.due is not None
    assert left.task.due is not None
    soon = ledger.now() + HOUR / 2
    assert left.task.due < soon < renewed.task.due
    assert (ready := await ledger.hosts.next_ready()) is not None
    assert ready > soon, "its hosts are still its own"
    (worker,) = await ledger.workers.all()
    assert worker.counters.items == 5, "it beats"
