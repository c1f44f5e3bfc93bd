"""Contract of `Ledger.workers`, run on every store."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from crawlcw.ledger.protocol import Counters, Ledger, Worker
from crawlcw.model.loans import Fault, Loan, LoanReport
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    LedgerFactory,
    claimed,
    make_task,
    make_tasks,
)

COUNTERS = Counters(
    pages=3, items=7, fetched=5, bytes=1 << 40, links_dropped={"depth": 2, "scope": 11}
)
HOSTILE = ["$where", "$set.x", "a.b", ".", "", "%", "%24", "_id", "nul\0", "\x1b[2J", "é\u202e"]


def worker(name: str, *, heartbeat: datetime = START, **more: Any) -> Worker:
    who = {"name": name, "machine": "m1", "pid": 42, "birth": "12345"}
    return Worker(**who, started=START, heartbeat=heartbeat, **more)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def at_work(ledger: Ledger) -> dict[str, Worker]:
    return {each.name: each for each in await ledger.workers.all()}


async def left(ledger: Ledger, name: str, counters: Counters = COUNTERS) -> None:
    """Let a worker join, count and leave."""
    await ledger.workers.join(worker(name))
    await ledger.workers.beat(name, counters)
    await ledger.workers.leave(name)


# --- join and leave


async def test_workers_join_and_leave(store: LedgerFactory):
    one, two = await store.open(), await store.open()
    await one.workers.join(worker("a"))
    await one.workers.join(worker("b"))
    await one.workers.join(worker("b"))

    assert await at_work(two) == {"a": worker("a"), "b": worker("b")}
    assert await two.workers.leave("a") == 0
    assert await at_work(one) == {"b": worker("b")}
    assert await one.workers.leave("nobody") == 0
    assert await at_work(one) == {"b": worker("b")}


async def test_a_worker_that_joins_again_is_at_work(ledger: Ledger):
    await left(ledger, "a")

    await ledger.workers.join(worker("a"))

    assert await at_work(ledger) == {"a": worker("a")}


# --- heartbeat and counters


async def test_a_heartbeat_says_when_and_what_was_counted(store: LedgerFactory):
    one, two = await store.open(), await store.open()
    await one.workers.join(worker("a", host="m"))
    await one.workers.join(worker("b"))
    store.clock.advance(seconds=7)

    await one.workers.beat("a", COUNTERS)

    beaten = worker("a", host="m", heartbeat=at(7), counters=COUNTERS)
    assert await at_work(two) == {"a": beaten, "b": worker("b")}
    store.clock.advance(seconds=1)
    await one.workers.beat("a", replace(COUNTERS, pages=4, links_dropped={}))
    assert (await at_work(two))["a"] == replace(
        beaten, heartbeat=at(8), counters=replace(COUNTERS, pages=4, links_dropped={})
    )


@pytest.mark.parametrize("leaves", [True, False], ids=["left", "never-joined"])
async def test_a_heartbeat_of_who_is_not_on_the_list_writes_nothing(ledger: Ledger, leaves: bool):
    if leaves:
        await left(ledger, "a")
    before = await ledger.workers.counters()

    await ledger.workers.beat("a", Counters(pages=100))

    assert await ledger.workers.all() == []
    assert await ledger.workers.counters() == before


async def test_a_late_heartbeat_takes_nothing_back(ledger: Ledger, clock: FakeClock):
    await ledger.workers.join(worker("a"))
    clock.advance(seconds=9)
    await ledger.workers.beat("a", COUNTERS)
    clock.advance(seconds=-5)

    await ledger.workers.beat("a", Counters())

    assert await at_work(ledger) == {"a": worker("a", heartbeat=at(9), counters=COUNTERS)}


async def test_reasons_may_have_any_name(ledger: Ledger):
    dropped = {reason: n for n, reason in enumerate(HOSTILE, start=1)}
    await ledger.workers.join(worker("a"))

    await ledger.workers.beat("a", Counters(links_dropped=dropped))

    assert (await at_work(ledger))["a"].counters == Counters(links_dropped=dropped)
    await ledger.workers.leave("a")
    assert await ledger.workers.counters() == Counters(links_dropped=dropped)


async def test_reasons_that_no_store_can_hold_are_counted_together(ledger: Ledger):
    await ledger.workers.join(worker("a"))

    await ledger.workers.beat(
        "a", Counters(links_dropped={f"x{chr(0xD800 + n)}": n for n in (1, 2)} | {"x": 4})
    )

    assert await ledger.workers.counters() == Counters(links_dropped={"x\ufffd": 3, "x": 4})


async def test_the_counters_are_of_all_workers_those_that_left_included(ledger: Ledger):
    assert await ledger.workers.counters() == Counters()
    await ledger.workers.join(worker("idle"))
    await left(ledger, "a", COUNTERS)
    await ledger.workers.join(worker("b"))
    await ledger.workers.beat(
        "b", Counters(pages=1, items=1, fetched=2, bytes=10, links_dropped={"scope": 1})
    )

    assert await ledger.workers.counters() == Counters(
        pages=4, items=8, fetched=7, bytes=(1 << 40) + 10, links_dropped={"depth": 2, "scope": 12}
    )


# --- number of workers kept


async def test_of_workers_that_left_the_last_ones_are_kept(
    ledger: Ledger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.ledger.documents.KEPT_WORKERS", 3)
    # The oldest worker, which is still at work.
    await ledger.workers.join(worker("at-work"))
    await ledger.workers.beat("at-work", Counters(pages=1000))
    for n in range(6):
        clock.advance(seconds=1)
        await left(ledger, f"w{5 - n}", Counters(pages=1 << n))

        kept = sum(1 << m for m in range(max(0, n - 2), n + 1))
        assert (await ledger.workers.counters()).pages == 1000 + kept

    assert list(await at_work(ledger)) == ["at-work"]


async def test_what_a_dead_worker_held_goes_before_what_came_after_it(
    ledger: Ledger, clock: FakeClock
):
    early, later = make_tasks(3), make_task("http://example.com/later", due=at(1))
    await ledger.tasks.add([*early, replace(later, create_time=at(1), update_time=at(1))])
    await ledger.workers.join(worker("a"))
    clock.advance(seconds=2)
    lost = await claimed(ledger, worker="a", limit=3)
    clock.advance(seconds=1)

    assert await ledger.workers.leave("a") == len(lost) == 3

    first = await ledger.tasks.page(limit=3)
    assert {task.id for task in first} == {lease.task.id for lease in lost}


async def test_a_dead_worker_gives_back_its_own_tasks_and_hosts_alone(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add(make_tasks(2))
    await ledger.hosts.wake({"a.example": clock(), "b.example": clock()})
    for name in ("w", "ww"):
        await ledger.workers.join(worker(name))
        await claimed(ledger, worker=name, limit=1)
        await ledger.host_leases.lease(worker=name, limit=1, lease=LEASE)

    assert await ledger.workers.leave("w") == 1

    assert len(await ledger.tasks.page(limit=9)) == 1
    free = await ledger.host_leases.lease(worker="x", limit=9, lease=LEASE)
    assert len(free) == 2
    assert "example.com" in {each.host.name for each in free}, "its task has no owner"


# --- loans

LOAN = Loan("b:1", host="example.com", slots=4, expires=at(9))
FAULT = Fault(
    url="http://example.com/é$\ud800",
    reason="http-status",
    status=429,
    sent=at(1),
    throttled=b"\0i",
)


async def test_a_worker_has_the_loan_of_the_first_owner_until_that_one_changes_it(
    store: LedgerFactory,
):
    one, two = await store.open(), await store.open()
    await one.workers.join(worker("a"))
    renewed = replace(LOAN, expires=at(12), is_closing=True)

    assert await one.workers.loan("a") is None
    assert await one.workers.lend(worker("a"), LOAN)
    assert await one.workers.lend(worker("a"), LOAN), "it is repeated after a lost reply"
    assert not await two.workers.lend(worker("a"), replace(LOAN, id="c:1"))
    assert await two.workers.lend(worker("a", loan=LOAN), renewed)

    assert await one.workers.loan("a") == renewed
    assert await at_work(one) == {"a": worker("a", loan=renewed)}
    await one.workers.leave("a")
    assert not await one.workers.lend(worker("a", loan=renewed), LOAN)


async def test_a_report_is_a_heartbeat_of_a_worker_that_is_not_idle(
    store: LedgerFactory,
):
    ledger = await store.open()
    await ledger.workers.join(worker("a"))
    await ledger.workers.beat("a", Counters(), idle=True)
    store.clock.advance(seconds=2)
    report = LoanReport("b:1", finished=3, delay=0.5, crawl_delay=2.0, faults=(FAULT,))

    await ledger.workers.report("a", report)
    await ledger.workers.report("nobody", report)

    clean = replace(FAULT, url="http://example.com/é$\ufffd")
    assert await at_work(ledger) == {
        "a": worker("a", heartbeat=at(2), report=replace(report, faults=(clean,)))
    }
    returned = replace(report, returned=True)
    await ledger.workers.report("a", returned, previous=report)
    # Both come late.
    await ledger.workers.report("a", report)
    await ledger.workers.report("a", report, previous=report)
    shown = (await at_work(ledger))["a"].report
    assert shown == replace(returned, faults=(clean,))
    await ledger.workers.leave("a")
    await ledger.workers.report("a", report, previous=returned)
    assert await ledger.workers.all() == []
