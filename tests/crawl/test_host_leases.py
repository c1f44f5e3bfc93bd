"""Leases of hosts that end while the process opens, serves or gives up the host."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from crawlcw.api.settings import Settings
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import LedgerUnavailableError, Reason
from crawlcw.ledger.sqlite import SqliteLedger
from tests.support.frontiers import HOST, LEASE, Process
from tests.support.ledgers import FakeClock, PatchedFacet, PatchedLedger, make_task


class GivingUpLedger(PatchedLedger):
    """Ledger that is slow to give up the tasks of a host."""

    patched = ("hosts.give_up",)

    def begin_log(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def give_up(self, host: str, *, reason: Reason, **which: Any) -> int:
        self.begun.set()
        await self.go.wait()
        return await self.real.hosts.give_up(host, reason=reason, **which)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def ledger(tmp_path: Path, clock: FakeClock) -> AsyncIterator[GivingUpLedger]:
    ledger = await GivingUpLedger.open(tmp_path / "ledger.db", "books", clock=clock)
    await ledger.tasks.add([make_task()])
    await ledger.hosts.wake({HOST: ledger.now()})
    yield ledger
    await ledger.close()


async def leaser_of(ledger: SqliteLedger, process: Process) -> HostLeaser:
    """The leaser of a process that has leased its host."""
    session = WorkerSession(ledger, lease_length=lambda: LEASE, give_up=LEASE)
    session.leases = process.held
    leaser = HostLeaser(session, process.frontier, Settings(concurrency=8, lease=LEASE))
    assert await look(leaser)
    return leaser


async def look(leaser: HostLeaser) -> bool:
    """Look as a coordinator does, and wait for its background tasks."""
    async with anyio.create_task_group() as background:
        return await leaser.poll(background, idle=True)


async def test_a_host_that_is_lost_while_it_is_given_up_is_parted_with(ledger: GivingUpLedger):
    """Otherwise this process could never lease and serve it again."""
    process = Process()
    host_leaser = await leaser_of(ledger, process)
    for _ in range(5):
        process.now += 1000
        process.failed()

    async with anyio.create_task_group() as background:
        await host_leaser.poll(background, idle=False)
        await ledger.begun.wait()
        process.lose()
        ledger.go.set()
    assert process.frontier.hosts[HOST].state.origins["http"].given_up is Reason.HOST_UNREACHABLE
    await look(host_leaser)

    assert HOST not in process.frontier.hosts


async def test_a_host_that_is_lost_while_leases_are_renewed_is_asked_for_nothing_more(
    ledger: GivingUpLedger,
):
    process = Process()
    renew = ledger.host_leases.renew

    async def lost_meanwhile(*given: Any, **named: Any) -> Any:
        process.lose()
        return await renew(*given, **named)

    ledger.host_leases = PatchedFacet(ledger.host_leases, renew=lost_meanwhile)
    host_leaser = await leaser_of(ledger, process)

    await host_leaser.renew()

    assert not process.may_ask()


async def test_a_lease_that_is_lost_beside_a_write_of_its_host_is_known_to_be_lost(
    ledger: GivingUpLedger,
):
    process = Process()

    async def lost(leases: Any, **_named: Any) -> set[str]:
        process.answered()
        process.frontier.pending.save(process.frontier.hosts[HOST])
        await look(host_leaser)
        return {lease.host.name for lease in leases}

    ledger.host_leases = PatchedFacet(ledger.host_leases, renew=lost)
    host_leaser = await leaser_of(ledger, process)

    await host_leaser.renew()

    assert process.frontier.leased == {}


async def test_a_renewal_is_asked_once_for_meanwhile_other_hosts_are_held(ledger: GivingUpLedger):
    async def away(*_: Any, **_named: Any) -> Any:
        raise LedgerUnavailableError("away")

    ledger.host_leases = PatchedFacet(ledger.host_leases, renew=away)
    host_leaser = await leaser_of(ledger, Process())

    with pytest.raises(LedgerUnavailableError, match=r"^away$"):
        await host_leaser.renew()
