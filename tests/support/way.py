"""The way of one URL: modules and functions of crawlcw that run for one plain GET.

    python -m tests.support.way

prints the counts, and the functions with their calls. The way of a page is from its callback to
the next one, on all threads. The resumption of a coroutine or generator counts as a call.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

import crawlcw
from crawlcw import Settings, Spider, run_spider

_PACKAGE = f"{Path(crawlcw.__file__).parent}/"
#: Number of first pages that are not counted: they include the start of the crawl.
_FIRST = 4
_PAGES = 20


@dataclass(slots=True)
class Way:
    """The functions that ran between two callbacks."""

    functions: Counter[str] = field(default_factory=Counter)  #: calls, by `module:function`
    #: The source lines of these functions by module, which a reader of the way opens.
    lines: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    switches: int = 0  #: calls of a function in another module than that of the previous call

    @property
    def modules(self) -> set[str]:
        """Return the names of the modules without `crawlcw.`."""
        return {name.partition(":")[0] for name in self.functions}


class _Tracer:
    """Records each call of a function of crawlcw."""

    def __init__(self) -> None:
        self.ways: list[Way] = []
        self._last = ""

    def next_page(self) -> None:
        self.ways.append(Way())

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not self.ways or not code.co_filename.startswith(_PACKAGE):
            return
        module = code.co_filename[len(_PACKAGE) : -len(".py")].replace("/", ".")
        way = self.ways[-1]
        name = f"{module}:{code.co_qualname}"
        if name not in way.functions:
            last = max(line for _, _, line in code.co_lines() if line is not None)
            way.lines[module] |= {*range(code.co_firstlineno, last + 1)}
        way.functions[name] += 1
        if module != self._last:
            way.switches, self._last = way.switches + 1, module


def lines_to_read(way: Way, *packages: str) -> dict[str, int]:
    """Return the number of lines that a reader of the way opens, by module of these packages."""
    return {
        module: len(lines)
        for module, lines in sorted(way.lines.items())
        if module.partition(".")[0] in packages
    }


@cache
def walked() -> list[Way]:
    """Crawl a chain of pages with a SQLite ledger; return their ways, without the first ones."""
    tracer = _Tracer()

    class Walk(Spider):
        name = "walk"
        settings = Settings(concurrency=1)

        def parse(self, response):  # type: ignore[no-untyped-def]
            tracer.next_page()
            yield {"h": response.css_first("h1").text()}
            yield from response.follow_all("a")

    with _chain() as start, tempfile.TemporaryDirectory() as folder, _profiled(tracer):
        Walk.start_urls = [start]
        asyncio.run(run_spider(Walk(), ledger=f"sqlite:///{folder}/walk.db"))
    # The last way is that to the end of the crawl.
    return tracer.ways[_FIRST:-1]


@contextmanager
def _profiled(tracer: _Tracer) -> Iterator[None]:
    before = sys.getprofile()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, says its documentation


@contextmanager
def _chain() -> Iterator[str]:
    """Serve pages that each link to the next one; yield the URL of the first."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Chain)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Chain(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        if self.path == "/robots.txt":
            body, kind = b"User-agent: *\nAllow: /\n", "text/plain"
        else:
            n = int(self.path.strip("/"))
            link = f'<a href="/{n + 1}">next</a>' if n < _PAGES else ""
            body, kind = f"<html><body><h1>{n}</h1>{link}</body></html>".encode(), "text/html"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    ways = walked()
    plain = min(ways, key=lambda way: way.functions.total())
    for name, calls in sorted(plain.functions.items()):
        print(f"{calls:5} {name}")
    print(counts(ways))


def counts(ways: list[Way]) -> dict[str, int]:
    """Return the minimum of each count: background work is part of some ways only."""
    return {
        "modules": min(len(way.modules) for way in ways),
        "functions": min(len(way.functions) for way in ways),
        "calls": min(way.functions.total() for way in ways),
        "switches": min(way.switches for way in ways),
    }


if __name__ == "__main__":
    main()
