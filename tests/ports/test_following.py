"""Ports of spiders that follow different pages, each on a local site that records requests."""

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from crawlcw import Request, Settings, SitemapSpider, Spider
from tests.ports.recorded import Page, crawled, recorded


class Archive(Spider):
    """Page after page, with DEPTH_LIMIT."""

    name = "archive"
    settings = Settings(max_depth=3)

    def parse(self, response):
        yield {"page": response.css_first("h1").text()}
        yield from response.follow_all("a.next")


async def test_pagination_with_a_depth_limit(tmp_path: Path):
    pages: dict[str, Page] = {
        f"/{n}": f"<h1>{n}</h1><a class=next href=/{n + 1}>next</a><a href=/about>about</a>"
        for n in range(10)
    }
    async with recorded(pages) as site:
        done = await crawled(Archive(start_urls=[f"{site.url}/0"]), tmp_path)

    assert done.items == [{"page": str(n)} for n in range(4)]
    assert site.paths == {f"/{n}": 1 for n in range(4)}


class Scroll(Spider):
    """Infinite scrolling: JSON, page after page."""

    name = "scroll"

    def parse(self, response):
        data = response.json()
        yield from data["quotes"]
        if data["has_next"]:
            yield response.follow(f"?page={data['page'] + 1}")


async def test_an_infinite_scroll(tmp_path: Path):
    def api(request: web.Request) -> web.Response:
        page = int(request.query.get("page", "1"))
        quotes = [{"text": f"{page}.{n}"} for n in range(10)]
        return web.json_response({"quotes": quotes, "has_next": page < 10, "page": page})

    async with recorded({"/api/quotes": api}) as site:
        done = await crawled(Scroll(start_urls=[f"{site.url}/api/quotes?page=1"]), tmp_path)

    assert len(done.items) == 100
    assert site.paths == {f"/api/quotes?page={n}": 1 for n in range(1, 11)}


class Authors(Spider):
    """A list and its details, with data from the list: cb_kwargs."""

    name = "authors"

    def parse(self, response):
        for row in response.css("li"):
            born = row.css_first("i").text()
            yield response.follow(row.css_first("a"), self.parse_author, context={"born": born})

    def parse_author(self, response):
        yield {"name": response.css_first("h1").text(), **response.context}


async def test_a_list_and_its_details(tmp_path: Path):
    pages: dict[str, Page] = {
        "/": "<li><a href=/a>Ada</a> <i>1815</i></li><li><a href=/g>Grace</a> <i>1906</i></li>",
        "/a": "<h1>Ada Lovelace</h1>",
        "/g": "<h1>Grace Hopper</h1>",
    }
    async with recorded(pages) as site:
        done = await crawled(Authors(start_urls=[f"{site.url}/"]), tmp_path)

    assert done.items == [
        {"name": "Ada Lovelace", "born": "1815"},
        {"name": "Grace Hopper", "born": "1906"},
    ]
    assert site.paths == {"/": 1, "/a": 1, "/g": 1}


class Search(Spider):
    """FormRequest.from_response for a search, which is a GET."""

    name = "search"

    def parse(self, response):
        yield response.form("#search", self.parse_results).submit(q="green tea")

    def parse_results(self, response):
        yield from ({"hit": hit.text()} for hit in response.css("li"))
        yield from response.follow_all("a.next", self.parse_results)


async def test_a_search_form(tmp_path: Path):
    def find(request: web.Request) -> web.Response:
        query = request.query
        assert (query["q"], query["lang"]) == ("green tea", "en")
        more = "" if "from" in query else f"<a class=next href='{request.path_qs}&from=2'>more</a>"
        hits = (3,) if "from" in query else (1, 2)
        text = "".join(f"<li>tea {n}</li>" for n in hits) + more
        return web.Response(text=text, content_type="text/html")

    form = "<form action=/login></form><form id=search action=/find>"
    form += "<input name=q><input type=hidden name=lang value=en></form>"
    async with recorded({"/": form, "/find": find}) as site:
        done = await crawled(Search(start_urls=[f"{site.url}/"]), tmp_path)

    assert done.items == [{"hit": "tea 1"}, {"hit": "tea 2"}, {"hit": "tea 3"}]
    assert [each.method for each in site.seen] == ["GET"] * 4
    assert "/login" not in site.paths


class Manuals(SitemapSpider):
    """The sitemaps of robots.txt, an index and gzip among them, and one kind of page."""

    name = "manuals"
    sitemap_follow = [r"/docs"]
    sitemap_rules = [(r"/docs/", "parse_doc")]

    def parse_doc(self, response):
        yield {"title": response.css_first("h1").text()}


