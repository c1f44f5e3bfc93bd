"""Waiting for a ledger that is away, on a clock that only waiting moves."""

from datetime import timedelta

import pytest

from crawlcw.engine import patience
from crawlcw.engine.patience import Patience
from crawlcw.errors import LedgerConfigurationError, LedgerUnavailableError
from tests.support.ledgers import START

pytestmark = pytest.mark.quick


class FakeTime:
    """Time that passes by sleeping, and by what a test adds."""

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
    monkeypatch.setattr(patience, "time", time)
    monkeypatch.setattr(patience, "anyio", time)
    return time


class Away:
    """An operation on a ledger that is away for some calls."""

    def __init__(self, calls: float, *, error: Exception | None = None) -> None:
        self.calls = calls
        self.called = 0
        self.error = error or LedgerUnavailableError("no server")

    async def __call__(self) -> str:
        self.called += 1
        if self.called <= self.calls:
            raise self.error
        return "answer"


def patient(**give_up: float) -> Patience:
    return Patience(timedelta(**give_up))


async def test_an_answer_is_returned_at_once(time: FakeTime):
    assert await patient(seconds=1).insist(Away(0)) == "answer"
    assert time.waits == []


async def test_waits_double_up_to_five_seconds(time: FakeTime):
    answer = await patient(minutes=10).insist(Away(8))

    assert answer == "answer"
    assert time.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_patience_ends(time: FakeTime):
    operation = Away(float("inf"))

    with pytest.raises(
        LedgerUnavailableError, match=r"the ledger has not answered for 60 s: no server"
    ):
        await patient(seconds=60).insist(operation)

    assert 50 <= time.seconds <= 60


async def test_every_outage_is_given_the_whole_time(time: FakeTime):
    patience = patient(seconds=1)

    for _ in range(5):
        assert await patience.insist(Away(2)) == "answer"


async def test_it_can_only_be_shortened(time: FakeTime):
    patience = patient(minutes=10)
    patience.shorten(timedelta(seconds=1))
    patience.shorten(timedelta(hours=1))

    with pytest.raises(LedgerUnavailableError, match=r"1\.0 s"):
        await patience.insist(Away(float("inf")))

    assert time.seconds <= 1


async def test_it_is_shortened_for_what_waits_already(time: FakeTime):
    patience = patient(minutes=10)

    class StoppedAtTheThirdCall(Away):
        async def __call__(self) -> str:
            if self.called == 2:
                patience.shorten(timedelta(seconds=1))
            return await super().__call__()

    with pytest.raises(LedgerUnavailableError):
        await patience.insist(StoppedAtTheThirdCall(float("inf")))

    assert time.seconds <= 1


@pytest.mark.parametrize("error", [LedgerConfigurationError("wrong password"), KeyError("x")])
async def test_only_an_outage_is_waited_for(time: FakeTime, error: Exception):
    with pytest.raises(type(error)):
        await patient(minutes=10).insist(Away(1, error=error))

    assert time.waits == []


async def test_an_outage_is_told_and_its_end_too(time: FakeTime, caplog: pytest.LogCaptureFixture):
    await patient(minutes=1).insist(Away(2, error=LedgerUnavailableError("gone\x1b")))

    assert [getattr(record, "event", "") for record in caplog.records] == [
        "ledger_unavailable",
        "ledger_unavailable",
        "ledger_back",
    ]
    assert "\x1b" not in caplog.text


def spared_for(patience: Patience) -> float | None:
    """Return how many seconds ago a lease may have run out to be spared."""
    since = patience.spared_since(START)
    return None if since is None else (START - since).total_seconds()


async def test_without_an_outage_nothing_is_spared(time: FakeTime):
    patience = patient(minutes=10)
    time.seconds += 100
    await patience.insist(Away(0))

    assert spared_for(patience) is None


async def test_what_ran_out_since_the_last_answer_is_spared_until_all_have_come_back(
    time: FakeTime,
):
    patience = patient(minutes=10)
    time.seconds = 100
    await patience.insist(Away(0))
    time.seconds = 103
    spared: list[float | None] = []

    class Watched(Away):
        async def __call__(self) -> str:
            spared.append(spared_for(patience))
            return await super().__call__()

    await patience.insist(Watched(4))

    # It waited for 0.1, 0.2, 0.4 and 0.8 s.
    assert time.seconds == 104.5
    assert spared == [None, *(pytest.approx(3 + after) for after in (0.1, 0.3, 0.7, 1.5))]
    assert spared_for(patience) == pytest.approx(4.5)
    time.seconds = 114.5
    assert spared_for(patience) == pytest.approx(14.5)
    time.seconds = 114.6
    assert spared_for(patience) is None


async def test_a_later_outage_spares_nothing_that_ran_out_before_it(time: FakeTime):
    """Or a network that always loses something would keep what the dead hold for ever."""
    patience = patient(minutes=10)
    for second in range(100):
        time.seconds = second
        await patience.insist(Away(0))
        time.seconds = second + 0.5
        await patience.insist(Away(1))

    assert spared_for(patience) == pytest.approx(0.6)


async def test_a_question_of_the_outage_that_fails_after_its_end_begins_no_other(time: FakeTime):
    patience = patient(minutes=10)
    time.seconds = 50

    class HangsInAnOutage(Away):
        async def __call__(self) -> str:
            if not self.called:
                await patience.insist(Away(3))
                time.seconds += 9
                await patience.insist(Away(0))
            return await super().__call__()

    await patience.insist(HangsInAnOutage(1))

    assert spared_for(patience) == pytest.approx(time.seconds)


async def test_an_answer_that_takes_very_long_was_an_outage_too(time: FakeTime):
    patience = patient(minutes=10)
    time.seconds = 20

    async def answer(seconds: float) -> None:
        time.seconds += seconds

    await patience.insist(lambda: answer(4))
    assert spared_for(patience) is None
    await patience.insist(lambda: answer(6))
    assert spared_for(patience) == pytest.approx(10)
    time.seconds += 10.1
    assert spared_for(patience) is None
