"""A fetcher whose lease is lost while its result waits for room in the committer."""

import asyncio
from pathlib import Path

import pytest

from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.outcomes import Done
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Lease
from crawlcw.testing import ReplayDownloader
from tests.support.ledgers import claimed, make_tasks, success


class Pages(Spider):
    name = "pages"
    start_urls = ["http://example.com/"]


async def test_of_a_result_that_finds_no_room_no_other_lease_is_held_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "pages")
    crawl = assemble(Pages(), ledger, ReplayDownloader({}), Pages.settings)
    held, fetcher = crawl._session.held, crawl._parts.fetcher
    await ledger.tasks.add(make_tasks(2))
    lost, in_hand = await claimed(ledger)
    held.add([lost, in_hand])
    done: asyncio.Queue[Done] = asyncio.Queue(1)
    done.put_nowait(Done(settlements=()))

    async def work(lease: Lease) -> Done:
        # The loss is found while the task is being finished; the fetcher sees it at its next wait.
        held.lose([lease.task.id])
        return Done(settlements=(success(ledger, lost), success(ledger, in_hand)))

    monkeypatch.setattr(fetcher, "_work", work)
    crawl._parts.coordinator.pool.put(lost)
    fetching = asyncio.create_task(fetcher.run(done))
    while not crawl.stats.leases_lost:
        await asyncio.sleep(0)
    fetching.cancel()
    await ledger.close()

    assert held.orphans == [in_hand]
