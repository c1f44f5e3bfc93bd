"""The doctor on tracked tasks, on both stores: their own fields, and valid states."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw import doctor
from crawlcw.errors import LedgerError, Reason
from crawlcw.ledger.examination import Kind
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import BlobRef, Status, key_id
from crawlcw.model.transitions import Advanced, Failed, Succeeded
from tests.support.ledgers import LEASE, FakeClock, claimed, claimed_one, settled
from tests.support.mongod import with_database
from tests.support.tracked import order, progress

Look = Callable[[], Awaitable[Ledger]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "pymongo"])
def look(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Look:
    if request.param == "sqlite":
        return lambda: SqliteLedger.open_existing(tmp_path / "ledger.db", "orders", clock=clock)
    place = on_server(request)
    return lambda: MongoLedger.open_existing(place, "orders", driver=request.param, clock=clock)


def on_server(request: pytest.FixtureRequest) -> str:
    return with_database(
        request.getfixturevalue("mongodb_uri"), request.getfixturevalue("database_name")
    )


@pytest.fixture
async def orders(
    request: pytest.FixtureRequest, look: Look, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[Ledger]:
    driver = request.node.callspec.params["look"]
    ledger: Ledger
    if driver == "sqlite":
        path = tmp_path / "ledger.db"
        ledger = await SqliteLedger.open(path, "orders", clock=clock, kind=LedgerKind.USE_CASE)
    else:
        ledger = await MongoLedger.open(
            on_server(request), "orders", driver=driver, clock=clock, kind=LedgerKind.USE_CASE
        )
    yield ledger
    await ledger.close()


async def examined(look: Look, **options: Any) -> dict[Kind, tuple[int, int]]:
    """Return the numbers found and repaired, by kind.

    Facts about the tests' server are left out.
    """
    ledger = await look()
    try:
        report = await doctor.examine(ledger, recheck_delay=timedelta(0), **options)
    finally:
        await ledger.close()
    assert report is not None
    return {
        kind: (found.count, found.repaired)
        for kind, found in report.findings.items()
        if kind is not Kind.STANDALONE
    }


async def test_nothing_is_wrong_with_tracked_tasks_at_work(
    orders: Ledger, look: Look, clock: FakeClock
):
    await orders.tasks.add([order(f"{n}") for n in range(8)])
    leases = await claimed(orders, worker="@ann", limit=6)
    blobs = [await orders.blobs.put(lease.task.id, "x") for lease in leases[::2]]
    odd = {"%blob": "none", "text": '{"%blob":"none"'}
    outcomes = (
        Advanced(stage="send", progress=progress(data=blobs[0]), context=blobs[0]),
        Succeeded(items=({"n": 1},), progress=progress(results={"pay": odd})),
        Failed(reason=Reason.TASK_ERROR, progress=progress(results={"pay": 1, "x": blobs[1]})),
        Failed(reason=Reason.UNWANTED, progress=progress()),
    )
    await orders.outcomes.commit(
        [settled(orders, lease, each) for lease, each in zip(leases, outcomes, strict=False)]
    )
    await orders.leases.save(leases[4], data=blobs[2], duration=LEASE)
    await orders.leases.save(leases[5], data=odd, duration=LEASE)
    await orders.admin.withdraw(TaskFilter(ids=[key_id("7")]), reason=Reason.WITHDRAWN)
    await orders.admin.reopen(TaskFilter(statuses=[Status.FINISHED]))

    assert await examined(look, repair=True) == {}
    assert [host async for host in orders.hosts.all()] == []


async def test_a_value_that_a_task_refers_to_and_that_is_gone_is_found(
    orders: Ledger, look: Look, clock: FakeClock
):
    await orders.tasks.add([order(), order("two"), order("three")])
    one, two, three = await claimed(orders)
    gone = BlobRef(id="gone", size=9)
    there = await orders.blobs.put(two.task.id, "x")
    lost = Advanced(stage="send", progress=progress(results={"pay": gone}))
    kept = Advanced(stage="send", progress=progress(data=there), context=there)
    await orders.outcomes.commit([settled(orders, one, lost), settled(orders, two, kept)])
    await orders.leases.save(three, data=gone, duration=LEASE)

    assert await examined(look, repair=True) == {Kind.BLOB_LOST: (2, 0)}


async def test_a_value_that_nothing_refers_to_is_deleted_after_a_day(
    orders: Ledger, look: Look, clock: FakeClock
):
    # MongoDB's files have the time of this machine.
    clock.time = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=1)
    await orders.tasks.add([order()])
    lease = await claimed_one(orders, worker="@ann")
    kept = await orders.blobs.put(lease.task.id, "x")
    await orders.leases.save(lease, data=kept, duration=timedelta(days=2))
    left = [await orders.blobs.put(identity, "x") for identity in (lease.task.id, b"none")]

    assert await examined(look, repair=True) == {Kind.BLOB_LEFT: (2, 0)}
    clock.advance(seconds=24 * 3600)
    assert await examined(look) == {Kind.BLOB_LEFT: (2, 0)}
    assert await examined(look, repair=True) == {Kind.BLOB_LEFT: (2, 2)}
    assert await examined(look) == {}
    assert await orders.blobs.read(kept) == "x"
    with pytest.raises(LedgerError):
        await orders.blobs.read(left[0])


async def test_what_makes_a_tracked_task_due_wakes_no_host(
    orders: Ledger, look: Look, clock: FakeClock
):
    await orders.tasks.add([order(due=None)])

    assert (await examined(look, repair=True))[Kind.DUE_MISSING] == (1, 1)
    assert [host async for host in orders.hosts.all()] == []
    assert len(await orders.tasks.page(limit=1)) == 1
