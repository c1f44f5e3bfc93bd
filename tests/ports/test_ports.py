"""Ports of common Scrapy spiders, not longer than the originals, each run on a local site.

The tests set only `start_urls` of each spider, since the port of the site changes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from crawlcw import DropItem, Request, Rule, Settings, Spider, run_spider
from crawlcw.ledger_opening import open_ledger
from tests.ports.site import Page, served
from tests.support import exit_site
from tests.support.proxy_servers import ProxyServer, proxies


async def crawled(
    kind: type[Spider], pages: dict[str, Page], tmp_path: Path, *, at: str = "/", **site: str
) -> list[dict[str, Any]]:
    """Return the items of a whole crawl, sorted."""
    async with served(pages, **site) as home:
        return await items_of(kind(start_urls=[home + at]), tmp_path / "ports.db")


async def items_of(spider: Spider, path: Path) -> list[dict[str, Any]]:
    """Return the items of a whole crawl into the ledger at *path*, sorted."""
    url = f"sqlite:///{path}"
    settings = replace(spider.settings, delay="0s", concurrency=4)
    report = await run_spider(spider, ledger=url, settings=settings)
    ledger = await open_ledger(url, spider.name)
    items = [row.item async for row in ledger.queries.items()]
    await ledger.close()
    assert report.drained
    assert report.failures == {}
    return sorted(items, key=repr)


class Quotes(Spider):
    """The spider of Scrapy's tutorial."""

    name = "quotes"

    def parse(self, response):
        for quote in response.selector.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").get(),
                "author": quote.css("small.author::text").get(),
                "tags": quote.css("div.tags a.tag::text").getall(),
            }
        yield from response.follow_all("li.next a")


def quote(n: int) -> str:
    return (
        f"<div class=quote><span class=text>text {n}</span><small class=author>author {n}</small>"
        f"<div class=tags><a class=tag href=/tag/{n}>tag {n}</a></div></div>"
    )


async def test_quotes(tmp_path: Path):
    pages: dict[str, Page] = {
        "/": quote(1) + quote(2) + "<li class=next><a href=/page/2/>Next</a></li>",
        "/page/2/": quote(3),
    }

    assert await crawled(Quotes, pages, tmp_path) == [
        {"text": f"text {n}", "author": f"author {n}", "tags": [f"tag {n}"]} for n in (1, 2, 3)
    ]


class Books(Spider):
    """CrawlSpider with rules, and a pipeline that drops."""

    name = "books"
    rules = [
        Rule(restrict="li.next"),
        Rule(allow=r"/catalogue/", restrict="article", callback="parse_book"),
    ]

    def parse_book(self, response):
        yield {"title": response.css_first("h1").text(), "price": response.css_first("p").text()}

    def item(self, item, response):
        if item["price"] == "":
            raise DropItem("no price")
        return {**item, "price": float(item["price"].lstrip("£"))}


async def test_books_by_rules_and_a_pipeline(tmp_path: Path):
    book = "<article><a href=/catalogue/{n}>{n}</a><a href=/catalogue/{n}.jpg>cover</a></article>"
    pages: dict[str, Page] = {
        "/": book.format(n=1) + "<li class=next><a href=/2>next</a></li><a href=/about>no</a>",
        "/2": book.format(n=2) + book.format(n=3),
        "/catalogue/1": "<h1>One</h1><p>£51.77</p>",
        "/catalogue/2": "<h1>Two</h1><p>£5.00</p>",
        "/catalogue/3": "<h1>Three</h1><p></p>",
    }

    assert await crawled(Books, pages, tmp_path) == [
        {"title": "One", "price": 51.77},
        {"title": "Two", "price": 5.0},
    ]


class Table(Spider):
    """XPath, for selections that CSS does not have."""

    name = "table"

    def parse(self, response):
        for row in response.xpath("//tr[td]"):
            yield {
                "name": row.xpath("td[1]/text()").get(),
                "size": row.xpath("td[contains(., 'kB')]/text()").re_first(r"\d+"),
            }
        yield from response.follow_all(response.xpath("//a[text()='More']"))


async def test_xpath(tmp_path: Path):
    pages: dict[str, Page] = {
        "/": "<table><tr><th>n</th></tr><tr><td>a</td><td>x</td><td>7 kB</td></tr></table>"
        "<a href=/less>Less</a><a href=/more>More</a>",
        "/more": "<table><tr><td>b</td><td>9 kB</td></tr></table>",
    }

    items = await crawled(Table, pages, tmp_path)

    assert items == [{"name": "a", "size": "7"}, {"name": "b", "size": "9"}]


class Login(Spider):
    """FormRequest.from_response, with the CSRF token of the page."""

    name = "login"
    password = "p&w"  # of the local site

    def parse(self, response):
        yield response.form("form", self.parse_home).submit(user="u", password=self.password)

    def parse_home(self, response):
        yield {"hello": response.css_first("h1").text()}


