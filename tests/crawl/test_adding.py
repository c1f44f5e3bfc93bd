"""Tasks that are known and to be done after all: which of them, and how often in a run."""

from datetime import timedelta

from crawlcw.api.request import EACH_RUN
from crawlcw.crawl.adding import RunStart, TaskAdder
from crawlcw.ledger.protocol import Ledger
from tests.support.ledgers import LEASE, FakeClock, changed_task, claimed_one, success


async def test_a_page_is_done_once_in_a_run_whatever_is_said_of_it(
    ledger: Ledger, clock: FakeClock
):
    run = RunStart(ledger, lease=LEASE)
    adder = TaskAdder(ledger=ledger, max_depth=None, run=run)
    page = changed_task("http://a.com/", changed=EACH_RUN)

    numbers = []
    for _ in range(2):
        clock.advance(seconds=1)
        await run.find(await ledger.notes.state())
        for _ in range(2):
            clock.advance(seconds=1)
            _, number = await adder.add([page])
            numbers.append(number)
            if number:
                await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])
        await run.end()

    assert numbers == [1, 0, 1, 0]


async def test_a_change_before_the_last_visit_is_none(ledger: Ledger, clock: FakeClock):
    run = RunStart(ledger, lease=LEASE)
    await run.find({})
    adder = TaskAdder(ledger=ledger, max_depth=None, run=run)
    page = changed_task("http://a.com/", changed=clock.time - timedelta(days=1))
    await adder.add([page])
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])
    clock.advance(seconds=9)
    await run.end()
    await run.find(await ledger.notes.state())

    _, number = await adder.add([page])

    assert number == 0
