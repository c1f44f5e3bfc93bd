"""Random interleavings of several owners and inserters: no host with due tasks is forgotten."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.hosts import Host, HostLease
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import Failed, Succeeded
from tests.support.ledgers import LEASE, make_task, settled
from tests.support.state_machines import StoreMachine, explore, mongodb, mongomock, postgres, sqlite

pytestmark = pytest.mark.thorough

CLIENTS = 3
HOSTS = ["a.com", "b.com", "c.com"]

some_client = st.integers(0, CLIENTS - 1)
some_host = st.sampled_from(HOSTS)
some_seconds = st.sampled_from([0, 5, 30, 90])


class HostMachine(StoreMachine):
    """Clients that lease, save, release and lose hosts, and add and finish their tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: Sequence[Ledger] = [self.run(self.store.open()) for _ in range(CLIENTS)]
        #: Every lease of a host so far, lost ones included.
        self.leases: list[tuple[int, HostLease]] = []
        self.tasks: list[Task] = []
        #: Tasks in the ledger whose hosts have not been woken yet.
        self.untold: list[Task] = []
        self.in_work: list[Lease] = []
        self.seen: dict[str, Host] = {}
        #: host -> finished pages, as counted by its owners.
        self.finished: dict[str, int] = {}

    @property
    def now(self):
        return self.store.clock.time

    async def read(self) -> dict[str, Host]:
        return {host.name: host async for host in self.clients[0].hosts.all()}

    def holds(self, lease: HostLease) -> bool:
        host = self.run(self.read())[lease.host.name]
        return (host.owner, host.epoch) == (lease.token, lease.epoch)

    @initialize()
    def begin(self):
        dues = dict.fromkeys(HOSTS, self.now)
        self.run(self.clients[0].hosts.wake(dues))
        self.lease_hosts(client=0, limit=2, worker="a")

    # An inserter's two steps are two rules, so that other operations may come between them.

    @rule(client=some_client, host=some_host, wait=some_seconds, priority=st.integers(-1, 1))
    def add_a_task(self, client, host, wait, priority):
        task = make_task(
            f"http://{host}/{len(self.tasks)}",
            priority=priority,
            due=self.now + timedelta(seconds=wait),
        )
        self.run(self.clients[client].tasks.add([task]))
        self.tasks.append(task)
        self.untold.append(task)

    @rule(client=some_client)
    def tell_the_hosts(self, client):
        told, self.untold = self.untold, []
        dues: dict = {}
        for task in told:
            dues[task.host] = min(task.due, dues.get(task.host, task.due))
        before = self.run(self.read())

        self.run(self.clients[client].hosts.wake(dues))

        after = self.run(self.read())
        for name, host in after.items():
            old = before.get(name)
            if old is None or old.owner is not None:
                assert old is None or host == old
            elif old.ready_at is not None:
                assert host.ready_at <= old.ready_at

    @rule(client=some_client, limit=st.integers(1, 3), worker=st.sampled_from("ab"))
    def lease_hosts(self, client, limit, worker):
        before = self.run(self.read())
        ready = sorted(
            (h for h in before.values() if h.ready_at and h.ready_at <= self.now),
            key=lambda h: h.ready_at,
        )

        got = self.run(
            self.clients[client].host_leases.lease(
                worker=f"{worker}{client}", limit=limit, lease=LEASE
            )
        )

        assert len(got) == min(limit, len(ready))
        assert [before[each.host.name].ready_at for each in got] == [
            h.ready_at for h in ready[: len(got)]
        ]
        for lease in got:
            assert lease.epoch == before[lease.host.name].epoch + 1
            assert lease.expires == self.now + LEASE
            self.leases.append((client, lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data):
        client, lease = self.leases[self.some_lease(data)]
        expected = set() if self.holds(lease) else {lease.host.name}

        assert self.run(self.clients[client].host_leases.renew([lease], lease=LEASE)) == expected

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), rest=some_seconds, counted=st.integers(0, 3))
    def save(self, data, rest, counted):
        n = self.some_lease(data)
        client, lease = self.leases[n]
        state = self.learned(lease, rest, counted)
        held = self.holds(lease)

        lost = self.run(self.clients[client].host_leases.save([(lease, state)]))

        assert lost == (set() if held else {lease.host.name})
        if held:
            self.finished[lease.host.name] = state.finished
            self.leases[n] = (client, replace(lease, host=state))

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(), rest=some_seconds, counted=st.integers(0, 3), ready=st.none() | some_seconds
    )
    def release(self, data, rest, counted, ready):
        client, lease = self.leases[self.some_lease(data)]
        self.release_one(client, lease, rest=rest, counted=counted, ready=ready)

    def release_one(self, client, lease, *, rest, counted=0, ready=None):
        state = self.learned(lease, rest, counted)
        if ready is not None:
            state = replace(state, ready_at=self.now + timedelta(seconds=ready))
        held = self.holds(lease)
        before = self.run(self.read())[lease.host.name]

        lost = self.run(self.clients[client].host_leases.release([(lease, state)]))

        after = self.run(self.read())[lease.host.name]
        if held:
            assert lost == set()
            assert after.owner is None
            self.finished[lease.host.name] = state.finished
        else:
            # A repeated release may only make the host ready earlier.
            assert after == replace(before, ready_at=after.ready_at)

    @rule(
        client=some_client,
        host=some_host,
        wait=some_seconds,
        rest=some_seconds,
        steps=st.permutations(["add", "tell", "release"]),
        priority=st.integers(-1, 1),
    )
    def a_task_comes_when_a_host_is_released(self, client, host, wait, rest, steps, priority):
        self.lease_hosts(client=client, limit=3, worker="b")
        held = [(c, lease) for c, lease in self.leases if self.holds(lease)]
        for step in steps:
            if step == "add":
                self.add_a_task(client=client, host=host, wait=wait, priority=priority)
            elif step == "tell":
                self.tell_the_hosts(client=client)
            else:
                for owner, lease in held:
                    self.release_one(owner, lease, rest=rest)
        self.tell_the_hosts(client=client)

    def some_lease(self, data) -> int:
        """Return the index of one of the last leases, which may still hold."""
        last = len(self.leases) - 1
        return last - data.draw(st.integers(0, min(last, 5)))

    def learned(self, lease: HostLease, rest: int, counted: int) -> Host:
        not_before = self.now + timedelta(seconds=rest) if rest else None
        host = lease.host
        return replace(host, not_before=not_before, finished=host.finished + counted)

    @rule(client=some_client, data=st.data())
    def work_on_tasks(self, client, data):
        ledger = self.clients[client]
        page = self.run(ledger.tasks.page(limit=data.draw(st.integers(1, 3))))
        answer = self.run(ledger.leases.claim(page, worker="t", lease=LEASE, max_lost=9))
        self.in_work += answer.leases

    @rule(client=some_client, data=st.data())
    def finish_a_task(self, client, data):
        if self.in_work:
            lease = self.in_work.pop(data.draw(st.integers(0, len(self.in_work) - 1)))
            outcome = data.draw(st.sampled_from([Succeeded(), Failed(reason=Reason.CONNECT)]))
            ledger = self.clients[client]
            self.run(ledger.outcomes.commit([settled(ledger, lease, outcome)]))
            # A client that makes a task due wakes its host.
            self.untold.append(lease.task)

    @rule(client=some_client, host=some_host)
    def give_up_a_host(self, client, host):
        self.run(self.clients[client].hosts.give_up(host, reason=Reason.HOST_UNREACHABLE))

    @rule(client=some_client)
    def retry_failed(self, client):
        self.run(self.clients[client].admin.retry_failed(TaskFilter()))
        before = self.run(self.read())

        woken = self.run(self.clients[client].hosts.wake_all())

        after = self.run(self.read())
        assert woken == sum(host.owner is None for host in before.values())
        for name, host in after.items():
            if before[name].owner is None:
                assert (host.ready_at, host.failures, host.given_up) == (self.now, 0, None)
            else:
                assert host == before[name]

    @rule(client=some_client, worker=st.sampled_from(["a0", "a1", "b0", "b2", "t"]))
    def leave(self, client, worker):
        self.run(self.clients[client].workers.leave(worker))

        for host in self.run(self.read()).values():
            assert not (host.owner or "").startswith(f"{worker}:")

    @rule(seconds=st.sampled_from([0.001, 20, 61]))
    def time_passes(self, seconds):
        self.store.clock.advance(seconds=seconds)

    @invariant()
    def no_host_with_work_is_forgotten(self):
        hosts = self.run(self.read())
        untold = {task.host for task in self.untold}
        for name in HOSTS:
            due = self.run(self.clients[0].hosts.earliest_due(name))
            if due is None or name in untold:
                continue
            host = hosts[name]
            if host.owner is None:
                latest = max(due, self.now, host.not_before or due)
                assert host.ready_at is not None
                assert host.ready_at <= latest
            # A live owner looks for tasks itself; a dead one is replaced.
            assert host.ready_at is not None

    @invariant()
    def every_host_is_sound(self):
        hosts = self.run(self.read())
        for name, host in hosts.items():
            before = self.seen.get(name, Host(name=name))
            assert before.epoch <= host.epoch <= before.epoch + 1
            if host.epoch == before.epoch:
                assert host.owner in (None, before.owner)
            assert host.finished == self.finished.get(name, 0)
            valid = [
                lease
                for _, lease in self.leases
                if (lease.host.name, lease.token, lease.epoch) == (name, host.owner, host.epoch)
            ]
            assert len({lease.token for lease in valid}) == (host.owner is not None)
        assert self.seen.keys() <= hosts.keys()
        self.seen = hosts
        ready = [host.ready_at for host in hosts.values() if host.ready_at is not None]
        assert self.run(self.clients[0].hosts.next_ready()) == min(ready, default=None)


def test_hosts_on_sqlite():
    explore(HostMachine, sqlite(), examples=50, steps=50)


@pytest.mark.representative("[5]")
@pytest.mark.parametrize("examples", [5, 50])
def test_hosts_on_mongomock(examples: int):
    explore(HostMachine, mongomock, examples=examples, steps=50)


def test_hosts_on_mongodb(mongodb_uri: str, database_name: str):
    stores = mongodb(mongodb_uri, database_name)
    explore(HostMachine, stores, examples=6, steps=40)


def test_hosts_on_postgres(postgres_url: str):
    explore(HostMachine, postgres(postgres_url), examples=6, steps=40)
