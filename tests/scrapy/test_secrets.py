"""Headers and cookies of a project's requests: sent once, and shown by no command."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("scrapy")

from aiohttp import web

from tests.scrapy.written import write_project
from tests.support import loopback
from tests.support.commands import invoke
from tests.support.programs import environment, run_to_end
from tests.support.site_threads import in_thread

SPIDER = """
import scrapy

class Books(scrapy.Spider):
    name = "books"

    def start_requests(self):
        yield scrapy.Request(
            {url!r},
            headers={{"X-Token": ["s3cret a", "s3cret b"], "User-Agent": "shop"}},
            cookies={{"session": "s3cret"}},
            meta={{"page": 1}},
        )

    def parse(self, response):
        yield {{"body": response.text}}
"""


@dataclass(kw_only=True)
class Server:
    url: str = ""
    headers: list[list[tuple[str, str]]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    with in_thread(_serving()) as server:
        yield server


@asynccontextmanager
async def _serving() -> AsyncIterator[Server]:
    server = Server()

    async def respond(request: web.Request) -> web.Response:
        server.headers.append(list(request.headers.items()))
        response = web.Response(text="fine")
        response.set_cookie("login", "s3cret of the server")
        return response

    app = web.Application()
    app.router.add_get("/", respond)
    async with loopback.served(app) as base:
        server.url = f"{base}/"
        yield server


def test_headers_and_cookies_are_sent_once_and_shown_by_no_command(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_project(
        tmp_path,
        {"spiders/books.py": SPIDER.format(url=server.url)},
        # Scrapy logs all settings that a project sets.
        settings='DATABASE_URI = "postgresql://user:s3cret@db/shop"\nBOT_NAME = "s3cret"\n',
    )
    monkeypatch.chdir(tmp_path)
    host = server.url.split("/")[2]

    # Another version of Scrapy than the installed one may stand in it.
    paths = [os.environ.get("PYTHONPATH", ""), environment()["PYTHONPATH"]]

    run = run_to_end(
        [sys.executable, "-m", "crawlcw", "run", "books", "-s", f"allow_private={host}"],
        folder=tmp_path,
        variables={"PYTHONPATH": os.pathsep.join(paths)},
    )
    outputs = [
        invoke(*command)
        for command in (
            ("show", "books", server.url),
            ("show", "books", server.url, "--json"),
            ("tasks", "books", "--json", "--items"),
            ("state", "books"),
            ("state", "books", "--json"),
        )
    ]

    assert run.returncode == 0, run.stderr
    (headers,) = server.headers
    for name in ("X-Token", "User-Agent", "Cookie"):
        values = [value for header, value in headers if header == name]
        assert (
            values
            == {
                "X-Token": ["s3cret a", "s3cret b"],
                "User-Agent": ["shop"],
                "Cookie": ["session=s3cret"],
            }[name]
        )
    assert '"page":1' in outputs[0].stdout
    for output in outputs:
        assert output.returncode == 0, output.stderr
        assert "s3cret" not in output.stdout + output.stderr
    assert "s3cret" not in run.stdout + run.stderr
