"""The ledger of a test, in a file and with a frozen clock."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crawlcw.ledger.sqlite import SqliteLedger
from tests.support.ledgers import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """The frozen clock of a test's ledger."""
    return FakeClock()


@pytest.fixture
async def ledger(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[SqliteLedger]:
    """A ledger of the class that the test's module names as `LEDGER`."""
    kind: type[SqliteLedger] = request.module.LEDGER
    ledger = await kind.open(tmp_path / "ledger.db", "books", clock=clock)
    yield ledger
    await ledger.close()
