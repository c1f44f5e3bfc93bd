"""Whole real documentation sites, crawled over real sockets into both kinds of ledger."""

from collections import Counter

import pytest

from crawlcw import Settings, run_spider
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.counters import Report
from crawlcw.model.task import Status
from tests.support import docs
from tests.support.crawl_process import Store
from tests.support.docs import DocsSpider, Site

pytestmark = pytest.mark.thorough

SETTINGS = Settings(
    concurrency=100,
    per_host_concurrency=0,
    # The walk has no depth limit, and failures lengthen the paths of a crawl.
    max_depth=None,
    max_retry=3,
    backoff_base="50ms",
    backoff_max="100ms",
    # At the end only failing pages are left, which would slow the host down.
    auto_throttle=False,
)


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url)


@pytest.fixture(params=list(docs.DOCUMENTATION))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


async def crawl(site: Site, store: Store) -> Report:
    spider = DocsSpider(start_urls=[site.start])
    return await run_spider(spider, ledger=store.url, settings=SETTINGS)


async def items(store: Store) -> Counter[str]:
    """Return the number of items of each page, read as `crawlcw export` reads them."""
    ledger = await open_ledger(store.url, "docs")
    try:
        return Counter([row.item["path"] async for row in ledger.queries.items()])
    finally:
        await ledger.close()


async def retry_failed(store: Store) -> int:
    ledger = await open_ledger(store.url, "docs")
    try:
        return await ledger.admin.retry_failed(TaskFilter())
    finally:
        await ledger.close()


def once(paths: frozenset[str]) -> Counter[str]:
    return Counter(paths)


def paths(store: Store, status: Status) -> set[str]:
    return {row.path for row in store.rows() if row.status == status}


async def test_every_page_that_a_walk_finds_is_fetched_and_recorded_once_and_never_again(
    name: str, store: Store
):
    expected = docs.walked(name)

    with docs.served(docs.folder(name)) as site:
        first = await crawl(site, store)
        hits = site.hits()
        second = await crawl(site, store)
        hits_after_second = site.hits()

    assert len(expected.pages) > 500
    assert first.drained
    assert second.drained
    assert paths(store, Status.FINISHED) == expected.found
    assert hits == once(expected.found | expected.refused)
    assert hits_after_second == hits
    assert second.pages == 0
    assert await items(store) == once(expected.pages)


async def test_pages_that_are_linked_but_not_there_are_ignored_for_their_status(
    store: Store,
):
    expected = docs.walked("python")

    with docs.served(docs.folder("python")) as site:
        await crawl(site, store)

    ignored = {row.path: row.reason for row in store.rows() if row.status == Status.IGNORED}
    assert ignored == dict.fromkeys(expected.refused, "http-status")


async def test_a_site_whose_every_seventh_page_is_away_is_completed_by_retry_failed(
    name: str, store: Store
):
    whole = docs.walked(name)
    without = docs.walked(name, fail_every=7)
    away = without.refused - whole.refused

    with docs.served(docs.folder(name), fail_every=7) as site:
        first = await crawl(site, store)
        after_first = store.rows()
        hits_of_first = site.hits()
        items_of_first = await items(store)
        site.heal()
        retried = await retry_failed(store)
        second = await crawl(site, store)
        hits = site.hits() - hits_of_first

    # The first run ends with all available pages of the site.
    assert first.drained
    assert {row.path for row in after_first if row.status == Status.FINISHED} == without.found
    given_up = {
        row.path: (row.reason, row.retry) for row in after_first if row.status == Status.IGNORED
    }
    assert len(away) > 70
    assert {path: given_up[path] for path in away} == dict.fromkeys(away, ("http-status", 3))
    assert given_up.keys() == without.refused
    assert all(hits_of_first[path] == 3 for path in away)
    assert all(hits_of_first[path] == 1 for path in without.found)
    assert items_of_first == once(without.pages)
    # The second run fetches the rest, and no finished page again.
    assert retried == len(without.refused)
    assert second.drained
    assert paths(store, Status.FINISHED) == whole.found
    assert hits.keys() == (whole.found | whole.refused) - without.found
    assert await items(store) == once(whole.pages)
