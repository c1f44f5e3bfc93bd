"""Random interleavings of several clients: invariants after every step, on every store."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
)

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model import transitions
from crawlcw.model.retry import KEPT_ERRORS, RetryPolicy
from crawlcw.model.task import DONE, Lease, Record, Status, Task
from crawlcw.model.transitions import Failed, Outcome, Settlement, Succeeded, Unchanged
from tests.support.ledgers import LEASE, make_tasks, visit
from tests.support.state_machines import StoreMachine, explore, mongodb, mongomock, postgres, sqlite

pytestmark = pytest.mark.thorough

POLICY = RetryPolicy(max_retry=3, base=timedelta(seconds=8))
MAX_LOST = 3
TASKS = [replace(task, priority=n) for n, task in enumerate(make_tasks(3))]
CLIENTS = 3
#: The transitions that one step may cause between two reads of a task.
EDGES = {(before, after) for (before, _), afters in transitions.TABLE.items() for after in afters}

some_client = st.integers(0, CLIENTS - 1)
some_tasks = st.lists(st.sampled_from(TASKS), min_size=1, max_size=3, unique=True)
some_reason = st.sampled_from(
    [Reason.CONNECT, Reason.PARSE_ERROR, Reason.TLS, Reason.REFUSED_ROBOTS]
)


class LedgerMachine(StoreMachine):
    """Clients that claim, lose, renew and settle tasks, beside a model of the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: Sequence[Ledger] = [self.run(self.store.open()) for _ in range(CLIENTS)]
        #: Every lease so far, lost ones included.
        self.leases: list[tuple[int, Lease]] = []
        self.pages: list[list[Task]] = []
        self.sent: list[Settlement] = []
        #: The items of the last success that the ledger accepted, for each task.
        self.accepted: dict[bytes, tuple] = {}
        #: (task, fence) of each outcome that was accepted.
        self.outcomes: set[tuple[bytes, int]] = set()
        self.seen: dict[bytes, Record | None] = {}
        self.claimed_fences: set[tuple[bytes, int]] = set()

    def record(self, task_id: bytes) -> Record:
        record = self.run(self.clients[0].tasks.get(task_id))
        assert record is not None
        return record

    def holds(self, lease: Lease) -> bool:
        task = self.record(lease.task.id).task
        return (task.status, task.lock, task.fence) == (
            Status.PROCESSING,
            lease.token,
            lease.fence,
        )

    @initialize()
    def begin(self):
        self.run(self.clients[0].tasks.add(TASKS[:2]))

    @rule(client=some_client, tasks=some_tasks)
    def add(self, client, tasks):
        known = [self.run(self.clients[0].tasks.get(task.id)) for task in tasks]

        added = self.run(self.clients[client].tasks.add(tasks))

        assert added.existing == len([record for record in known if record])
        assert added.new == len(tasks) - added.existing
        for task, before in zip(tasks, known, strict=True):
            if before is not None:
                assert self.record(task.id) == before

    @rule(client=some_client, limit=st.integers(1, 5), worker=st.sampled_from("ab"))
    def page_and_claim(self, client, limit, worker):
        ledger = self.clients[client]
        page = self.run(ledger.tasks.page(limit=limit))
        assert all(task.due <= self.store.clock.time for task in page)
        self.pages.append(page)

        self.claim(client, page, worker)

    @rule(client=some_client, limit=st.integers(1, 5))
    def page(self, client, limit):
        self.pages.append(self.run(self.clients[client].tasks.page(limit=limit)))

    @rule(client=some_client, data=st.data(), worker=st.sampled_from("ab"))
    def claim_an_old_page(self, client, data, worker):
        if self.pages:
            self.claim(client, data.draw(st.sampled_from(self.pages)), worker)

    @rule(client=some_client)
    def leases_run_out_and_are_taken_over(self, client):
        self.store.clock.advance(seconds=61)
        self.claim(client, self.run(self.clients[client].tasks.page(limit=5)), "b")

    @rule(first=some_client, second=some_client)
    def two_claim_one_page(self, first, second):
        page = self.run(self.clients[first].tasks.page(limit=3))

        taken = self.claim(first, page, "a")
        assert taken == len(page)
        assert self.claim(second, page, "b") == 0

    def claim(self, client, page, worker) -> int:
        before = {task.id: self.record(task.id).task for task in page}
        # No two processes have one name.
        name = f"{worker}{client}"
        answer = self.run(
            self.clients[client].leases.claim(page, worker=name, lease=LEASE, max_lost=MAX_LOST)
        )
        told = len(answer.leases) + answer.missed + answer.abandoned + answer.deferred
        assert told == len(page)
        for lease in answer.leases:
            assert before[lease.task.id].due <= self.store.clock.time
            assert lease.fence == before[lease.task.id].fence + 1
            key = (lease.task.id, lease.fence)
            assert key not in self.claimed_fences
            self.claimed_fences.add(key)
            self.leases.append((client, lease))
        return len(answer.leases) + answer.abandoned + answer.deferred

    @rule(data=st.data())
    def renew(self, data):
        if self.leases:
            client, lease = data.draw(st.sampled_from(self.leases))
            held = self.holds(lease)

            lost = self.run(self.clients[client].leases.renew([lease], lease=LEASE))

            assert lost == (set() if held else {lease.task.id})

    @rule(data=st.data())
    def begin_with(self, data):
        if self.leases:
            client, lease = data.draw(st.sampled_from(self.leases))
            held = self.holds(lease)

            assert self.run(self.clients[client].leases.begin(lease)) == held

    @rule(data=st.data(), items=st.integers(0, 2), revisit=st.booleans())
    def succeed(self, data, items, revisit):
        yielded = tuple({"n": n, "settled": len(self.sent)} for n in range(items))
        self.settle(data, Succeeded(items=yielded, visit=visit(), revisit=self.again(revisit)))

    @rule(data=st.data(), revisit=st.booleans())
    def confirm(self, data, revisit):
        self.settle(data, Unchanged(visit=visit(etag="1"), revisit=self.again(revisit)))

    def again(self, revisit):
        return self.store.clock.time + timedelta(seconds=90) if revisit else None

    @rule(client=some_client)
    def revisit_what_is_due(self, client):
        now = self.store.clock.time
        may = [r.task for r in self.seen.values() if r and r.task.status in DONE]
        expected = [task for task in may if task.revisit and task.revisit <= now]

        assert self.run(self.clients[client].admin.revisit_due()) == len(expected)

    @rule(client=some_client)
    def recrawl(self, client):
        done = [r for r in self.seen.values() if r and r.task.status is Status.FINISHED]
        chosen = TaskFilter(statuses=(Status.FINISHED,))

        assert self.run(self.clients[client].admin.revisit(chosen)) == len(done)

    @rule(data=st.data(), reason=some_reason)
    def fail(self, data, reason):
        self.settle(data, Failed(reason=reason))

    def settle(self, data, outcome: Outcome) -> None:
        if self.leases:
            # Any lease, mostly a stale one: its commit must change nothing.
            client, lease = data.draw(st.sampled_from(self.leases))
            now = self.clients[client].now()
            settlement = transitions.settle(lease, outcome, now=now, policy=POLICY, chance=0.999)
            self.sent.append(settlement)
            self.commit(client, settlement)

    @rule(client=some_client, data=st.data())
    def send_a_commit_again(self, client, data):
        if self.sent:
            self.commit(client, data.draw(st.sampled_from(self.sent)))

    def commit(self, client, settlement: Settlement) -> None:
        lease = settlement.lease
        before = self.record(lease.task.id)
        held = self.holds(lease)
        already = (lease.task.id, lease.fence) in self.outcomes

        answer = self.run(self.clients[client].outcomes.commit([settlement]))

        assert answer.rejected == ()
        if held:
            assert answer.lost == ()
            assert not already
            self.outcomes.add((lease.task.id, lease.fence))
            if settlement.change.items is not None:
                self.accepted[lease.task.id] = settlement.change.items
        else:
            assert self.record(lease.task.id) == before
            applied = before.task.settled == lease.fence
            assert answer.lost == (() if applied else (lease,))
            assert already or not applied

    @rule(data=st.data())
    def release(self, data):
        if self.leases:
            client, lease = data.draw(st.sampled_from(self.leases))
            held = self.holds(lease)

            assert self.run(self.clients[client].outcomes.release([lease])) == int(held)

    @rule(client=some_client, dry_run=st.booleans(), reason=st.none() | some_reason)
    def retry_failed(self, client, dry_run, reason):
        selection = TaskFilter(reason=reason)
        expected = [
            record
            for record in self.seen.values()
            if record
            and transitions.retries(record.task.status, record.task.reason)
            and reason in (None, record.task.reason)
        ]

        admin = self.clients[client].admin
        if dry_run:
            assert self.run(admin.count_failed(selection)) == Count(number=len(expected))
        else:
            assert self.run(admin.retry_failed(selection)) == len(expected)

    @rule(client=some_client, worker=st.sampled_from("ab"))
    def leave(self, client, worker):
        name = f"{worker}{client}"
        self.run(self.clients[client].workers.leave(name))

        for record in self.seen.values():
            if record and (record.task.lock or "").startswith(f"{name}:"):
                assert self.record(record.task.id).task.due <= self.store.clock.time

    @rule(seconds=st.sampled_from([0.001, 20, 61]))
    def time_passes(self, seconds):
        self.store.clock.advance(seconds=seconds)

    @invariant()
    def every_task_is_sound(self):
        now = {task.id: self.run(self.clients[0].tasks.get(task.id)) for task in TASKS}
        for task_id, record in now.items():
            if record is None:
                assert self.seen.get(task_id) is None
                continue
            task = record.task
            assert (task.lock is not None) == (task.status is Status.PROCESSING)
            assert (task.lock_time is not None) == (task.status is Status.PROCESSING)
            if task.status in DONE:
                assert task.due is None
            if task.status is Status.IGNORED:
                assert task.reason is not None
            assert task.due is not None or task.status in (Status.FINISHED, Status.IGNORED)
            assert task.settled <= task.fence
            assert task.retry <= POLICY.max_retry
            assert task.lost <= MAX_LOST
            assert len(record.errors) <= KEPT_ERRORS
            assert record.items == self.accepted.get(task_id, ())
            self.check_edge(self.seen.get(task_id), record)
        self.seen = now
        self.check_numbers([record for record in now.values() if record])

    def check_edge(self, before: Record | None, after: Record) -> None:
        if before is None:
            assert after.task.status is Status.TODO
        elif before.task != after.task:
            assert (before.task.status, after.task.status) in EDGES
            assert before.task.fence <= after.task.fence <= before.task.fence + 1
            raised = after.task.fence > before.task.fence
            claimed = raised and before.task.status not in DONE
            assert claimed == (
                after.task.lock not in (None, before.task.lock)
                or after.task.lost > before.task.lost
            )
            counted = before.task.quarantine_fence == before.task.fence
            assert counted or after.task.lost <= before.task.lost
            held = before.task.status is Status.PROCESSING
            taken_over = claimed and held and after.task.status is Status.PROCESSING
            assert not taken_over or after.task.quarantine_fence is not None
            assert before.task.settled <= after.task.settled
            assert before.task.create_time == after.task.create_time

    def check_numbers(self, records: Sequence[Record]) -> None:
        ledger = self.clients[-1]
        statuses = [record.task.status for record in records]
        counts = self.run(ledger.queries.counts())
        assert {s: counts[s] for s in Status} == {s: statuses.count(s) for s in Status}
        dues = [record.task.due for record in records if record.task.due]
        assert self.run(ledger.queries.next_due()) == min(dues, default=None)
        now = self.store.clock.time
        due_now = {r.task.id for r in records if r.task.due and r.task.due <= now}
        assert {task.id for task in self.run(ledger.tasks.page(limit=10))} == due_now


def test_interleavings_on_sqlite():
    explore(LedgerMachine, sqlite(), examples=40, steps=40)


@pytest.mark.representative("[5]")
@pytest.mark.parametrize("examples", [5, 50])
def test_interleavings_on_mongomock(examples: int):
    explore(LedgerMachine, mongomock, examples=examples, steps=40)


@pytest.mark.parametrize("claims", ["each", "batch"])
def test_interleavings_on_mongodb(mongodb_uri: str, database_name: str, claims: str):
    stores = mongodb(mongodb_uri, database_name, driver="pymongo", claims=claims)
    explore(LedgerMachine, stores, examples=6, steps=30)


def test_interleavings_on_postgres(postgres_url: str):
    explore(LedgerMachine, postgres(postgres_url), examples=6, steps=40)
