"""Ports of spiders with different requests, each on a local site that records them."""

from hashlib import blake2b
from pathlib import Path

import pytest
from aiohttp import web

from crawlcw import FetchError, Reason, Settings, Spider
from tests.ports.recorded import Page, crawled, recorded
from tests.support import needed


class Signed(Spider):
    """A downloader middleware: it signs requests, and drops invalid answers."""

    name = "signed"
    settings = Settings(max_retry=3)

    def before_request(self, request):
        request.set_header("X-Signature", blake2b(request.url.encode(), digest_size=8).hexdigest())

    def after_response(self, response):
        if b"try again" in response.body:
            raise FetchError(Reason.DISCONNECTED, "busy")

    def parse(self, response):
        yield {"title": response.css_first("h1").text()}
        yield from response.follow_all("a")


async def test_a_middleware(tmp_path: Path):
    busy = iter(["try again", "<h1>two</h1>"])

    def second(_: web.Request) -> web.Response:
        return web.Response(text=next(busy), content_type="text/html")

    async with recorded({"/1": "<h1>one</h1><a href=/2>2</a>", "/2": second}) as site:
        done = await crawled(Signed(start_urls=[f"{site.url}/1"]), tmp_path)

    assert done.items == [{"title": "one"}, {"title": "two"}]
    assert site.paths == {"/1": 1, "/2": 2}
    for each in site.seen:
        if each.path != "/robots.txt":
            signature = blake2b(f"{site.url}{each.path}".encode(), digest_size=8).hexdigest()
            assert each.headers["X-Signature"] == signature


class Incremental(Spider):
    """Deltafetch: the next run sends conditional requests, and parses changed pages only."""

    name = "incremental"
    settings = Settings(revisit="0s")

    def parse(self, response):
        yield {"text": response.css_first("h1").text()}
        yield from response.follow_all("a")


async def test_an_incremental_crawl(tmp_path: Path):
    versions = dict.fromkeys(range(20), 1)

    def page(request: web.Request) -> web.Response:
        number = int(request.path.strip("/"))
        tag = f'"{versions[number]}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        links = "".join(f"<a href=/{n}>{n}</a>" for n in range(20)) if not number else ""
        text = f"<h1>{number}.{versions[number]}</h1>{links}"
        return web.Response(text=text, content_type="text/html", headers={"ETag": tag})

    async with recorded({f"/{n}": page for n in range(20)}) as site:
        await crawled(Incremental(start_urls=[f"{site.url}/0"]), tmp_path)
        site.seen.clear()
        versions[7] = 2
        done = await crawled(Incremental(start_urls=[f"{site.url}/0"]), tmp_path)

    assert (done.report.pages, done.report.unchanged, done.report.items) == (20, 19, 1)
    assert done.items == sorted(({"text": f"{n}.{v}"} for n, v in versions.items()), key=repr)
    assert site.paths == {f"/{n}": 1 for n in range(20)}
    asked = [each for each in site.seen if each.path != "/robots.txt"]
    assert all("If-None-Match" in each.headers for each in asked)


class Members(Spider):
    """A login before the first page, and again after the server ends the session."""

    name = "members"
    login_when = 401

    async def login(self, session):
        page = await session.fetch(self.start_urls[0].replace("/in/0", "/login"))
        await session.submit(page.form("form").submit(user="u", password="p"))

    def parse(self, response):
        yield {"page": response.css_first("h1").text()}
        yield from response.follow_all("a")


async def test_a_login_that_the_server_forgets(tmp_path: Path):
    known: list[str] = []
    shown: list[str] = []

    def log_in(request: web.Request) -> web.Response:
        if request.method == "GET":
            form = "<form method=post><input type=hidden name=t value=1>"
            text = f"{form}<input name=user><input name=password></form>"
            return web.Response(text=text, content_type="text/html")
        known.append(f"s{len(known)}")
        answer = web.Response(text="hello")
        answer.set_cookie("sid", known[-1])
        return answer

    def page(request: web.Request) -> web.Response:
        # After four pages, the server ends the first session.
        sid = request.cookies.get("sid")
        if not known or sid != known[-1] or (len(known) == 1 and len(shown) == 4):
            return web.Response(status=401)
        shown.append(request.path)
        number = int(request.path.rpartition("/")[2])
        text = f"<h1>{number}</h1><a href=/in/{(number + 1) % 9}>next</a>"
        return web.Response(text=text, content_type="text/html")

    pages: dict[str, Page] = {"/login": log_in, **{f"/in/{n}": page for n in range(9)}}
    async with recorded(pages) as site:
        done = await crawled(Members(start_urls=[f"{site.url}/in/0"]), tmp_path)

    assert done.items == [{"page": str(n)} for n in range(9)]
    assert set(shown) == {f"/in/{n}" for n in range(9)}
    assert site.paths["/login"] == 4, "a form and its answer, twice"


class Rendered(Spider):
    """scrapy-playwright: a page whose quotes a script writes, and a button that has more."""

    name = "rendered"
    settings = Settings(browser=True)

    async def parse(self, response):
        await response.page.click("button")
        for quote in await response.page.locator("li").all_inner_texts():
            yield {"quote": quote}


@pytest.mark.thorough
async def test_a_page_that_scripts_make(tmp_path: Path):
    needed.chromium()
    page = """<ul></ul><button onclick="add('two')">more</button><script>
        const add = text => document.querySelector("ul").innerHTML += "<li>" + text;
        fetch("/quotes").then(r => r.text()).then(add)</script>"""
    async with recorded({"/": page, "/quotes": "one"}) as site:
        done = await crawled(Rendered(start_urls=[f"{site.url}/"]), tmp_path)

    assert done.items == [{"quote": "one"}, {"quote": "two"}]
    assert site.paths == {"/": 1, "/quotes": 1}
