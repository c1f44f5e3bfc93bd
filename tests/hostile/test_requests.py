"""Contents of requests: no data about the crawl, and no answer to a server's challenges."""

import ast
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import crawlcw
from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.errors import Reason
from crawlcw.fetch.redirects import status_error
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.model.clock import LedgerClock
from tests.hostile.pages import KEEP, Exchange, page, response
from tests.hostile.server import HostileServer, running
from tests.support.attempts import attempt

PACKAGE = Path(crawlcw.__file__).parent


@page("/challenge")
async def _challenge(exchange: Exchange) -> object:
    status = exchange.target.partition("?")[2] + " Who are you?"
    asks = b'WWW-Authenticate: Basic realm="a"\r\nProxy-Authenticate: Basic realm="a"\r\n'
    await exchange.send(response(b"", status=status, headers=asks))
    return KEEP


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    async with running() as running_server:
        yield running_server


@pytest.mark.parametrize("status", [401, 407])
async def test_a_challenge_is_not_answered(server: HostileServer, status: int) -> None:
    """HOSTILE 5.13."""
    url = server.url(f"/challenge?{status}")
    async with AiohttpDownloader(Settings(), start_origins=[server.origin]) as downloader:
        answer = await attempt(Request(url), downloader=downloader, settings=Settings())

    assert status_error(answer, now=LedgerClock().now()).reason is Reason.HTTP_STATUS
    assert server.requests == [f"/challenge?{status}"]
    assert (
        server.seen_headers[server.requests[0]]
        .keys()
        .isdisjoint({"authorization", "proxy-authorization"})
    )


async def test_a_request_says_no_more_than_it_must(server: HostileServer) -> None:
    """For example, no Referer names the page of the link."""
    url = server.url("/to?302,/ok")
    async with AiohttpDownloader(Settings(), start_origins=[server.origin]) as downloader:
        await attempt(Request(url), downloader=downloader, settings=Settings())

    said = server.seen_headers["/ok"].keys() - {""}
    assert said == {"host", "user-agent", "accept", "accept-encoding"}


async def test_a_proxy_of_the_environment_is_not_asked(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy would resolve names, and the address guard would see the proxy's address only."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with AiohttpDownloader(Settings(), start_origins=[server.origin]) as downloader:
        answer = await downloader.fetch(Request(server.url("/ok")), url=server.url("/ok"))

    assert answer.status == 200


def test_no_text_becomes_code() -> None:
    """HOSTILE 5.14 and 5.15: no evaluation, and pickles of crawlcw's own processes only."""
    calls = {"eval", "exec", "__import__"}
    modules = {"pickle", "marshal", "shelve"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if not any(word in text for word in calls | modules):
            continue  # reading all of them takes seconds
        for node in ast.walk(ast.parse(text)):
            name = path.relative_to(PACKAGE).as_posix()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found |= {(name, node.func.id)} if node.func.id in calls else set()
            if isinstance(node, ast.Import):
                names = {each.name for each in node.names}
                found |= {(name, each) for each in names & modules}

    assert found == set()
