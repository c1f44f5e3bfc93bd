"""Random schedules of named workers, against a model of the holder of each task."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
)

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.retry import backoff
from crawlcw.model.task import Record, Status
from crawlcw.tracking import Dispenser
from tests.support.dispensers import TTL, tracker_on
from tests.support.state_machines import StoreMachine, explore, mongodb, sqlite

KEYS = tuple("abcde")
MAX_RETRY = 2

workers = st.sampled_from(["ann", "bob"])
desks = st.integers(0, 1)
some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)
mappings = st.dictionaries(st.sampled_from(KEYS), st.integers(-3, 3))


@dataclass
class Known:
    """The model's state of a task."""

    priority: int
    due: datetime  #: earliest time of a claim; for a held task, the end of its lease
    status: Status = Status.TODO
    holder: str | None = None
    withdrawn: bool = False
    retry: int = 0
    fence: int = 0
    last: tuple[str, str] | None = None  #: worker and ending of the last claim
    before: tuple[str, str] | None = None  #: the same for a task that was reopened since
    finishes: int = 0
    bereft: bool = False  #: a holder was lost
    quarantined: bool = False  #: two holders were lost in a row
    begun: bool = False  #: the task was in quarantine when its holder got it
    lost: int = 0


class DispenserMachine(StoreMachine):
    """Workers at two dispensers that share a ledger, a clock, and a model."""

    def __init__(self) -> None:
        super().__init__()
        self.trackers = [self.run(self.tracker()) for _ in range(2)]
        self.desks = [Dispenser(tracker) for tracker in self.trackers]
        self.known: dict[str, Known] = {}

    async def tracker(self):
        # Above any number of losses in a schedule.
        return await tracker_on(self.store, max_retry=MAX_RETRY, max_lost=1_000)

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            super().teardown()

    @property
    def now(self) -> datetime:
        return self.store.clock.time

    def held_by(self, worker: str) -> set[str]:
        return {key for key, task in self.known.items() if task.holder == worker}

    def records(self) -> dict[str, Record]:
        ledger = self.trackers[0].ledger
        found = self.run(ledger.queries.find(TaskFilter(), limit=len(KEYS) + 1))
        return {record.task.url: record for record in found}

    @initialize(mapping=mappings)
    def begin(self, mapping):
        self.rebuild(0, {"a": 0, "b": 1, **mapping})

    @rule(desk=desks, worker=workers, limit=st.integers(0, 5))
    def assign(self, desk, worker, limit):
        mine = self.held_by(worker)

        share = self.run(self.desks[desk].assign(worker, limit))

        got = [each.key for each in share]
        assert len(got) == len(set(got)) <= limit
        kept = mine & set(got)
        assert len(kept) == min(len(mine), limit)
        for key in mine - kept:
            self.released(key)
        claimable = {
            key
            for key, task in self.known.items()
            if key not in mine
            and task.status in (Status.TODO, Status.FAILED, Status.PROCESSING)
            and task.due <= self.now
        }
        added = set(got) - kept
        claimable -= self.put_off(claimable - added)
        assert added <= claimable
        assert not any(self.is_lost_again(key) for key in added)
        assert len(got) == limit or added == claimable
        least = min((self.known[key].priority for key in added), default=None)
        left = [self.known[key].priority for key in claimable - added]
        assert least is None or all(priority <= least for priority in left)
        for each in share:
            task = self.known[each.key]
            if each.key in added:
                assert each.fence > task.fence
                taken_over = task.status is Status.PROCESSING
                task.quarantined = task.quarantined or (task.bereft and taken_over)
                task.begun = task.quarantined
                task.bereft = task.bereft or taken_over
                task.fence, task.last, task.before = each.fence, None, None
            task.status, task.holder, task.due = Status.PROCESSING, worker, self.now + TTL
            assert (each.fence, each.expires_at, each.attempt) == (
                task.fence,
                task.due,
                task.retry + 1,
            )

    def is_lost_again(self, key: str) -> bool:
        task = self.known[key]
        return task.begun and task.status is Status.PROCESSING and task.due <= self.now

    def put_off(self, keys: set[str]) -> set[str]:
        """Return the tasks that rest because the ledger has seen another loss of them."""
        records = self.records()
        resting = {
            key
            for key in keys
            if self.is_lost_again(key) and records[key].task.status is not Status.PROCESSING
        }
        for key in resting:
            task = self.known[key]
            self.released(key)
            task.lost += 1
            task.due += backoff(task.lost, base=timedelta(seconds=1), ceiling=timedelta(minutes=5))
        return resting

    def released(self, key: str) -> None:
        task = self.known[key]
        task.status = Status.FAILED if task.retry else Status.TODO
        task.holder, task.due, task.begun = None, self.now, False

    @rule(desk=desks, worker=workers)
    def check(self, desk, worker):
        assert self.run(self.desks[desk].check(worker, KEYS)) == self.held_by(worker)

    @rule(desk=desks, worker=workers)
    def touch(self, desk, worker):
        assert self.run(self.desks[desk].touch(worker)) == len(self.held_by(worker))
        for key in self.held_by(worker):
            self.known[key].due = self.now + TTL

    @rule(desk=desks, worker=workers, keys=some_keys)
    def done(self, desk, worker, keys):
        mine = self.held_by(worker) & set(keys)

        accepted = self.run(self.desks[desk].finish(worker, keys)).accepted

        self.check_accepted(accepted, mine, (worker, "done"), keys)
        for key in mine:
            task = self.known[key]
            task.status, task.holder, task.last = Status.FINISHED, None, (worker, "done")
            task.bereft = task.quarantined = task.begun = False
            task.finishes += 1

    @rule(desk=desks, worker=workers, keys=some_keys)
    def fail(self, desk, worker, keys):
        mine = self.held_by(worker) & set(keys)

        accepted = self.run(self.desks[desk].fail(worker, keys, "no")).accepted

        self.check_accepted(accepted, mine, (worker, "fail"), keys)
        records = self.records()
        for key in mine:
            task = self.known[key]
            task.retry += 1
            task.holder, task.last, task.begun = None, (worker, "fail"), False
            task.status = Status.IGNORED if task.retry == MAX_RETRY else Status.FAILED
            # The wait is random.
            task.due = records[key].task.due or self.now

    def check_accepted(self, accepted, mine, ending, keys):
        """Check that held tasks are accepted, and tasks with the same ending already."""
        asked = {key: self.known[key] for key in keys if key in self.known}
        again = {key for key, task in asked.items() if task.last == ending}
        # A store may or may not count a reopening as a claim.
        either = {key for key, task in asked.items() if task.before == ending}
        assert mine | again <= accepted <= mine | again | either

    @rule(seconds=st.sampled_from([0.001, 1, 20, 59.999, 60]))
    def time_passes(self, seconds):
        self.store.clock.advance(seconds=seconds)

    @rule(desk=desks, mapping=mappings)
    def rebuild(self, desk, mapping):
        self.run(self.desks[desk].rebuild(mapping))

        for key, priority in mapping.items():
            task = self.known.setdefault(key, Known(priority=priority, due=self.now))
            if task.withdrawn:
                task.withdrawn, task.status, task.retry, task.due = False, Status.TODO, 0, self.now
                task.before, task.last = task.last or task.before, None
            if task.status in (Status.TODO, Status.FAILED):
                task.priority = priority
        for key, task in self.known.items():
            if key not in mapping and task.status in (Status.TODO, Status.FAILED):
                task.withdrawn, task.status = True, Status.IGNORED

    @invariant()
    def the_ledger_is_as_the_model(self):
        records = self.records()
        assert records.keys() == self.known.keys()
        for key, record in records.items():
            task, known = record.task, self.known[key]
            assert task.status is known.status, key
            holder = task.lock and task.lock.partition(":")[0]
            assert holder == (known.holder and f"@{known.holder}")
            assert (task.priority, task.retry) == (known.priority, known.retry)
            assert task.lost == known.lost
            assert (task.reason is Reason.WITHDRAWN) == known.withdrawn
            assert sum(each.event == "finish" for each in record.trace) == known.finishes <= 1

    def drain(self) -> None:
        """Check that no task is lost: each one that is not ended or withdrawn can be finished."""
        self.store.clock.advance(seconds=3_600)
        left = {k for k, task in self.known.items() if task.status not in _ENDED}
        share = self.run(self.desks[1].assign("last", 100))
        resting = self.put_off(left - {each.key for each in share})
        self.store.clock.advance(seconds=3_600)
        share = self.run(self.desks[1].assign("last", 100))
        assert {each.key for each in share} == left, resting
        assert self.run(self.desks[0].finish("last", left)).accepted == left


_ENDED = (Status.FINISHED, Status.IGNORED)


@pytest.mark.thorough
@pytest.mark.representative("[sqlite-8]")
@pytest.mark.parametrize(
    ("backend", "examples"), [("sqlite", 8), ("sqlite", 60), ("pymongo-batch", 12)]
)
def test_no_schedule_loses_a_task_or_lets_two_hold_it(
    request: pytest.FixtureRequest, backend: str, examples: int
):
    if backend == "sqlite":
        stores = sqlite(tracked=True)
    else:
        uri, name = (request.getfixturevalue(each) for each in ("mongodb_uri", "database_name"))
        stores = mongodb(uri, name, driver="pymongo", claims="batch", tracked=True)

    explore(DispenserMachine, stores, examples=examples, steps=25)
