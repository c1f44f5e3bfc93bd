"""The protocol holds in every schedule of the model, and fails without any one protection.

Some guards of the ledger are redundant for the model. A token is new for every claim,
so MINE needs only the lock, and a renewal does not need the status. The lock
identifies a claim if a fence repeats after a failover. `due` becomes later only when
the fence rises, so a batch of claims, which tests each task's fence and takes no task
over, need not test `due`.
"""

import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults import model
from tests.faults.model import STORES, Schedule
from tests.faults.mutants import MUTANTS, SQL_MUTANTS, Edit
from tests.support.docs import REPOSITORY

pytestmark = pytest.mark.thorough

SCHEDULES = 3_200
SCHEDULES_OF_A_SOAK = 100_000
SHARDS = 64
#: Number of schedules among which at least one fails without a protection.
ENOUGH = 2_000
_LEDGER = "crawlcw.ledger.mongo"
_RECORDED = "if settled_fences.get(lease.task.id) != lease.fence"

#: Large items are not part of the model.
WITHOUT = {
    mutant.name: mutant.edits for mutant in MUTANTS if mutant.name != "no-fence-on-oversize-items"
}
WITHOUT |= {
    name: (Edit(module, function, *changes),)
    for name, module, function, *changes in (
        (
            "claim-ignores-the-fence",
            f"{_LEDGER}.leases",
            "Leases._claim_one",
            ('"fence": task.fence,', ""),
        ),
        (
            "claim-ignores-the-status",
            f"{_LEDGER}.leases",
            "Leases._claim_one",
            ('"status": int(task.status),', ""),
        ),
        (
            "claim-not-answered-is-forgotten",
            f"{_LEDGER}.leases",
            "Leases._claim_one",
            ("self._note_unconfirmed(task, token)", ""),
        ),
        (
            "giving-up-is-not-durable",
            f"{_LEDGER}.leases",
            "Leases._claim_one",
            (
                "self._store.tasks if change.lock is not None else self._store.durable",
                "self._store.tasks",
            ),
        ),
        (
            "adopting-sets-its-own-end",
            f"{_LEDGER}.leases",
            "Leases._resolve_unconfirmed",
            ('{"$max": ', '{"$set": '),
        ),
        (
            "renewal-ignores-the-lock",
            f"{_LEDGER}.updates",
            "locked",
            ('"lock": {"$in": list(dict.fromkeys(tokens))},', ""),
        ),
        (
            "commit-ignores-the-lock",
            f"{_LEDGER}.updates",
            "lease_guard",
            ('"lock": lease.token,', ""),
        ),
        (
            "commit-is-not-durable",
            f"{_LEDGER}.outcomes",
            "Outcomes._send",
            ("send(self._store.durable", "send(self._store.tasks"),
        ),
        (
            "adding-is-not-durable",
            f"{_LEDGER}.tasks",
            "Tasks._add_some",
            ("send(self._store.durable", "send(self._store.tasks"),
        ),
        ("adding-overwrites", f"{_LEDGER}.tasks", "_insertion", ('"$setOnInsert"', '"$set"')),
        (
            "what-was-not-matched-was-recorded",
            f"{_LEDGER}.outcomes",
            "Outcomes._not_settled",
            (_RECORDED, "if lease.task.id not in settled_fences"),
        ),
        (
            "what-was-not-matched-was-lost",
            f"{_LEDGER}.outcomes",
            "Outcomes._not_settled",
            (_RECORDED, ""),
        ),
        (
            "retry-failed-resets-what-it-saw",
            "crawlcw.ledger.admin",
            "_change_all",
            ("(ids, where, edit)", "(ids, {}, edit)"),
        ),
        (
            "links-are-known-before-they-are-there",
            "crawlcw.crawl.committer",
            "TaskAdder.add",
            ("    new = await", "    self.known_ids.add(fresh)\n    new = await"),
        ),
        (
            "work-begins-unwritten",
            "crawlcw.engine.pool",
            "Quarantine.enter",
            ("await self._ledger.leases.begin(lease)", "True"),
        ),
        (
            "a-quarantined-task-begins-beside-others",
            "crawlcw.engine.pool",
            "Quarantine.enter",
            ("if self._in_progress:", "if False:"),
        ),
        (
            "others-begin-beside-a-quarantined-task",
            "crawlcw.engine.pool",
            "Quarantine.enter",
            ("if self.quarantined_lease is not None:", "if False:"),
        ),
        (
            "a-crash-is-forgotten",
            "crawlcw.model.transitions",
            "_quarantine_fence",
            ("task.quarantine_fence or 0 if lost_before else None", "task.quarantine_fence"),
        ),
        (
            "what-crashed-comes-back-at-once",
            "crawlcw.model.transitions",
            "_change_of_lost_task",
            ("rest = backoff(lost, base=_FIRST_REST, ceiling=_LONGEST_REST)", "rest = timedelta()"),
        ),
    )
}

