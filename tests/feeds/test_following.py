"""Items that are exported while a crawl records them."""

import asyncio
import io
import json

from crawlcw.feeds.export import ItemSelection, follow
from crawlcw.feeds.target import Target
from crawlcw.ledger.protocol import Ledger
from tests.support.ledgers import FakeClock, claimed, make_tasks, success

STDOUT = Target.parse("-")


class Pipe(io.BytesIO):
    """A stream for the items; a flush shows that the exporter found no more."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = asyncio.Semaphore(0)

    def flush(self) -> None:
        self.looked.release()

    @property
    def numbers(self) -> list[int]:
        return [json.loads(line)["n"] for line in self.getvalue().splitlines()]


async def record(ledger: Ledger, clock: FakeClock, first: int, number: int) -> None:
    leases = await claimed(ledger, limit=number)
    for n, lease in enumerate(leases, first):
        clock.advance(seconds=1)
        await ledger.outcomes.commit([success(ledger, lease, {"n": n})])


async def test_each_item_is_written_once_until_the_ledger_is_drained(
    ledger: Ledger, clock: FakeClock
):
    await ledger.tasks.add(make_tasks(9))
    await record(ledger, clock, 0, 2)
    clock.advance(seconds=3600)
    await record(ledger, clock, 2, 2)
    pipe = Pipe()
    following = asyncio.create_task(
        follow(ledger, STDOUT, ItemSelection(), stdout=pipe, poll_interval_s=0.001)
    )

    async with asyncio.timeout(60):
        await pipe.looked.acquire()
        assert sorted(pipe.numbers) == [0, 1, 2, 3]
        await record(ledger, clock, 4, 2)
        clock.advance(seconds=3)
        # This outcome is written late: its time is before that of exported items.
        early = await claimed(ledger, limit=1)
        late = [success(ledger, lease, {"n": 6}) for lease in early]
        clock.advance(seconds=30)
        await ledger.outcomes.commit(late)
        await record(ledger, clock, 7, 2)
        count = await following

    assert sorted(pipe.numbers) == list(range(9))
    assert count == 9


async def test_what_is_older_than_wanted_is_left_out(ledger: Ledger, clock: FakeClock):
    await ledger.tasks.add(make_tasks(4))
    await record(ledger, clock, 0, 2)
    clock.advance(seconds=10)
    since = clock.time
    await record(ledger, clock, 2, 2)
    pipe = Pipe()

    selection = ItemSelection(fetched_since=since)
    await follow(ledger, STDOUT, selection, stdout=pipe, poll_interval_s=0.001)

    assert pipe.numbers == [2, 3]
