"""HostQueues in any order of events: hosts are served politely, and each lease is taken once."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from crawlcw.crawl.host_queues import HostQueues
from crawlcw.model.task import Lease
from tests.support.ledgers import START, make_task

pytestmark = [pytest.mark.thorough, pytest.mark.quick]

FOREVER = float("inf")
HOSTS = ["a.example", "b.example"]


@dataclass
class Expected:
    """The expected state of one host."""

    allowed: int
    delay: float
    earliest: float  #: no request may start before this time
    deadline: float
    opened: bool = False
    active: int = 0
    started: float = float("-inf")
    gap: float = 0.0  #: the delay when the last request started
    waiting: set[bytes] = field(default_factory=set)

    @property
    def is_free(self) -> bool:
        return not self.allowed or self.active < self.allowed


some_host = st.sampled_from(HOSTS)
some_seconds = st.sampled_from([0.0, 0.25, 1.0, 5.0, 30.0])
some_delay = st.sampled_from([0.0, 0.5, 2.0, 10.0])
some_limit = st.integers(0, 3)


class HostQueuesMachine(RuleBasedStateMachine):
    """Hosts that begin, end, rest and change their pace while leases go in and come out."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = HostQueues(half_lease=30)
        self.hosts: dict[str, Expected] = {}
        self.now = 0.0
        self.number = 0
        self.gone: set[bytes] = set()

    @initialize(limit=some_limit, delay=some_delay, lease=some_seconds)
    def all_begin(self, limit, delay, lease):
        for host in HOSTS:
            self.begin(host, limit, delay, 0.0, lease)
            self.open(host)

    def begin(self, host: str, limit: int, delay: float, rest: float, lease: float) -> None:
        expected = Expected(limit, delay, self.now + rest, self.now + lease)
        self.queues.add_host(
            host,
            limit=limit,
            next_start=expected.earliest,
            deadline=expected.deadline,
        )
        self.queues.pace(host, delay=delay, slots=limit, now=self.now)
        self.hosts[host] = expected

    @rule(host=some_host)
    def open(self, host):
        self.queues.open(host, now=self.now)
        self.hosts[host].opened = True

    @rule(host=some_host, limit=some_limit, delay=some_delay, rest=some_seconds, lease=some_seconds)
    def end_and_begin_again(self, host, limit, delay, rest, lease):
        # Like the frontier: not before all requests have ended.
        self.finish(host, self.hosts[host].active)
        self.leave(self.hosts[host], self.queues.remove_host(host))
        self.begin(host, limit, delay, rest, lease)

    @rule(host=some_host)
    def clear(self, host):
        self.leave(self.hosts[host], self.queues.withdraw(host=host))

    def leave(self, expected: Expected, leases: list[Lease]) -> None:
        assert {each.task.id for each in leases} == expected.waiting
        assert len(leases) == len(expected.waiting)
        self.gone |= expected.waiting
        expected.waiting.clear()

    @rule(host=some_host, priority=st.integers(-12, 12), number=st.integers(1, 3))
    def add(self, host, priority, number):
        for _ in range(number):
            self.number += 1
            task = make_task(f"http://{host}/{self.number}", priority=priority)
            added = Lease(task=task, token="a:1", fence=1, expires=START)
            self.queues.add(added, now=self.now)
            self.hosts[host].waiting.add(added.task.id)

    @rule(number=st.integers(0, 3))
    def drop(self, number):
        waiting = sorted(set().union(*(host.waiting for host in self.hosts.values())))
        dropped = set(waiting[:number])
        self.queues.withdraw(is_unwanted=lambda lease: lease.task.id in dropped)
        for host in self.hosts.values():
            host.waiting -= dropped
        self.gone |= dropped

    @rule(number=st.sampled_from([1, 1, 2, 5]))
    def take(self, number):
        for _ in range(number):
            if not self.take_one():
                break

    def take_one(self) -> bool:
        found = self.queues.take(now=self.now)
        if found is None:
            for name, host in self.hosts.items():
                may = host.opened and host.is_free and self.now < host.deadline
                assert not (may and host.waiting and host.earliest <= self.now), name
            return False
        host = self.hosts[found.task.host]
        assert host.opened
        assert host.is_free
        assert host.earliest <= self.now < host.deadline
        assert self.now - host.started >= host.gap
        assert found.task.id in host.waiting, "no lease is taken twice"
        host.waiting.remove(found.task.id)
        self.gone.add(found.task.id)
        host.active += 1
        host.started, host.gap = self.now, host.delay
        host.earliest = max(host.earliest, self.now + host.delay)
        return True

    @rule(host=some_host, number=st.integers(1, 5))
    def finish(self, host, number):
        for _ in range(min(number, self.hosts[host].active)):
            self.queues.request_ended(host, now=self.now)
            self.hosts[host].active -= 1

    @rule(host=some_host, delay=some_delay, allowed=some_limit)
    def pace(self, host, delay, allowed):
        self.queues.pace(host, delay=delay, slots=allowed, now=self.now)
        expected = self.hosts[host]
        if delay > expected.delay and expected.active:
            expected.earliest = max(expected.earliest, self.now + delay)
        expected.delay, expected.allowed = delay, allowed

    @rule(host=some_host, seconds=some_seconds)
    def rest(self, host, seconds):
        until = self.now + seconds
        self.queues.rest(host, rest_end=until)
        self.hosts[host].earliest = max(self.hosts[host].earliest, until)

    @rule(host=some_host, seconds=some_seconds)
    def extend(self, host, seconds):
        self.hosts[host].deadline = self.now + seconds
        self.queues.extend(host, deadline=self.now + seconds, now=self.now)

    @rule(seconds=some_seconds)
    def advance(self, seconds):
        self.now += seconds

    @rule()
    def with_time_enough_everything_comes_out(self):
        for host in self.hosts:
            self.open(host)
            self.extend(host, FOREVER)
        rounds = sum(len(host.waiting) for host in self.hosts.values())
        for _ in range(rounds + 1):
            for name, host in self.hosts.items():
                self.finish(name, host.active)
            self.now += 30
            while self.take_one():
                pass
        assert not any(host.waiting for host in self.hosts.values())
        assert self.queues.next_start() is None
        # Otherwise no lease could pass its deadline from here on.
        for host in self.hosts:
            self.extend(host, 30.0)

    @invariant()
    def what_waits_is_counted(self):
        waiting = {name: len(host.waiting) for name, host in self.hosts.items()}
        assert self.queues.waiting_count == sum(waiting.values())
        assert self.queues.soon_count == sum(
            min(number, self.hosts[name].allowed or number)
            for name, number in waiting.items()
            if not self.hosts[name].delay
        )
        for name, number in waiting.items():
            assert len(self.queues.by_host[name].waiting) == number
            assert self.queues.free_capacity(name) >= 0

    @invariant()
    def a_turn_that_will_come_is_announced(self):
        """A fetcher that sleeps until the announced turn misses none."""
        turns = [
            max(host.earliest, self.now)
            for host in self.hosts.values()
            if host.opened and host.waiting and host.is_free and self.now < host.deadline
        ]
        announced = self.queues.next_start()
        if turns:
            assert announced is not None
            assert announced <= min(turns)

    @invariant()
    def what_is_gone_does_not_wait(self):
        for host in self.hosts.values():
            assert not host.waiting & self.gone


@pytest.mark.representative("[40]")
@pytest.mark.parametrize("examples", [40, 300])
def test_whatever_happens_hosts_are_served_politely_and_every_lease_once(examples: int):
    run_state_machine_as_test(
        HostQueuesMachine,
        settings=settings(max_examples=examples, stateful_step_count=80, deadline=None),
    )
