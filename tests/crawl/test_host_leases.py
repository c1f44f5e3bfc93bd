"""Leases of hosts that end while the process opens, serves or gives up the host."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from crawlcw.api.settings import Settings
from crawlcw.crawl import host_leases
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.crawl.hosts import Phase
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.workers import this_worker
from crawlcw.errors import LedgerUnavailableError, Reason
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Counters
from crawlcw.model.hosts import Host, HostLease, RobotsRecord
from tests.support.frontiers import HOST, LEASE, USABLE, Process
from tests.support.ledgers import START, FakeClock, PatchedFacet, PatchedLedger, make_task


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
    session = WorkerSession(ledger, lease=lambda: LEASE, give_up=LEASE)
    session.held = process.held
    leaser = HostLeaser(session, process.frontier, Settings(concurrency=8, lease=LEASE))
    assert await look(leaser)
    return leaser


async def look(leaser: HostLeaser) -> bool:
    """Look as a coordinator does, and wait for its background tasks."""
    async with anyio.create_task_group() as background:
        return await leaser.look(background, hungry=True)


async def test_a_host_that_is_lost_while_it_is_given_up_is_parted_with(ledger: GivingUpLedger):
    """Otherwise this process could never lease and serve it again."""
    process = Process()
    host_leaser = await leaser_of(ledger, process)
    for _ in range(5):
        process.now += 1000
        process.failed()

    async with anyio.create_task_group() as background:
        await host_leaser.look(background, hungry=False)
        await ledger.begun.wait()
        process.lose()
        ledger.go.set()
    assert process.frontier.hosts[HOST].state.origins["http"].given_up is Reason.HOST_UNREACHABLE
    await look(host_leaser)

    assert HOST not in process.frontier.hosts


async def test_what_was_saved_is_what_the_ledger_has(ledger: GivingUpLedger):
    process = Process()
    host_leaser = await leaser_of(ledger, process)
    host = process.frontier.hosts[HOST]
    process.answered()
    host.save_soon()

    await look(host_leaser)

    assert host.lease is not None
    assert host.lease.host.finished == 1
    assert (await ledger.hosts.get([HOST]))[HOST].finished == 1
    assert process.frontier.unsaved == set()


async def test_a_robots_txt_that_is_read_after_a_save_is_saved(ledger: GivingUpLedger):
    """Only one that has changed since the last save is written."""
    process = Process()
    host_leaser = await leaser_of(ledger, process)
    record = RobotsRecord(origin=f"http://{HOST}", body="Disallow: /", expires=START)
    await host_leaser.renew()

    process.open(robots=record)
    await host_leaser.renew()

    assert (await ledger.hosts.get([HOST]))[HOST].robots == record


async def test_hosts_of_others_are_asked_from_the_last_renewal_of_tasks_on(ledger: GivingUpLedger):
    process = Process(concurrency=0)
    session = WorkerSession(ledger, lease=lambda: LEASE, give_up=LEASE)
    host_leaser = HostLeaser(session, process.frontier, Settings(lease=LEASE))
    process.frontier.visit(Host(name="other.example"))
    session.renewed = process.now + 10

    await host_leaser.renew()

    process.now += USABLE + 9
    assert process.may_ask("other.example")
    process.now += 1
    assert not process.may_ask("other.example")


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
        process.frontier.hosts[HOST].save_soon()
        await look(host_leaser)
        return {lease.host.name for lease in leases}

    ledger.host_leases = PatchedFacet(ledger.host_leases, renew=lost)
    host_leaser = await leaser_of(ledger, process)

    await host_leaser.renew()

    assert process.frontier.leased == {}


async def test_a_hungry_worker_is_left_hosts_that_are_not_leaving_already(
    ledger: GivingUpLedger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host_leases, "_OTHERS_PAUSE", 0)
    for name in ("b", "c"):
        await ledger.workers.join(replace(this_worker(now=ledger.now()), name=name))
        await ledger.workers.beat(name, Counters(), hungry=name == "b")
    # Its hosts have been here for a minute.
    process = Process(booted=time.monotonic() - 60)
    host_leaser = await leaser_of(ledger, process)
    leaving, staying = {HOST, "a.example"}, {"b.example", "c.example"}
    for name in {*leaving, *staying} - {HOST}:
        process.serve(name)
    for name in (*leaving, *staying):
        process.claim(1 if name in leaving else 2, host=name)
    for name in leaving:
        process.leave(process.frontier.hosts[name])
        process.frontier.hosts[name].left_at = time.monotonic()

    await look(host_leaser)

    phases = [process.frontier.hosts[name].phase for name in staying]
    assert phases.count(Phase.LEAVING) == 1


@pytest.mark.parametrize("write", ["renew", "save"])
async def test_a_host_that_is_released_and_leased_again_beside_a_renewal_stays_held(
    write: str, ledger: GivingUpLedger
):
    """Otherwise the ledger would have its lease, and no process would ask it until that ends."""
    process = Process()
    real = getattr(ledger.host_leases, write)

    async def leased_again(*given: Any, **named: Any) -> Any:
        await host_leaser.leave()
        await ledger.hosts.wake({HOST: ledger.now()})
        host_leaser.lease_at = 0.0
        assert await look(host_leaser)
        return await real(*given, **named)

    ledger.host_leases = PatchedFacet(ledger.host_leases, **{write: leased_again})
    host_leaser = await leaser_of(ledger, process)

    await host_leaser.renew()

    assert HOST in process.frontier.leased


async def test_a_host_whose_lease_was_over_when_it_arrived_is_not_asked(
    ledger: GivingUpLedger, clock: FakeClock
):
    """In an outage its answer may be repeated for as long; another process may have the host."""
    process = Process(booted=time.monotonic())
    lease = ledger.host_leases.lease

    async def answered_late(**options: Any) -> list[HostLease]:
        leases = await lease(**options)
        clock.advance(seconds=LEASE.total_seconds())
        return leases

    ledger.host_leases = PatchedFacet(ledger.host_leases, lease=answered_late)
    await leaser_of(ledger, process)

    assert not process.may_ask()


async def test_a_host_that_is_lost_before_it_is_given_up_is_left_to_its_new_owner(
    ledger: GivingUpLedger, clock: FakeClock
):
    """That one may have been answered: its tasks are not to be ignored."""
    process = Process()
    host_leaser = await leaser_of(ledger, process)
    clock.advance(seconds=LEASE.total_seconds())
    (other,) = await ledger.host_leases.lease(worker="b", limit=1, lease=LEASE)
    for _ in range(5):
        process.now += 1000
        process.failed()

    ledger.go.set()
    await look(host_leaser)

    assert other.host.name == HOST
    assert not ledger.begun.is_set()


async def test_a_renewal_is_asked_once_for_meanwhile_other_hosts_are_held(ledger: GivingUpLedger):
    async def away(*_: Any, **_named: Any) -> Any:
        raise LedgerUnavailableError("away")

    ledger.host_leases = PatchedFacet(ledger.host_leases, renew=away)
    host_leaser = await leaser_of(ledger, Process())

    with pytest.raises(LedgerUnavailableError, match=r"^away$"):
        await host_leaser.renew()
