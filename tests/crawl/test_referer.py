"""The setting `referer`, on real servers, and the policies of the W3C's Referrer Policy."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from crawlcw import Request, Response, Settings, Spider
from crawlcw.assembly import run_spider
from crawlcw.model.referrers import policy_of, referer
from tests.support import loopback

PAGE = "https://a.example:8443/page?q=1"
HOME, ORIGIN = "https://a.example:8443/other", "https://a.example:8443/"


class Site:
    """Two origins with the same pages, which record the Referer of each request."""

    def __init__(self) -> None:
        self.bases: list[str] = []
        self.referers: dict[str, str | None] = {}

    async def page(self, request: web.Request) -> web.Response:
        if request.path == "/robots.txt":
            return web.Response(status=404)
        number = self.bases.index(f"http://{request.host}")
        name = f"{number}{request.path}"
        self.referers[name] = request.headers.get("Referer")
        if request.path == "/moved":
            return web.Response(status=302, headers={"Location": "/end"})
        if request.path == "/away":
            return web.Response(status=302, headers={"Location": f"{self.bases[1]}/end"})
        links = ["/next", "/moved", "/away", f"{self.bases[1]}/far"] if name == "0/start" else []
        body = "".join(f'<a href="{link}">x</a>' for link in links)
        if "meta" in request.query:
            body = f'<meta name="Referrer" content="{request.query["meta"]}">{body}'
        headers = {}
        if "header" in request.query:
            headers["Referrer-Policy"] = request.query["header"]
        return web.Response(text=body, content_type="text/html", headers=headers)


class Pages(Spider):
    name = "pages"
    allowed_hosts = "*"

    async def parse(self, response: Response) -> Any:
        for request in response.follow_all("a"):
            yield request
        if response.url.startswith(self.start_urls[0]):  # type: ignore[index]
            await response.fetch("/xhr")
            yield Request(response.urljoin("/own"), headers={"referer": "http://own.example/"})


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    apps = [web.Application(), web.Application()]
    for app in apps:
        app.router.add_get("/{path:.*}", site.page)
    async with loopback.served(apps[0]) as first, loopback.served(apps[1]) as second:
        site.bases = [first, second]
        yield site


async def crawl(site: Site, path: Path, *, query: str = "", referer: str = "policy") -> None:
    spider = Pages(start_urls=[f"{site.bases[0]}/start{query}"])
    settings = Settings(referer=referer, allow_private="127.0.0.1", any_port=True)
    await run_spider(spider, ledger=f"sqlite:///{path / 'crawl.db'}", settings=settings)


async def test_links_get_what_a_browser_would_send(site: Site, tmp_path: Path):
    await crawl(site, tmp_path, query="?q=1")

    page, origin = f"{site.bases[0]}/start?q=1", f"{site.bases[0]}/"
    assert site.referers == {
        "0/start": None,
        **dict.fromkeys(("0/next", "0/moved", "0/end", "0/away", "0/xhr"), page),
        "1/far": origin,
        "1/end": None,
        "0/own": "http://own.example/",
    }


@pytest.mark.parametrize(
    ("query", "home", "away"),
    [
        ("?header=no-referrer", None, None),
        ("?header=unsafe-url,unknown", "page", "page"),
        ("?header=unsafe-url&meta=same-origin", "page", None),
        ("?meta=origin", "origin", "origin"),
    ],
)
async def test_the_policy_of_the_page_decides(
    query: str, home: str | None, away: str | None, site: Site, tmp_path: Path
):
    await crawl(site, tmp_path, query=query)

    values = {"page": f"{site.bases[0]}/start{query}", "origin": f"{site.bases[0]}/", None: None}
    assert (site.referers["0/next"], site.referers["0/xhr"]) == (values[home], values[home])
    assert site.referers["1/far"] == values[away]


@pytest.mark.parametrize(("setting", "value"), [("off", None), ("origin", "origin")])
async def test_the_setting_decides(setting: str, value: str | None, site: Site, tmp_path: Path):
    await crawl(site, tmp_path, query="?header=unsafe-url", referer=setting)

    expected = None if value is None else f"{site.bases[0]}/"
    links = [site.referers[name] for name in ("0/next", "0/xhr", "1/far")]
    assert links == [expected] * 3
    assert site.referers["0/own"] == "http://own.example/"


@pytest.mark.parametrize(
    ("policy", "home", "secure", "plain"),
    [
        ("no-referrer", None, None, None),
        ("no-referrer-when-downgrade", PAGE, PAGE, None),
        ("same-origin", PAGE, None, None),
        ("origin", ORIGIN, ORIGIN, None),
        ("strict-origin", ORIGIN, ORIGIN, None),
        ("origin-when-cross-origin", PAGE, ORIGIN, None),
        ("strict-origin-when-cross-origin", PAGE, ORIGIN, None),
        ("unsafe-url", PAGE, PAGE, None),
    ],
)
def test_each_policy(policy: str, home: str | None, secure: str | None, plain: str | None):
    page = PAGE.replace("://", "://user:secret@") + "#part"

    assert referer(page, HOME, policy=policy) == home
    assert referer(page, "https://b.example/", policy=policy) == secure
    assert referer(page, "http://a.example:8443/", policy=policy) == plain


def test_a_long_url_is_cut_to_its_origin():
    assert referer(PAGE + "x" * 4096, HOME, policy="unsafe-url") == ORIGIN


def test_the_last_valid_policy_counts():
    assert policy_of(None, []) == "strict-origin-when-cross-origin"
    assert policy_of("origin, no-such", []) == "origin"
    assert policy_of("origin", ["NEVER ", "no-such"]) == "no-referrer"
