"""What a watchdog does for a loop that stands still, over a connection of its own."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.session import Standby
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from tests.support.ledgers import claimed, make_task

HOUR = timedelta(hours=1)


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    ledger = await open_ledger(ledger_url, "books")
    yield ledger
    await ledger.close()


async def test_what_the_ledger_has_just_given_away_is_renewed_and_nothing_of_others(
    ledger: Ledger,
):
    mine, others = make_task("http://a.example/"), make_task("http://b.example/")
    await ledger.tasks.add([mine])
    await claimed(ledger, worker="a")
    await ledger.tasks.add([others])
    await claimed(ledger, worker="b")
    beats: list[Ledger] = []

    async def beat(over: Ledger) -> None:
        beats.append(over)

    # The loop came to stand still before it has seen the answer.
    standby = Standby(ledger, HeldLeases(), worker="a", lease=lambda: HOUR, beat=beat)
    await standby.renew()
    await standby.close()

    renewed, left = [await ledger.tasks.get(each.id) for each in (mine, others)]
    assert renewed is not None
    assert left is not None
    assert renewed.task.due is not None
    assert left.task.due is not None
    soon = ledger.now() + HOUR / 2
    assert left.task.due < soon < renewed.task.due
    assert len(beats) == 1
    assert beats[0] is not ledger
