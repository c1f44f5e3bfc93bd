"""Two processes that lease, serve and lose hosts in any order: a limit holds over both of them."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

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

from crawlcw.api.host_limits import HostLimit
from crawlcw.crawl.host_queues import AHEAD
from crawlcw.crawl.hosts import HeldHost, Phase
from crawlcw.errors import Reason
from crawlcw.model.hosts import Host
from crawlcw.model.task import Lease
from tests.support.frontiers import LEASE, Process, lease_of
from tests.support.ledgers import START

LIMITS = {
    "one.example": HostLimit(concurrency=1, delay=0.0),
    "slow.example": HostLimit(concurrency=2, delay=2.0),
    "asks.example": HostLimit(concurrency=3, delay=0.0),
    "very-slow.example": HostLimit(concurrency=8, delay=10.0),
}
CRAWL_DELAYS = {"asks.example": 4.0}
#: Times are whole microseconds in the ledger.
EXACT = 0.001

#: The owner of tasks that a dead process has left.
NOBODY = -1

some_process = st.integers(0, 1)
some_seconds = st.sampled_from([0.0, 0.25, 1.0, 2.0, 5.0])


@dataclass
class Row:
    """A host in the ledger, with the times of its real requests."""

    state: Host
    owner: int | None = None  #: the number of its process
    expires: float = 0.0
    started: float = float("-inf")
    gap: float = 0.0  #: the least time between the last request and the next
    rests: float = 0.0  #: the end of its rest in the ledger

    @property
    def expires_at(self) -> datetime:
        return START + timedelta(seconds=self.expires)


class FrontierMachine(RuleBasedStateMachine):
    """Two processes that lease, serve, lose and hand on hosts, and die."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.boots = 0
        self.processes = [self.booted(), self.booted()]
        self.under_way: list[tuple[int, Lease, datetime]] = []

    def booted(self) -> Process:
        """Return a process whose clock shows another time than those of all others."""
        self.boots += 1
        return Process(limits=LIMITS, booted=1e4 * self.boots, elapsed=self.time)

    @initialize()
    def nobody_has_a_host(self):
        self.rows = {name: Row(Host(name=name, ready_at=START, finished=20)) for name in LIMITS}

    def moment(self) -> datetime:
        return START + timedelta(seconds=self.time)

    def owns(self, number: int, name: str) -> bool:
        return self.rows[name].owner == number and name in self.processes[number].frontier.leased

    def base(self, name: str) -> float:
        return max(LIMITS[name].delay, CRAWL_DELAYS.get(name, 0.0))

    # Each rule does much, or a run would reach too few states.

    @rule(number=some_process, wanted=st.integers(1, 4), seconds=some_seconds)
    def work(self, number, wanted, seconds):
        """Lease hosts, hold some tasks of each, and begin with those whose turn has come."""
        self.advance(seconds)
        process = self.processes[number]
        for name in LIMITS:
            self.wake(name)
            self.lease(number, name)
            host = process.frontier.leased.get(name)
            if host is not None and host.phase is not Phase.LEAVING:
                process.claim(max(0, wanted - process.held.of_host[name]), host=name)
                process.occupy(host, busy=wanted == 2)  # another operation runs
        while (lease := process.take()) is not None:
            self.begun(number, lease)

    def wake(self, name: str) -> None:
        row = self.rows[name]
        if row.owner is None:
            ready_at = max(self.moment(), row.state.not_before or self.moment())
            row.state = replace(row.state, ready_at=ready_at, given_up=None)

    def lease(self, number: int, name: str) -> None:
        row, process = self.rows[name], self.processes[number]
        clean = row.owner is None
        ready_at = row.state.ready_at if clean else row.expires_at
        if ready_at is None or ready_at > self.moment():
            return
        if not clean:
            # State that the owner has not saved is lost with it.
            row.gap = self.base(name)
        row.owner, row.expires = number, self.time + LEASE.total_seconds()
        row.state = replace(row.state, epoch=row.state.epoch + 1, ready_at=None)
        host = process.frontier.begin(
            lease_of(row.state, epoch=row.state.epoch, clean=clean),
            asked=process.now,
        )
        if not host.opened:
            process.open(name, crawl_delay=CRAWL_DELAYS.get(name, 0.0))

    def begun(self, number: int, lease: Lease) -> None:
        """Check that the request was allowed to start."""
        process, name = self.processes[number], lease.task.host
        row, host = self.rows[name], process.frontier.hosts[name]
        assert self.owns(number, name)
        assert self.time < row.expires
        assert self.time - row.started >= row.gap - EXACT
        assert self.time >= row.rests - EXACT
        self.under_way.append((number, lease, process.ledger_now()))
        mine = sum(n == number and each.task.host == name for n, each, _ in self.under_way)
        assert mine <= host.queue.allowed <= LIMITS[name].concurrency
        row.started, row.gap = self.time, max(host.queue.delay, self.base(name))

    @rule(
        outcomes=st.lists(
            st.sampled_from(["page", "429", "page", "no-page", "slow", "page-failed", "failed"]),
            min_size=1,
            max_size=6,
        ),
        retry_after=st.sampled_from([1.0, 4.0, 20.0]),
    )
    def finish(self, outcomes, retry_after):
        for outcome in outcomes[: len(self.under_way)]:
            number, lease, sent = self.under_way.pop(0)
            process, name = self.processes[number], lease.task.host
            if outcome == "page-failed":
                process.causes.page_failed(name)
            elif outcome in ("failed", "429"):
                asked = retry_after if outcome == "429" else None
                reason = Reason.HTTP_STATUS if asked else Reason.CONNECT
                process.failed(name, reason, sent=sent, retry_after=asked)
                self.save(number, name)
            else:
                latency = 12.0 if outcome == "slow" else 0.1
                process.answered(name, latency=latency, page=outcome != "no-page")
            process.frontier.sent(name, at=process.now)
            if self.owns(number, name) and process.frontier.hosts[name].queue.delay:
                # The request was sent later than its turn; only the host's owner records that.
                self.rows[name].started = self.time
            self.what_is_to_be_done_is_what_a_look_at_all_hosts_would_find()
            process.fetched(lease)
            self.what_is_to_be_done_is_what_a_look_at_all_hosts_would_find()
            process.commit(lease)

    def save(self, number: int, name: str) -> None:
        frontier = self.processes[number].frontier
        row, host = self.rows[name], frontier.hosts[name]
        assert host.lease is None or host in frontier.pending.take_unsaved()
        if host.lease is None or not self.is_current(number, host):
            return
        row.state = host.state
        assert host.state.not_before is not None
        row.rests = (host.state.not_before - START).total_seconds()

    def is_current(self, number: int, host: HeldHost) -> bool:
        """Return whether the process still holds the lease of the host."""
        row = self.rows[host.name]
        return host.lease is not None and (number, host.lease.epoch) == (row.owner, row.state.epoch)

    @rule(number=some_process)
    def renew(self, number):
        process = self.processes[number]
        for host in [*process.frontier.leased.values()]:
            if self.is_current(number, host):
                self.rows[host.name].expires = self.time + LEASE.total_seconds()
                host.renewed(asked=process.now)
            else:
                process.lose(host.name)

    @rule(
        number=some_process,
        handed_on=st.sets(st.sampled_from(sorted(LIMITS))),
        look=st.booleans(),
    )
    def release(self, number, handed_on, look):
        process = self.processes[number]
        for host in process.frontier.hosts.values():
            host.poll(wanted=look)
            if host.name in handed_on:
                process.leave(host)
        process.held.end(process.given_back())
        for host in process.frontier.idle():
            mine = [lease for n, lease, _ in self.under_way if n == number]
            assert host.name not in {lease.task.host for lease in mine}
            current = self.is_current(number, host)
            left = process.forget(host.name)
            if current:
                self.rows[host.name].owner = None
                self.rows[host.name].state = left

    @rule(number=some_process, lost=st.integers(0, 3))
    def lose_tasks(self, number, lost):
        mine = [lease.task.id for n, lease, _ in self.under_way if n == number]
        self.processes[number].held.lose(mine[:lost])

    @rule(number=some_process)
    def die(self, number):
        self.under_way = [each for each in self.under_way if each[0] != number]
        for row in self.rows.values():
            if row.owner == number:
                row.owner, row.expires = NOBODY, self.time
        self.processes[number] = self.booted()

    @rule(seconds=st.sampled_from([10.0, 50.0, 90.0]))
    def advance(self, seconds):
        self.time += seconds
        for process in self.processes:
            process.now += seconds

    @invariant()
    def what_is_under_way_is_counted(self):
        for number, process in enumerate(self.processes):
            for host in process.frontier.hosts.values():
                mine = [
                    lease
                    for n, lease, _ in self.under_way
                    if n == number and lease.task.host == host.name
                ]
                assert host.queue.active == len(mine)

    @invariant()
    def what_is_to_be_done_is_what_a_look_at_all_hosts_would_find(self):
        """No change of a host or of its queue is missed: that host would wait for ever."""
        for process in self.processes:
            frontier = process.frontier
            hosts = frontier.hosts
            leased = {name for name, host in hosts.items() if host.lease is not None}
            queues = {name: host.queue for name, host in hosts.items()}
            assert set(frontier.leased) == leased
            assert {host.name for host in frontier.idle()} == {
                name
                for name, host in hosts.items()
                if (host.phase is Phase.LEAVING or host.lease is None or not host.is_stale)
                and not (host.is_busy or queues[name].active or process.held.of_host[name])
            }
            wanted = {
                name: queues[name].next_start - AHEAD
                for name in leased
                if hosts[name].is_stale
                and not (hosts[name].phase is Phase.LEAVING or hosts[name].is_busy)
                and len(queues[name].waiting) <= queues[name].most // 2
                and process.now < queues[name].deadline
            }
            low, first = frontier.wanted()
            assert {host.name for host in low} == {
                name for name, at in wanted.items() if at <= process.now
            }
            assert first == min(wanted.values(), default=float("inf"))
            for name, host in hosts.items():
                assert queues[name].opened == (host.phase is Phase.SERVING)
                assert not (host.phase is Phase.LEAVING and queues[name].waiting)

    @invariant()
    def nobody_asks_whose_lease_has_ended(self):
        for number, process in enumerate(self.processes):
            for name, row in self.rows.items():
                if process.may_ask(name):
                    assert row.owner == number
                    assert self.time < row.expires


@pytest.mark.thorough
@pytest.mark.representative("[40]")
@pytest.mark.parametrize("examples", [40, 300])
def test_a_limit_holds_over_all_processes_whatever_happens(examples: int):
    run_state_machine_as_test(
        FrontierMachine,
        settings=settings(max_examples=examples, stateful_step_count=60, deadline=None),
    )
