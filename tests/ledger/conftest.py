"""The log of the commands that a test's ledger sends to MongoDB."""

import pytest

from tests.support.command_log import CommandLog


@pytest.fixture
def command_log() -> CommandLog:
    """The log of a test's ledger, which is empty at first."""
    return CommandLog()
