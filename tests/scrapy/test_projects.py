"""Spiders of the project `shop`, each run by Scrapy and by crawlcw, with equal results."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("scrapy")

from tests.scrapy import site as sites
from tests.scrapy.crawls import command_of, crawled_by_crawlcw
from tests.scrapy.site import Site
from tests.scrapy.truth import Crawl, crawled_by_scrapy, variables
from tests.support.programs import run_to_end

#: They show most; the others run with `--all`.
QUICK_SPIDERS = ("errors", "carried")
SPIDERS = (
    *("arguments", "asynchronous", "broken-links", "catalogue", "closing", "downloads", "guarded"),
    *("idle", "jars", "login", "mapped", "numbered", "own-filter", "quotes-css", "quotes-xpath"),
    *("raising", "failing", "cached", "stored", "tickets", "unreachable"),
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with sites.running() as site:
        yield site


@pytest.mark.parametrize(
    "spider",
    [*QUICK_SPIDERS, *(pytest.param(name, marks=pytest.mark.thorough) for name in SPIDERS)],
)
def test_a_spider_has_the_items_signals_and_statistics_of_scrapy(
    spider: str, site: Site, tmp_path: Path
):
    folders = [tmp_path / name for name in ("scrapy", "crawlcw")]
    for folder in folders:
        folder.mkdir()

    truth = crawled_by_scrapy(site, spider, folders[0])
    crawl = crawled_by_crawlcw(site, spider, folders[1])

    assert crawl.items == truth.items
    assert crawl.requests == truth.requests
    if spider == "unreachable":  # crawlcw also tests whether the host responds again
        assert dict(crawl.signals).items() >= {"spider_closed": 1, "item_scraped": 2}.items()
    else:
        assert crawl.signals == without_robots(truth)


def without_robots(truth: Crawl) -> Counter[str]:
    """Return the counts without the signal that Scrapy's middleware for robots.txt sends."""
    by_middleware = min(1, truth.requests["/robots.txt"])
    return truth.signals - Counter(response_received=by_middleware)


@pytest.mark.thorough
def test_the_error_of_a_callback_names_the_line_of_the_project(site: Site, tmp_path: Path):
    command = command_of("raising", site, f"sqlite:///{tmp_path}/ledger.db")

    run = run_to_end(command, folder=tmp_path, variables=variables(site, tmp_path))

    assert re.search(r"parse raised ValueError: after two at \S+/carried\.py:\d+", run.stderr)
