"""Retries of operations during an outage of the ledger, on a clock that only sleeping advances."""

import asyncio
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw.engine import ledger_retry
from crawlcw.engine.ledger_retry import LedgerRetry, retrying
from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerError,
    LedgerGoneError,
    LedgerUnavailableError,
)
from crawlcw.ledger.kind import LedgerKind
from crawlcw.model.task import Status
from tests.support.ledgers import START, FakeClock, PatchedLedger, make_task

pytestmark = pytest.mark.quick


class FakeTime:
    """Clock that advances by sleeps, and by the test."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(ledger_retry, "time", time)
    monkeypatch.setattr(ledger_retry, "anyio", time)
    return time


class Away:
    """An operation that fails for some calls, as in an outage."""

    def __init__(self, calls: float, *, error: Exception | None = None) -> None:
        self.calls = calls
        self.called = 0
        self.error = error or LedgerUnavailableError("no server")

    async def __call__(self) -> str:
        self.called += 1
        if self.called <= self.calls:
            raise self.error
        return "answer"


def patient(**give_up: float) -> LedgerRetry:
    return LedgerRetry(timedelta(**give_up))


async def test_waits_double_up_to_five_seconds(time: FakeTime):
    answer = await patient(minutes=10).call("look", Away(8))

    assert answer == "answer"
    assert time.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_patience_ends(time: FakeTime):
    operation, retry = Away(float("inf")), patient(seconds=60)

    with pytest.raises(
        LedgerUnavailableError, match=r"the ledger has not answered for 60 s: no server"
    ):
        await retry.call("look", operation)

    assert 50 <= time.seconds <= 60
    time.seconds += 100
    assert grace_for(retry) is None, "nothing waits any more"


async def test_it_can_only_be_shortened(time: FakeTime):
    retry = patient(minutes=10)
    retry.shorten(timedelta(seconds=1))
    retry.shorten(timedelta(hours=1))

    with pytest.raises(LedgerUnavailableError, match=r"1\.0 s"):
        await retry.call("look", Away(float("inf")))

    assert time.seconds <= 1


@pytest.mark.parametrize("error", [LedgerConfigurationError("wrong password"), KeyError("x")])
async def test_only_an_outage_is_waited_for(time: FakeTime, error: Exception):
    with pytest.raises(type(error)):
        await patient(minutes=10).call("look", Away(1, error=error))

    assert time.waits == []


async def test_an_outage_is_told_and_its_end_too(time: FakeTime, caplog: pytest.LogCaptureFixture):
    await patient(minutes=1).call("look", Away(2, error=LedgerUnavailableError("gone\x1b")))

    assert [getattr(record, "event", "") for record in caplog.records] == [
        "ledger_unavailable",
        "ledger_unavailable",
        "ledger_back",
    ]
    assert "\x1b" not in caplog.text


def grace_for(retry: LedgerRetry) -> float | None:
    """Return the length of the grace period in seconds."""
    since = retry.grace_start(START)
    return None if since is None else (START - since).total_seconds()


async def test_what_ran_out_since_the_last_answer_is_in_its_grace_until_all_have_come_back(
    time: FakeTime,
):
    retry = patient(minutes=10)
    time.seconds = 100
    await retry.call("look", Away(0))
    time.seconds = 103
    grace: list[float | None] = []

    class Watched(Away):
        async def __call__(self) -> str:
            grace.append(grace_for(retry))
            return await super().__call__()

    await retry.call("look", Watched(4))

    # It waited for 0.1, 0.2, 0.4 and 0.8 s.
    assert time.seconds == 104.5
    assert grace == [None, *(pytest.approx(3 + after) for after in (0.1, 0.3, 0.7, 1.5))]
    assert grace_for(retry) == pytest.approx(4.5)
    time.seconds = 114.5
    assert grace_for(retry) == pytest.approx(14.5)
    time.seconds = 114.6
    assert grace_for(retry) is None


async def test_a_later_outage_gives_no_grace_to_what_that_ran_out_before_it(time: FakeTime):
    """Otherwise, with an unreliable network, tasks of dead workers would never be released."""
    retry = patient(minutes=10)
    for second in range(100):
        time.seconds = second
        await retry.call("look", Away(0))
        time.seconds = second + 0.5
        await retry.call("look", Away(1))

    assert grace_for(retry) == pytest.approx(0.6)


async def test_an_answer_that_takes_very_long_was_an_outage_too(time: FakeTime):
    retry = patient(minutes=10)
    time.seconds = 20

    async def answer(seconds: float) -> None:
        time.seconds += seconds

    await retry.call("look", lambda: answer(4))
    assert grace_for(retry) is None
    await retry.call("look", lambda: answer(6))
    assert grace_for(retry) == pytest.approx(10)
    time.seconds += 10.1
    assert grace_for(retry) is None


async def test_a_figure_of_a_report_may_be_missing_but_not_the_whole_ledger(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ledger_retry, "_REPORT_TIMEOUT_S", 0.01)
    retry = patient(minutes=10)

    assert await retry.read_for_report(Away(0)) == "answer"
    assert await retry.read_for_report(Away(1, error=LedgerError("no index"))) is None
    async with asyncio.timeout(10):
        assert await retry.read_for_report(asyncio.Event().wait) is None
    with pytest.raises(LedgerGoneError):
        await retry.read_for_report(Away(1, error=LedgerGoneError("removed")))


class AwayLedger(PatchedLedger):
    """A ledger that fails the next few calls."""

    patched = ("queries.has",)
    away = 0

    def _ask(self) -> None:
        if self.away:
            self.away -= 1
            raise LedgerUnavailableError("away")

    async def has(self, statuses: Collection[Status]) -> bool:
        self._ask()
        return await self.real.queries.has(statuses)


@pytest.fixture
async def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ledger_retry, "_FIRST_DELAY_S", 0.001)
    ledger = await AwayLedger.open(tmp_path / "ledger.db", "books", clock=FakeClock())
    await ledger.tasks.add([make_task()])
    yield ledger
    await ledger.close()


async def test_a_question_is_asked_again_until_it_is_answered(ledger: AwayLedger):
    ledger.away = 3

    assert await retrying(ledger, LedgerRetry(timedelta(minutes=1))).queries.has([Status.TODO])
    assert ledger.away == 0


async def test_what_is_no_question_is_the_ledgers_own(ledger: AwayLedger):
    waits = retrying(ledger, LedgerRetry(timedelta(minutes=1)))

    assert waits.now() == ledger.now()
    assert waits.kind is LedgerKind.SPIDER
    assert [row async for row in waits.queries.items()] == []


async def test_each_time_that_an_operation_is_asked_is_counted(ledger: AwayLedger):
    ledger.away = 2
    retry = LedgerRetry(timedelta(minutes=1))
    waits = retrying(ledger, retry)

    await waits.queries.has([Status.TODO])
    await waits.tasks.page(limit=1)
    waits.now()

    assert retry.calls_by_operation == {"queries.has": 3, "tasks.page": 1}