async def test_a_login_form_with_a_csrf_token(tmp_path: Path):
    form = (
        "<form action=/login method=post><input type=hidden name=csrf value=t0k3n><input name=user>"
    )

    items = await crawled(Login, {"/in": form}, tmp_path, at="/in", password=Login.password)

    assert items == [{"hello": "Hello u"}]


class Api(Spider):
    """JsonRequest, page after page."""

    name = "api"

    async def start(self):
        yield Request(self.start_urls[0], json={"page": 1})

    def parse(self, response):
        data = response.json()
        yield from data["quotes"]
        if data["has_next"]:
            yield Request(response.url, json={"page": data["page"] + 1})


async def test_json_by_post(tmp_path: Path):
    items = await crawled(Api, {}, tmp_path, at="/api")

    assert items == [{"text": f"quote {page}.{n}"} for page in (1, 2, 3) for n in (0, 1)]


class Charset(Spider):
    """response.replace(encoding=...), for a site with a wrong charset."""

    name = "charset"

    def parse(self, response):
        response.encoding = "koi8-r"
        yield {"title": response.css_first("h1").text(), "about": response.meta["description"]}


async def test_a_charset_that_the_server_gets_wrong(tmp_path: Path):
    body = "<meta name=description content=заварка><h1>чай</h1>".encode("koi8-r")

    items = await crawled(Charset, {"/": (body, "text/html; charset=windows-1251")}, tmp_path)

    assert items == [{"title": "чай", "about": "заварка"}]


class Products(Spider):
    """JSON-LD, as extruct gives it."""

    name = "products"

    def parse(self, response):
        for product in response.jsonld("Product"):
            yield {"name": product["name"], "price": product["offers"]["price"]}


async def test_json_ld(tmp_path: Path):
    script = '{"@graph": [{"@type": "Product", "name": "Tea", "offers": {"price": "3"}}]}'
    pages: dict[str, Page] = {"/": f'<script type="application/ld+json">{script}</script>'}

    assert await crawled(Products, pages, tmp_path) == [{"name": "Tea", "price": "3"}]


class Rotating(Spider):
    """scrapy-rotating-proxies: ROTATING_PROXY_LIST, and response_is_ban of the spider."""

    name = "rotating"

    def banned_when(self, response):
        return response.status == 403 or "captcha" in response.text

    def parse(self, response):
        yield {"page": response.url.rpartition("/")[2]}
        yield from response.follow_all("a")


async def test_rotating_proxies(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/ports.db"
    servers = [ProxyServer("http", f"127.0.0.{n}") for n in (2, 3, 4)]
    with exit_site.served(15) as site, proxies(*servers):
        site.banned = {"127.0.0.3"}
        servers[2].die()
        settings = Settings(proxies=[each.url for each in servers])

        report = await run_spider(Rotating(start_urls=[site.start]), ledger=url, settings=settings)

    ledger = await open_ledger(url, Rotating.name)
    items = [row.item async for row in ledger.queries.items()]
    await ledger.close()
    assert report.drained
    assert report.failures == {}
    assert sorted(int(item["page"]) for item in items) == list(range(15))


class Cached(Spider):
    """HTTPCACHE_ENABLED, during development."""

    name = "cached"
    settings = Settings(cache="dev")

    def parse(self, response):
        yield {"title": response.css_first("h1").text()}
        yield from response.follow_all("a")


async def test_a_development_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pages: dict[str, Page] = {"/": "<h1>One</h1><a href=/2>2</a>", "/2": "<h1>Two</h1>"}
    async with served(pages) as home:
        first = await items_of(Cached(start_urls=[home + "/"]), tmp_path / "first.db")

    # The site is closed.
    again = await items_of(Cached(start_urls=[home + "/"]), tmp_path / "again.db")

    assert again == first == [{"title": "One"}, {"title": "Two"}]


class Warcs(Spider):
    """scrapy-warcio's: every page, with its request, in WARC files."""

    name = "archive"
    settings = Settings(keep_bodies=True)

    def parse(self, response):
        yield from response.follow_all("a")


async def test_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pages: dict[str, Page] = {"/": "<a href=/2>2</a>", "/2": ("ü".encode(), "text/plain")}

    assert await crawled(Warcs, pages, tmp_path) == []

    (path,) = (tmp_path / ".crawlcw" / "warc" / "archive").iterdir()
    with path.open("rb") as stream:
        answers = {
            record.rec_headers["WARC-Target-URI"].rpartition(":")[2].partition("/")[2]: (
                record.content_stream().read()
            )
            for record in ArchiveIterator(stream, check_digests="raise")
            if record.rec_type == "response"
        }
    assert answers == {"": b"<a href=/2>2</a>", "2": "ü".encode()}
