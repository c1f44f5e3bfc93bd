"""Section 2 of the catalogue: violations of HTTP."""

import tracemalloc
from time import process_time

import pytest

from crawlcw.api.request import Request
from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile.catalogue import ENDPOINTS, HEADERS
from tests.hostile.pages import MIB, PAGE
from tests.hostile.server import HostileServer
from tests.hostile.single_pages import outcome_of


@pytest.mark.parametrize(
    "path", [each.path for each in ENDPOINTS if each.outcome is HEADERS], ids=str
)
async def test_headers_without_end_take_little_memory(
    downloader: AiohttpDownloader, hostile: HostileServer, path: str
) -> None:
    """HOSTILE 2.3."""
    await outcome_of(downloader, hostile.url("/ok"))
    tracemalloc.start()
    try:
        await outcome_of(downloader, hostile.url(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2 * MIB


async def test_200_000_tiny_chunks_take_little_time(
    downloader: AiohttpDownloader, hostile: HostileServer
) -> None:
    """HOSTILE 2.10."""
    began = process_time()
    _, response = await outcome_of(downloader, hostile.url("/200-000-chunks"))

    assert response is not None
    assert response.body == b"x" * 200_000
    # CPU time of server and client together.
    assert process_time() - began < 1


async def test_what_headers_hold_is_text_that_can_be_stored(
    downloader: AiohttpDownloader, hostile: HostileServer
) -> None:
    """HOSTILE 2.5: non-ASCII bytes become characters, never lone surrogates."""
    url = hostile.url("/8-bit-header")
    response = await downloader.fetch(Request(url), url=url)

    assert response.body == PAGE
    assert {"x-name", "x-utf"} <= response.headers.keys()
    for name, value in response.headers.items():
        (name + value).encode("utf-8")


async def test_cookies_are_neither_kept_nor_sent(
    downloader: AiohttpDownloader, hostile: HostileServer
) -> None:
    """HOSTILE 2.18, 2.19, 5.10."""
    for path in ("/garbage-cookies", "/300-cookies", "/ok"):
        await outcome_of(downloader, hostile.url(path))

    assert "cookie" not in hostile.seen_headers["/ok"]


async def test_only_codings_with_a_decoder_are_asked_for_and_only_by_get(
    downloader: AiohttpDownloader, hostile: HostileServer
) -> None:
    """HOSTILE 2.20."""
    outcome, _ = await outcome_of(downloader, hostile.url("/not-for-head"))

    assert outcome.reason is None
    assert hostile.seen_headers["/not-for-head"]["accept-encoding"] == "gzip, deflate, br, zstd"


async def test_no_proxy_of_the_environment_is_used_and_no_referer_sent(
    downloader: AiohttpDownloader, hostile: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOSTILE 5.7, 5.11: a proxy would resolve names, out of sight of the address guard."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    outcome, _ = await outcome_of(downloader, hostile.url("/301"))

    assert outcome.reason is None
    assert hostile.seen_headers["/ok"].keys().isdisjoint({"referer", "authorization", "cookie"})
