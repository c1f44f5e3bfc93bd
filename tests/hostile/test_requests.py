"""Contents of requests: no data about the crawl, and no answer to a server's challenges."""

import pytest

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.errors import Reason
from crawlcw.fetch.redirects import status_error
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.model.clock import LedgerClock
from tests.hostile.pages import KEEP, Exchange, page, response
from tests.hostile.server import HostileServer
from tests.support.attempts import attempt


@page("/challenge")
async def _challenge(exchange: Exchange) -> object:
    status = exchange.target.partition("?")[2] + " Who are you?"
    asks = b'WWW-Authenticate: Basic realm="a"\r\nProxy-Authenticate: Basic realm="a"\r\n'
    await exchange.send(response(b"", status=status, headers=asks))
    return KEEP


@pytest.mark.parametrize("status", [401, 407])
async def test_a_challenge_is_not_answered(hostile: HostileServer, status: int) -> None:
    """HOSTILE 5.13."""
    url = hostile.url(f"/challenge?{status}")
    async with AiohttpDownloader(Settings(), start_origins=[hostile.origin]) as downloader:
        answer = await attempt(Request(url), downloader=downloader, settings=Settings())

    assert status_error(answer, now=LedgerClock().now()).reason is Reason.HTTP_STATUS
    assert hostile.requests == [f"/challenge?{status}"]
    assert (
        hostile.seen_headers[hostile.requests[0]]
        .keys()
        .isdisjoint({"authorization", "proxy-authorization"})
    )


async def test_a_request_says_no_more_than_it_must(hostile: HostileServer) -> None:
    """For example, no Referer names the page of the link."""
    url = hostile.url("/to?302,/ok")
    async with AiohttpDownloader(Settings(), start_origins=[hostile.origin]) as downloader:
        await attempt(Request(url), downloader=downloader, settings=Settings())

    said = hostile.seen_headers["/ok"].keys() - {""}
    assert said == {"host", "user-agent", "accept", "accept-encoding"}
