"""The clock of the ledgers here, each in a file."""

import pytest

from tests.support.ledgers import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """The frozen clock of a test's ledger."""
    return FakeClock()
