"""Crawls of long sitemaps in processes of their own: kills in the middle, and bounded memory."""

import asyncio
from pathlib import Path

import pytest

from crawlcw import Status, open_ledger
from crawlcw.ledger.protocol import Counts, TaskFilter
from tests.benchmarks.sitemaps import LITTLE, measured
from tests.blame.code_site import started
from tests.support import sitemap_site
from tests.support.sitemap_site import FrontierSpider, served

pytestmark = pytest.mark.thorough

URLS = 20_000
#: Caches and filters that fill up to a bound: see the figures of the guide.
FILLED = 160


async def counts(ledger_url: str) -> Counts:
    ledger = await open_ledger(ledger_url, FrontierSpider.name)
    try:
        return await ledger.queries.counts()
    finally:
        await ledger.close()


async def test_a_crawl_that_is_killed_within_a_sitemap_loses_no_link_of_it(
    ledger_url: str, tmp_path: Path
):
    with served(files=1, urls=URLS) as site:
        spider = f"{Path(sitemap_site.__file__)}:FrontierSpider"
        command = (spider, "-a", f"sitemap={site}/index.xml", "--ledger", ledger_url)
        with started(tmp_path, *command) as killed:
            while (before := (await counts(ledger_url)).total) < 2000:
                await asyncio.sleep(0.02)
            killed.kill_all()

        with started(tmp_path, *command) as again:
            await asyncio.to_thread(again.end)

    found = await counts(ledger_url)
    assert before < 2 + URLS, "the kill came too late for this test"
    assert found.total == 2 + URLS
    ledger = await open_ledger(ledger_url, FrontierSpider.name)
    finished = await ledger.queries.find(TaskFilter(statuses=[Status.FINISHED]), limit=100)
    await ledger.close()
    paths = {record.task.url.removeprefix(site): record.task for record in finished}
    assert {"/index.xml", "/0.xml"} <= paths.keys()
    assert paths["/0.xml"].fence >= 2
    assert all(task.retry == 0 for task in paths.values())


def test_ten_times_as_many_urls_take_no_more_memory_but_for_what_is_bounded(ledger_url: str):
    little = measured(ledger_url, files=1, urls=LITTLE)
    much = measured(ledger_url, files=5, urls=20_000)

    assert much["tasks"] > little["tasks"] + 5 * 20_000
    assert much["mib"] < little["mib"] + FILLED
