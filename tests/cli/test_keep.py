"""`crawlcw run --keep` and `crawlcw.add_pages`: crawls that wait for pages of other programs."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request, Settings, Spider, UsageError, add_pages
from crawlcw.errors import SpiderError
from tests.support import endless_site
from tests.support.commands import invoke
from tests.support.crawl_process import wait_until
from tests.support.docs import REPOSITORY
from tests.support.endless_site import EndlessSite
from tests.support.programs import Program

ENOUGH = 120.0
SPIDER = """
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    start_urls = ["{url}start"]
    settings = Settings(url_rules="tracking")

    def parse(self, response):
        yield {{"url": response.url}}
"""


class Pages(Spider):
    """The spider of the crawls, as another program has it."""

    name = "pages"
    settings = Settings(url_rules="tracking")

    def parse(self, response: Any) -> None: ...


@pytest.fixture
def site() -> Iterator[EndlessSite]:
    with endless_site.running(links=1) as site:
        yield site


@pytest.fixture
def folder(tmp_path: Path, site: EndlessSite, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRAWLCW_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    (tmp_path / "spiders").mkdir()
    (tmp_path / "spiders" / "pages.py").write_text(SPIDER.format(url=site.url))
    return tmp_path


def kept(folder: Path, *options: str) -> Program:
    return Program(
        [sys.executable, "-m", "crawlcw", "run", "pages", "--keep", *options],
        folder / "crawl.log",
        folder=folder,
        environment=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )


def stats() -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(invoke("stats", "pages", "--json").stdout)
    return numbers


def waits(finished: int) -> bool:
    numbers = stats()
    return bool(numbers["waits_for_pages"] and numbers["counts"]["finished"] == finished)


def added(site: EndlessSite, *paths: str) -> Any:
    pages = [f"{site.url}{path}" for path in paths]
    return asyncio.run(add_pages(Pages(start_urls=[site.url]), pages, ledger=ledger()))


def ledger() -> str:
    return os.environ["CRAWLCW_LEDGER"]


@pytest.mark.parametrize(
    ("processes", "by_signal"), [("1", True), ("2", False)], ids=["signal", "stop"]
)
def test_a_kept_crawl_waits_for_pages_until_it_is_stopped(
    processes: str, by_signal: bool, folder: Path, site: EndlessSite
):
    with ExitStack() as stack:
        crawl = stack.enter_context(kept(folder, "--processes", processes))
        wait_until(lambda: site.hits["/start"] == 1 and waits(1))
        assert "waiting for new pages" in invoke("stats", "pages").stdout

        assert invoke("add", "pages", f"{site.url}a?utm_source=x").returncode == 0
        wait_until(lambda: waits(2))
        result = added(site, "b", "a?fbclid=1", "c")
        assert (result.new, result.existing, result.refused) == (2, 1, {})
        wait_until(lambda: waits(4))

        if by_signal:
            crawl.process.send_signal(signal.SIGINT)
        else:
            assert invoke("stop", "pages", "--wait").returncode == 0
        crawl.process.communicate(timeout=ENOUGH)

    assert crawl.process.returncode == 0
    assert all(site.hits[path] == 1 for path in ("/start", "/a", "/b", "/c"))
    assert stats()["waits_for_pages"] is False
    assert "never: drained" in invoke("stats", "pages").stdout


def test_a_kept_crawl_visits_pages_again(folder: Path, site: EndlessSite):
    with kept(folder, "-s", "revisit=1s") as crawl:
        wait_until(lambda: site.hits["/start"] >= 2)

        crawl.process.send_signal(signal.SIGINT)
        crawl.process.communicate(timeout=ENOUGH)


def test_add_pages_takes_requests_and_counts_refused_links(folder: Path, site: EndlessSite):
    spider = Pages(start_urls=[site.url])
    pages = [
        f"{site.url}a",
        Request(f"{site.url}b", context={"n": 1}, priority=3),
        "http://elsewhere.example/",
        "mailto:me@a.example",
    ]

    result = asyncio.run(add_pages(spider, pages, ledger=ledger()))

    assert (result.new, result.existing) == (2, 0)
    assert result.refused == {"refused-scope": 1, "refused-scheme": 1}
    assert json.loads(invoke("show", "pages", f"{site.url}b", "--json").stdout)["priority"] == 3
    with pytest.raises(UsageError, match="no callback 'missing'"):
        asyncio.run(add_pages(spider, [Request(site.url, "missing")], ledger=ledger()))


def test_add_pages_needs_only_the_name_of_a_spider_with_a_ledger(folder: Path, site: EndlessSite):
    with pytest.raises(UsageError, match="there is no ledger at"):
        asyncio.run(add_pages("pages", [site.url], ledger=ledger()))
    added(site, "a")

    result = asyncio.run(add_pages("pages", "http://elsewhere.example/", ledger=ledger()))

    assert (result.new, result.refused) == (1, {})
    with pytest.raises(SpiderError, match="neither start_urls"):
        asyncio.run(add_pages(Pages(), [site.url], ledger=ledger()))
