"""Write concerns on MongoDB: writes that a majority must acknowledge, and others."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.protocol import TaskFilter
from tests.support.command_log import CommandLog, logged
from tests.support.ledgers import LEASE, FakeClock, worked

DURABLE = {"w": "majority", "j": True}
QUICK = {"w": 1}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def ledger(
    mongodb_uri: str, database_name: str, command_log: CommandLog, clock: FakeClock
) -> AsyncIterator[MongoLedger]:
    async with logged(mongodb_uri, database_name, command_log, clock=clock) as ledger:
        yield ledger


async def test_claims_are_quick_and_outcomes_durable(
    ledger: MongoLedger, command_log: CommandLog, clock: FakeClock
):
    levels = {}

    def note(operation: str) -> None:
        """Record the write concern of the operation's writes to tasks."""
        asked = [
            command["writeConcern"]
            for command in command_log.commands
            if "books" in (command.get("update"), command.get("findAndModify"))
        ]
        assert asked == asked[:1] * len(asked)
        levels[operation] = asked[0]
        command_log.commands.clear()

    command_log.commands.clear()
    third = await worked(ledger, note)
    await ledger.admin.retry_failed(TaskFilter())
    note("retry_failed")
    await ledger.hosts.give_up("example.com", reason=Reason.HOST_UNREACHABLE)
    note("give_up_host")
    await ledger.leases.begin(third)
    command_log.commands.clear()
    clock.advance(seconds=LEASE.total_seconds() + 1)
    page = await ledger.tasks.page(limit=3)
    given_up = await ledger.leases.claim(page, worker="b", lease=timedelta(seconds=60), max_lost=1)
    note("abandon")

    assert given_up.abandoned == 1
    assert [levels.pop(each) for each in ("claim", "renew")] == [QUICK] * 2
    assert levels == dict.fromkeys(levels, DURABLE)
