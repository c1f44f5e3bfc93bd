"""Crawls that begin with sitemaps: the pages found, and the pages visited again by the next run."""

import gzip
import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crawlcw import (
    Request,
    Settings,
    SitemapSpider,
    Spider,
    open_ledger,
    run_spider,
    url_list,
)
from crawlcw.api import sitemap_spider
from crawlcw.crawl.callbacks import SLICE
from crawlcw.crawl.committer import Committer
from crawlcw.errors import SpiderError
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Status
from crawlcw.testing import Replay, ReplayDownloader

SITE = "https://a.example"
LONG_AGO = "2001-01-01"


def later(**more: int) -> str:
    return (datetime.now(UTC) + timedelta(**more)).isoformat()


def urlset(*paths: str, lastmod: str = LONG_AGO) -> str:
    entries = (f"<url><loc>{SITE}{path}</loc><lastmod>{lastmod}</lastmod></url>" for path in paths)
    return f"<urlset>{''.join(entries)}</urlset>"


def index(*paths: str) -> str:
    entries = (f"<sitemap><loc>{SITE}{path}</loc></sitemap>" for path in paths)
    return f"<sitemapindex>{''.join(entries)}</sitemapindex>"


class Docs(SitemapSpider):
    name = "docs"
    sitemap_urls = [f"{SITE}/sitemap.xml"]
    settings = Settings(obey_robots=False, per_host_concurrency=100)

    def parse(self, response):
        yield {"path": response.url.removeprefix(SITE)}


