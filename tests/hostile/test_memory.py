"""Memory of a crawl whose server tries to exhaust it: HOSTILE 8.1."""

import asyncio
import gzip
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import brotli
import pytest

from crawlcw.api.attempt import Attempt, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile import server as hostile_server
from tests.hostile.pages import KEEP, MIB, Exchange, endless, fixed, response
from tests.hostile.server import HostileServer
from tests.support.attempts import attempt, way

HTML = b"Content-Type: text/html\r\n"
CHUNK = b"10000\r\n" + b"<b><i>xy" * (1 << 13) + b"\r\n"
#: The repeated content of each page of 10 MiB.
DENSE = {
    "nested": b"<a><a>",
    "closed": b"<i>x</i>",
    "paragraphs": b"<p><br>",
    "attributes": b"<p a=1 b=2 c d e>",
    "links": b"<li><a href=/small>x</a>",
    "text": b"text &amp; more ",
    "latin": b"<u>\xe9</u>",
    "markup as text": b"<p>",
}
TYPES = {"latin": "text/html; charset=latin-1", "markup as text": "text/plain"}


def _dense(name: str, piece: bytes) -> Callable[[Exchange], Awaitable[object]]:
    async def send(exchange: Exchange) -> object:
        size = 10 * MIB // len(piece) * len(piece)
        kind = TYPES.get(name, "text/html").encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, size)
        await exchange.send(head)
        some = piece * 1000
        for sent in range(0, size, len(some)):
            await exchange.send(some[: size - sent])
        return KEEP

    return send


for _name, _piece in DENSE.items():
    hostile_server.PAGES[f"/dense/{_name.replace(' ', '-')}"] = _dense(_name, _piece)
fixed(
    "/bomb/gzip",
    cache(
        lambda: response(
            gzip.compress(b"<p>dense</p>" * (8 * MIB), 1),
            headers=HTML + b"Content-Encoding: gzip\r\n",
        )
    ),
)
fixed(
    "/bomb/br",
    cache(
        lambda: response(
            brotli.compress(b"<q>" * (32 * MIB), quality=1),
            headers=HTML + b"Content-Encoding: br\r\n",
        )
    ),
)
endless(
    "/endless/chunks", b"HTTP/1.1 200 OK\r\n" + HTML + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK
)
endless("/endless/close", b"HTTP/1.1 200 OK\r\n" + HTML + b"\r\n", b"<td>" * 16_000)
fixed("/small", response(b"<a href=/small>a</a>", headers=HTML), keep=True)

HOSTILE = [
    path for path in hostile_server.PAGES if path.startswith(("/dense/", "/bomb/", "/endless/"))
]

SPIDER = """\
import json
from pathlib import Path
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    settings = Settings(concurrency=24, per_host_concurrency=24, backoff_base="1s")

    def __init__(self, origin=""):
        super().__init__()
        paths = json.loads(Path("paths").read_text())
        self.start_urls = [f"http://{origin}{path}?{n}" for n in range(4) for path in paths]

    def parse(self, response):
        yield {"links": len(response.css("a[href]")), "size": len(response.text)}

    async def closed(self, report):
        status = Path("/proc/self/status").read_text()
        (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        print(json.dumps({
            "peak": int(peak) << 10, "stall": report.longest_stall, "pages": report.pages,
            "failures": report.failures, "reason": report.finish_reason,
        }))
"""


@pytest.mark.thorough
async def test_a_whole_crawl_stays_under_300_mb_whatever_is_sent(
    hostile: HostileServer, tmp_path: Path
):
    (tmp_path / "pages.py").write_text(SPIDER)
    (tmp_path / "paths").write_text(json.dumps([*HOSTILE, "/small"]))

    crawl = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "crawlcw", "run", "pages.py", f"-aorigin={hostile.origin}"),
        cwd=tmp_path,
        stdout=PIPE,
        stderr=PIPE,
    )
    began = perf_counter()
    output, errors = await asyncio.wait_for(crawl.communicate(), 240)

    found: dict[str, Any] = json.loads(output.splitlines()[0])
    print(found, f"in {perf_counter() - began:.0f} s")
    assert crawl.returncode == 0, errors.decode()
    assert found["reason"] == "drained"
    assert found["peak"] < 300e6
    assert found["stall"] == 0, "the event loop never stalled for a second"
    # Failures are final: no page is tried again.
    assert found["failures"].keys() == {"parse-killed"}
    assert found["pages"] + found["failures"]["parse-killed"] == 4 * (len(HOSTILE) + 1)


SETTINGS = Settings(
    timeout="2s", read_timeout="1s", max_body="1 MiB", memory_budget="4 MiB", concurrency=1
)


async def got(downloader: AiohttpDownloader, hostile: HostileServer, path: str) -> Response:
    return await attempt(Request(hostile.url(path)), downloader=downloader, settings=SETTINGS)


@pytest.mark.thorough
@pytest.mark.representative("bomb")
@pytest.mark.parametrize("path", ["/dense/text", "/bomb/gzip", "/endless/chunks"])
async def test_a_large_body_waits_for_memory_and_its_deadlines_do_not_run(
    path: str, hostile: HostileServer
):
    async with AiohttpDownloader(Settings(), start_origins=[hostile.origin]) as patient:
        # The server makes a bomb at its first request, which may take seconds.
        await patient.fetch(Request(hostile.url(path)), url=hostile.url(path))
    async with AiohttpDownloader(SETTINGS, start_origins=[hostile.origin]) as downloader:
        request = Request(hostile.url(path))
        async with Attempt(request=request) as page:
            first = await way(downloader, SETTINGS, purpose=Purpose.PAGE)(page, request)
            assert (first.size, first.truncated) == (MIB, "bytes")
            second = asyncio.create_task(got(downloader, hostile, path))
            # Longer than the read timeout and than the timeout of an attempt.
            await asyncio.wait([second], timeout=2.5)
            assert not second.done()
            small = await got(downloader, hostile, "/small")
            assert small.status == 200, "a small page does not wait"

        response = await second

    assert (response.size, response.truncated) == (MIB, "bytes")
    assert response.elapsed.total_seconds() < 2, "the wait for memory does not count"
