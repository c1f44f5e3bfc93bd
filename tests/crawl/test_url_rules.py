"""The setting `url_rules`: tracking parameters and canonical links, on a real server."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from crawlcw import Report, Response, Settings, SettingsError, Spider
from crawlcw.assembly import run_spider
from crawlcw.model.task import task_id
from crawlcw.model.tracking_parameters import without_tracking
from crawlcw.model.urls import locate
from tests.support import loopback
from tests.support.commands import invoke
from tests.support.site_threads import in_thread

LEDGER = "sqlite:///crawl.db"
SPIDER = """
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    start_urls = ["{base}/?utm_source=start"]
    settings = Settings(url_rules="{rules}")
"""


class Site:
    """A site that serves `pages` by path and query, and counts the requests."""

    def __init__(self, pages: dict[str, str]) -> None:
        self.pages = pages
        self.base = ""
        self.requests: Counter[str] = Counter()
        self.all_requested = asyncio.Event()
        self.together: set[str] = set()  #: pages whose first answers wait for one another

    async def page(self, request: web.Request) -> web.Response:
        if request.path == "/robots.txt":
            return web.Response(status=404)
        self.requests[request.path_qs] += 1
        if request.path in self.together:
            if not self.together - self.requests.keys():
                self.all_requested.set()
            await self.all_requested.wait()
        text = self.pages.get(request.path_qs)
        if text is None:
            return web.Response(status=404)
        if text.startswith("/"):
            return web.Response(status=301, headers={"Location": text})
        return web.Response(text=text, content_type="text/html")


class Pages(Spider):
    name = "pages"

    def parse(self, response: Response) -> Any:
        yield {"url": response.url}
        yield from response.follow_all("a")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spiders").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def served(pages: dict[str, str]) -> Iterator[Site]:
    site, app = Site(pages), web.Application()
    app.router.add_get("/{path:.*}", site.page)
    with in_thread(loopback.served(app)) as site.base:
        yield site


def crawled(site: Site, *, start: str = "/", rules: str, concurrency: int = 1) -> Report:
    Path("spiders/pages.py").write_text(SPIDER.format(base=site.base, rules=rules))
    spider = Pages(start_urls=[f"{site.base}{start}"])
    settings = Settings(url_rules=rules, concurrency=concurrency)
    return asyncio.run(run_spider(spider, ledger=LEDGER, settings=settings))


def links(*targets: str) -> str:
    return "".join(f'<a href="{target}">x</a>' for target in targets)


def canonical(target: str) -> str:
    return f'<link rel="canonical" href="{target}"><p>'


def shown(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        invoke("show", "pages", url, "--json", "--ledger", LEDGER).stdout
    )
    return found


def test_addresses_that_differ_in_tracking_parameters_are_one_page():
    with served(
        {
            "/": links("/a?utm_source=x", "/a?fbclid=1&utm_medium=y#part", "/b?id=2&gclid=3"),
            "/a": links("/a?utm_source=itself", "/moved"),
            "/b?id=2": links("/?utm_campaign=home"),
            "/moved": "/b?utm_source=site&id=2",
        }
    ) as site:
        report = crawled(site, start="/?utm_source=start", rules="tracking")

        assert site.requests == Counter(["/", "/a", "/b?id=2", "/moved"])
        assert (report.pages, report.redirects, report.finish_reason) == (3, 1, "drained")
        assert shown(f"{site.base}/b?gclid=other&id=2")["url"] == f"{site.base}/b?id=2"
        added = json.loads(
            invoke(
                "add", "pages", f"{site.base}/a?utm_source=mail", "--json", "--ledger", LEDGER
            ).stdout
        )
        assert (added["new"], added["existing"]) == (0, 1)
        assert invoke("doctor", "pages", "--ledger", LEDGER).returncode == 0


def test_a_page_that_redirects_to_itself_with_a_tracking_parameter_is_parsed():
    with served({"/": "/?utm_source=site", "/?utm_source=site": "<p>home"}) as site:
        report = crawled(site, rules="tracking")

        assert (report.pages, report.items, report.redirects) == (1, 1, 0)


def test_pages_belong_to_their_canonical_url():
    with served(
        {
            "/": links("/a?colour=red", "/a?colour=blue", "/own", "/one"),
            "/a": canonical("/a"),
            "/a?colour=red": canonical("/a") + links("/a"),
            "/a?colour=blue": canonical("/a"),
            "/own": canonical("/own"),
            "/one": canonical("/two") + links("/two"),
            "/two": canonical("/one"),
        }
    ) as site:
        report = crawled(site, rules="canonical")

        assert (report.pages, report.items, report.redirects) == (4, 4, 3)
        (item,) = shown(f"{site.base}/a")["items"]
        assert item["url"].startswith(f"{site.base}/a")
        assert shown(f"{site.base}/a?colour=blue")["reason"] == "redirect"
        assert invoke("doctor", "pages", "--ledger", LEDGER).returncode == 0


def test_two_pages_that_name_each_other_are_one_page_even_at_the_same_time():
    pages = {"/": links("/a", "/b"), "/a": canonical("/b"), "/b": canonical("/a")}
    with served(pages) as site:
        site.together = {"/a", "/b"}
        report = crawled(site, rules="canonical", concurrency=2)

        assert (report.pages, report.redirects, report.finish_reason) == (2, 1, "drained")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_page_whose_canonical_url_redirects_to_it_is_parsed(is_first: bool):
    """The order of the ids of two tasks decides which of them waits for the other."""
    with served({}) as site:
        paths = sorted(("/a", "/b"), key=lambda path: task_id(locate(f"{site.base}{path}")))
        page, other = paths if is_first else reversed(paths)
        site.pages = {"/": links(page, other), page: canonical(other), other: page}
        site.together = {page, other}
        report = crawled(site, rules="canonical", concurrency=2)

        assert (report.items, report.redirects) == (2, 1)


def test_a_canonical_url_of_another_host_or_of_a_failed_page_does_not_count():
    with served(
        {
            "/": links("/failed", "/a"),
            "/a": canonical("http://elsewhere.example/a"),
            "/b": canonical("/failed"),
        }
    ) as site:
        first = crawled(site, rules="canonical")
        second = crawled(site, start="/b", rules="canonical")

        assert (first.pages, first.redirects, first.given_up) == (2, 0, 1)
        assert (second.pages, second.redirects) == (1, 0)


def test_without_the_rules_each_address_is_a_page():
    with served(
        {"/": links("/a?utm_source=x"), "/a?utm_source=x": canonical("/a") + links("/a"), "/a": "a"}
    ) as site:
        report = crawled(site, rules="none")

        assert (report.pages, report.redirects) == (3, 0)


def test_an_unknown_rule_is_refused():
    with pytest.raises(SettingsError, match="'utm' is not one of tracking, canonical"):
        Settings(url_rules="utm")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a.example/", "http://a.example/"),
        ("http://a.example/?UTM_Source=x#f", "http://a.example/#f"),
        ("http://a.example/?b=%20&_ga=1&b&a=?", "http://a.example/?b=%20&b&a=?"),
        ("http://a.example/?utm", "http://a.example/?utm"),
        ("http://a.example/#?gclid=1", "http://a.example/#?gclid=1"),
        ("http://a.example/?", "http://a.example/?"),
    ],
)
def test_only_tracking_parameters_are_removed(url: str, expected: str):
    assert without_tracking(url) == expected
