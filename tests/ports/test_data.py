"""Ports of spiders with different items: each on a local site that records its requests."""

import csv
import gzip
import json
from pathlib import Path

from aiohttp import web

from crawlcw import DropItem, Spider
from tests.ports.recorded import Page, crawled, ledger_of, recorded
from tests.support.commands import invoke


class News(Spider):
    """XMLFeedSpider for RSS, and the articles that it leads to."""

    name = "news"

    def parse(self, response):
        for entry in response.feed():
            context = {"title": entry.title, "day": entry.published.date().isoformat()}
            yield response.follow(entry.link, self.parse_article, context=context)

    def parse_article(self, response):
        yield {**response.context, "text": response.css_first("p").text()}


async def test_an_rss_feed_and_its_articles(tmp_path: Path):
    entries = "".join(
        f"<item><title>T{n}</title><link>/{n}</link>"
        f"<pubDate>Mon, 0{n} Jun 2026 10:00:00 GMT</pubDate></item>"
        for n in (1, 2)
    )
    feed = f"<rss version='2.0'><channel><title>News</title>{entries}</channel></rss>"
    pages: dict[str, Page] = {
        "/rss": (feed.encode(), "application/rss+xml"),
        "/1": "<p>one",
        "/2": "<p>two",
    }
    async with recorded(pages) as site:
        done = await crawled(News(start_urls=[f"{site.url}/rss"]), tmp_path)

    assert done.items == [
        {"title": "T1", "day": "2026-06-01", "text": "one"},
        {"title": "T2", "day": "2026-06-02", "text": "two"},
    ]
    assert site.paths == {"/rss": 1, "/1": 1, "/2": 1}


class Rows(Spider):
    """CSVFeedSpider: each row is an item."""

    name = "rows"

    def parse(self, response):
        yield from csv.DictReader(response.text.splitlines(), delimiter=";", quotechar="'")


async def test_rows_of_csv(tmp_path: Path):
    table = "id;name\r\n1;'Tea; green'\r\n2;Kaffee für ä\r\n".encode()
    async with recorded({"/t.csv": (table, "text/csv")}) as site:
        done = await crawled(Rows(start_urls=[f"{site.url}/t.csv"]), tmp_path)

    assert done.items == [{"id": "1", "name": "Tea; green"}, {"id": "2", "name": "Kaffee für ä"}]
    assert site.paths == {"/t.csv": 1}


class Shop(Spider):
    """Two pipelines: one for prices, which drops items, and one that drops duplicates."""

    name = "shop"

    def parse(self, response):
        for row in response.css("tr"):
            sku, price = (cell.text() for cell in row.css("td"))
            yield {"sku": sku, "price": price}
        yield from response.follow_all("a")

    async def opened(self):
        self.seen = set()

    def item(self, item, response):
        if not item["price"]:
            raise DropItem("no price")
        if item["sku"] in self.seen:
            raise DropItem("duplicate")
        self.seen.add(item["sku"])
        return {**item, "price": round(float(item["price"]) * 1.15, 2)}


async def test_pipelines_that_change_drop_and_deduplicate(tmp_path: Path):
    def table(*rows: tuple[str, str]) -> str:
        cells = "".join(f"<tr><td>{sku}</td><td>{price}</td></tr>" for sku, price in rows)
        return f"<table>{cells}</table><a href=/2>2</a>"

    pages: dict[str, Page] = {
        "/1": table(("a", "10"), ("b", ""), ("a", "10")),
        "/2": table(("c", "2"), ("a", "10")),
    }
    async with recorded(pages) as site:
        done = await crawled(Shop(start_urls=[f"{site.url}/1"]), tmp_path)

    assert done.items == [{"sku": "a", "price": 11.5}, {"sku": "c", "price": 2.3}]
    assert done.report.items_dropped == {"no price": 1, "duplicate": 2}
    assert site.paths == {"/1": 1, "/2": 1}


