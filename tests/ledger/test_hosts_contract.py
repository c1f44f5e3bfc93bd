"""Contract of `Ledger` about hosts, run on every store."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Ledger, Worker
from crawlcw.model.hosts import FailureCalls, Host, HostLease, RobotsRecord
from crawlcw.model.task import Status
from crawlcw.model.transitions import Succeeded
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    LedgerFactory,
    claimed,
    claimed_one,
    failure,
    make_task,
    make_tasks,
    settled,
    visit,
)

HOST = "example.com"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def leased(ledger: Ledger, *, worker: str = "a", limit: int = 1000) -> list[HostLease]:
    return await ledger.host_leases.lease(worker=worker, limit=limit, lease=LEASE)


async def leased_one(ledger: Ledger, *, worker: str = "a") -> HostLease:
    (lease,) = await leased(ledger, worker=worker)
    return lease


async def held(ledger: Ledger, *, worker: str = "a") -> HostLease:
    """Return the lease of a host without tasks."""
    await ledger.hosts.wake({HOST: START})
    return await leased_one(ledger, worker=worker)


async def all_hosts(ledger: Ledger) -> dict[str, Host]:
    return {host.name: host async for host in ledger.hosts.all()}


async def the_host(ledger: Ledger) -> Host:
    return (await all_hosts(ledger))[HOST]


def state(lease: HostLease, **learned: Any) -> tuple[HostLease, Host]:
    return lease, replace(lease.host, **learned)


def names(leases: Sequence[HostLease]) -> list[str]:
    return [lease.host.name for lease in leases]


async def reason_of(ledger: Ledger, task_id: bytes) -> Reason | None:
    record = await ledger.tasks.get(task_id)
    assert record is not None
    return record.task.reason


# --- lease


async def test_a_ready_host_is_leased_to_one_owner(ledger: Ledger, clock: FakeClock):
    await ledger.hosts.wake({HOST: START})

    lease = await leased_one(ledger)

    assert lease.host == Host(name=HOST, owner=lease.token, epoch=1)
    assert (lease.epoch, lease.expires) == (1, clock.time + LEASE)
    assert lease.token.startswith("a:")
    assert await leased(ledger, worker="b") == []
    assert await the_host(ledger) == replace(lease.host, ready_at=lease.expires)


async def test_sixteen_claimers_share_three_hundred_hosts_out(store: LedgerFactory):
    clients = [await store.open() for _ in range(4)]
    hosts = [f"h{n}.com" for n in range(300)]
    await clients[0].hosts.wake(dict.fromkeys(hosts, START))

    async def claimer(number: int) -> list[HostLease]:
        leases: list[HostLease] = []
        client = clients[number % len(clients)]
        while some := await leased(client, worker=f"w{number}", limit=10):
            leases += some
            await asyncio.sleep(0)
        return leases

    shares = await asyncio.gather(*(claimer(n) for n in range(16)))

    got = [lease for share in shares for lease in share]
    assert sorted(names(got)) == sorted(hosts)
    assert {lease.epoch for lease in got} == {1}
    owners = {host.name: host.owner for host in (await all_hosts(clients[0])).values()}
    assert owners == {lease.host.name: lease.token for lease in got}


# --- renew


async def test_a_renewed_lease_goes_on(ledger: Ledger, clock: FakeClock):
    lease = await held(ledger)
    clock.advance(seconds=40)

    assert await ledger.host_leases.renew([lease], lease=LEASE) == set()

    clock.time = at(99.999)
    assert await leased(ledger, worker="b") == []
    clock.time = at(100)
    assert names(await leased(ledger, worker="b")) == [HOST]


async def test_renew_names_the_hosts_that_are_lost(ledger: Ledger, clock: FakeClock):
    await ledger.hosts.wake({"a.com": at(-1), "b.com": START})
    lost, released = await leased(ledger)
    await ledger.host_leases.release([state(released)])
    clock.advance(seconds=61)
    newer = await leased_one(ledger)  # the same worker with a newer lease
    await ledger.hosts.wake({"c.com": START})
    (kept,) = await leased(ledger)

    assert await ledger.host_leases.renew([lost, released, kept], lease=LEASE) == {"a.com", "b.com"}
    assert await ledger.host_leases.renew([newer], lease=LEASE) == set()
    assert await ledger.host_leases.renew([], lease=LEASE) == set()


# --- save and release

LEARNED: dict[str, Any] = {
    "not_before": at(5),
    "delay": 1.5,
    "failures": 2,
    "page_failures": 3,
    "given_up": Reason.DNS_NXDOMAIN,
    "robots": RobotsRecord(origin="http://a.com", body="User-agent: *", expires=at(86_400)),
    "finished": 7,
}


async def test_what_is_saved_is_there_for_the_next_owner(ledger: Ledger, clock: FakeClock):
    lease = await held(ledger)

    assert await ledger.host_leases.save([state(lease, **LEARNED)]) == set()

    assert await the_host(ledger) == replace(lease.host, **LEARNED, ready_at=lease.expires)
    assert await leased(ledger, worker="b") == []
    clock.advance(seconds=61)
    next_one = await leased_one(ledger, worker="b")
    assert next_one.host == replace(lease.host, **LEARNED, owner=next_one.token, epoch=2)


async def test_what_is_none_again_is_gone(ledger: Ledger):
    lease, learned = state(await held(ledger), **LEARNED)
    await ledger.host_leases.save([(lease, learned)])
    gone = {"not_before": None, "given_up": None, "robots": None}

    await ledger.host_leases.save([state(replace(lease, host=learned), **gone)])

    assert await the_host(ledger) == replace(learned, **gone, ready_at=lease.expires)


async def test_a_release_ends_the_lease_and_writes_the_same(ledger: Ledger, clock: FakeClock):
    lease = await held(ledger)

    assert await ledger.host_leases.release([state(lease, **LEARNED, ready_at=at(9))]) == set()

    expected = replace(lease.host, **LEARNED, owner=None, ready_at=at(9))
    assert await the_host(ledger) == expected
    clock.time = at(8.999)
    assert await leased(ledger) == []
    clock.time = at(9)
    assert (await leased_one(ledger)).epoch == 2


@pytest.mark.parametrize("operation", ["save", "release"])
async def test_who_lost_a_host_writes_nothing_and_is_named(
    ledger: Ledger, clock: FakeClock, operation: str
):
    await ledger.hosts.wake({HOST: START, "other.com": at(1)})
    lost = await leased_one(ledger)
    clock.advance(seconds=61)
    other, newer = await leased(ledger, worker="b")
    assert (names([other]), newer.epoch) == (["other.com"], 2)
    before = await the_host(ledger)

    answer = await getattr(ledger.host_leases, operation)(
        [state(lost, **LEARNED, ready_at=START), state(other, **LEARNED)]
    )

    assert answer == {HOST}
    assert await the_host(ledger) == before
    assert (await all_hosts(ledger))["other.com"].finished == 7
    # The older lease stays invalid after the newer one has ended.
    await ledger.host_leases.release([state(newer)])
    before = await the_host(ledger)
    assert await getattr(ledger.host_leases, operation)([state(lost, **LEARNED)]) == {HOST}
    assert await the_host(ledger) == before


@pytest.mark.parametrize(
    "body",
    [
        "",
        '$where: {"$date": 1, "$bytes": "x"}',
        "nul \0 and \x1b[2J, \u202e and \U0001f4a9",
        "x" * (512 * 1024),
        "é" * (256 * 1024),
    ],
    ids=["empty", "operators", "control", "long", "long-in-utf-8"],
)
async def test_a_robots_record_comes_back_as_it_was(ledger: Ledger, clock: FakeClock, body: str):
    record = RobotsRecord(origin="http://a.com", body=body, expires=at(86_400))

    await ledger.host_leases.release([state(await held(ledger), robots=record, ready_at=START)])

    lease = await leased_one(ledger)
    assert lease.host.robots == record
    # A release without a new record keeps the old one.
    await ledger.host_leases.release([state(lease, finished=1)])
    assert (await the_host(ledger)).robots == record


async def test_a_robots_record_without_an_encoding_harms_no_other_host(ledger: Ledger):
    await ledger.hosts.wake({"a.com": at(-1), "b.com": START})
    bad, good = await leased(ledger)

    robots = RobotsRecord(origin="http://a.com", body="a\ud800b", expires=at(9))
    lost = await ledger.host_leases.save([state(bad, robots=robots), state(good, finished=1)])

    assert lost == set()
    hosts = await all_hosts(ledger)
    assert hosts["a.com"].robots == RobotsRecord(
        origin="http://a.com", body="a\ufffdb", expires=at(9)
    )
    assert hosts["b.com"].finished == 1


# --- wake


async def test_waking_makes_hosts_known(ledger: Ledger):
    await ledger.hosts.wake({HOST: START, "b.com": at(5)})

    assert await all_hosts(ledger) == {
        "b.com": Host(name="b.com", ready_at=at(5)),
        HOST: Host(name=HOST, ready_at=START),
    }


async def test_a_released_host_without_work_sleeps_until_it_is_woken(
    ledger: Ledger, clock: FakeClock
):
    await ledger.host_leases.release([state(await held(ledger))])
    clock.advance(seconds=10_000)
    assert await leased(ledger) == []

    await ledger.hosts.wake({HOST: clock.time})

    assert (await leased_one(ledger)).epoch == 2


async def test_a_host_that_rests_is_woken_for_the_end_of_its_rest(ledger: Ledger):
    await ledger.host_leases.release([state(await held(ledger), not_before=at(30))])

    await ledger.hosts.wake({HOST: START})
    assert (await the_host(ledger)).ready_at == at(30)

    await ledger.hosts.wake({HOST: at(20)})
    assert (await the_host(ledger)).ready_at == at(30)


async def test_many_who_wake_the_same_new_hosts_harm_nobody(store: LedgerFactory):
    clients = [await store.open() for _ in range(4)]
    hosts = [f"h{n}.com" for n in range(50)]

    await asyncio.gather(
        *(
            client.hosts.wake(dict.fromkeys(hosts, at(seconds)))
            for seconds, client in enumerate(clients * 3)
        )
    )

    found = await all_hosts(clients[0])
    assert sorted(found) == sorted(hosts)
    # The earliest time counts, whichever client added the host.
    assert {host.ready_at for host in found.values()} == {START}


# --- tasks added while a host is leased


async def test_no_wake_up_is_lost_in_the_race_of_release_and_wake(store: LedgerFactory):
    owner, inserter = await store.open(), await store.open()
    hosts = [f"h{n}.com" for n in range(30)]
    await owner.hosts.wake(dict.fromkeys(hosts, START))
    leases = await leased(owner)

    async def insert(host: str) -> None:
        await inserter.tasks.add([make_task(f"http://{host}/")])
        await inserter.hosts.wake({host: START})

    await asyncio.gather(
        *(owner.host_leases.release([state(lease)]) for lease in leases),
        *(insert(host) for host in hosts),
    )

    assert len(await leased(inserter, worker="b")) == 30


async def test_the_earliest_due_hastens_a_later_release(ledger: Ledger):
    lease = await held(ledger)
    await ledger.tasks.add([make_task(due=at(7)), make_task("http://example.com/2", due=at(8))])

    await ledger.host_leases.release([state(lease, ready_at=at(20))])
    assert (await the_host(ledger)).ready_at == at(7)


async def test_a_release_into_a_rest_is_ready_after_the_rest(ledger: Ledger):
    """An earlier time would make workers lease and release the host again and again."""
    await ledger.tasks.add(make_tasks(3))

    await ledger.host_leases.release([state(await held(ledger), not_before=at(30))])
    assert (await the_host(ledger)).ready_at == at(30)


async def test_only_the_released_hosts_are_woken_each_for_its_own_tasks(ledger: Ledger):
    hosts = [f"h{n}.com" for n in range(6)]
    await ledger.hosts.wake(dict.fromkeys(hosts, START))
    leases = {lease.host.name: lease for lease in await leased(ledger)}
    tasks = [
        make_task(f"http://h{n}.com/{p}", priority=p, due=at(100 * n + p * 10))
        for n in (1, 2, 4)
        for p in (-1, 0, 2)
    ]
    await ledger.tasks.add(tasks)

    await ledger.host_leases.release([state(leases[host]) for host in hosts[:4]])

    ready = {host.name: host.ready_at for host in (await all_hosts(ledger)).values()}
    assert ready == {
        "h0.com": None,
        "h1.com": at(90),
        "h2.com": at(190),
        "h3.com": None,
        "h4.com": at(60),  # still held
        "h5.com": at(60),
    }


async def test_a_host_with_a_task_in_work_is_ready_when_its_lease_runs_out(ledger: Ledger):
    lease = await held(ledger)
    await ledger.tasks.add([make_task()])
    await claimed_one(ledger, worker="dead")

    await ledger.host_leases.release([state(lease)])

    assert (await the_host(ledger)).ready_at == START + LEASE


# --- wake_all


async def test_all_hosts_that_nobody_holds_are_woken_their_failures_forgiven(ledger: Ledger):
    await ledger.hosts.wake({"a.com": at(-3), "b.com": at(-2), "c.com": at(-1), "d.com": at(50)})
    dead, slow, mine = await leased(ledger)
    await ledger.host_leases.release([state(dead, **LEARNED), state(slow, not_before=at(3))])

    assert await ledger.hosts.wake_all() == 3

    hosts = await all_hosts(ledger)
    assert [hosts[f"{name}.com"].ready_at for name in "abd"] == [START] * 3
    assert hosts["a.com"] == Host(
        name="a.com",
        ready_at=START,
        epoch=1,
        delay=1.5,
        robots=LEARNED["robots"],
        finished=7,
    )
    assert hosts["b.com"].not_before == at(
        3
    )  # a delay between requests, not a rest after a failure
    assert (hosts["c.com"].owner, hosts["c.com"].ready_at) == (mine.token, mine.expires)


async def test_all_of_many_hosts_are_woken(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("crawlcw.ledger.hosts.BATCH", 7)
    await ledger.hosts.wake({f"h{n}.com": at(500) for n in range(30)})

    assert await ledger.hosts.wake_all() == 30
    assert len(await leased(ledger)) == 30


# --- give up


async def test_a_given_up_host_ignores_what_waits_and_nothing_else(
    ledger: Ledger, clock: FakeClock
):
    todo, failed, processing, finished, revisited, refused = tasks = make_tasks(6)
    other = make_task("http://other.com/")
    for task, outcome in [
        (failed, Reason.CONNECT),
        (finished, Succeeded()),
        (revisited, Succeeded(visit=visit(), revisit=at(900))),
        (refused, Reason.REFUSED_ROBOTS),
        (processing, None),
    ]:
        await ledger.tasks.add([task])
        lease = await claimed_one(ledger)
        if isinstance(outcome, Reason):
            await ledger.outcomes.commit([failure(ledger, lease, outcome)])
        elif outcome is not None:
            await ledger.outcomes.commit([settled(ledger, lease, outcome)])
    await ledger.tasks.add([todo, other])
    clock.advance(seconds=1)
    before = {task.id: await ledger.tasks.get(task.id) for task in tasks}

    assert await ledger.hosts.give_up(HOST, reason=Reason.HOST_UNREACHABLE) == 2

    for task in (todo, failed):
        record = await ledger.tasks.get(task.id)
        old = before[task.id]
        assert record is not None
        assert old is not None
        given_up = {
            "status": Status.IGNORED,
            "due": None,
            "reason": Reason.HOST_UNREACHABLE,
            "update_time": clock.time,
        }
        assert record == replace(old, task=replace(old.task, **given_up))
    for task in (processing, finished, revisited, refused):
        assert await ledger.tasks.get(task.id) == before[task.id]
    assert (await ledger.hosts.counts())["other.com"].by_status == {Status.TODO: 1}
    assert await ledger.hosts.give_up(HOST, reason=Reason.HOST_UNREACHABLE) == 0


async def test_a_claim_from_an_older_page_of_a_given_up_host_misses(ledger: Ledger):
    await ledger.tasks.add(make_tasks(3))
    page = await ledger.tasks.page(limit=10)
    await ledger.hosts.give_up(HOST, reason=Reason.DNS_NXDOMAIN)

    answer = await ledger.leases.claim(page, worker="a", lease=LEASE, max_lost=3)

    assert (answer.leases, answer.missed) == ((), 3)
    assert await ledger.queries.next_due() is None


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_hosts_with_due_tasks_are_walked_by_name_however_many_tasks_they_have(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, limit: int
):
    monkeypatch.setattr("crawlcw.ledger.hosts._SCAN_LIMIT", 4)
    tasks = {f"h{n:02}.example": [1, 9, 4][n % 3] for n in range(20)}
    await ledger.tasks.add(
        [
            make_task(f"http://{host}/{n}", priority=n % 2, due=at(n))
            for host, number in tasks.items()
            for n in range(number)
        ]
    )
    await ledger.hosts.give_up("h07.example", reason=Reason.HOST_UNREACHABLE)

    names = [""]
    while found := await ledger.hosts.due(last_host=names[-1], limit=limit):
        assert len(found) <= limit
        names += found

    assert names[1:] == sorted(tasks.keys() - {"h07.example"})


@pytest.mark.parametrize("same_due", [True, False], ids=["same-due", "in-turn"])
async def test_many_tasks_of_many_priorities_are_given_up_in_batches(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, same_due: bool
):
    monkeypatch.setattr("crawlcw.ledger.hosts.BATCH", 7)
    tasks = [
        make_task(f"http://example.com/{n}", priority=n % 3, due=at(0 if same_due else -n))
        for n in range(100)
    ]
    await ledger.tasks.add(tasks)
    await claimed(ledger, limit=20)

    assert await ledger.hosts.give_up(HOST, reason=Reason.HOST_UNREACHABLE) == 80

    assert (await ledger.queries.counts()).by_status == {Status.IGNORED: 80, Status.PROCESSING: 20}
    assert await ledger.queries.reasons() == {"host-unreachable": 80}


@pytest.mark.parametrize(
    ("calls", "ignored"),
    [(FailureCalls.NONE, 40), (FailureCalls.ERRBACK, 20), (FailureCalls.ALL, 0)],
)
async def test_tasks_that_a_method_is_called_for_are_left_and_due(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, calls: FailureCalls, ignored: int
):
    monkeypatch.setattr("crawlcw.ledger.hosts.BATCH", 7)
    tasks = [
        make_task(
            f"http://example.com/{n}",
            priority=n % 3,
            due=at(n % 2 * 500),
            errback="missed" if n % 4 < 2 else None,
        )
        for n in range(40)
    ]
    await ledger.tasks.add([*tasks, later := make_task("http://other.com/", due=at(500))])

    for _ in range(2):
        assert (
            await ledger.hosts.give_up(
                HOST, reason=Reason.HOST_UNREACHABLE, scheme="http", calls=calls
            )
            == ignored
        )
        ignored = 0

    page = await ledger.tasks.page(limit=100)
    assert {task.id for task in page} == {task.id for task in tasks if calls.include(task.errback)}
    assert {task.status for task in page} <= {Status.TODO}
    assert (await ledger.tasks.get(later.id)).task.due == at(500)


# --- leave


async def test_the_hosts_of_a_dead_worker_are_ready_at_once(store: LedgerFactory):
    dead, living = await store.open(), await store.open()
    worker = Worker(name="w.1", machine="m", pid=7, birth="9", started=START, heartbeat=START)
    await dead.workers.join(worker)
    await dead.hosts.wake({HOST: START, "b.com": at(1)})
    lease = await leased_one(dead, worker="w.1")
    store.clock.advance(seconds=1)
    (other,) = await leased(living, worker="w.10")
    await living.workers.leave("wx1")
    assert await leased(living) == []

    assert await living.workers.leave("w.1") == 0

    assert (await the_host(living)).owner is None
    assert (await the_host(living)).ready_at == store.clock.time
    # A worker that was wrongly taken for dead can no longer write.
    assert await dead.host_leases.renew([lease], lease=LEASE) == {HOST}
    assert await dead.host_leases.save([state(lease, finished=9)]) == {HOST}
    assert await dead.host_leases.release([state(lease, finished=9)]) == {HOST}
    assert (await the_host(living)).finished == 0
    assert (await leased_one(living)).epoch == 2
    assert await living.host_leases.renew([other], lease=LEASE) == set()


async def test_the_hosts_of_a_dead_workers_tasks_are_ready_though_it_never_held_them(
    store: LedgerFactory,
):
    dead, living = await store.open(), await store.open()
    urls = [f"http://{host}/{n}" for host in (HOST, "b.com", "c.com") for n in range(2)]
    await dead.tasks.add([make_task(url) for url in urls])
    await living.hosts.wake({HOST: START, "b.com": START, "c.com": START})
    # The owner shares the hosts, and only waits for the tasks of the other worker.
    owned = {lease.host.name: lease for lease in await leased(living, worker="owner")}
    assert len(await claimed(dead, worker="w")) == len(urls)
    rest = at(40)
    learned = [state(owned[HOST]), state(owned["b.com"], not_before=rest)]
    assert await living.host_leases.release(learned) == set()
    assert (await the_host(living)).ready_at == START + LEASE
    store.clock.advance(seconds=1)

    assert await living.workers.leave("w") == len(urls)

    hosts = await all_hosts(living)
    assert hosts[HOST].ready_at == store.clock.time
    assert hosts["b.com"].ready_at == rest, "a resting host keeps its rest"
    assert hosts["c.com"].owner == owned["c.com"].token


# --- looking


async def test_hosts_come_by_name(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("crawlcw.ledger.hosts._BATCH_SIZE", 7)
    hosts = [f"h{n}.com" for n in range(30)] + ["xn--bcher-kva.ch:8080", "[::1]"]
    await ledger.hosts.wake(dict.fromkeys(hosts, START))

    assert [host.name async for host in ledger.hosts.all()] == sorted(hosts)


async def test_hosts_are_got_by_name_where_they_are_known(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.ledger.hosts.BATCH", 7)
    lease = await held(ledger)
    await ledger.host_leases.save([state(lease, **LEARNED)])
    known = [f"h{n}.com" for n in range(20)]
    await ledger.hosts.wake(dict.fromkeys([*known, "other.com"], at(5)))

    got = await ledger.hosts.get([HOST, *known, "unknown.com", "", "$where", HOST])

    every = await all_hosts(ledger)
    assert got == {name: every[name] for name in [HOST, *known]}
    assert await ledger.hosts.get([]) == {}
    assert await ledger.hosts.get({"unknown.com"}) == {}


async def test_the_busiest_hosts_are_those_that_are_held_and_those_that_wait_longest(
    ledger: Ledger, clock: FakeClock
):
    await ledger.hosts.wake({f"h{n}.com": at(n) for n in range(5)})
    clock.advance(seconds=1)
    held_hosts = names(await leased(ledger))

    held_now, waiting = await ledger.hosts.busiest(limit=10)
    assert {host.name for host in held_now} == set(held_hosts) == {"h0.com", "h1.com"}
    assert [host.name for host in waiting] == ["h4.com", "h3.com", "h2.com"]

    held_now, waiting = await ledger.hosts.busiest(limit=1)
    assert (len(held_now), len(waiting)) == (1, 0)  # the host that is ready last is leased


async def test_tasks_are_counted_by_host(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    tasks = [make_task(f"http://h{n % 3}.com/{n}") for n in range(12)]
    await ledger.tasks.add(tasks)
    for n, lease in enumerate(await claimed(ledger, limit=8)):
        if n % 2:
            await ledger.outcomes.commit([settled(ledger, lease, Succeeded())])

    counts = await ledger.hosts.counts()

    expected: dict[str, dict[Status, int]] = {}
    for task in tasks:
        record = await ledger.tasks.get(task.id)
        assert record is not None
        of_host = expected.setdefault(task.host, {})
        of_host[record.task.status] = of_host.get(record.task.status, 0) + 1
    assert {host: count.by_status for host, count in counts.items()} == expected


async def test_the_earliest_due_of_a_host_is_that_of_all_its_priorities(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add(
        [
            make_task("http://example.com/1", priority=5, due=at(30)),
            make_task("http://example.com/2", priority=0, due=at(20)),
            make_task("http://example.com/3", priority=0, due=at(25)),
            make_task("http://example.com/4", priority=-4, due=at(40)),
            make_task("http://other.com/", priority=9, due=at(1)),
        ]
    )
    assert await ledger.hosts.earliest_due(HOST) == at(20)

    clock.time = at(20)
    (lease,) = [lease for lease in await claimed(ledger) if lease.task.host == HOST]
    assert await ledger.hosts.earliest_due(HOST) == at(25)
    await ledger.outcomes.commit([settled(ledger, lease, Succeeded())])
    await ledger.hosts.give_up("other.com", reason=Reason.HOST_UNREACHABLE)

    clock.time = at(40)
    await claimed(ledger)
    # All tasks are leased: they are due at the end of their leases.
    assert await ledger.hosts.earliest_due(HOST) == at(40) + LEASE
