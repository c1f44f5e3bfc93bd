"""A site whose pages change, in a process of its own, and a spider for it.

    python -m tests.support.changing_site PAGES

Prints its port. Each page has an ETag and a Last-Modified, and answers 304 to a
request with both. `/__change__?every=N` changes every Nth page, `/__latency__?ms=N`
delays every answer, and `/__seen__` counts the requests since its last call: by
path, with validators, and answered by 304.
"""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from crawlcw import Response, Spider
from tests.support.process_site import serve

_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class ChangingSpider(Spider):
    """One item for each page."""

    name = "changing"

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"path": response.url.rpartition("/")[2], "text": response.css_first("h1").text()}
        yield from response.follow_all("a")


class _Site:
    def __init__(self, pages: int) -> None:
        self._versions = [0] * pages
        self._latency = 0.0
        self._forget()

    def _forget(self) -> None:
        self._hits: Counter[str] = Counter()
        self._conditional = self._not_modified = 0

    async def page(self, request: web.Request) -> web.Response:
        number = int(request.match_info["n"] or 0)
        self._hits[request.path] += 1
        await asyncio.sleep(self._latency)
        version = self._versions[number]
        tag = f'"{number}-{version}"'
        given = request.headers.get("If-None-Match"), request.headers.get("If-Modified-Since")
        self._conditional += None not in given
        headers = {"ETag": tag, "Last-Modified": _DATE}
        if given == (tag, _DATE):
            self._not_modified += 1
            return web.Response(status=304, headers=headers)
        links = range(1, len(self._versions)) if number == 0 else ()
        text = "".join(f'<a href="/{n}">{n}</a>' for n in links)
        text = f"<h1>page {number}, version {version}</h1>{text}"
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def change(self, request: web.Request) -> web.Response:
        every = int(request.query["every"])
        for number in range(every - 1, len(self._versions), every):
            self._versions[number] += 1
        return web.Response()

    async def latency(self, request: web.Request) -> web.Response:
        self._latency = int(request.query["ms"]) / 1000
        return web.Response()

    async def seen(self, request: web.Request) -> web.Response:
        seen = {
            "hits": self._hits,
            "conditional": self._conditional,
            "not_modified": self._not_modified,
        }
        if "look" not in request.query:
            self._forget()
        return web.json_response(seen)


@dataclass(frozen=True, slots=True)
class ChangingSite:
    """The site, for use by tests."""

    url: str

    def ask(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            content: bytes = answer.read()
        return content

    def change(self, *, every: int) -> None:
        self.ask(f"__change__?every={every}")

    def answer_after(self, milliseconds: int) -> None:
        self.ask(f"__latency__?ms={milliseconds}")

    def seen(self) -> dict[str, Any]:
        """Return the requests since the last call."""
        found: dict[str, Any] = json.loads(self.ask("__seen__"))
        return found

    def asked(self) -> int:
        """Return the number of requests for pages since then."""
        return sum(json.loads(self.ask("__seen__?look=1"))["hits"].values())


@contextmanager
def served(pages: int) -> Iterator[ChangingSite]:
    """Serve a site of *pages* pages within the block."""
    command = [sys.executable, "-m", "tests.support.changing_site", str(pages)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ChangingSite(f"http://127.0.0.1:{int(process.stdout.readline())}/")
        finally:
            process.kill()


async def main(pages: int) -> None:
    site = _Site(pages)
    app = web.Application()
    app.router.add_get("/__change__", site.change)
    app.router.add_get("/__latency__", site.latency)
    app.router.add_get("/__seen__", site.seen)
    app.router.add_get(r"/{n:\d*}", site.page)
    await serve(app)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
