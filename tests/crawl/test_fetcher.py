"""A fetcher between its result and the commit: a lease that is lost, a page that runs alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.crawl import Crawl
from crawlcw.crawl.outcomes import Done
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Lease
from crawlcw.testing import ReplayDownloader
from tests.support.ledgers import claimed, make_tasks, success


class Pages(Spider):
    name = "pages"
    start_urls = ["http://example.com/"]


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    opened = await SqliteLedger.open(tmp_path / "ledger.db", "pages")
    yield opened
    await opened.close()


@pytest.fixture
async def crawl(ledger: SqliteLedger) -> Crawl:
    return assemble(Pages(), ledger, ReplayDownloader({}), Pages.settings)


@pytest.mark.parametrize("closing", [False, True], ids=["waits", "closing"])
async def test_a_page_whose_lease_is_lost_while_its_result_waits_for_room_changes_no_state(
    closing: bool, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    """The same holds while its attempt is closed, as with a browser."""
    spider = Pages()
    crawl = assemble(spider, ledger, ReplayDownloader({}), Pages.settings)
    held, fetcher = crawl._session.leases, crawl._parts.fetcher
    await ledger.tasks.add(make_tasks(2))
    lost, in_hand = await claimed(ledger)
    held.add([lost, in_hand])
    done: asyncio.Queue[Done] = asyncio.Queue(1)
    done.put_nowait(Done(settlements=()))

    async def work(lease: Lease) -> Done:
        # As behind a redirect that is followed in place.
        for each in (lost,) if closing else (lost, in_hand):
            with crawl._parts.state.running(each.task) as running:
                spider.state.add("parsed")
                running.is_kept = True
        if closing:
            await asyncio.sleep(1)
        return Done(settlements=(success(ledger, lost), success(ledger, in_hand)))

    monkeypatch.setattr(fetcher, "_work", work)
    crawl._parts.coordinator.pool.put(lost)
    fetching = asyncio.create_task(fetcher.run(done))
    while "parsed" not in spider.state:
        await asyncio.sleep(0)
    held.lose([lost.task.id])
    async with asyncio.timeout(5):
        while not crawl.stats.leases_lost:
            await asyncio.sleep(0)
    fetching.cancel()

    assert dict(spider.state) == {}


@pytest.mark.parametrize("at_its_end", [False, True])
async def test_a_lease_that_is_lost_while_its_result_waits_stops_no_other_page(
    at_its_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One fetcher works on both: the lease of the other page would be renewed for ever."""
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "pages")
    crawl = assemble(Pages(), ledger, ReplayDownloader({}), Pages.settings)
    held, fetcher = crawl._session.leases, crawl._parts.fetcher
    await ledger.tasks.add(make_tasks(2))
    lost, other = await claimed(ledger)
    held.add([lost, other])
    done = asyncio.Queue[Done]()

    async def work(lease: Lease) -> Done:
        if lease is (lost if at_its_end else other):
            held.lose([lost.task.id])
        if lease is other:
            await asyncio.sleep(0)
        return Done(settlements=(success(ledger, lease),))

    monkeypatch.setattr(fetcher, "_work", work)
    for lease in (lost, other):
        crawl._parts.coordinator.pool.put(lease)
    fetching = asyncio.create_task(fetcher.run(done))
    async with asyncio.timeout(5):
        results = [await done.get(), await done.get()]
    fetching.cancel()
    await ledger.close()

    assert [result.settlements[0].lease for result in results] == [lost, other]


async def test_a_page_that_ran_alone_keeps_others_out_until_its_outcome_is_written(
    ledger: SqliteLedger, crawl: Crawl, monkeypatch: pytest.MonkeyPatch
):
    """Until then, a crash by another page would count against it."""
    held, fetcher = crawl._session.leases, crawl._parts.fetcher
    await ledger.tasks.add(make_tasks(1))
    (lease,) = await claimed(ledger)
    held.add([lease])
    done = asyncio.Queue[Done]()

    async def work(lease: Lease) -> Done:
        fetcher._quarantine.quarantined_lease = lease
        return Done(settlements=(success(ledger, lease),))

    monkeypatch.setattr(fetcher, "_work", work)
    crawl._parts.coordinator.pool.put(lease)
    fetching = asyncio.create_task(fetcher.run(done))
    await done.get()
    await asyncio.sleep(0)
    before_the_commit = fetcher._quarantine.quarantined_lease
    held.end([lease])
    while fetcher._quarantine.quarantined_lease is not None:
        await asyncio.sleep(0)
    fetching.cancel()

    assert before_the_commit is lease
