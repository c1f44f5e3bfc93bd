"""A site in this process that holds back its last page until a gate opens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from tests.support.plain_site import PlainHandler

PAGES = 40
MISSING = 5
#: A spider of the site, in a file of its own.
SPIDER = """\
from crawlcw import Spider

class Pages(Spider):
    name = "pages"

    def __init__(self, start_url="http://127.0.0.1:9/"):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all("a")
"""


class GatedSite(ThreadingHTTPServer):
    """`/` links to pages, to missing pages, and to `/last`, which waits for the gate."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gate = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(PlainHandler):
    server: GatedSite

    def get(self) -> None:
        if self.path == "/last":
            self.server.gate.wait()
        known = self.path == "/" or self.path == "/last" or self.path.startswith("/page/")
        body = "<h1>a page</h1>"
        if self.path == "/":
            paths = [f"/page/{n}" for n in range(PAGES)] + [f"/gone/{n}" for n in range(MISSING)]
            body = "".join(f'<a href="{path}">a</a>' for path in [*paths, "/last"])
        self.reply(200 if known else 404, body)


@contextmanager
def gated_site() -> Iterator[GatedSite]:
    with GatedSite() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