class Crawls:
    """Crawls on one ledger, with the requests of each."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        self.dropped: dict[str, int] = {}
        self.failures: dict[str, int] = {}

    async def asked(self, spider: Spider, pages: dict[str, str | bytes | Replay]) -> list[str]:
        """Crawl a site of these pages; return the requested paths, sorted."""
        downloader = ReplayDownloader({f"{SITE}{path}": page for path, page in pages.items()})
        report = await run_spider(spider, ledger=self.ledger_url, downloader=downloader)
        assert report.finish_reason == "drained"
        self.dropped, self.failures = report.links_dropped, report.failures
        return sorted(url.removeprefix(SITE) for url in downloader.requested_urls)

    async def items(self, spider: Spider) -> list[str]:
        ledger = await open_ledger(self.ledger_url, spider.name)
        try:
            return sorted([row.item["path"] async for row in ledger.queries.items()])
        finally:
            await ledger.close()


@pytest.fixture
def crawls(ledger_url: str) -> Crawls:
    return Crawls(ledger_url)


async def test_the_next_run_takes_anew_what_is_newer_than_its_last_visit(crawls: Crawls):
    pages = {
        "/sitemap.xml": index("/a.xml.gz", "/sitemap.xml"),
        "/a.xml.gz": gzip.compress(urlset("/1", "/2").encode()),
        "/1": "one",
        "/2": "two",
        "/3": "three",
    }
    sitemaps = ["/a.xml.gz", "/sitemap.xml"]
    assert await crawls.asked(Docs(), pages) == ["/1", "/2", *sitemaps]

    assert await crawls.asked(Docs(), pages) == sitemaps

    changed = urlset("/1", "/3") + urlset("/2", lastmod=later(minutes=-1))
    changed = changed.replace("</urlset><urlset>", "")
    assert await crawls.asked(Docs(), pages | {"/a.xml.gz": changed}) == ["/3", *sitemaps]

    # A page with a future change date is visited once a run.
    changed = changed.replace("/2</loc>", "/2</loc><lastmod>2999-01-01</lastmod>")
    changed += "<!-- -->"
    for _ in range(2):
        twice = {"/sitemap.xml": index("/a.xml.gz", "/b.xml"), "/b.xml": changed}
        found = await crawls.asked(Docs(), pages | twice | {"/a.xml.gz": changed})
        assert found == ["/2", "/a.xml.gz", "/b.xml", "/sitemap.xml"]
    assert await crawls.items(Docs()) == ["/1", "/2", "/3"]


async def test_a_page_that_failed_is_tried_again_when_it_has_changed(crawls: Crawls):
    pages = {"/sitemap.xml": urlset("/1"), "/2": "two"}
    assert await crawls.asked(Docs(), pages) == ["/1", "/sitemap.xml"]
    assert crawls.failures == {"http-status": 1}

    assert await crawls.asked(Docs(), pages) == ["/sitemap.xml"]
    pages |= {"/sitemap.xml": urlset("/1", lastmod="2999-01-01"), "/1": "one"}
    assert await crawls.asked(Docs(), pages) == ["/1", "/sitemap.xml"]
    assert await crawls.items(Docs()) == ["/1"]


async def test_a_run_that_was_not_drained_goes_on_and_reads_no_sitemap_again(crawls: Crawls):
    class Few(Docs):
        settings = replace(Docs.settings, max_pages=2, concurrency=1)

    pages = {"/sitemap.xml": urlset("/1", "/2", "/3", lastmod="2999-01-01")}
    pages |= {"/1": "one", "/2": "two", "/3": "three"}
    downloader = ReplayDownloader({f"{SITE}{path}": page for path, page in pages.items()})
    await run_spider(Few(), ledger=crawls.ledger_url, downloader=downloader)
    asked = [url.removeprefix(SITE) for url in downloader.requested_urls]

    rest = await crawls.asked(Docs(), pages)

    assert asked[0] == "/sitemap.xml"
    assert sorted([*asked[1:], *rest]) == ["/1", "/2", "/3"]
    assert await crawls.asked(Docs(), pages) == ["/1", "/2", "/3", "/sitemap.xml"]


class OfRobots(Docs):
    sitemap_urls = ()
    start_urls = [f"{SITE}/1"]


async def test_without_sitemaps_those_of_robots_txt_are_read(crawls: Crawls):
    robots = (
        f"User-agent: *\nDisallow: /\nSitemap: {SITE}/s.xml\nSitemap: https://b.example/s.xml\n"
    )
    pages = {"/robots.txt": robots, "/s.xml": urlset("/2"), "/1": "one", "/2": "two"}

    assert await crawls.asked(OfRobots(), pages) == ["/1", "/2", "/robots.txt", "/s.xml"]
    assert crawls.dropped == {"refused-scope": 1}


async def test_where_there_is_no_robots_txt_the_usual_sitemap_is_asked_for(crawls: Crawls):
    pages = {"/sitemap.xml": urlset("/2"), "/1": "one", "/2": "two"}

    assert await crawls.asked(OfRobots(), pages) == ["/1", "/2", "/robots.txt", "/sitemap.xml"]


class Chosen(Docs):
    sitemap_rules = [(r"/book/", "parse_book"), (r"/page/", "parse")]
    sitemap_follow = [r"/good"]
    sitemap_alternate_links = True

    def sitemap_filter(self, entries):
        for entry in entries:
            if "draft" not in entry.url:
                yield entry

    def parse_book(self, response):
        yield {"path": f"book {response.url.removeprefix(SITE)}"}


async def test_rules_choose_the_callback_and_the_filter_what_is_wanted(crawls: Crawls):
    alternate = "<x:link rel='alternate' hreflang='de' href='/book/2'/>"
    listed = urlset("/book/1", "/page/1", "/other", "/page/draft")
    pages = {
        "/sitemap.xml": index("/good.xml", "/bad.xml"),
        "/good.xml": listed.replace("</url>", f"{alternate}</url>", 1),
        **dict.fromkeys(("/book/1", "/book/2", "/page/1"), "page"),
    }

    found = await crawls.asked(Chosen(), pages)

    assert found == ["/book/1", "/book/2", "/good.xml", "/page/1", "/sitemap.xml"]
    assert await crawls.items(Chosen()) == ["/page/1", "book /book/1", "book /book/2"]


async def test_what_is_beyond_the_bounds_is_dropped_and_counted(
    crawls: Crawls, monkeypatch: pytest.MonkeyPatch
):
    """HOSTILE 3.18: an endless chain of indexes, too many URLs, links of another site."""
    monkeypatch.setattr(sitemap_spider, "MAX_ENTRIES", 3)
    chain = {f"/{n}.xml": index(f"/{n + 1}.xml", f"/{n}.xml", "/sitemap.xml") for n in range(9)}
    many = urlset("/1", "/2", "/3", "/4", "/5").replace(f"{SITE}/2", "https://b.example/2")
    pages = {"/sitemap.xml": index("/0.xml", "/many.xml"), "/many.xml": many, **chain}
    pages |= dict.fromkeys(("/1", "/3"), "page")

    found = await crawls.asked(Docs(), pages)

    assert found == ["/0.xml", "/1", "/1.xml", "/2.xml", "/3", "/many.xml", "/sitemap.xml"]
    assert crawls.dropped == {
        "max-urls-per-sitemap": 2,
        "refused-scope": 1,
        "max-sitemap-nesting": 3,
    }


async def test_of_a_broken_sitemap_the_links_before_the_fault_are_followed(crawls: Crawls):
    """HOSTILE 3.16, HOSTILE 3.17."""
    bomb = "<!DOCTYPE x [<!ENTITY a 'b'>]><urlset><url><loc>/9</loc></url></urlset>"
    pages = {
        "/sitemap.xml": index("/broken.xml", "/bomb.xml", "/none.xml"),
        "/broken.xml": urlset("/1", "/2")[:-20],
        "/bomb.xml": bomb,
        "/none.xml": "<html>404</html>",
        "/1": "one",
    }

    found = await crawls.asked(Docs(), pages)

    assert found == ["/1", "/bomb.xml", "/broken.xml", "/none.xml", "/sitemap.xml"]
    assert crawls.failures == {"xml-unsafe": 1, "parse-error": 2}


class Lists(Spider):
    name = "lists"
    start_urls = [f"{SITE}/list"]
    settings = Settings(obey_robots=False, max_links_per_page=10, max_pages=1)
    number = 2 * SLICE + 7

    async def start(self):
        yield Request(self.start_urls[0], self.parse_list, priority=9)

    @url_list
    def parse_list(self, response):
        for number in range(self.number):
            yield Request(f"{SITE}/{number}")
        yield {"path": "after all links"}


class AsyncLists(Lists):
    @url_list
    async def parse_list(self, response):
        for each in Lists.parse_list(self, response):
            yield each


class Raising(Lists):
    @url_list
    def parse_list(self, response):
        yield from itertools.islice(super().parse_list(response), self.number)
        raise ValueError("no more")


@pytest.mark.parametrize("kind", [Lists, AsyncLists, Raising])
async def test_the_links_of_a_list_of_urls_are_not_bounded_and_written_in_slices(
    kind: type[Lists], crawls: Crawls, monkeypatch: pytest.MonkeyPatch
):
    written = []
    write = Committer.write_links

    async def counted(self, tasks, too_deep):
        written.append(len(tasks))
        await write(self, tasks, too_deep)

    monkeypatch.setattr(Committer, "write_links", counted)
    answers = {f"{SITE}/list": "list", f"{SITE}/0": "page"}

    report = await run_spider(
        kind(),
        ledger=crawls.ledger_url,
        settings=Settings(backoff_base="0.1s"),
        downloader=ReplayDownloader(answers),
    )

    # The last slice is committed with the outcome of the page, if that is a success.
    assert written == [SLICE, SLICE, *([7] if kind is Raising else [])]
    ledger = await open_ledger(crawls.ledger_url, "lists")
    counts = await ledger.queries.counts()
    depths = {record.task.depth for record in await ledger.queries.find(TaskFilter(), limit=50)}
    await ledger.close()
    # Requests yielded before an error stay, and none is deeper than the list.
    assert counts.total == 1 + kind.number
    assert depths == {0}
    assert counts[Status.IGNORED] >= (kind is Raising)
    assert report.links_dropped == {}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"sitemap_urls": ()}, "has neither sitemap_urls nor start_urls"),
        ({"sitemap_urls": "https://a.example/"}, "sitemap_urls is a single text"),
        (
            {"sitemap_urls": ["mailto:x"]},
            "sitemap_urls: 'mailto:x' is not a URL that crawlcw can fetch",
        ),
        ({"sitemap_rules": [("(", "parse")]}, r"sitemap_rules: '\(': "),
        ({"sitemap_rules": [("", "parse_none")]}, "has no callback 'parse_none'"),
        ({"sitemap_rules": ["parse"]}, "write pairs of a regular expression and a callback"),
        ({"sitemap_follow": ["("]}, r"sitemap_follow: '\(': "),
    ],
)
async def test_a_mistake_in_a_spider_is_one_sentence(attributes, message: str, tmp_path):
    spider = type("Wrong", (Docs,), attributes)()

    with pytest.raises(SpiderError, match=message):
        await run_spider(spider, ledger=f"sqlite:///{tmp_path}/x.db")