#: Protections above the ledgers.
_ABOVE = [
    name
    for name, edits in WITHOUT.items()
    if not any(edit.module.startswith(_LEDGER) for edit in edits)
]
#: The model has no hosts, and its transactions come one after the other.
WITHOUT_SQL = {
    mutant.name: mutant.edits
    for mutant in SQL_MUTANTS
    if "host" not in mutant.name and not mutant.name.startswith(("postgres-", "sql-release"))
}
WITHOUT_SQL |= {name: WITHOUT[name] for name in _ABOVE}


@contextmanager
def without(protection: str) -> Iterator[None]:
    """Remove a protection for the block."""
    with pytest.MonkeyPatch.context() as patch:
        for edit in (WITHOUT | WITHOUT_SQL)[protection]:
            owner, name = edit.place(importlib.import_module(edit.module))
            function = getattr(owner, name)
            # The context restores the function at its end.
            patch.setattr(function, "__code__", function.__code__)
            edit.apply()
        yield


@pytest.mark.representative("sql-0]")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("store", STORES)
def test_the_protocol_holds_in_every_schedule(
    request: pytest.FixtureRequest, store: str, shard: int
):
    soak = request.config.getoption("--soak", default=False)
    schedules = SCHEDULES_OF_A_SOAK if soak else SCHEDULES

    failure = model.first_failure(range(shard, schedules, SHARDS), store)

    assert failure is None, failure


@pytest.mark.parametrize(
    ("store", "protection"),
    [*(("mongodb", name) for name in WITHOUT), *(("sql", name) for name in WITHOUT_SQL)],
)
def test_without_a_protection_it_does_not_hold(store: str, protection: str):
    with without(protection):
        failure = model.first_failure(range(ENOUGH), store)

    assert failure is not None
    *_, end, _ = failure.splitlines()
    # Any other error would be one of the model itself.
    assert end.startswith("ProtocolError: ")


def test_a_schedule_that_fails_says_how_it_came_to_it():
    with without("commit-tests-status-only"):
        failure = model.first_failure(range(ENOUGH))

    assert failure is not None
    first, *events, end, again = failure.splitlines()
    seed = again.rpartition(" ")[2]
    assert first.startswith(f"seed {seed}: Plan(pages=(Content(")
    assert again == f"again: python -m tests.faults.model mongodb {seed}"
    assert any("w1 sends update books {_id: page 0" in event for event in events)
    assert end.startswith("ProtocolError: ")


@pytest.mark.parametrize("store", STORES)
def test_a_seed_is_the_same_schedule_in_every_process(store: str):
    seed = 7  # a schedule with many processes and faults

    def told(hashing: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "tests.faults.model", store, str(seed)],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    one, other = told("1"), told("2")

    assert one == other
    assert "everything holds" in one


@pytest.mark.parametrize("store", STORES)
def test_the_schedules_have_something_of_everything(store: str):
    """Otherwise the model would prove nothing."""
    happened: Counter[str] = Counter()
    schedules = 300
    with model.quiet():
        for seed in range(schedules):
            schedule = Schedule(seed, store=store)
            schedule.run()
            checker = schedule.checker
            happened["faultless"] += schedule.plan.faultless
            happened["finished"] += checker.finished.total()
            happened["failed"] += checker.failed.total()
            happened["taken over"] += checker.taken_over.total()
            happened["begun again"] += sum(
                "quarantine_fence" in each for each in schedule.tasks.values()
            )
            happened["brought back"] += checker.brought_back.total()
            happened["claims that nobody knows of"] += len(checker.claims - checker.handed)
            happened["forgotten in failovers"] += len(checker.forgotten)
            happened["given up for its losses"] += sum(
                each.get("reason") == "crashed-worker" for each in schedule.tasks.values()
            )

    assert happened["finished"] > 4 * schedules
    assert min(happened.values()) >= 10, happened
