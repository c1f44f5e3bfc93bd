"""Crawls of the project `shop` that are killed at random moments and resumed: equal items."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("scrapy")

from tests.scrapy import site as sites
from tests.scrapy.crawls import command_of, finished
from tests.scrapy.site import Site
from tests.scrapy.truth import crawled_by_scrapy, variables
from tests.support.crawl_process import wait_until
from tests.support.programs import Program, environment

pytestmark = pytest.mark.thorough

KILLS = 3


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    # Slow enough that each kill hits pages that are being fetched.
    with sites.running(latency=0.05) as site:
        yield site


@pytest.mark.representative("sqlite", "carried", "1")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("spider", ["carried", "catalogue", "jars", "tickets"])
def test_a_crawl_that_is_killed_three_times_has_the_items_of_scrapy(
    spider: str, processes: int, ledger_url: str, site: Site, tmp_path: Path
):
    folders = [tmp_path / name for name in ("scrapy", "crawlcw")]
    for folder in folders:
        folder.mkdir()
    truth = crawled_by_scrapy(site, spider, folders[0])
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    moments = sorted(Random(seed).sample(range(1, truth.requests.total()), KILLS))
    command = command_of(spider, site, ledger_url, "--processes", str(processes))

    site.reset()
    for moment in moments:
        kill(command, moment, site, folders[1])
    items = finished(command, site, folders[1])

    assert items == truth.items


def kill(command: list[str], moment: int, site: Site, folder: Path) -> None:
    """Run *command*, and kill its processes once the site has received *moment* requests."""
    log, variables_of_crawl = folder / "crawl.log", environment() | variables(site, folder)
    with Program(command, log, folder=folder, environment=variables_of_crawl) as crawl:
        wait_until(lambda: site.requests.total() >= moment or not crawl.is_running())
        crawl.kill_all()
