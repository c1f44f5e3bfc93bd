"""One host in a process of its own, with a log of its requests.

    python -m tests.support.one_host_site PAGES LATENCY REFUSED_FROM RETRY_AFTER

Prints its port on loopback. Its pages are a tree. A page takes LATENCY seconds.
From request number REFUSED_FROM (0: none) on it refuses all (429) for RETRY_AFTER seconds, once.
"""

import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from crawlcw import Response, Spider
from tests.support.docs import REPOSITORY

_LOG = "/log"
_LINKS = 50


class OneHost(Spider):
    """One small item for each page, after some milliseconds of CPU."""

    name = "one_host"

    def __init__(self, start: str = "", cpu: str = "0", start_urls: Sequence[str] = ()) -> None:
        super().__init__()
        self.start_urls = [*start_urls] or [start]
        self._seconds = float(cpu) / 1000

    def parse(self, response: Response) -> Iterator[Any]:
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        yield {"url": response.url}
        yield from response.follow_all("a[href]")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the site's log."""

    path: str
    began: float  #: by the system's monotonic clock
    ended: float
    status: int


@dataclass
class Site:
    """The site in this process."""

    pages: int
    latency: float
    refused_from: int = 0
    retry_after: float = 0.0
    log: list[tuple[str, float, float, int]] = field(default_factory=list)
    refuses_until: float = 0.0
    asked: int = 0

    def answer(self, path: str, began: float) -> tuple[int, str]:
        if path == "/robots.txt":
            return 404, ""
        self.asked += 1
        if self.refused_from and self.asked == self.refused_from:
            self.refuses_until = began + self.retry_after
        if began < self.refuses_until:
            return 429, ""
        first = int(path[1:] or 0) * _LINKS + 1
        below = range(first, min(first + _LINKS, self.pages))
        links = "".join(f'<a href="/{n}">{n}</a>' for n in below)
        return 200, f"<title>{path}</title>{links}<p>" + "The quick brown fox. " * 20

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path, began = head.split(b" ", 2)[1].decode(), time.monotonic()
                if path == _LOG:
                    status, text = 200, json.dumps(self.log)
                else:
                    status, text = self.answer(path, began)
                    await asyncio.sleep(self.latency)
                    # Before the answer: who has it may ask again at once.
                    self.log.append((path, began, time.monotonic(), status))
                wait = f"Retry-After: {self.retry_after:g}\r\n" if status == 429 else ""
                writer.write(
                    f"HTTP/1.1 {status} x\r\nContent-Type: text/html\r\n{wait}"
                    f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@dataclass(frozen=True, slots=True)
class Served:
    """The site in another process."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def log(self) -> list[Asked]:
        """Return all requests that have ended."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", _LOG)
        found = json.loads(connection.getresponse().read())
        connection.close()
        return [Asked(*each) for each in found]


def most_at_once(log: list[Asked]) -> int:
    """Return how many requests of a log were under way at once at the most."""
    # At one moment an end comes before a beginning.
    steps = sorted([(each.began, 1) for each in log] + [(each.ended, -1) for each in log])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


@contextmanager
def served(
    pages: int, *, latency: float = 0.0, refused_from: int = 0, retry_after: float = 0.0
) -> Iterator[Served]:
    """Serve a host in a process of its own."""
    command = [sys.executable, "-m", "tests.support.one_host_site"]
    command += map(str, (pages, latency, refused_from, retry_after))
    site = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert site.stdout is not None
        yield Served(int(site.stdout.readline()))
    finally:
        site.kill()
        site.communicate()


async def main() -> None:
    """Serve until killed."""
    pages, latency, refused_from, retry_after = map(float, sys.argv[1:])
    site = Site(int(pages), latency, int(refused_from), retry_after)
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
