"""No limit is passed and no slot is lost in any schedule of loans; without a protection it is."""

from collections import Counter

import pytest

from tests.faults import loans
from tests.faults.loans import Plan, Schedule
from tests.faults.model import quiet
from tests.faults.mutants import Edit

pytestmark = pytest.mark.thorough

SCHEDULES, SHARDS = 400, 80
#: Number of schedules among which at least one fails without a protection.
ENOUGH = 200
#: The messages of a process while it lends or borrows for the first time, and some before.
MESSAGES = range(25, 100)
_LENDING = "crawlcw.crawl.lending"
_HOSTS = "crawlcw.crawl.hosts"

WITHOUT = {
    name: Edit(module, function, *changes)
    for name, module, function, *changes in (
        (
            "the-end-of-a-loan-is-not-looked-at",
            _HOSTS,
            "FrontierHost.extend_loan",
            ("(1 - _LEASE_MARGIN) * remaining_s", "1e6"),
        ),
        (
            "lent-slots-are-used",
            _HOSTS,
            "FrontierHost.pace",
            ("slots - self.lent_slots", "slots"),
        ),
        (
            "a-failing-host-stays-lent",
            _HOSTS,
            "Frontier.may_lend",
            (" and host.is_healthy", ""),
        ),
        (
            "a-released-host-does-not-wait-for-its-loans",
            _HOSTS,
            "Frontier.forget",
            ("if host.loans:", "if False:"),
        ),
        (
            "a-new-owner-does-not-count-the-loans",
            "crawlcw.crawl.host_leases",
            "HostLeaser._lease_hosts",
            ("host.loans[borrower] = loan", "pass"),
        ),
        (
            "a-loan-is-returned-before-its-last-slot-is-free",
            _LENDING,
            "Lending._report",
            (" and not host.queue.active", ""),
        ),
        (
            "slots-in-use-are-lent",
            _LENDING,
            "Lending._update_loan",
            ("host.queue.active > host.queue.slots", "False"),
        ),
        (
            "a-loan-that-was-not-used-is-renewed",
            _LENDING,
            "Lending._update_loan",
            ("report is not None and is_alive", "is_alive"),
        ),
        (
            "a-borrower-does-not-look-at-the-end",
            _LENDING,
            "Lending._borrow",
            ("loan is None or loan.id != our_loan.id or loan.is_closing", "loan is None"),
        ),
        (
            "a-borrower-goes-on-after-a-failure",
            "crawlcw.crawl.causes",
            "Causes._report_to_owner",
            ("host.enter(Phase.LEAVING)", "pass"),
        ),
        (
            "a-late-report-takes-back-a-later-one",
            "crawlcw.ledger.workers",
            "Workers.report",
            (', "report": last', ""),
        ),
        (
            "an-owner-that-lends-polls-once-a-second",
            _LENDING,
            "Lending.poll",
            ("return _POLL", "return _PAUSE"),
        ),
    )
}


@pytest.mark.representative("[0]")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_loans_hold_in_every_schedule(shard: int, soaking: bool):
    schedules = SCHEDULES * (20 if soaking else 1)

    failures = (loans.failure(seed) for seed in range(shard, schedules, SHARDS))
    failure = next(filter(None, failures), None)

    assert failure is None, failure


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_may_be_killed_at_any_message(process: int):
    for message in MESSAGES:
        plan = Plan(processes=3, kills=((process, message),), refusals=frozenset({30}))

        failure = loans.failure(message, plan)

        assert failure is None, failure


@pytest.mark.parametrize("protection", WITHOUT)
def test_without_a_protection_it_does_not_hold(protection: str, monkeypatch: pytest.MonkeyPatch):
    edit = WITHOUT[protection]
    function, _ = edit.changed()
    # The function is restored at the end.
    monkeypatch.setattr(function, "__code__", function.__code__)
    edit.apply()

    failure = next(filter(None, map(loans.failure, range(ENOUGH))), None)

    assert failure is not None
    assert failure.splitlines()[-1].startswith("ProtocolError: ")


def test_the_schedules_have_something_of_everything():
    """Otherwise the model would prove nothing."""
    happened: Counter[str] = Counter()
    with quiet():
        for seed in range(100):
            schedule = Schedule(seed)
            schedule.run()
            happened.update(schedule.happened)

    assert len(happened) == 12
    assert min(happened.values()) >= 5, happened
