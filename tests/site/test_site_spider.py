"""Whole crawls of a site without a spider file, with prepared responses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Report, Settings, add_pages, run_spider
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.site.folder import MarkdownFolder
from crawlcw.site.scope import SiteScope
from crawlcw.site.spider import SiteSpider
from crawlcw.testing import Replay, ReplayDownloader

pytestmark = pytest.mark.quick

HOME = "https://a.example/"
NO_LISTS = [f"{HOME}robots.txt", f"{HOME}llms.txt", f"{HOME}sitemap.xml"]


class Site(SiteSpider):
    name = "site"


def spider(
    start: str = HOME,
    *,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    **options: Any,
) -> Site:
    defaults = {
        "with_lists": True,
        "is_article": False,
        "specification": None,
        "folder": None,
        "main": False,
    }
    scope = SiteScope.of(start, include=include, exclude=exclude)
    return Site(scope, **(defaults | options))


def page(*links: str, title: str = "a page") -> str:
    anchors = "".join(f'<a href="{link}">a</a>' for link in links)
    return f'<html lang="en"><title>{title}</title><h1>{title}</h1>{anchors}</html>'


class Crawled:
    """A crawl of prepared responses, with its requests and items."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report: Report
        self.urls: set[str] = set()
        self.items: list[dict[str, Any]] = []

    async def __call__(
        self, crawl: Site, site: Mapping[str, Any], *, max_depth: int | None = None
    ) -> None:
        web = ReplayDownloader(site)
        self.report = await run_spider(
            crawl,
            ledger=f"sqlite:///{self.path}",
            settings=Settings(obey_robots=False, max_depth=max_depth),
            downloader=web,
        )
        self.urls = set(web.requested_urls)
        ledger = await SqliteLedger.open(self.path, "site")
        self.items = [row.item async for row in ledger.queries.items()]
        await ledger.close()


@pytest.fixture
def crawled(tmp_path: Path) -> Crawled:
    return Crawled(tmp_path / "ledger.db")


async def test_the_pages_of_a_site_are_found_by_its_links(crawled: Crawled):
    site = {
        HOME: page("/1", "/2#part", "/film.mp4", "mailto:me@a.example", "https://b.example/"),
        f"{HOME}1": page("/", "//www.a.example/2", "http://a.example/1"),
        f"{HOME}2": page("https://sub.a.example/"),
    }

    await crawled(spider(), site)

    assert crawled.urls == {*site, *NO_LISTS}
    assert {item["url"] for item in crawled.items} == set(site)
    assert (crawled.report.given_up, crawled.report.drained) == (0, True)


async def test_what_is_recorded_without_further_options(crawled: Crawled):
    html = '<html lang="de"><title> A\n title</title><meta name="description" content="Words">'

    await crawled(spider(with_lists=False), {HOME: html})

    assert crawled.items == [
        {"url": HOME, "title": "A title", "description": "Words", "language": "de"}
    ]
    assert crawled.urls == {HOME}


async def test_sitemaps_and_llms_txt_lead_to_pages_of_the_site(crawled: Crawled):
    xml = "<urlset>{}</urlset>".format
    site = {
        HOME: page(),
        f"{HOME}robots.txt": Replay(
            body=f"Sitemap: {HOME}s.xml\nSitemap: https://b.example/s.xml",
            headers={"Content-Type": "text/plain"},
        ),
        f"{HOME}s.xml": xml(
            f"<url><loc>{HOME}1</loc></url><url><loc>https://b.example/</loc></url>"
        ),
        f"{HOME}llms.txt": Replay(
            body="# A\n- [two](/2): text\n- [three](3.html.md)\n- [b](https://b.example/)",
            headers={"Content-Type": "text/plain"},
        ),
        f"{HOME}1": page(),
        f"{HOME}2": page(),
        f"{HOME}3.html": page(),
    }

    await crawled(spider(), site)

    assert crawled.urls == set(site)
    pages = {HOME, f"{HOME}1", f"{HOME}2", f"{HOME}3.html"}
    assert {item["url"] for item in crawled.items} == pages


async def test_pages_in_place_of_lists_are_no_failures(crawled: Crawled):
    await crawled(spider(), {HOME: page(), **dict.fromkeys(NO_LISTS, page("/lost"))})

    assert crawled.urls == {HOME, *NO_LISTS}
    assert (crawled.report.given_up, len(crawled.items)) == (0, 1)


async def test_the_scope_is_the_path_of_the_start_and_the_globs(crawled: Crawled):
    docs = f"{HOME}docs/"
    site = {
        docs: page("/blog/", "old/1", "new/1", "new/print/1", title="start"),
        f"{docs}new/1": page(),
    }

    await crawled(spider(docs, include=("/docs/new/*",), exclude=("*/print/*",)), site)

    assert crawled.urls == {*site, *NO_LISTS}
    assert [item["url"] for item in crawled.items] == [f"{docs}new/1"]


async def test_the_scope_moves_if_the_start_redirects(crawled: Crawled):
    moved = Replay(status=301, headers={"Location": "https://docs.b.example/en/"})
    home = "https://docs.b.example/"
    site = {
        HOME: moved,
        f"{home}en/": page("/de/", HOME),
        f"{home}de/": page(),
    }

    await crawled(spider(), site)

    lists = {url.replace(HOME, home) for url in NO_LISTS}
    assert crawled.urls == {*site, *lists}
    assert {item["url"] for item in crawled.items} == {f"{home}en/", f"{home}de/"}