async def test_a_sitemap_index(tmp_path: Path):
    def sitemap(request: web.Request) -> web.Response:
        home = f"{request.scheme}://{request.host}"
        part = request.path.removesuffix(".xml").strip("/")
        links = [f"/{part}/{n}" for n in range(3)] + ["/imprint"]
        if part == "index":
            parts = (f"<sitemap><loc>{home}/{n}.xml</loc></sitemap>" for n in ("docs", "blog"))
            text = f"<sitemapindex>{''.join(parts)}</sitemapindex>"
        else:
            text = "".join(f"<url><loc>{home}{link}</loc></url>" for link in links)
            text = f"<urlset>{text}</urlset>"
        answer = web.Response(body=text.encode(), content_type="application/xml")
        answer.enable_compression(web.ContentCoding.gzip)
        return answer

    pages: dict[str, Page] = {f"/docs/{n}": f"<h1>{n}</h1>" for n in range(3)}
    pages |= {"/index.xml": sitemap, "/docs.xml": sitemap, "/blog.xml": sitemap}
    async with recorded(pages) as site:
        site.pages["/robots.txt"] = (f"Sitemap: {site.url}/index.xml".encode(), "text/plain")
        spider = Manuals(sitemap_urls=[f"{site.url}/robots.txt"])
        done = await crawled(spider, tmp_path)

    assert done.items == [{"title": str(n)} for n in range(3)]
    assert site.paths == {"/index.xml": 1, "/docs.xml": 1, **{f"/docs/{n}": 1 for n in range(3)}}


class Everywhere(Spider):
    """A broad crawl: any host, a few pages of each, many at once."""

    name = "everywhere"
    allowed_hosts = "*"
    settings = Settings(max_pages_per_host=3, concurrency=32, per_host_concurrency=1)

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all("a")


async def test_a_broad_crawl_with_a_few_pages_of_each_host(tmp_path: Path):
    addresses = [f"127.0.0.{n}" for n in range(2, 7)]
    async with recorded({}, *addresses) as site:
        port = site.url.rpartition(":")[2]
        hosts = [f"{address}:{port}" for address in addresses]
        links = "".join(f"<a href=/{n}>{n}</a>" for n in range(8))
        site.pages |= {f"/{n}": links for n in range(8)} | {"/home": links}
        site.pages["/"] = "".join(f"<a href=http://{host}/home>{host}</a>" for host in hosts)
        spider = Everywhere(start_urls=[f"{site.url}/"])
        done = await crawled(spider, tmp_path, allow_private=hosts)

    asked = [each for each in site.seen if each.path != "/robots.txt"]
    of_host = {host: sum(each.host == host for each in asked) for host in hosts}
    # One more may be under way while the last one is parsed.
    assert set(of_host.values()) <= {3, 4}
    assert len(done.items) == len(asked) == 1 + sum(of_host.values())


class Fragile(Spider):
    """Retries, and an errback for the given-up requests."""

    name = "fragile"
    settings = Settings(max_retry=3)

    async def start(self):
        for url in self.start_urls:
            yield Request(url, errback="failed")

    def parse(self, response):
        yield {"path": response.url.rpartition("/")[2], "status": response.status}

    def failed(self, request, error):
        yield {"path": request.url.rpartition("/")[2], "failed": str(error.reason)}


async def test_retries_and_an_errback(tmp_path: Path):
    answers = iter([503, 500, 200])

    def flaky(_: web.Request) -> web.Response:
        return web.Response(status=next(answers), content_type="text/html")

    pages: dict[str, Page] = {
        "/well": "",
        "/flaky": flaky,
        "/broken": lambda _: web.Response(status=500),
        "/binary": (b"\x89PNG\r\n", "image/png"),
    }
    async with recorded(pages) as site:
        paths = ["well", "flaky", "broken", "binary", "none"]
        spider = Fragile(start_urls=[f"{site.url}/{path}" for path in paths])
        done = await crawled(spider, tmp_path)

    assert done.items == [
        {"path": "binary", "failed": "content-type"},
        {"path": "broken", "failed": "http-status"},
        {"path": "flaky", "status": 200},
        {"path": "none", "failed": "http-status"},
        {"path": "well", "status": 200},
    ]
    assert site.paths == {"/well": 1, "/flaky": 3, "/broken": 3, "/binary": 1, "/none": 1}


@dataclass
class Book:
    """An item as filled by an ItemLoader."""

    title: str
    price: float


class Typed(Spider):
    """Items that are dataclasses."""

    name = "typed"

    def parse(self, response):
        for row in response.css("article"):
            price = row.css_first("b").text().lstrip("£")
            yield Book(title=row.css_first("h3").text(strip=True), price=float(price))


async def test_items_that_are_dataclasses(tmp_path: Path):
    page = "<article><h3> One </h3><b>£5.50</b></article><article><h3>Two</h3><b>£6</b></article>"
    async with recorded({"/": page}) as site:
        done = await crawled(Typed(start_urls=[f"{site.url}/"]), tmp_path)

    assert done.items == [{"title": "One", "price": 5.5}, {"title": "Two", "price": 6.0}]
    assert site.paths == {"/": 1}
