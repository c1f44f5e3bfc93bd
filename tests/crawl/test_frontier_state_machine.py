"""Two processes that lease, serve, lend and lose hosts in any order.

A limit holds over both of them. The rules of loans are those of `Lending`, without its waits.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count

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
from crawlcw.crawl.host_queues import CLAIM_AHEAD_S
from crawlcw.crawl.hosts import FrontierHost, Phase
from crawlcw.errors import Reason
from crawlcw.model.hosts import Host
from crawlcw.model.loans import Loan
from crawlcw.model.task import Lease
from tests.support.frontiers import LEASE, Process, lease_of
from tests.support.ledgers import START

LIMITS = {
    "one.example": HostLimit(concurrency=1, delay=0.0),
    "slow.example": HostLimit(concurrency=2, delay=2.0),
    "asks.example": HostLimit(concurrency=3, delay=0.0),
    "very-slow.example": HostLimit(concurrency=8, delay=10.0),
    "fast.example": HostLimit(concurrency=4, delay=0.0),
}
CRAWL_DELAYS = {"asks.example": 4.0}
#: Times are whole microseconds in the ledger.
EXACT = 0.001

#: The owner of tasks that a dead process has left, and the borrower of its slots.
NOBODY = -1
LOAN = timedelta(seconds=9)

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
    loan: Loan | None = None  #: the last one, unless it was returned
    borrower: int = NOBODY  #: the number of its process

    @property
    def expires_at(self) -> datetime:
        return START + timedelta(seconds=self.expires)


class FrontierMachine(RuleBasedStateMachine):
    """Two processes that lease, serve, lose and hand on hosts, and die."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.boots = 0
        self.numbers = count()
        self.offered: set[str] = set()  #: the ids of loans that the ledger has had
        self.processes = [self.booted(), self.booted()]
        self.under_way: list[tuple[int, Lease, datetime]] = []

    def booted(self) -> Process:
        """Return a process whose clock shows another time than those of all others."""
        self.boots += 1
        return Process(limits=LIMITS, booted=1e4 * self.boots, elapsed=self.time)

    @initialize()
    def nobody_has_a_host(self):
        self.rows = {name: Row(Host(name=name, ready_at=START, finished=20)) for name in LIMITS}
        self.rows["fast.example"].state.finished = 100

    def moment(self) -> datetime:
        return START + timedelta(seconds=self.time)

    def owns(self, number: int, name: str) -> bool:
        return self.rows[name].owner == number and name in self.processes[number].frontier.leased

    def lent(self, name: str) -> Loan | None:
        """Return the loan of a host whose slots count as in use, unless its owner has them."""
        row = self.rows[name]
        is_over = row.loan is None or row.loan.expires <= self.moment()
        return None if is_over or row.borrower == row.owner else row.loan

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
            host = process.frontier.leased.get(name) or process.frontier.borrowed_host
            if host is not None and host.name != name:
                continue
            if host is not None and host.phase is not Phase.LEAVING:
                process.claim(max(0, wanted - process.held.count_by_host[name]), host=name)
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
        host = process.frontier.add_leased(
            lease_of(row.state, epoch=row.state.epoch, clean=clean),
            sent_at=process.now,
        )
        if not clean and (loan := self.lent(name)) is not None:
            host.loans[loan.id] = loan
            host.pace()
        if not host.is_open:
            process.open(name, crawl_delay=CRAWL_DELAYS.get(name, 0.0))

    def begun(self, number: int, lease: Lease) -> None:
        """Check that the request was allowed to start."""
        process, name = self.processes[number], lease.task.host
        row, host = self.rows[name], process.frontier.hosts[name]
        loan = self.lent(name)
        owned = sum(n == row.owner and each.task.host == name for n, each, _ in self.under_way)
        if host.borrowed_loan is not None:
            assert loan is not None
            assert loan.id == host.borrowed_loan.id
            self.under_way.append((number, lease, process.ledger_now()))
            assert host.queue.active <= loan.slots
            assert owned + loan.slots <= LIMITS[name].concurrency
            return
        assert self.owns(number, name)
        assert loan is None or owned + 1 + loan.slots <= LIMITS[name].concurrency
        assert self.time < row.expires
        assert self.time - row.started >= row.gap - EXACT
        assert self.time >= row.rests - EXACT
        self.under_way.append((number, lease, process.ledger_now()))
        mine = sum(n == number and each.task.host == name for n, each, _ in self.under_way)
        assert mine <= host.queue.slots <= LIMITS[name].concurrency
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
                host = process.frontier.hosts[name]
                process.failed(name, reason, sent=sent, retry_after=asked)
                if host.borrowed_loan is None:
                    self.save(number, name)
                else:
                    assert not process.may_ask(name)
            else:
                latency = 12.0 if outcome == "slow" else 0.1
                process.answered(name, latency=latency, page=outcome != "no-page")
            process.frontier.note_request(name, sent_at=process.now)
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

    def is_current(self, number: int, host: FrontierHost) -> bool:
        """Return whether the process still holds the lease of the host."""
        row = self.rows[host.name]
        return host.lease is not None and (number, host.lease.epoch) == (row.owner, row.state.epoch)

    @rule(number=some_process)
    def renew(self, number):
        process = self.processes[number]
        for host in [*process.frontier.leased.values()]:
            if self.is_current(number, host):
                self.rows[host.name].expires = self.time + LEASE.total_seconds()
                host.extend_lease(sent_at=process.now)
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
            host.poll(is_stale=look)
            if host.name in handed_on:
                process.leave(host)
        process.held.end(process.given_back())
        for host in process.frontier.idle_hosts():
            mine = [lease for n, lease, _ in self.under_way if n == number]
            assert host.name not in {lease.task.host for lease in mine}
            current = self.is_current(number, host)
            left = process.forget(host.name)
            if current:
                self.rows[host.name].owner = None
                self.rows[host.name].state = left

    @rule(
        polls=st.lists(some_process, min_size=2, max_size=6),
        pages=st.integers(0, 6),
        seconds=some_seconds,
    )
    def poll_loans(self, polls, pages, seconds):
        """Lend the hosts that a process owns, and borrow, as `Lending` does."""
        self.finish(["page"] * pages, 0.0)
        self.advance(seconds)
        for number in polls:
            frontier = self.processes[number].frontier
            for host in [*frontier.leased.values()]:
                if self.is_current(number, host):
                    self.lend(host, borrower=1 - number)
            if (host := frontier.borrowed_host) is not None:
                self.go_on(host)
            else:
                names = [name for name, row in self.rows.items() if row.borrower == number]
                self.borrow(self.processes[number], names)

    def lend(self, host: FrontierHost, *, borrower: int) -> None:
        row, lent, frontier = self.rows[host.name], self.lent(host.name), host.frontier
        may_lend = frontier.may_lend(host)
        for loan in [*host.loans.values()]:
            is_lent = lent is not None and lent.id == loan.id
            if loan.expires <= self.moment() or (loan.id in self.offered and not is_lent):
                del host.loans[loan.id]  # it was returned, or has expired
                host.pace()
                host.poll()
            elif loan.id in self.offered:
                expires = max(loan.expires, self.expiry(row)) if may_lend else loan.expires
                row.loan = replace(loan, expires=expires, is_closing=not may_lend)
                host.loans[loan.id] = row.loan
            elif may_lend and lent is None and host.queue.active <= host.queue.slots:
                # Its slots are not in use here any more.
                self.offered.add(loan.id)
                row.loan, row.borrower = loan, borrower
        if may_lend and not host.loans and lent is None and host.queue.slots > 1:
            slots = host.queue.slots // 2
            loan_id = f"{host.name}:{next(self.numbers)}"
            host.loans[loan_id] = Loan(
                loan_id, host=host.name, slots=slots, expires=self.expiry(row)
            )
            host.pace()

    def expiry(self, row: Row) -> datetime:
        return min(self.moment() + LOAN, row.expires_at)

    def borrow(self, process: Process, names: list[str]) -> None:
        for name in names:
            loan, frontier = self.lent(name), process.frontier
            if loan is None or loan.is_closing or frontier.borrowed_host or name in frontier.leased:
                continue
            host = frontier.borrow(self.rows[name].state.copy(), loan)
            host.open(crawl_delay=CRAWL_DELAYS.get(name, 0.0))
            if host.phase is not Phase.SERVING:
                host.enter(Phase.SERVING)

    def go_on(self, host: FrontierHost) -> None:
        """Renew a borrowed host's loan, end it, or return it once no slot is in use."""
        row, loan = self.rows[host.name], self.lent(host.name)
        assert host.borrowed_loan is not None
        is_same = loan is not None and loan.id == host.borrowed_loan.id
        if loan is not None and is_same and host.phase is Phase.SERVING:
            host.extend_loan(loan)
        is_over = loan is None or not is_same or loan.is_closing or not host.is_healthy
        if is_over and host.phase is not Phase.LEAVING:
            host.enter(Phase.LEAVING)
        if host.phase is Phase.LEAVING and not host.queue.active:
            if is_same:
                row.loan = None
            host.frontier.return_loan(host)

    @rule(number=some_process, lost=st.integers(0, 3))
    def lose_tasks(self, number, lost):
        mine = [lease.task.id for n, lease, _ in self.under_way if n == number]
        self.processes[number].held.lose(mine[:lost])

    @rule(number=some_process, is_stopped=st.booleans())
    def die(self, number, is_stopped):
        self.under_way = [each for each in self.under_way if each[0] != number]
        process = self.processes[number]
        for name, row in self.rows.items():
            host = process.frontier.leased.get(name)
            if is_stopped and host is not None and self.is_current(number, host):
                row.owner, row.state = None, process.forget(name)
            elif row.owner == number:
                row.owner, row.expires = NOBODY, self.time
            if row.borrower == number:
                row.borrower = NOBODY
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
            assert {host.name for host in frontier.idle_hosts()} == {
                name
                for name, host in hosts.items()
                if (host.phase is Phase.LEAVING or host.lease is None or not host.is_stale)
                and not (host.is_busy or queues[name].active or process.held.count_by_host[name])
                and not (host.loans or host.borrowed_loan)
            }
            wanted = {
                name: queues[name].next_start - CLAIM_AHEAD_S
                for name, host in hosts.items()
                if (host.lease or host.borrowed_loan)
                and hosts[name].is_stale
                and not (hosts[name].phase is Phase.LEAVING or hosts[name].is_busy)
                and len(queues[name].waiting) <= queues[name].max_leases // 2
                and process.now < queues[name].deadline
            }
            low, first = frontier.low_hosts()
            assert {host.name for host in low} == {
                name for name, at in wanted.items() if at <= process.now
            }
            assert first == min(wanted.values(), default=float("inf"))
            for name, host in hosts.items():
                assert queues[name].is_open == (host.phase is Phase.SERVING)
                assert not (host.phase is Phase.LEAVING and queues[name].waiting)

    @invariant()
    def nobody_asks_whose_lease_has_ended(self):
        for number, process in enumerate(self.processes):
            for name, row in self.rows.items():
                if process.may_ask(name):
                    if (loan := process.frontier.hosts[name].borrowed_loan) is not None:
                        assert self.moment() < loan.expires
                        continue
                    assert row.owner == number
                    assert self.time < row.expires

    @invariant()
    def what_is_lent_is_not_used_and_only_a_healthy_host_is_lent(self):
        for process in self.processes:
            frontier = process.frontier
            for host in frontier.leased.values():
                queue, concurrency = host.queue, LIMITS[host.name].concurrency
                assert queue.slots <= max(1, concurrency - host.lent_slots)
                if frontier.may_lend(host):
                    assert not (queue.delay)
                    assert not (host.state.failures)
                    assert not (self.base(host.name))
                    assert host.phase is Phase.SERVING
                    assert host.lent_slots < concurrency
            borrowed = [host for host in frontier.hosts.values() if host.borrowed_loan is not None]
            assert borrowed == ([] if frontier.borrowed_host is None else [frontier.borrowed_host])
            for host in borrowed:
                assert host.lease is None
                assert host.queue.slots <= host.borrowed_loan.slots


@pytest.mark.thorough
@pytest.mark.representative("[20]")
@pytest.mark.parametrize("examples", [20, 300])
def test_a_limit_holds_over_all_processes_whatever_happens(examples: int):
    run_state_machine_as_test(
        FrontierMachine,
        settings=settings(max_examples=examples, stateful_step_count=60, deadline=None),
    )
