"""Crawls that are killed in the middle have the same results: each feature, both ledgers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from crawlcw.model.task import Status
from tests.blame.code_site import started
from tests.faults.scenario import items_of
from tests.support.crawl_process import Store
from tests.support.plain_site import PlainHandler
from tests.support.proxy_servers import ProxyServer, proxies

pytestmark = pytest.mark.thorough

PAGES = 60
#: Requests under way at the kill.
UNDER_WAY = 12

SPIDER = """
from crawlcw import Request, Spider

class Pages(Spider):
    name = "pages"
    start_urls = [{start!r}]
{own}
    def parse(self, response):
        yield {{"title": response.css_first("h1").text()}}
        yield from response.follow_all("a")
"""
BANNED_WHEN = """
    def banned_when(self, response):
        return response.css_first("#captcha") is not None
"""
LOGIN_WHEN = """
    async def login(self, session):
        await session.submit(Request(self.start_urls[0] + "login", data={"user": "u"}))

    def login_when(self, response):
        return response.css_first("#login") is not None
"""


class Site(ThreadingHTTPServer):
    """`/` links to the pages, whose answers wait until the gate opens."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(PlainHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def post(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(200, "<h1>in</h1>", {"Set-Cookie": "sid=1"})

    def get(self) -> None:
        path = urlsplit(self.path).path
        if path == "/robots.txt":
            self.reply(404, "")
            return
        if path == "/":
            links = "".join(f'<a href="/{number}">{number}</a>' for number in range(PAGES))
            self.reply(200, f"<h1>all</h1>{links}")
            return
        self.server.waiting.release()
        self.server.gate.wait()
        self.reply(200, f"<h1>{path}</h1>")


@contextmanager
def served() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield site
        finally:
            site.gate.set()
            site.shutdown()
            thread.join()


@pytest.mark.representative("login_when-sqlite")
@pytest.mark.parametrize("own", [BANNED_WHEN, LOGIN_WHEN], ids=["banned_when", "login_when"])
def test_a_condition_that_reads_the_page_costs_no_page_after_a_kill(
    own: str, ledger_url: str, tmp_path: Path
):
    store = Store(ledger_url, "pages")
    proxy = ProxyServer("http", "127.0.0.1")
    with served() as site, proxies(proxy):
        (tmp_path / "spider.py").write_text(SPIDER.format(start=site.url, own=own))
        command = ("spider.py", "--ledger", store.url, "-s", f"concurrency={2 * UNDER_WAY}")
        command += ("-s", "per_host_concurrency=0")
        if own is BANNED_WHEN:
            command += ("-s", f"proxies={proxy.url}")
        with started(tmp_path, *command) as killed:
            for _ in range(UNDER_WAY):
                assert site.waiting.acquire(timeout=60), killed.log
            killed.kill_all()
        site.gate.set()

        with started(tmp_path, *command) as again:
            code, report = again.end()

    assert (code, report["finish_reason"]) == (0, "drained"), again.log
    assert report["failures"] == {}
    titles = ["all", *(f"/{number}" for number in range(PAGES))]
    wanted = sorted(f'{{"title": "{title}"}}' for title in titles)
    assert items_of(store.url, "pages").decode().split("\n") == wanted
    assert {row.status for row in store.rows()} == {Status.FINISHED}