class Exported(Spider):
    """FEEDS with several formats: options of the command line."""

    name = "exported"

    def parse(self, response):
        yield {"title": response.css_first("h1").text(), "size": response.size}
        yield from response.follow_all("a")


async def test_a_feed_in_several_formats(tmp_path: Path):
    pages: dict[str, Page] = {"/1": "<h1>Tea, green</h1><a href=/2>2</a>", "/2": "<h1>ä</h1>"}
    async with recorded(pages) as site:
        done = await crawled(Exported(start_urls=[f"{site.url}/1"]), tmp_path)
    names = ["out.csv", "out.json", "out.jsonl.gz"]
    feeds = [word for name in names for word in ("-o", str(tmp_path / name))]

    run = invoke("export", Exported.name, "--ledger", ledger_of(tmp_path), *feeds)

    assert run.returncode == 0, run.stderr
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as stream:
        rows = [{**row, "size": int(row["size"])} for row in csv.DictReader(stream)]
    lines = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).decode().splitlines()
    found = [rows, json.loads((tmp_path / "out.json").read_text()), [*map(json.loads, lines)]]
    assert [sorted(each, key=repr) for each in found] == [done.items] * 3
    assert site.paths == {"/1": 1, "/2": 1}


class Covers(Spider):
    """ImagesPipeline: the images of pages, with their captions."""

    name = "covers"
    folder = "covers"

    def parse(self, response):
        for image in response.css("img"):
            alt = image.attributes["alt"]
            yield response.follow(image, "cover", save_to=self.folder, context={"alt": alt})

    def cover(self, response):
        yield {"alt": response.context["alt"], "path": response.file.path}


async def test_images_of_which_some_are_the_same(tmp_path: Path):
    images: dict[str, Page] = {
        f"/{n}.png": (b"\x89PNG" + bytes([n // 2]), "image/png") for n in range(6)
    }
    page = "".join(f"<img src=/{n}.png alt='number {n}'>" for n in range(6))
    async with recorded({"/": page, **images}) as site:
        spider = Covers(start_urls=[f"{site.url}/"], folder=str(tmp_path / "covers"))
        done = await crawled(spider, tmp_path)

    assert [item["alt"] for item in done.items] == [f"number {n}" for n in range(6)]
    stored = {item["path"]: Path(item["path"]).read_bytes() for item in done.items}
    assert sorted(stored.values()) == [b"\x89PNG" + bytes([n]) for n in range(3)]
    assert site.paths == {"/": 1, **dict.fromkeys(images, 1)}


class Papers(Spider):
    """FilesPipeline: documents that many pages link to, each fetched once."""

    name = "papers"
    folder = "papers"

    def parse(self, response):
        yield from response.follow_all("a", deny_extensions=True)
        yield from response.follow_all("a", "paper", extensions="pdf", save_to=self.folder)

    def paper(self, response):
        yield {"url": response.url, "sha256": response.file.sha256, "size": response.file.size}


async def test_files_that_many_pages_link_to(tmp_path: Path):
    def answer(request: web.Request) -> web.Response:
        body = b"%PDF-" + request.path.encode() * 10_000
        return web.Response(body=body, content_type="application/pdf")

    links = "<a href=/a.pdf>a</a><a href=/b.pdf>b</a>" + "".join(
        f"<a href=/{n}>{n}</a>" for n in range(5)
    )
    pages: dict[str, Page] = {f"/{n}": links for n in range(5)}
    pages |= {"/a.pdf": answer, "/b.pdf": answer}
    async with recorded(pages) as site:
        spider = Papers(start_urls=[f"{site.url}/0"], folder=str(tmp_path / "papers"))
        done = await crawled(spider, tmp_path)

    assert [item["url"] for item in done.items] == [f"{site.url}/a.pdf", f"{site.url}/b.pdf"]
    assert {item["size"] for item in done.items} == {60_005}
    assert site.paths == dict.fromkeys(pages, 1)
