"""Webhook after the end of a crawl, with a real server that accepts, refuses, or hangs."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from aiohttp import web

from crawlcw import Settings
from crawlcw.errors import SettingsError
from crawlcw.telemetry import webhook
from tests.support.commands import invoke
from tests.support.gated_site import PAGES, gated_site
from tests.support.programs import run_to_end

SECRET = "T00/B00/xyzzy"


@dataclass
class Taken:
    """A server that records its posts, and answers with each of *statuses* in turn."""

    statuses: list[int]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(json.loads(await request.text()))
        self.headers.append(dict(request.headers))
        await self.goes_on.wait()
        status = self.statuses.pop(0)
        return web.Response(status=status, headers={"Location": "/elsewhere"})


@asynccontextmanager
async def taking(*statuses: int, hangs: bool = False) -> AsyncIterator[Taken]:
    taken = Taken(list(statuses))
    if not hangs:
        taken.goes_on.set()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", taken.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        taken.url = f"http://127.0.0.1:{runner.addresses[0][1]}/{SECRET}"
        yield taken
    finally:
        taken.goes_on.set()
        await runner.cleanup()


async def post(taken: Taken, **options: Any) -> bool:
    return await webhook.post(
        taken.url,
        {"pages": 3},
        user_agent="books/1",
        proxy_env=False,
        retry_delays=(0, 0),
        **options,
    )


async def test_a_report_is_posted_once_as_json():
    async with taking(204) as taken:
        assert await post(taken)

    assert taken.bodies == [{"pages": 3}]
    assert taken.headers[0]["Content-Type"] == "application/json"
    assert taken.headers[0]["User-Agent"] == "books/1"


@pytest.mark.parametrize(
    ("statuses", "taken_at_last", "asked"),
    [
        ((500, 429, 200), True, 3),
        ((503, 503, 503), False, 3),
        ((400,), False, 1),
        ((302,), False, 1),  # the operator did not name the target of the redirect
    ],
)
async def test_what_may_change_is_tried_again(
    statuses: tuple[int, ...],
    taken_at_last: bool,
    asked: int,
    caplog: pytest.LogCaptureFixture,
):
    async with taking(*statuses) as taken:
        assert await post(taken) is taken_at_last

    assert len(taken.bodies) == asked
    events = [record.event for record in caplog.records]
    assert events == ([] if taken_at_last else ["webhook_failed"])
    assert SECRET not in caplog.text


async def test_a_server_that_hangs_or_is_away_costs_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(webhook, "_ATTEMPT_TIMEOUT_S", 0.05)
    async with taking(200, 200, 200, hangs=True) as taken:
        assert not await post(taken)
    assert "no response within 0.05 s" in caplog.text

    caplog.clear()
    assert not await post(taken)
    assert "ClientConnectorError" in caplog.text

    monkeypatch.setattr(webhook, "_TIMEOUT_S", 0.0)
    assert not await post(taken)
    assert SECRET not in caplog.text


@pytest.mark.parametrize("value", ["ftp://a.example/", "a.example", "https://", 7])
def test_a_webhook_is_a_url_and_is_not_repeated(value: Any):
    with pytest.raises(SettingsError, match="it is not the URL of a server") as raised:
        Settings(webhook=value)

    assert "a.example" not in str(raised.value)


def test_a_webhook_is_shown_nowhere():
    settings = Settings(webhook=f"https://hooks.example/{SECRET}")

    assert SECRET not in repr(settings)
    assert Settings(webhook="none").webhook is None


class _Handler(BaseHTTPRequestHandler):
    bodies: list[dict[str, Any]]
    status = 200

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hooked(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    handler = type("Handler", (_Handler,), {"bodies": [], "status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{SECRET}", handler.bodies
        server.shutdown()


SPIDER = """\
from crawlcw import Spider

class Pages(Spider):
    name = "pages"

    def __init__(self, start_url):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all("a")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("pages.py").write_text(SPIDER)
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_crawl_tells_how_it_has_ended(folder: Path, processes: str):
    with gated_site() as site, hooked() as (url, bodies):
        site.gate.set()
        options = ["-a", f"start_url={site.url}", "--processes", processes, "-s", "max_failures=0"]
        done = run_to_end(
            [sys.executable, "-m", "crawlcw", "run", "pages.py", *options],
            variables={"CRAWLCW_WEBHOOK": url},
        )

    (told,) = bodies
    assert (done.returncode, told["exit_code"]) == (3, 3)
    assert (told["event"], told["spider"], told["finish_reason"]) == ("report", "pages", "drained")
    assert told["pages"] == told["counts"]["finished"] == PAGES + 2
    assert told["faults"].endswith("more than max_failures=0")
    assert SECRET not in done.stdout + done.stderr


def test_a_webhook_that_refuses_changes_no_exit_code(folder: Path, caplog: Any):
    with gated_site() as site, hooked(status=404) as (url, bodies):
        site.gate.set()
        done = invoke(
            "run", "pages.py", "-a", f"start_url={site.url}", "--processes", "0",
            "-s", f"webhook={url}",
        )  # fmt: skip

    assert done.returncode == 0
    assert len(bodies) == 1
    assert (
        "the webhook at 127.0.0.1 did not receive the report of the crawl: HTTP 404" in done.stderr
    )
    assert SECRET not in done.stdout + done.stderr
