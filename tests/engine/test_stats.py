"""Counters of outcomes, and the finish reasons: a closed list, defined in one place."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import crawlcw
from crawlcw.engine.stats import Stats
from crawlcw.errors import Reason
from crawlcw.model.counters import Counters, FinishReason
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import ResponseInfo
from crawlcw.model.transitions import Failed, Moved, Outcome, Succeeded, Unchanged, settle
from tests.support.ledgers import START, make_lease, make_task, visit

pytestmark = pytest.mark.quick

PACKAGE = Path(crawlcw.__file__).parent
#: Reasons whose words have other uses: `failed` is a status and a field of a host's counts,
#: `stopped` is an event of the log, `drained` is a field of `stats --watch --json`.
_OTHER_MEANINGS = {
    *(FinishReason.FAILED, FinishReason.FILES_UNWRITABLE, FinishReason.STOPPED),
    FinishReason.DRAINED,
}


def test_no_module_but_stats_spells_a_finish_reason():
    spelt = {str(reason) for reason in FinishReason if reason not in _OTHER_MEANINGS}

    found = [
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in spelt
    ]

    assert found == [("model/counters.py", str(each)) for each in FinishReason if each in spelt]


def test_no_finish_reason_is_given_or_compared_as_a_string():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(
                    arg="finish_reason" | "reason", value=ast.Constant(value=str(word))
                ):
                    if word:  # "" stands for no reason
                        found.append((path.name, node.value.lineno))
                case ast.Compare(left=ast.Attribute(attr="finish_reason"), comparators=[right]):
                    if isinstance(right, ast.Constant) and isinstance(right.value, str):
                        found.append((path.name, node.lineno))
                case _:
                    pass

    assert found == []


ITEMS = ({"n": 1}, {"n": 2})


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (
            Succeeded(items=ITEMS),
            Counters(pages=1, items=2, items_by_callback={"parse_book": 2}),
        ),
        (Unchanged(visit=visit()), Counters(pages=1, unchanged=1)),
        (
            Moved(response=ResponseInfo(status=301, final_url="x"), visit=visit()),
            Counters(redirects=1),
        ),
        (Failed(reason=Reason.CONNECT), Counters(failures={"connect": 1})),
        (
            Failed(reason=Reason.CONNECT, last=True),
            Counters(failures={"connect": 1}, given_up=1),
        ),
        (Failed(reason=Reason.REFUSED_ROBOTS, last=True), Counters(failures={"refused-robots": 1})),
    ],
)
def test_each_outcome_is_counted(outcome: Outcome, expected: Counters):
    stats = Stats()
    lease = make_lease(make_task(callback="parse_book"))

    settlement = settle(lease, outcome, now=START, policy=RetryPolicy(), chance=0.5)
    stats.record(settlement)

    assert stats.outcomes == {settlement.change.event: 1}
    assert stats.snapshot() == expected
    assert stats.unwanted == ("refused-robots" in expected.failures)


@pytest.mark.parametrize(("errback", "producer"), [(None, "on_error"), ("save", "save")])
def test_items_of_a_failed_page_are_those_of_its_errback(errback: str | None, producer: str):
    stats = Stats()
    settlement = settle(
        make_lease(make_task(errback=errback)),
        Failed(reason=Reason.CONNECT, last=True),
        now=START,
        policy=RetryPolicy(),
        chance=0.5,
    )

    stats.record(replace(settlement, change=replace(settlement.change, items=ITEMS)))

    assert stats.items_by_callback == {producer: 2}