async def test_a_page_that_redirects_to_another_site_is_not_followed(crawled: Crawled):
    site = {
        HOME: page("/out", "/up"),
        f"{HOME}out": Replay(status=302, headers={"Location": "https://b.example/"}),
        f"{HOME}up": Replay(status=302, headers={"Location": "http://www.a.example/here"}),
        "http://www.a.example/here": page(),
    }

    await crawled(spider(with_lists=False), site)

    assert crawled.urls == set(site)
    assert {item["url"] for item in crawled.items} == {HOME, f"{HOME}here"}


async def test_the_depth_counts_from_the_page_to_which_the_start_redirects(crawled: Crawled):
    home = "https://www.b.example/"
    site = {
        HOME: Replay(status=301, headers={"Location": home}),
        home: page("/1"),
        f"{home}1": page("/2"),
    }

    await crawled(spider(with_lists=False), site, max_depth=1)

    assert {item["url"] for item in crawled.items} == {home, f"{home}1"}


async def test_a_page_that_refreshes_to_another_site_does_not_lead_there(crawled: Crawled):
    refresh = '<meta http-equiv="refresh" content="{}; url=https://b.example/">'.format
    site = {
        HOME: page("/soon", "/late"),
        f"{HOME}soon": refresh(0),
        f"{HOME}late": refresh(20),
    }

    await crawled(spider(with_lists=False), site)

    assert crawled.urls == set(site)


async def test_added_pages_have_the_home_of_the_site(crawled: Crawled):
    docs = f"{HOME}docs/"
    site = {docs: page(), f"{docs}x/y/z": page("/docs/1"), f"{docs}1": page()}
    crawl = spider(docs, with_lists=False)
    await crawled(crawl, {docs: page()})

    added = [f"{docs}x/y/z", f"{HOME}blog/", "https://b.example/docs/"]
    await add_pages(crawl, added, ledger=f"sqlite:///{crawled.path}")
    await crawled(spider(docs, with_lists=False), {**site, f"{HOME}blog/": page("/blog/1")})

    assert crawled.urls == {f"{docs}x/y/z", f"{docs}1", f"{HOME}blog/"}
    assert {item["url"] for item in crawled.items} == set(site)


async def test_files_of_other_types_are_skipped(crawled: Crawled):
    pdf = Replay(headers={"Content-Type": "application/pdf"}, body=b"%PDF")

    await crawled(spider(with_lists=False), {HOME: page("/paper"), f"{HOME}paper": pdf})

    assert [item["url"] for item in crawled.items] == [HOME]
    assert (crawled.report.given_up, crawled.report.pages) == (0, 2)


async def test_items_by_a_specification_take_the_place_of_the_pages(crawled: Crawled):
    specification = {"name": "Part", "fields": {"title": "h2"}}
    site = {HOME: page("/1"), f"{HOME}1": "<h2>one</h2>"}

    await crawled(spider(specification=specification, with_lists=False), site)

    assert crawled.items == [{"title": "one"}]
    assert crawled.report.items_dropped == {"Part.title is missing: no value from Css('h2')": 1}


async def test_the_article_of_a_page_is_its_item(crawled: Crawled):
    text = "A paragraph that is long enough to be the main content of this page. " * 5
    html = f'<html lang="en"><title>A</title><main><h1>A</h1><p>{text}</p></main></html>'

    await crawled(spider(is_article=True, with_lists=False), {HOME: html})

    (item,) = crawled.items
    fields = ("url", "title", "author", "date", "language", "description", "text", "links")
    assert tuple(item) == (*fields, "images")
    assert (item["title"], item["language"], item["author"]) == ("A", "en", None)
    assert text.strip() in item["text"]


async def test_main_content_and_whole_pages_become_files(crawled: Crawled, tmp_path: Path):
    text = "A paragraph that is long enough to be the main content of this page. " * 5
    html = f"<title>A</title><footer>imprint</footer><main><h1>A</h1><p>{text}</p></main>"
    folders = [MarkdownFolder(tmp_path / "main"), MarkdownFolder(tmp_path / "whole")]

    for folder, main in zip(folders, (True, False), strict=True):
        crawled.path = folder.path / "ledger.db"
        await crawled(spider(folder=folder, main=main, with_lists=False), {HOME: html})

    main, whole = ((folder.path / "a.example/index.md").read_text() for folder in folders)
    assert text.strip() in main
    assert ("imprint" in main, "imprint" in whole) == (False, True)


async def test_each_page_becomes_a_file_and_an_item(crawled: Crawled, tmp_path: Path):
    folder = MarkdownFolder(tmp_path / "out")
    site = {HOME: page("/b", title="A"), f"{HOME}b": page(title="B")}

    await crawled(spider(folder=folder, with_lists=False), site)

    files = {path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*.md")}
    assert files == {"a.example/index.md", "a.example/b.md"} == {i["file"] for i in crawled.items}
    item = next(item for item in crawled.items if item["url"] == f"{HOME}b")
    text = (folder.path / "a.example" / "b.md").read_text()
    assert text.startswith(f'---\nurl: "{HOME}b"\ntitle: "B"\ndate: null\nlanguage: "en"\nhash: "')
    assert text.endswith(f"---\n\n{item['markdown']}")
    assert "# B" in item["markdown"]


async def test_a_full_disk_ends_the_crawl_and_loses_no_page(crawled: Crawled, tmp_path: Path):
    folder = MarkdownFolder(tmp_path / "out")
    site = {HOME: page("/b"), f"{HOME}b": page()}
    obstacle = folder.path / "a.example"
    obstacle.write_text("in the way")

    await crawled(spider(folder=folder, with_lists=False), site)
    first = crawled.report
    obstacle.unlink()
    await crawled(spider(folder=folder, with_lists=False), site)

    assert (first.finish_reason, first.pages, first.given_up) == ("files-unwritable", 0, 0)
    assert (crawled.report.finish_reason, crawled.report.pages) == ("drained", 2)
    assert len(list(folder.path.rglob("*.md"))) == 2
