"""A ledger that waits while the real one is away."""

from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw.engine import patience as waiting
from crawlcw.engine.patience import Patience
from crawlcw.engine.retrying_ledger import retrying
from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.task import Status
from tests.support.ledgers import LEASE, FakeClock, Instead, make_task

pytestmark = pytest.mark.quick


class Away(SqliteLedger):
    """A ledger that does not answer the next few questions."""

    away = 0

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self.real = SqliteLedger(store)
        self.queries = Instead(self.queries, has=self.has)
        self.leases = Instead(self.leases, renew=self.renew)

    def _ask(self) -> None:
        if self.away:
            self.away -= 1
            raise LedgerUnavailableError("away")

    async def has(self, statuses: Collection[Status]) -> bool:
        self._ask()
        return await self.real.queries.has(statuses)

    async def renew(self, *given: Any, **named: Any) -> set[bytes]:
        self._ask()
        return await self.real.leases.renew(*given, **named)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_FIRST_WAIT", 0.001)


@pytest.fixture
async def ledger(tmp_path: Path) -> Any:
    ledger = await Away.open(tmp_path / "ledger.db", "books", clock=FakeClock())
    await ledger.tasks.add([make_task()])
    yield ledger
    await ledger.close()


async def test_a_question_is_asked_again_until_it_is_answered(ledger: Away):
    ledger.away = 3

    assert await retrying(ledger, Patience(timedelta(minutes=1))).queries.has([Status.TODO])
    assert ledger.away == 0


async def test_when_patience_ends_the_question_fails(ledger: Away):
    ledger.away = 1_000

    with pytest.raises(LedgerUnavailableError, match="has not answered for"):
        await retrying(ledger, Patience(timedelta(seconds=0.01))).queries.has([Status.TODO])


async def test_a_renewal_is_asked_once_for_meanwhile_other_leases_are_held(ledger: Away):
    ledger.away = 1
    waits = retrying(ledger, Patience(timedelta(minutes=1)))

    with pytest.raises(LedgerUnavailableError):
        await waits.leases.renew([], lease=LEASE)


async def test_what_is_no_question_is_the_ledgers_own(ledger: Away):
    waits = retrying(ledger, Patience(timedelta(minutes=1)))

    assert waits.now() == ledger.now()
    assert waits.kind is LedgerKind.SPIDER
    assert [row async for row in waits.queries.items()] == []


async def test_each_time_that_an_operation_is_asked_is_counted(ledger: Away):
    ledger.away = 2
    asked: Counter[str] = Counter()
    waits = retrying(ledger, Patience(timedelta(minutes=1)), asked=asked)

    await waits.queries.has([Status.TODO])
    await waits.tasks.page(limit=1)
    waits.now()

    assert asked == {"queries.has": 3, "tasks.page": 1}
