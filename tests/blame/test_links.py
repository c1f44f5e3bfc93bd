"""Links never fail their page, are not lost for their depth, and `start` is not repeated."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.blame.code_site import Site, crawled, links, running, spider
from tests.support.crawl_process import wait_until
from tests.support.programs import run_to_end

pytestmark = pytest.mark.thorough


@pytest.fixture
def ledger(either_url: str) -> str:
    """The URL of a new ledger."""
    return either_url


def crawlcw(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "crawlcw", *arguments]
    return run_to_end(command, folder=folder, check=True).stdout


def stats(folder: Path, ledger: str) -> dict[str, Any]:
    found = json.loads(crawlcw(folder, "stats", "pages", "--ledger", ledger, "--json"))
    assert isinstance(found, dict)
    return found


# --- links that cannot be fetched

FOLLOWING = """
    def parse(self, response):
        yield {"url": response.url}
        for a in response.css("a"):
            yield response.follow(a)
        yield response.follow(response.css_first("a.next"))
        yield Request("")
"""


@pytest.mark.representative("sqlite")
def test_a_page_with_links_that_cannot_be_fetched_finishes_in_one_fetch(
    tmp_path: Path, ledger: str
):
    bad = ["mailto:me@example.com", "javascript:void(0)", "tel:1", "data:,x", "http://["]
    home = links([*bad, "/1", "/2"]) + "<a name=x>none</a>"

    with Site({"/": home}) as site:
        code, report, _ = crawled(tmp_path, spider(site.url, FOLLOWING), ledger, "-o", "out.jsonl")

    assert (code, report["finish_reason"]) == (0, "drained")
    assert site.hits == {"/robots.txt": 1, "/": 1, "/1": 1, "/2": 1}
    assert report["failures"] == {}
    items = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {item["url"] for item in items} == {f"{site.url}{path}" for path in ("", "1", "2")}
    found = stats(tmp_path, ledger)
    assert found["links_dropped"]["refused-scheme"] == 4 + 3
    assert found["link_examples"]["refused-scheme"] == bad[:3]
    assert found["link_examples"]["url-invalid"] == ["http://[", "<a>: no link", "no link"]
    shown = crawlcw(tmp_path, "stats", "pages", "--ledger", ledger)
    assert "  refused-scheme: mailto:me@example.com\n" in shown


# --- depth

BOOKS = 8
CATALOGUE = """
    def parse(self, response):
        for a in response.css("a.book"):
            yield response.follow(a, self.parse_book)
        yield from response.follow_all("a.next")

    def parse_book(self, response):
        yield {"url": response.url}
"""


def shop(pages: int) -> dict[str, str]:
    """A catalogue of pages in a chain, with a few books on each."""

    def page(number: int) -> str:
        books = "".join(f'<a class="book" href="/book/{number}/{n}">b</a>' for n in range(BOOKS))
        following = f'<a class="next" href="/page/{number + 1}">next</a>'
        return books + following * (number + 1 < pages)

    return {"/": page(0)} | {f"/page/{n}": page(n) for n in range(1, pages)}


def test_no_book_is_lost_for_its_depth(tmp_path: Path, ledger: str):
    with Site(shop(50)) as site:
        code, report, _ = crawled(tmp_path, spider(site.url, CATALOGUE), ledger)

    assert (code, report["items"], report["links_dropped"]) == (0, 50 * BOOKS, {})


def test_links_refused_for_depth_come_back_under_a_higher_limit(tmp_path: Path, ledger: str):
    with Site(shop(30)) as site:
        code = spider(site.url, CATALOGUE)
        first = crawled(tmp_path, code, ledger, "-s", "max_depth=20")[1]
        kept = stats(tmp_path, ledger)
        again = crawled(tmp_path, code, ledger, "-s", "max_depth=20")[1]
        deeper = crawled(tmp_path, code, ledger, "-s", "max_depth=25")[1]
        last = crawled(tmp_path, code, ledger)[1]

    # The books of the last page that is followed, and the next page.
    assert first["items"] == 20 * BOOKS
    assert first["links_dropped"] == {"refused-depth": BOOKS + 1}
    assert kept["reasons"] == {"refused-depth": BOOKS + 1}
    assert kept["counts"]["ignored"] == BOOKS + 1
    assert kept["next_due"] is None
    assert (again["pages"], again["items"]) == (0, 0)
    assert deeper["items"] == 5 * BOOKS
    assert last["items"] == 5 * BOOKS
    assert last["links_dropped"] == {}
    assert stats(tmp_path, ledger)["counts"]["ignored"] == 0
    assert set(site.hits.values()) == {1, site.hits["/robots.txt"]}


# --- seeding

MANY = 600
STARTING = """
    async def start(self):
        print("start() runs", flush=True)
        for n in range({number}):
            yield Request(f"{url}{{n}}")
        {then}

    def parse(self, response):
        yield {{"n": int(response.url.rpartition("/")[2])}}
"""


def starting(site: Site, *, number: int = MANY, then: str = "pass") -> str:
    return spider(site.url, STARTING.format(url=site.url, number=number, then=then))


def runs_of_start(folder: Path, code: str, ledger: str, *options: str) -> int:
    """Continue a crawl for a few pages; return the number of runs of `start`."""
    (folder / "spider.py").write_text(code)
    command = ("run", "spider.py", "--ledger", ledger, "--quiet", "--max-pages", "5", *options)
    return crawlcw(folder, *command).count("start() runs")


def test_a_seeding_that_is_finished_is_not_repeated_unless_the_spider_changes(
    tmp_path: Path, ledger: str
):
    with Site(0) as site:
        code = starting(site)

        assert runs_of_start(tmp_path, code, ledger) == 1
        assert runs_of_start(tmp_path, code, ledger, "-s", "concurrency=3") == 0
        assert runs_of_start(tmp_path, code, ledger, "-a", "region=north") == 1
        assert runs_of_start(tmp_path, code, ledger, "-a", "region=north") == 0
        assert runs_of_start(tmp_path, starting(site, number=MANY + 1), ledger) == 1
        assert stats(tmp_path, ledger)["total"] == MANY + 1
        again = code.replace("async def start(", "start_again = True\n    async def start(")
        assert runs_of_start(tmp_path, again, ledger) == 1
        assert runs_of_start(tmp_path, again, ledger) == 1


def test_a_crawl_that_is_killed_while_it_seeds_seeds_again(tmp_path: Path, ledger: str):
    stuck = "import asyncio, os; await asyncio.sleep(0 if os.path.exists('go') else 60)"
    with Site(0) as site:
        code = starting(site, then=stuck)
        with running(tmp_path, code, ledger, "--max-pages", "100000") as killed:
            wait_until(lambda: site.hits.total() > 20)
            killed.process.kill()
            killed.process.wait()

        (tmp_path / "go").touch()
        assert runs_of_start(tmp_path, code, ledger) == 1
        assert runs_of_start(tmp_path, code, ledger) == 0

    assert stats(tmp_path, ledger)["total"] == MANY
