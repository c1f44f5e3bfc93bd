"""A server that distinguishes spellings of a URL: each page is requested by its link's spelling."""

import json
from pathlib import Path

import pytest

from tests.hostile.raw_server import response, serving
from tests.support.commands import invoke
from tests.support.site_threads import in_thread

#: The link to each page, by the request target of the page.
LINKS = {
    "/p%26q": "/p%26q",
    "/p%3Aq": "/p%3Aq",
    "/p%3Bq": "/p%3Bq",
    "/p%2Cq": "/p%2Cq",
    "/p%27q": "/p%27q",
    "/p%28q%29": "p%28q%29",
    "/p%3Dq": "/p%3Dq",
    "/p%40q": "/p%40q",
    "/%c3%bc": "/%c3%bc",
    "/%7euser": "/%7euser",
    "/a[1]|b": "/a[1]|b",
    "/100%": "/100%",
    "/login?next=%2Fhome%3Fx": "/login?next=%2Fhome%3Fx",
    "/s?q=a%20b+c": "/s?q=a b+c",
    "/s?q=%27{x}": "/s?q='{x}",
    "/empty?": "/empty?",
    "/slash/x": "\\slash\\x",
}
#: The Location of each redirect, by its request target.
MOVED = {
    "/a:b": "/a%3Ab",
    "/c%2Cd": "/c,d",
    "/e%3df": "/e%3Df",
    "/g?h=%2F": "/g?h=/",
}
SPIDER = """
from crawlcw import Settings, Spider


class Spellings(Spider):
    name = "spellings"
    start_urls = ["{start}"]
    settings = Settings(per_host_concurrency=8)

    def parse(self, response):
        yield {{"address": response.url, "text": response.text.partition("<")[0]}}
        yield from response.follow_all("a")
"""


def pages() -> dict[str, bytes]:
    """Return the answers by request target; any other spelling is 404."""
    links = "".join(f'<a href="{href}">x</a>' for href in [*LINKS.values(), *MOVED])
    html = b"Content-Type: text/html; charset=utf-8\r\n"
    answers = {path: response(path.encode(), headers=html) for path in [*LINKS, *MOVED.values()]}
    for path, target in MOVED.items():
        location = f"Location: {target}\r\n".encode()
        answers[path] = response(b"", status="301 Moved Permanently", headers=location)
    return answers | {"/": response(f"/{links}".encode(), headers=html)}


def test_each_page_is_had_once_and_by_the_address_that_a_browser_sends(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)
    spider = tmp_path / "spellings.py"
    with in_thread(serving(pages())) as server:
        spider.write_text(SPIDER.format(start=server.url("/")))
        done = invoke("run", str(spider), "--processes", "0")
    exported = invoke("export", "spellings", "-o", "-")

    assert done.returncode == 0, done.stderr
    assert set(server.requested) == {"/robots.txt", "/", *LINKS, *MOVED, *MOVED.values()}
    found = [json.loads(line) for line in exported.stdout.splitlines()]
    paths = sorted(["/", *LINKS, *MOVED.values()])
    assert sorted(item["text"] for item in found) == paths
    assert sorted(item["address"] for item in found) == [server.url(path) for path in paths]
