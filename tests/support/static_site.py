"""A whole site from memory, in a process of its own, served as cheaply as Python can.

    python -m tests.support.static_site FOLDER...

Prints its port and serves until it is ended. `/__hits__` returns the number of requests
by path, and `/__seen__` the numbers and times of connections and pages.
`--fail-every N` answers 503 to every Nth page, `--stall-after N` stops answering after
N requests, `--latency MS` delays every answer, and `--answered N` lets requests for more
than N paths wait, until a request for `/__answered__/M` allows M paths. All four end with
a request for `/__heal__`.
"""

import argparse
import asyncio
import json
import math
import mimetypes
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import uvloop


class Site:
    """The pages of one or more folders, and the number of requests for each."""

    def __init__(
        self,
        folders: list[Path],
        *,
        copies: int = 1,
        fail_every: int = 0,
        stall_after: int = 0,
        latency: float = 0.0,
        answered: int = 0,
    ) -> None:
        self.hits: Counter[str] = Counter()
        self.latency = latency
        self._answered = answered or math.inf
        self._waiting: list[Callable[[], None]] = []
        self._stall_after = stall_after
        self._requests = 0
        self.connections = 0
        self._last = 0.0
        self._times: list[float] = []  # times of the first hundred answers
        sites = [_pages(folder) for folder in folders] * copies
        self._pages = sites[0]
        if len(sites) > 1:
            self._pages = {
                f"/{number}{path}": page
                for number, site in enumerate(sites)
                for path, page in site.items()
            }
            places = range(len(sites))
            links = "".join(f'<a href="/{place}/index.html">{place}</a>' for place in places)
            self._pages["/index.html"] = _answer(200, links.encode(), "index.html")
        pages = [path for path in self._pages if path.endswith(".html")]
        self._failing = set(pages[::fail_every]) if fail_every else set()

    def answer(self, target: str) -> bytes | None:
        """Return the answer to a request, or None for no answer."""
        path = unquote(target.partition("?")[0])
        if path == "/__hits__":
            return _answer(200, json.dumps(self.hits).encode(), "hits.json")
        if path == "/__seen__":
            return _answer(200, json.dumps(self._seen()).encode(), "seen.json")
        if path == "/__heal__":
            self._failing.clear()
            self._stall_after = 0
            self.latency = 0.0
            self._allow(math.inf)
            return _answer(200, b"", "healed.txt")
        if path.startswith("/__answered__/"):
            self._allow(int(path.rpartition("/")[2]))
            return _answer(200, b"", "answered.txt")
        self.hits[path] += 1
        self._last = time.time()
        if len(self._times) < 100:
            self._times.append(self._last)
        self._requests += 1
        if self._stall_after and self._requests > self._stall_after:
            return None
        if path in self._failing:
            return _answer(503, b"busy", "busy.txt")
        return self._pages.get(path) or _answer(404, b"not here", "missing.txt")

    def is_waited_for(self, target: str, again: Callable[[], None]) -> bool:
        """Return whether a request has to wait; *again* is called when it may be answered."""
        path = unquote(target.partition("?")[0])
        is_known = path in self.hits or path.startswith("/__")
        if is_known or len(self.hits) < self._answered:
            return False
        self._waiting.append(again)
        return True

    def _allow(self, answered: float) -> None:
        self._answered = answered
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()

    def _seen(self) -> dict[str, float]:
        """Return the numbers of a crawl; times in seconds of the system's clock."""
        pages = [path for path in self.hits if path in self._pages and path.endswith(".html")]
        return {
            "requests": self._requests,
            "pages": len(pages),
            # This connection is not one of the crawl.
            "connections": self.connections - 1,
            "first": self._times[0] if self._times else 0.0,
            "last": self._last,
            "hundredth": self._times[-1] if self._times else 0.0,
        }


def _pages(folder: Path) -> dict[str, bytes]:
    return {
        "/" + path.relative_to(folder).as_posix(): _answer(200, path.read_bytes(), path.name)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".html", ".txt", ".css", ".js")
    }


def _answer(status: int, body: bytes, name: str) -> bytes:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One keep-alive connection; every request is a GET without a body."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._buffer = b""

    def connection_made(self, transport) -> None:
        self._transport = transport
        self._site.connections += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            self._respond(head.split(b" ", 2)[1].decode("latin-1"))

    def _respond(self, target: str) -> None:
        # The client of a request that has waited may have left.
        if self._transport.is_closing():
            return
        if self._site.is_waited_for(target, partial(self._respond, target)):
            return
        answer = self._site.answer(target)
        if answer is None:
            return
        if self._site.latency and not target.startswith("/__"):
            loop = asyncio.get_running_loop()
            loop.call_later(self._site.latency, self._write, answer)
        else:
            self._transport.write(answer)

    def _write(self, answer: bytes) -> None:
        # The client may have left by now.
        if not self._transport.is_closing():
            self._transport.write(answer)


async def serve(site: Site) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(site), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--copies", type=int, default=1, help="serve so many sites alike")
    parser.add_argument("--fail-every", type=int, default=0)
    parser.add_argument("--stall-after", type=int, default=0)
    parser.add_argument("--latency", type=int, default=0, help="milliseconds")
    parser.add_argument("--answered", type=int, default=0, help="paths; 0: all")
    arguments = parser.parse_args()
    site = Site(
        arguments.folders,
        copies=arguments.copies,
        fail_every=arguments.fail_every,
        stall_after=arguments.stall_after,
        latency=arguments.latency / 1000,
        answered=arguments.answered,
    )
    uvloop.run(serve(site))


if __name__ == "__main__":
    main()
